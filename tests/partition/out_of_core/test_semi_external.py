import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.partition.methods.cover import assert_cover
from shoal.partition.methods.metis import by_metis
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.partition.out_of_core import memory, semi_external
from shoal.partition.out_of_core.balance import size_bound
from shoal.partition.out_of_core.semi_external import by_semi_external
from shoal.partition.quality import quality
from shoal.storage.errors import ShoalError


def parts(graph, clients, workspace=None, **options):
    return by_semi_external(graph, PartitionOptions("semi-external", clients, **options), workspace=workspace)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("clients", [2, 4, 12, 60])
def test_cuts_no_more_than_metis_by_a_tenth(planted, clients):
    got = quality(planted, parts(planted, clients), clients)
    metis = quality(planted, by_metis(planted, PartitionOptions("metis", clients)), clients)
    assert got.cut_fraction <= 1.1 * metis.cut_fraction


def test_cuts_about_as_few_edges_of_cora_as_metis(cora):
    got = quality(cora, parts(cora, 10), 10)
    assert got.cut_fraction <= 1.1 * quality(cora, by_metis(cora, PartitionOptions("metis", 10)), 10).cut_fraction


def test_several_levels_find_what_one_finds(planted, monkeypatch):
    monkeypatch.setattr(semi_external, "SMALL", 0)
    monkeypatch.setattr(semi_external, "SMALL_PART", 4)
    told = []
    got = quality(planted, parts(planted, 12, Workspace(report=told.append)), 12)
    assert sum(line.startswith("level") for line in told) >= 2
    metis = quality(planted, by_metis(planted, PartitionOptions("metis", 12)), 12)
    assert got.cut_fraction <= 1.2 * metis.cut_fraction
    assert got.nodes_max <= size_bound(planted.nodes, 12, 1.03)


def test_maps_give_what_arrays_give_and_nothing_stays_behind(planted, tmp_path, mapped_graph):
    (tmp_path / "scratch").mkdir()
    got = parts(mapped_graph(planted), 12, Workspace(tmp_path / "scratch"), seed=3)
    np.testing.assert_array_equal(got, parts(planted, 12, seed=3))
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(("block", "bucket"), [(1, 1), (50, 10**6), (10**6, 50)])
def test_blocks_and_buckets_change_nothing(planted, monkeypatch, block, bucket):
    expected = parts(planted, 12)
    monkeypatch.setattr(memory.Memory, "of", lambda limit, nodes: memory.Memory(limit, block, bucket))
    np.testing.assert_array_equal(parts(planted, 12), expected)


def test_a_limit_that_holds_everything_changes_nothing(planted):
    np.testing.assert_array_equal(parts(planted, 12, Workspace(memory_limit=1 << 30)), parts(planted, 12))


def test_an_impossible_limit_is_refused_and_nothing_stays_behind(planted, tmp_path):
    with pytest.raises(ShoalError, match=r"^engine.memory_limit is 1MiB, .* needs at least \d+MiB: raise it to that$"):
        parts(planted, 12, Workspace(tmp_path, memory_limit=1 << 20))
    assert list(tmp_path.iterdir()) == []


def test_a_limit_that_metis_cannot_keep_is_refused(planted, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "OF_METIS_ENTRY", 1 << 20)
    with pytest.raises(ShoalError, match=r"for 12 clients the coarsest graph .* raise it to that or lower"):
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


def test_without_edges_parts_are_even(make_graph):
    assert sorted(np.bincount(parts(make_graph(7, []), 3)).tolist()) == [2, 2, 3]


@pytest.mark.parametrize("clients", [1, 1800])
def test_one_client_and_as_many_as_nodes(planted, clients):
    assert_cover(parts(planted, clients), planted.nodes, clients)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_bound_holds_and_no_client_is_empty(make_graph, data):
    nodes = data.draw(st.integers(1, 60))
    clients = data.draw(st.integers(1, nodes))
    node = st.integers(0, nodes - 1)
    graph = make_graph(nodes, data.draw(st.lists(st.tuples(node, node), max_size=150)))
    imbalance = data.draw(st.sampled_from([1.001, 1.03, 1.5, 3.0]))
    assignment = parts(graph, clients, imbalance=imbalance, seed=data.draw(st.integers(0, 3)))
    assert_cover(assignment, nodes, clients)
    assert np.bincount(assignment).max() <= size_bound(nodes, clients, imbalance)
