"""Defaults of `Algorithm`, and which methods train plainly."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Received, Trainer, Tree, Upload, trains_plainly
from shoal.algorithms.models.build import build
from shoal.algorithms.models.layers.output import Output
from shoal.storage.store.view import View


class Bare(Algorithm):
    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"n": torch.ones(1)})


class OwnLoss(Algorithm):
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
        return out.logits_NC.sum()


class OwnTraining(Algorithm):
    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        return 0.0


class HeirOfOwnLoss(OwnLoss):
    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({})


@pytest.mark.parametrize(
    ("method", "plain"),
    [(Algorithm, True), (Bare, True), (OwnLoss, False), (OwnTraining, False), (HeirOfOwnLoss, False)],
)
def test_trains_plainly_without_own_train_and_loss(method: type[Algorithm], plain: bool) -> None:
    assert trains_plainly(method) is plain
    assert trains_plainly(method()) is plain


@pytest.fixture
def client(make_view: Callable[..., View], make_client: Callable[..., Client]) -> Client:
    rng = np.random.default_rng(0)
    view = make_view(9, [], rng.integers(3, size=9), [1, 4, 5], 3, rng.standard_normal((9, 4)).astype(np.float32))
    torch.manual_seed(0)
    return make_client(view, build("mlp", 4, 3, 0, 0.5, {"hidden": 5}))


def test_receive_default_borrows_w_and_returns_the_download(client: Client) -> None:
    before, down = client.model.w.clone(), {"anchor": torch.ones(2)}
    assert Algorithm().receive(client, down) is down
    assert torch.equal(client.model.w, before)
    assert not client.model.received
    sent: Tree = {"w": torch.arange(float(len(before)))}
    assert Algorithm().receive(client, sent) is sent
    assert torch.equal(client.model.w, sent["w"])
    assert client.model.received


def test_loss_default_is_mean_cross_entropy() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0]])
    by_hand = [np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits.double().numpy(), (1, 2))]
    loss = Algorithm().loss(Output(logits, logits), torch.tensor([1, 2]), torch.ones(1), {})
    assert loss.item() == pytest.approx(np.mean(by_hand), rel=1e-6)


@pytest.mark.parametrize("part", ["train", "val", "test", "all"])
def test_predict_default_returns_logits(client: Client, part: str) -> None:
    module = client.model.module.eval()
    with torch.no_grad():
        everything = module([client.data.x]).logits_NC
    module.train()
    rows = torch.arange(9) if part == "all" else getattr(client.data, part)
    torch.testing.assert_close(Algorithm().predict(client, {}, part), everything[rows])
