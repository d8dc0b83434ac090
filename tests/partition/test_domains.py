"""Each of several graphs is divided by itself, and its clients come after those of the graphs before it."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.partition.methods.cover import NO_CLIENT
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition
from shoal.partition.quality import quality
from shoal.storage.datasets.domains import joined
from shoal.storage.errors import ShoalError

LINE = [(i, i + 1) for i in range(11)]


@pytest.fixture
def both(make_graph):
    first, second = make_graph(12, LINE), make_graph(7, LINE[:6])
    return first, second, joined([replace(first, name="first"), replace(second, name="second")])


@pytest.mark.parametrize("method", ["random", "metis", "louvain", "index", "semi-external"])
def test_each_is_divided_as_if_alone(both, method):
    first, second, graph = both
    together = partition(graph, PartitionOptions(method, clients=[3, 2], seed=4))
    alone = [partition(g, PartitionOptions(method, k, seed=4)) for g, k in ((first, 3), (second, 2))]
    np.testing.assert_array_equal(together, np.concatenate([alone[0], alone[1] + 3]))


def test_chunks_are_those_of_every_graph(both):
    assignment = partition(both[2], PartitionOptions("index", clients=[2, 1], chunks=3))
    assert assignment.tolist() == [0] * 4 + [1] * 4 + [NO_CLIENT] * 4 + [2] * 3 + [NO_CLIENT] * 4


def test_quality_leaves_out_what_nobody_holds(both):
    assignment = partition(both[2], PartitionOptions("index", clients=[2, 1], chunks=3))
    found = quality(both[2], assignment, 3)
    assert found.nodes == (4, 4, 3)
    assert found.entries == (6, 6, 4)
    assert found.isolated == (0, 0, 0)
    assert found.cut_fraction == pytest.approx(1 - 16 / both[2].entries)
    assert found.labelled == (4, 4, 3)


def test_a_graph_smaller_than_its_clients_is_named(both):
    with pytest.raises(ShoalError, match=r"partition.clients is 8, but dataset 'second' has 7 nodes"):
        partition(both[2], PartitionOptions("random", clients=[2, 8]))


def test_a_file_must_not_mix_domains(both, tmp_path):
    file = tmp_path / "clients.npy"
    given = np.concatenate([np.arange(12) % 3, 3 + np.arange(7) % 2])
    np.save(file, given)
    options = PartitionOptions("file", clients=[3, 2], file=str(file))
    np.testing.assert_array_equal(partition(both[2], options), given)
    given[5] = 4
    np.save(file, given)
    with pytest.raises(ShoalError, match=r"^partition\.file: client 4 has a node of first, whose clients are 0 to 2"):
        partition(both[2], options)
