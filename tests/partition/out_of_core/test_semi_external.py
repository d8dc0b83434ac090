import kaminpar
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused

from shoal.partition.methods.cover import assert_cover
from shoal.partition.methods.metis import by_metis
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.partition.out_of_core import memory, semi_external
from shoal.partition.out_of_core.balance import size_bound
from shoal.partition.out_of_core.blocks import Level
from shoal.partition.out_of_core.kaminpar import by_kaminpar, write_parhip
from shoal.partition.out_of_core.memory import BLOCK, BUCKET, BUFFERS, CODE, OF_NODE, Memory, metis_bytes
from shoal.partition.out_of_core.semi_external import by_semi_external
from shoal.partition.quality import quality


def parts(graph, clients, workspace=None, **options):
    return by_semi_external(graph, PartitionOptions("semi-external", clients, **options), workspace=workspace)


def test_several_levels_find_what_one_finds(planted, monkeypatch):
    monkeypatch.setattr(semi_external, "SMALL", 0)
    monkeypatch.setattr(semi_external, "SMALL_PART", 4)
    told = []
    got = quality(planted, parts(planted, 12, Workspace(report=told.append)), 12)
    assert sum(line.startswith("level") for line in told) >= 2
    metis = quality(planted, by_metis(planted, PartitionOptions("metis", 12)), 12)
    assert got.cut_fraction <= 1.2 * metis.cut_fraction
    assert got.nodes_max <= size_bound(planted.nodes, 12, 1.03)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(("block", "bucket"), [(1, 1), (50, 10**6), (10**6, 50)])
def test_blocks_and_buckets_change_nothing(planted, monkeypatch, block, bucket):
    expected = parts(planted, 12)
    monkeypatch.setattr(memory.Memory, "of", lambda limit, nodes: memory.Memory(limit, block, bucket))
    np.testing.assert_array_equal(parts(planted, 12), expected)


def test_a_limit_that_cannot_be_kept_is_refused_and_nothing_stays_behind(planted, tmp_path, monkeypatch):
    with refused(says="engine.memory_limit is 1MiB"):
        parts(planted, 12, Workspace(tmp_path, memory_limit=1 << 20))
    monkeypatch.setattr(memory, "OF_METIS_ENTRY", 1 << 20)
    with refused(says="for 12 clients the coarsest graph"):
        parts(planted, 12, Workspace(tmp_path, memory_limit=256 << 20))
    assert list(tmp_path.iterdir()) == []


def test_nodes_without_edges_even_out_the_parts(make_graph):
    cliques = [(a + o, b + o) for o in (0, 10, 20) for a in range(10) for b in range(a)]
    assignment = parts(make_graph(60, cliques), 4)
    assert np.bincount(assignment).tolist() == [15, 15, 15, 15]
    # Only a clique that four parts of at most eight connected nodes must share is cut.
    assert quality(make_graph(60, cliques), assignment, 4).cut_fraction < 0.7


def test_components_are_kept_whole(make_graph):
    cliques = [(a + o, b + o) for o in range(0, 120, 6) for a in range(6) for b in range(a)]
    graph = make_graph(120, cliques)
    got = quality(graph, parts(graph, 5), 5)
    assert got.cut_fraction == 0
    assert got.nodes == (24,) * 5


BOUNDED = {"semi-external": by_semi_external, "kaminpar": by_kaminpar}


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("method", BOUNDED)
@pytest.mark.parametrize("clients", [2, 4, 12, 60])
def test_cuts_no_more_than_metis_by_a_tenth(planted, method, clients):
    got = quality(planted, BOUNDED[method](planted, PartitionOptions(method, clients)), clients)
    metis = quality(planted, by_metis(planted, PartitionOptions("metis", clients)), clients)
    assert got.cut_fraction <= 1.1 * metis.cut_fraction


@pytest.mark.parametrize("method", BOUNDED)
def test_maps_give_what_arrays_give_and_nothing_stays_behind(planted, tmp_path, mapped_graph, method):
    (tmp_path / "scratch").mkdir()
    options = PartitionOptions(method, 12, seed=3)
    got = BOUNDED[method](mapped_graph(planted), options, workspace=Workspace(tmp_path / "scratch"))
    np.testing.assert_array_equal(got, BOUNDED[method](planted, options))
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("method", BOUNDED)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_the_bound_holds_and_no_client_is_empty(make_graph, method, data):
    nodes = data.draw(st.integers(1, 60))
    clients = data.draw(st.integers(1, nodes))
    node = st.integers(0, nodes - 1)
    graph = make_graph(nodes, data.draw(st.lists(st.tuples(node, node), max_size=150)))
    options = PartitionOptions(
        method,
        clients,
        imbalance=data.draw(st.sampled_from([1.001, 1.03, 1.5, 3.0])),
        seed=data.draw(st.integers(0, 3)),
    )
    assignment = BOUNDED[method](graph, options)
    assert_cover(assignment, nodes, clients)
    assert np.bincount(assignment).max() <= size_bound(nodes, clients, options.imbalance)


def test_kaminpar_reads_the_file_as_the_graph_it_is(make_graph, tmp_path):
    graph = make_graph(5, [(0, 1), (0, 4), (1, 4), (2, 4)])
    write_parhip(Level(graph.indptr, graph.indices), tmp_path / "graph")
    got = kaminpar.load_graph(str(tmp_path / "graph"), kaminpar.GraphFileFormat.PARHIP)
    assert (got.n(), got.m()) == (5, 8)
    assert not got.is_edge_weighted()
    assert not got.is_node_weighted()
    neighbours = [[node for node, _ in got.neighbors(row)] for row in range(5)]
    assert neighbours == [[1, 4], [0, 4], [4], [], [0, 1, 2]]


MIB = 1 << 20


def test_without_a_limit_buffers_have_their_useful_size_and_metis_any():
    memory = Memory.of(None, 10**9)
    assert (memory.block, memory.bucket) == (BLOCK, BUCKET)
    memory.require_metis(10**9, 10**11, 500)


def test_buffers_shrink_with_the_limit():
    small, large = Memory.of(200 * MIB, 10**6), Memory.of(400 * MIB, 10**6)
    assert 1 <= small.block < large.block <= BLOCK
    assert 1 <= small.bucket < large.bucket <= BUCKET


def test_a_limit_below_the_nodes_names_what_would_do():
    enough = -(-(OF_NODE * 10**7 + BUFFERS + CODE) // MIB)
    Memory.of(enough * MIB, 10**7)
    with refused(says=f"at least {enough}MiB: raise it"):
        Memory.of((enough - 1) * MIB, 10**7)


def test_a_coarsest_graph_too_large_for_metis_names_what_would_do():
    memory = Memory.of(1024 * MIB, 10**6)
    with refused(says="for 500 clients the coarsest graph (100000 nodes, 10000000 edges) needs"):
        memory.require_metis(100_000, 20_000_000, 500)
    Memory.of(metis_bytes(100_000, 20_000_000), 10**6).require_metis(100_000, 20_000_000, 500)


def test_too_many_coarse_nodes_are_refused():
    with refused(says="contracting 1000000 nodes to 9000000"):
        Memory.of(200 * MIB, 10**6).require_contraction(10**6, 9 * 10**6)
