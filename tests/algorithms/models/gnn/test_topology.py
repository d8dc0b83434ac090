"""FGGP's generator network beside dense algebra, and who may name it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.models.build import build, width_of
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, operator_over
from shoal.engine.config.config import parse_config
from shoal.engine.messages.models import require_mixable
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import SparseMatrix

NODES, FEATURES, HIDDEN = 6, 5, 4
# Node 5 has no edge.
EDGES = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]


def adjacency() -> np.ndarray:
    a = np.zeros((NODES, NODES))
    for i, j in EDGES:
        a[i, j] = a[j, i] = 1
    return a


def around(x: Tensor | SparseMatrix, rows: Tensor | None = None) -> Neighbourhood:
    a = adjacency()
    indptr = np.concatenate([[0], a.sum(1).cumsum()]).astype(np.int32)
    operator = operator_over("symmetric", indptr, np.nonzero(a)[1].astype(np.int32))
    return Neighbourhood(x, (operator, operator), rows)


def features() -> Tensor:
    return torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(1)).relu()


def sparse(x: Tensor) -> SparseMatrix:
    csr = x.to_sparse_csr()
    return SparseMatrix.of(csr.crow_indices().int(), csr.col_indices().int(), csr.values(), x.shape[1])


@pytest.mark.parametrize("by_column", [False, True])
def test_two_convolutions_and_one_activation(by_column: bool) -> None:
    module = build("topology", FEATURES, 3, 2, 0.5, {"hidden": HIDDEN}, headless=True).train()
    first, second = (p.detach().clone().double() for p in module.parameters())
    a = torch.from_numpy(adjacency()) + torch.eye(NODES, dtype=torch.float64)
    root = torch.diag(a.sum(1).rsqrt())
    p = root @ a @ root
    x = features()
    wanted = (p @ (p @ x.double() @ first.T) @ second.T).relu()
    flat = FlatModel(module, sparse=by_column)
    out = flat(around(sparse(x) if by_column else x))
    assert 0 < (wanted == 0).sum() < wanted.numel()
    torch.testing.assert_close(out.embedding_NH.double(), wanted, rtol=1e-5, atol=1e-6)
    assert out.logits_NC.shape == (NODES, 0)
    some = flat(around(x, torch.tensor([3, 0])))
    torch.testing.assert_close(some.embedding_NH.double(), wanted[[3, 0]], rtol=1e-5, atol=1e-6)


def test_it_is_a_model_of_a_method() -> None:
    module = build("topology", FEATURES, 3, 2, 0.5, {"hidden": HIDDEN}, headless=True)
    assert [tuple(p.shape) for p in module.parameters()] == [(HIDDEN, FEATURES), (HIDDEN, HIDDEN)]
    assert width_of(module) == HIDDEN
    flat = FlatModel(module)
    assert flat.w.numel() == FEATURES * HIDDEN + HIDDEN * HIDDEN
    assert flat.coupled is None
    assert flat.inputs == (0,)
    assert torch.equal(flat.initial(7), flat.initial(7))
    assert not torch.equal(flat.initial(7), flat.initial(8))
    flat.w.detach().zero_()
    assert not flat(around(features())).embedding_NH.any()
    default = build("topology", FEATURES, 3, 2, 0.5, {}, headless=True)
    assert width_of(default) == 128


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, r"model\.hidden: must be at least 1, found 0"),
        ({"layers": 3}, r"model\.layers: topology has no such option; it has hidden"),
        ({"head_dropout": True}, r"model\.head_dropout: topology has no such option"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ShoalError, match=f"^{message}"):
        build("topology", FEATURES, 3, 2, 0.5, options, headless=True)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"model": {"name": "topology"}}, r"model\.name: there is no 'topology'; choose one of gamlp, "),
        ({"model": [{"name": "gcn"}, {"name": "topology"}]}, r"model\.1\.name: there is no 'topology'"),
        ({"algorithm": {"name": "fml", "copilot": {"name": "topology"}}}, r"algorithm\.copilot: topology classifies"),
    ],
)
def test_no_config_may_name_it(section: dict[str, Any], message: str) -> None:
    plain = {"name": "x", "data": {"dataset": "digits"}, "algorithm": "fml", **section}
    config = parse_config(plain, "test")
    options = (
        {key: value for key, value in dict(plain["algorithm"]).items() if key != "name"}
        if isinstance(plain["algorithm"], dict)
        else {}
    )
    with pytest.raises(ShoalError, match=f"^{message}"):
        require_mixable(config, load(describe("fml", options)))
