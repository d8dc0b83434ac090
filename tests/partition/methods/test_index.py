import numpy as np
import pytest

from shoal.partition.methods.cover import NO_CLIENT
from shoal.partition.methods.from_file import by_index
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition
from shoal.storage.errors import ShoalError


def test_pieces_are_consecutive_and_the_first_ones_are_larger(make_graph):
    assignment = by_index(make_graph(11, []), PartitionOptions("index", 4))
    assert assignment.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert assignment.dtype == np.int32


def test_nodes_of_further_chunks_belong_to_nobody(make_graph):
    assignment = partition(make_graph(11, []), PartitionOptions("index", 2, chunks=4))
    assert assignment.tolist() == [0, 0, 0, 1, 1, 1, *[NO_CLIENT] * 5]


@pytest.mark.parametrize(("clients", "chunks"), [(4, 3), (4, 12)])
def test_chunks_must_be_between_clients_and_nodes(make_graph, clients, chunks):
    with pytest.raises(ShoalError, match=rf"^partition\.chunks: {chunks} of dataset .* choose from 4 to 11"):
        by_index(make_graph(11, []), PartitionOptions("index", clients, chunks=chunks))
