import numpy as np
import pytest
import torch

from shoal.algorithms.models.decoupled.fixed_hops import SGC
from shoal.storage.graph.propagation import hops
from shoal.storage.options.propagation import PropagationOptions


@pytest.mark.parametrize("k", [0, 1, 3])
def test_logistic_sgc_is_a_matrix_power_times_the_weights(k: int) -> None:
    rng = np.random.default_rng(0)
    upper = np.triu(rng.random((20, 20)) < 0.2, 1)
    adjacency = upper | upper.T
    x = rng.standard_normal((20, 6)).astype(np.float32)
    indptr = np.concatenate([[0], adjacency.sum(1).cumsum()])
    all_hops = [x, *hops(indptr, np.nonzero(adjacency)[1].astype(np.int32), x, PropagationOptions(k))]
    model = SGC(6, 4, k, 0.5)
    assert model.inputs == (k,)

    with_loops = adjacency + np.eye(20)
    scale = np.diag(with_loops.sum(1) ** -0.5)
    dense = np.linalg.matrix_power(scale @ with_loops @ scale, k) @ x
    weight, bias = (p.detach().double().numpy() for p in model.head.linears[0].parameters())
    out = model([torch.from_numpy(all_hops[h]) for h in model.inputs])
    np.testing.assert_allclose(out.logits_NC.detach().numpy(), dense @ weight.T + bias, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out.embedding_NH.numpy(), dense, rtol=1e-4, atol=1e-5)


def test_parameter_counts() -> None:
    assert sum(p.numel() for p in SGC(1433, 7, 3, 0.0).parameters()) == 1433 * 7 + 7
    deep = SGC(10, 3, 3, 0.0, layers=3, hidden=5)
    assert sum(p.numel() for p in deep.parameters()) == 10 * 5 + 5 + 5 * 5 + 5 + 5 * 3 + 3
    assert deep([torch.randn(2, 10)]).embedding_NH.shape == (2, 5)
