import kaminpar
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.partition.methods.metis import by_metis
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.partition.out_of_core.balance import size_bound
from shoal.partition.out_of_core.blocks import Level
from shoal.partition.out_of_core.kaminpar import by_kaminpar, write_parhip
from shoal.partition.quality import quality


def test_kaminpar_reads_the_file_as_the_graph_it_is(make_graph, tmp_path):
    graph = make_graph(5, [(0, 1), (0, 4), (1, 4), (2, 4)])
    write_parhip(Level(graph.indptr, graph.indices), tmp_path / "graph")
    got = kaminpar.load_graph(str(tmp_path / "graph"), kaminpar.GraphFileFormat.PARHIP)
    assert (got.n(), got.m()) == (5, 8)
    assert not got.is_edge_weighted()
    assert not got.is_node_weighted()
    neighbours = [[node for node, _ in got.neighbors(row)] for row in range(5)]
    assert neighbours == [[1, 4], [0, 4], [4], [], [0, 1, 2]]


@pytest.mark.parametrize("clients", [4, 12, 60])
def test_cuts_no_more_than_metis_by_a_tenth(planted, clients):
    got = quality(planted, by_kaminpar(planted, PartitionOptions("kaminpar", clients)), clients)
    metis = quality(planted, by_metis(planted, PartitionOptions("metis", clients)), clients)
    assert got.cut_fraction <= 1.1 * metis.cut_fraction


def test_maps_give_what_arrays_give_and_nothing_stays_behind(planted, tmp_path, mapped_graph):
    (tmp_path / "scratch").mkdir()
    options = PartitionOptions("kaminpar", 12, seed=3)
    got = by_kaminpar(mapped_graph(planted), options, workspace=Workspace(tmp_path / "scratch"))
    np.testing.assert_array_equal(got, by_kaminpar(planted, options))
    assert list((tmp_path / "scratch").iterdir()) == []


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_bound_holds_and_no_client_is_empty(make_graph, data):
    nodes = data.draw(st.integers(2, 30))
    clients = data.draw(st.integers(1, nodes))
    node = st.integers(0, nodes - 1)
    graph = make_graph(nodes, data.draw(st.lists(st.tuples(node, node), max_size=60)))
    imbalance = data.draw(st.sampled_from([1.001, 1.03, 1.5]))
    sizes = np.bincount(by_kaminpar(graph, PartitionOptions("kaminpar", clients, imbalance=imbalance)))
    assert len(sizes) == clients
    assert sizes.min() > 0
    assert sizes.max() <= size_bound(nodes, clients, imbalance)
