import networkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.partition.methods.louvain import Capacity, by_louvain, communities, cut, pack
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.quality import quality


def test_finer_resolution_gives_more_communities(cora):
    coarse, fine = (len(np.unique(communities(cora, r, 0))) for r in (1.0, 8.0))
    assert fine > coarse


def test_cliques_are_communities(make_graph):
    cliques = [(a + o, b + o) for o in (0, 6, 12) for a in range(6) for b in range(a)]
    graph = make_graph(18, [*cliques, (0, 6), (6, 12)])
    found = communities(graph, 1.0, 3)
    assert sorted(np.bincount(found).tolist()) == [6, 6, 6]
    assert all(len(set(found[o : o + 6].tolist())) == 1 for o in (0, 6, 12))


def test_clients_of_cora_keep_most_edges_and_stay_near_the_mean(cora):
    result = quality(cora, by_louvain(cora, PartitionOptions("louvain", 10)), 10)
    assert result.cut_fraction < 0.3
    # The cap is 270 and the margin 20; the peer's packing of its own communities gives 250 to 289.
    assert result.nodes_max < 290
    assert result.nodes_min >= 230


def test_the_number_of_threads_is_given_back_even_after_a_failure(make_graph, monkeypatch):
    during = []

    def observed(*args, **kwargs):
        during.append(networkit.getMaxNumberOfThreads())
        raise MemoryError

    monkeypatch.setattr(networkit.community, "PLM", observed)
    before = networkit.getMaxNumberOfThreads()
    networkit.setNumberOfThreads(2)
    try:
        with pytest.raises(MemoryError):
            communities(make_graph(3, [(0, 1)]), 1.0, 0)
        assert during == [1]
        assert networkit.getMaxNumberOfThreads() == 2
    finally:
        networkit.setNumberOfThreads(before)


def sizes_of(assignment, clients):
    return np.bincount(assignment, minlength=clients).tolist()


def blocks(*sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


@pytest.mark.parametrize(
    ("load", "clients", "cap", "delta", "chunk"),
    [(2708, 10, 270, 20, 250), (600, 10, 60, 20, 40), (599, 10, 59, 5, 54), (35, 10, 3, 1, 2), (3, 10, 1, 1, 1)],
)
def test_capacity(load, clients, cap, delta, chunk):
    capacity = Capacity.of(load, clients)
    assert (capacity.cap, capacity.delta, capacity.chunk) == (cap, delta, chunk)


def test_chunks_are_consecutive_in_node_order():
    communities = np.array([5, 2, 5, 2, 5, 5, 2, 5])
    # Community 2 is nodes 1, 3, 6; community 5 is nodes 0, 2, 4, 5, 7.
    assert cut(communities, np.ones(8, dtype=np.int64), 2, 2).tolist() == [2, 0, 2, 0, 3, 3, 1, 4]


def test_chunks_by_label_keep_unlabelled_nodes_with_the_label_before_them():
    load = np.array([0, 1, 0, 1, 1, 0, 0, 0, 0])
    communities = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1])
    assert cut(communities, load, 1, 2).tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 4]


def test_what_fits_nowhere_goes_to_the_least_loaded():
    # cap 100, chunks of 80: six of them, one a client, and three of 40, since 80 + 40 is not below 120.
    assignment = pack(blocks(200, 200, 160, 40), 6)
    assert sizes_of(assignment, 6) == [120, 120, 120, 80, 80, 80]
    expected = np.repeat([0, 1, 0, 2, 3, 1, 4, 5, 2], [80, 80, 40, 80, 80, 40, 80, 80, 40])
    np.testing.assert_array_equal(assignment, expected)


def test_next_fit_stays_where_it_was_and_full_clients_leave():
    # cap 100, below 120: 70 -> 0; 60 -> 1; 50 -> 1, which leaves with 110; 45 -> 2 although 0 has room;
    # 40 -> 2; 35 would bring 2 to 120, so the cycle goes on to 0.
    assignment = pack(blocks(70, 60, 50, 45, 40, 35), 3)
    np.testing.assert_array_equal(assignment, np.repeat([0, 1, 1, 2, 2, 0], [70, 60, 50, 45, 40, 35]))


def test_clients_that_would_stay_empty_share_what_is_left():
    # cap 60: next-fit would give 76 = 4 * 19 nodes to each of four clients and none to the fifth.
    assert sizes_of(pack(blocks(*[19] * 16), 5), 5) == [76, 57, 57, 57, 57]


def test_labelled_nodes_are_spread_and_the_rest_evens_out_nodes():
    # Nodes 0-5 hold three labels: three groups of two nodes. The others have none: cut by nodes into threes.
    communities = blocks(6, 3, 3)
    labelled = np.isin(np.arange(12), [0, 2, 4])
    assert pack(communities, 3, labelled).tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 0, 1, 1, 1]


@st.composite
def cases(draw):
    clients = draw(st.integers(1, 40))
    sizes = draw(st.lists(st.integers(1, draw(st.sampled_from([3, 30, 300]))), min_size=1, max_size=120))
    nodes = max(sum(sizes), clients)
    communities = np.resize(np.repeat(np.arange(len(sizes)), sizes), nodes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    labelled = rng.random(nodes) < draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
    return rng.permutation(communities), clients, labelled


@given(cases())
def test_every_client_has_a_node_a_label_if_there_are_enough_and_not_too_many(case):
    communities, clients, labelled = case
    assignment = pack(communities, clients, None if labelled.all() else labelled)
    assert assignment.shape == communities.shape
    labels = np.bincount(assignment[labelled], minlength=clients)
    assert np.bincount(assignment, minlength=clients).min() >= 1
    if labelled.sum() >= clients:
        assert labels.min() >= 1
    capacity = Capacity.of(int(labelled.sum()), clients)
    assert labels.max() <= capacity.cap + capacity.chunk


@given(cases())
def test_a_group_is_a_run_of_one_community(case):
    communities, clients, _ = case
    chunk = Capacity.of(len(communities), clients).chunk
    group = cut(communities, np.ones(len(communities), dtype=np.int64), chunk, chunk)
    for community in np.unique(communities):
        mine = group[communities == community]
        assert (np.diff(mine) >= 0).all()
        assert np.unique(mine, return_counts=True)[1][:-1].tolist() == [chunk] * ((len(mine) - 1) // chunk)
        assert not np.isin(group[communities != community], mine).any()
