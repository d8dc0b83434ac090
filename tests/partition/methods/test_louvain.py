import networkit
import numpy as np
import pytest

from shoal.partition.methods.louvain import by_louvain, communities
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.quality import quality


def modularity(graph, community):
    """Newman's Q from dense matrices: trace(S' (A - d d' / 2m) S) / 2m."""
    adjacency = np.zeros((graph.nodes, graph.nodes))
    adjacency[np.repeat(np.arange(graph.nodes), np.diff(graph.indptr)), graph.indices] = 1
    degree = adjacency.sum(1)
    member = np.eye(community.max() + 1)[community]
    within = (member * (adjacency @ member)).sum()
    return (within - ((degree @ member) ** 2).sum() / graph.entries) / graph.entries


def test_modularity_of_cora(cora):
    assert modularity(cora, communities(cora, 1.0, 0)) > 0.75


def test_finer_resolution_gives_more_communities(cora):
    coarse, fine = (len(np.unique(communities(cora, r, 0))) for r in (1.0, 8.0))
    assert fine > coarse


def test_cliques_are_communities(make_graph):
    cliques = [(a + o, b + o) for o in (0, 6, 12) for a in range(6) for b in range(a)]
    graph = make_graph(18, [*cliques, (0, 6), (6, 12)])
    found = communities(graph, 1.0, 3)
    assert sorted(np.bincount(found).tolist()) == [6, 6, 6]
    assert all(len(set(found[o : o + 6].tolist())) == 1 for o in (0, 6, 12))


def test_communities_are_numbered_without_gaps(cora):
    found = communities(cora, 1.0, 0)
    assert found.shape == (cora.nodes,)
    assert np.bincount(found).min() > 0


def test_clients_of_cora_keep_most_edges_and_stay_near_the_mean(cora):
    result = quality(cora, by_louvain(cora, PartitionOptions("louvain", 10)), 10)
    assert result.cut_fraction < 0.3
    # The cap is 270 and the margin 20; the peer's packing of its own communities gives 250 to 289.
    assert result.nodes_max < 290
    assert result.nodes_min >= 230


@pytest.mark.parametrize("fails", [False, True])
def test_the_number_of_threads_is_given_back(make_graph, monkeypatch, fails):
    during = []
    original = networkit.community.PLM

    def observed(*args, **kwargs):
        during.append(networkit.getMaxNumberOfThreads())
        if fails:
            raise MemoryError
        return original(*args, **kwargs)

    monkeypatch.setattr(networkit.community, "PLM", observed)
    before = networkit.getMaxNumberOfThreads()
    networkit.setNumberOfThreads(2)
    try:
        if fails:
            with pytest.raises(MemoryError):
                communities(make_graph(3, [(0, 1)]), 1.0, 0)
        else:
            communities(make_graph(3, [(0, 1)]), 1.0, 0)
        assert during == [1]
        assert networkit.getMaxNumberOfThreads() == 2
    finally:
        networkit.setNumberOfThreads(before)
