import numpy as np

from shoal.partition.methods.by_label import by_random
from shoal.partition.methods.options import PartitionOptions


def test_sizes_differ_by_at_most_one(make_graph):
    sizes = np.bincount(by_random(make_graph(23, []), PartitionOptions("random", 5)))
    assert sizes.tolist() == [5, 5, 5, 4, 4]


def test_order_does_not_follow_node_ids(make_graph):
    assignment = by_random(make_graph(1000, []), PartitionOptions("random", 10))
    assert abs(np.corrcoef(np.arange(1000) % 10, assignment)[0, 1]) < 0.2
