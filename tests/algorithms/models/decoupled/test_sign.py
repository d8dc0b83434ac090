"""SIGN against its equation in dense algebra, and trained beside plain torch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.plain_dropout import dropped
from support.sparse_rows import sparse
from torch import Tensor, nn

from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.models.build import build, width_of
from shoal.algorithms.models.decoupled.sign import SIGN
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.store.view import View

Propagated = Callable[..., tuple[View, list[np.ndarray]]]
FEATURES, CLASSES, HIDDEN = 5, 3, 4


def make(hops: int, **options: Any) -> Any:
    torch.manual_seed(0)
    model = build("sign", FEATURES, CLASSES, hops, 0.5, {"hidden": HIDDEN, **options})
    with torch.no_grad():
        for p in model.parameters():  # biases start at zero
            p.add_(0.1 * torch.randn_like(p))
    return model


class Plain(nn.Module):
    """The equation in plain torch, holding a model's weights."""

    def __init__(self, model: Any, keeps_embedding: bool) -> None:
        super().__init__()
        self.above = nn.ModuleList(nn.Linear(p.in_features, p.out_features) for p in model.head.linears)
        self.above.load_state_dict(model.head.linears.state_dict())
        self.slope_above = None if len(self.above) == 1 else nn.Parameter(model.head.prelu.weight.detach().clone())
        self.hops = nn.ModuleList(nn.Linear(FEATURES, HIDDEN) for _ in model.inputs)
        self.hops.load_state_dict(model.of_hops.state_dict())
        self.slope = nn.Parameter(model.prelu.weight.detach().clone())
        self.keeps_embedding = keeps_embedding

    def forward(self, hops: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        z = torch.cat([linear(hop) for linear, hop in zip(self.hops, hops, strict=True)], 1)
        slope = self.slope
        for number, linear in enumerate(self.above, start=1):
            embedding = torch.where(z > 0, z, slope * z)
            keeps = number == len(self.above) and self.keeps_embedding
            z = linear(dropped(embedding, 0.5, self.training and not keeps))
            slope = self.slope_above
        return z, embedding


@pytest.mark.parametrize("hops", [0, 1, 3])
@pytest.mark.parametrize("layers", [1, 3])
def test_is_the_equation(hops: int, layers: int, propagated: Propagated) -> None:
    view, dense = propagated(hops)
    model = make(hops, layers=layers).eval()
    assert model.inputs == tuple(range(hops + 1))
    p = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    blocks = [hop @ p[f"of_hops.{k}.weight"].T + p[f"of_hops.{k}.bias"] for k, hop in enumerate(dense)]
    z, slope = np.concatenate(blocks, 1), p["prelu.weight"]
    for layer in range(layers):
        embedding = np.maximum(z, 0) + slope * np.minimum(z, 0)
        z = embedding @ p[f"head.linears.{layer}.weight"].T + p[f"head.linears.{layer}.bias"]
        slope = p.get("head.prelu.weight")
    out = model([view.hop(k) for k in model.inputs])
    np.testing.assert_allclose(out.embedding_NH.detach().numpy(), embedding, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out.logits_NC.detach().numpy(), z, rtol=1e-4, atol=1e-5)
    assert out.embedding_NH.shape[1] == width_of(model) == (HIDDEN * (hops + 1) if layers == 1 else HIDDEN)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("head_dropout", [True, False])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_trains_as_plain_torch(
    layers: int, head_dropout: bool, as_sparse: bool, propagated: Propagated, make_client: Callable[..., Client]
) -> None:
    view, dense = propagated(2)
    if as_sparse:
        view._hops[:] = [sparse(torch.as_tensor(view.hop(k))) for k in range(3)]
    model = make(2, layers=layers, head_dropout=head_dropout)
    plain = Plain(model, not head_dropout)
    client = make_client(view, model)
    options = TrainOptions(epochs=6, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.01)
    loss = LocalTrainer({MODEL: client.model.flat}, options, FedAvg()).fit(client, {})
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    hops = [torch.from_numpy(hop).float() for hop in dense]
    torch.manual_seed(client.model.random("train"))
    for _ in range(6):
        optimizer.zero_grad()
        expected = F.cross_entropy(plain([hop[view.train] for hop in hops])[0], view.label[view.train])
        expected.backward()
        optimizer.step()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-4)
    trained = dict(plain.eval().named_parameters())
    for name, p in client.model.module.named_parameters():
        other = {"prelu.weight": "slope", "head.prelu.weight": "slope_above"}.get(name, name)
        other = other.replace("head.linears", "above").replace("of_hops", "hops")
        torch.testing.assert_close(p, trained.pop(other), rtol=1e-4, atol=1e-5)
    assert not trained
    torch.testing.assert_close(client.model.logits(), plain(hops)[0].detach(), rtol=1e-4, atol=1e-5)


def test_gradients_are_right() -> None:
    model = make(2, layers=2).double().eval()
    names = list(dict(model.named_parameters()))
    hops = [torch.randn(4, FEATURES, dtype=torch.float64) for _ in range(3)]

    def logits(*values: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, values)), (hops,)).logits_NC

    assert torch.autograd.gradcheck(logits, tuple(model.parameters()))


def test_layers_of_hops_start_as_other_layers() -> None:
    """Xavier-uniform with ReLU's gain, no bias, a slope of a quarter."""
    model = SIGN(500, 3, 2, 0.0)
    bound = np.sqrt(2) * np.sqrt(6 / (500 + 64))
    for linear in model.of_hops:
        assert 0.99 * bound < linear.weight.abs().max() <= bound
        assert not linear.bias.any()
    assert model.prelu.weight.tolist() == [0.25]


def test_layers_of_hops_are_a_body() -> None:
    model = FlatModel(make(2))
    assert model.has_body
    assert model.classifier == slice(0, CLASSES * 3 * HIDDEN + CLASSES)


def test_the_embedding_is_not_dropped() -> None:
    """Nor what the classifier reads, where embeddings of rows are pooled before it."""
    model = make(2).train()
    hops = [torch.randn(9, FEATURES) for _ in range(3)]
    out, whole = model(hops), model.eval()(hops)
    assert torch.equal(out.embedding_NH, whole.embedding_NH)
    assert not torch.equal(out.logits_NC, whole.logits_NC)
    model.train().head.pooled = True
    assert torch.equal(model(hops).logits_NC, whole.logits_NC)
