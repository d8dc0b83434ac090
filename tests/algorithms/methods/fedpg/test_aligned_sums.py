"""The sums that FedPG's nodes are drawn to targets by, beside lists made by hand."""

import pytest
import torch

from shoal.algorithms.methods.fedpg.aligned_sums import aligned_sums
from shoal.algorithms.methods.fedpg.hop_prototypes import Annotated, ItemGraph, hop_weights
from tests.algorithms.methods.fedpg.test_hop_prototypes import C, N, drawn, ends


@pytest.mark.parametrize("hops", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_sums_and_their_weights_are_those_of_loops(seed: int, hops: int) -> None:
    edges, annotation, centre, z = drawn(seed)
    dense = torch.zeros(N, N)
    for a, b in edges:
        dense[a, b] = dense[b, a] = 1
    csr = dense.to_sparse_csr()
    nodes = Annotated(annotation, centre, z, ItemGraph(C, N, (csr.crow_indices().int(), csr.col_indices().int())))
    weight, counts = hop_weights(nodes.graph, annotation, centre, hops)
    rows = (weight > 0).any(0).nonzero()[:, 0]
    present = counts > 0
    present[0, 1] = False
    found = aligned_sums(nodes, rows, weight[:, rows], present)
    expected: list[tuple[int, int, list[float]]] = []
    for v in centre.nonzero()[:, 0].tolist():
        expected.append((0, int(annotation[v]), [float(u == v) for u in range(N)]))
    for v in centre.nonzero()[:, 0].tolist() if hops else ():
        near = [u for u in set(ends(edges, v, 1)) if annotation[u] == annotation[v]]
        if near:
            expected.append((1, int(annotation[v]), [(u in near) / len(near) for u in range(N)]))
    for level in range(2, hops + 1):
        expected += [(level, c, (weight[level] * (annotation == c)).tolist()) for c in range(C)]
    of_slot = [sum((level, c) == (at, of) for at, of, _ in expected) for level, c, _ in expected]
    shares = [float(present[level, c]) / n / int(present.sum()) for (level, c, _), n in zip(expected, of_slot)]
    assert found.slot_K.tolist() == [level * C + c for level, c, _ in expected]
    torch.testing.assert_close(found.weight_K, torch.tensor(shares))
    sums = torch.zeros(len(expected), N)
    sums[:, rows] = found.sums_KR.to_dense()
    torch.testing.assert_close(sums, torch.tensor([row for _, _, row in expected]))
    assert float(found.weight_K.sum()) == pytest.approx(1)
