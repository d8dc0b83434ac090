"""FGGP's generator network beside dense algebra, and who may name it."""

from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.sparse_rows import sparse

from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.models.build import build, width_of
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, operator_over
from shoal.engine.config.config import parse_config
from shoal.engine.messages.models import require_mixable

NODES, FEATURES, HIDDEN = 6, 5, 4
# Node 5 has no edge.
EDGES = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize("by_column", [False, True])
def test_two_convolutions_and_one_activation(by_column: bool) -> None:
    module = build("topology", FEATURES, 3, 2, 0.5, {"hidden": HIDDEN}, headless=True).train()
    first, second = (p.detach().clone().double() for p in module.parameters())
    assert width_of(module) == HIDDEN
    a = torch.zeros(NODES, NODES, dtype=torch.float64)
    for i, j in EDGES:
        a[i, j] = a[j, i] = 1
    indptr = np.concatenate([[0], a.sum(1).numpy().cumsum()]).astype(np.int32)
    operator = operator_over("symmetric", indptr, np.nonzero(a.numpy())[1].astype(np.int32))
    loops = a + torch.eye(NODES)
    root = torch.diag(loops.sum(1).rsqrt())
    p = root @ loops @ root
    x = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(1)).relu()
    wanted = (p @ (p @ x.double() @ first.T) @ second.T).relu()
    assert 0 < (wanted == 0).sum() < wanted.numel()
    flat = FlatModel(module, sparse=by_column)
    out = flat(Neighbourhood(sparse(x) if by_column else x, (operator, operator)))
    torch.testing.assert_close(out.embedding_NH.double(), wanted, rtol=1e-5, atol=1e-6)
    assert out.logits_NC.shape == (NODES, 0)
    some = flat(Neighbourhood(x, (operator, operator), torch.tensor([3, 0])))
    torch.testing.assert_close(some.embedding_NH.double(), wanted[[3, 0]], rtol=1e-5, atol=1e-6)
    assert torch.equal(flat.initial(7), flat.initial(7))
    assert not torch.equal(flat.initial(7), flat.initial(8))


@pytest.mark.parametrize(
    ("section", "places", "says"),
    [
        ({"model": {"name": "topology"}}, ["model.name"], "there is no"),
        ({"model": [{"name": "gcn"}, {"name": "topology"}]}, [], "model.1.name: there is no"),
        ({"algorithm": {"name": "fml", "copilot": {"name": "topology"}}}, ["algorithm.copilot"], "topology classifies"),
    ],
)
def test_no_config_may_name_it(section: dict[str, Any], places: list[str], says: str) -> None:
    config = parse_config({"name": "x", "data": {"dataset": "digits"}, "algorithm": "fml", **section}, "test")
    with refused(*places, says=says):
        require_mixable(config, load(describe("fml", config.algorithm.options)))
