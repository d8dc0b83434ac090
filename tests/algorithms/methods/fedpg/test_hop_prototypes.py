"""Hop prototypes against loops over nodes and walks."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.fixtures import MakeView
from torch import Tensor

from shoal.algorithms.methods.fedpg import hop_prototypes as hops_module
from shoal.algorithms.methods.fedpg.hop_prototypes import hop_prototypes, hop_weights

N, C, H = 30, 5, 4


def drawn(seed: int) -> tuple[list[tuple[int, int]], Tensor, Tensor, Tensor]:
    """Edges, annotation, centres, embeddings; class 4 has no centre and node 0 no edge."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(1, N, (45, 2), generator=generator)
    annotation = torch.randint(C, (N,), generator=generator)
    centre = (torch.rand(N, generator=generator) < 0.4) & (annotation != 4)
    return [(int(a), int(b)) for a, b in edges if a != b], annotation, centre, torch.randn(N, H, generator=generator)


def ends(edges: Sequence[tuple[int, int]], v: int, hop: int) -> list[int]:
    """Ends of all walks of `hop` steps from v that do not end in v; a node counts once for every walk."""
    near: dict[int, set[int]] = {u: set() for u in range(N)}
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    walked = [v]
    for _ in range(hop):
        walked = [u for w in walked for u in sorted(near[w])]
    return [u for u in walked if u != v or not hop]


def at_distance(edges: Sequence[tuple[int, int]], v: int, hop: int) -> list[int]:
    """Ends of walks of `hop` steps from v that no shorter walk reaches, each once."""
    return sorted(set(ends(edges, v, hop)).difference(*(ends(edges, v, less) for less in range(hop))))


def brute_force(
    edges: Sequence[tuple[int, int]], annotation: Tensor, centre: Tensor, z: Tensor, hop: int, g: Tensor, literal: bool
) -> tuple[np.ndarray, list[int]]:
    proto, counts = np.zeros((C, H)), [0] * C
    for c in range(C):
        means = []
        for v in range(N):
            same = [u for u in (at_distance if literal else ends)(edges, v, hop) if annotation[u] == c]
            if centre[v] and annotation[v] == c and same:
                weight = sum(float(g[u]) for u in same)
                mean = sum(float(g[u]) / weight * z[u].double().numpy() for u in same)
                means.append(mean / len(same) if literal else mean)
        counts[c] = len(means)
        if means:
            every = int((centre & (annotation == c)).sum())
            proto[c] = np.sum(means, axis=0) / (every if literal else len(means))
    return proto, counts


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("attended", "literal"), [(False, False), (True, False), (True, True)])
def test_equals_brute_force(
    make_view: MakeView, seed: int, attended: bool, literal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hops_module, "ROWS_AT_A_TIME", 4)
    edges, annotation, centre, z = drawn(seed)
    view = make_view(N, edges, annotation.tolist(), [], C)
    g = torch.rand(4, N, generator=torch.Generator().manual_seed(seed)) + 0.1 if attended else torch.ones(4, N)
    weight, counts = hop_weights(view, annotation, centre, 4, g if attended else None, literal)
    found = hop_prototypes(z, annotation, weight, C)
    for hop in range(5):
        g_N = torch.ones(N) if hop == 0 else g[hop - 1]
        expected, number = brute_force(edges, annotation, centre, z, hop, g_N, literal)
        np.testing.assert_allclose(found[hop].numpy(), expected, rtol=1e-4, atol=1e-5)
        assert counts[hop].tolist() == number
    assert counts[0, 4] == counts[2, 4] == 0
    assert torch.equal(found[:, 4], torch.zeros(5, H))


def test_hops_without_neighbours(make_view: MakeView) -> None:
    # A pair: walks of two steps come back. A graph without edges: no hop at all. A neighbour of another class: none.
    centre, zeros = torch.tensor([True, True]), torch.zeros(2, dtype=torch.long)
    pair = make_view(2, [(0, 1)], [0, 0], [], 2)
    assert hop_weights(pair, zeros, centre, 2)[1].tolist() == [[2, 0], [2, 0], [0, 0]]
    assert hop_weights(pair, torch.tensor([0, 1]), centre, 2)[1].tolist() == [[1, 1], [0, 0], [0, 0]]
    alone = make_view(2, [], [0, 0], [], 2)
    weight, counts = hop_weights(alone, zeros, centre, 2)
    assert counts.tolist() == [[2, 0], [0, 0], [0, 0]]
    assert weight.tolist() == [[0.5, 0.5], [0, 0], [0, 0]]


def test_walks_back_to_a_centre_of_many_neighbours_leave_no_weight(make_view: MakeView) -> None:
    """Node 0 has thirds of a weight from each of its leaves taken off again; nodes 1, 2, 3 are all that it reaches."""
    for leaves in range(2, 40):
        edges = [(0, 4 + leaf) for leaf in range(leaves)] + [(4, far) for far in (1, 2, 3)]
        nodes = 4 + leaves
        view = make_view(nodes, edges, [0] * nodes, [], 1)
        weight, _ = hop_weights(view, torch.zeros(nodes, dtype=torch.long), torch.arange(nodes) == 0, 2)
        torch.testing.assert_close(weight[2, 1:4], torch.full((3,), 1 / 3))
        assert 0 <= float(weight[2, 0]) < 1e-12
        assert not weight[2, 4:].any()


@pytest.mark.parametrize("reached", [0, 1, 14, 15, 16, N])
def test_prototypes_of_few_or_many_reached_nodes(reached: int) -> None:
    generator = torch.Generator().manual_seed(reached)
    annotation, z = torch.randint(C, (N,), generator=generator), torch.randn(N, H, generator=generator)
    weight = torch.zeros(1, N)
    weight[0, torch.randperm(N, generator=generator)[:reached]] = torch.rand(reached, generator=generator) + 0.1
    z.requires_grad_()
    weight.requires_grad_()
    found = hop_prototypes(z, annotation, weight, C)
    expected = torch.nn.functional.one_hot(annotation, C).T.float() @ (weight[0, :, None] * z)
    torch.testing.assert_close(found[0], expected)
    gradient = torch.randn(C, H, generator=generator)
    left = torch.autograd.grad(found[0], (z, weight), gradient)
    right = torch.autograd.grad(expected, (z, weight), gradient)
    torch.testing.assert_close(left[0], right[0])
    # Weights of zero belong to nodes that no walk reaches: they stay so, and nobody asks for their gradient.
    known = weight.detach() > 0
    torch.testing.assert_close(left[1][known], right[1][known])
