"""What a method gets that says nothing, and what a method's own hooks make of `plain_training`."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Received, Term, Trainer, Tree, Upload
from shoal.algorithms.models.build import build
from shoal.algorithms.models.layers.output import Output
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.storage.store.view import View


class Bare(Algorithm):
    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"n": torch.ones(1)})


class OwnLoss(Algorithm):
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
        return out.logits_NC.sum()


class OwnTerm(Algorithm):
    def regularizer(self, client: Client, received: Received) -> Term | None:
        return None


class OwnTraining(Algorithm):
    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        return 0.0


class HeirOfOwnLoss(OwnLoss):
    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({})


class SaidPlain(Algorithm):
    """Its `train` is cross-entropy by another name."""

    plain_training: ClassVar[bool] = True

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        return trainer.fit(client, received)


class HeirOfSaidPlain(SaidPlain):
    pass


class NoLongerPlain(SaidPlain):
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
        return -super().loss(out, y, w, received)


class SaidNotPlain(Algorithm):
    plain_training: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (Algorithm, True),
        (Bare, True),
        (OwnLoss, False),
        (OwnTerm, False),
        (OwnTraining, False),
        (HeirOfOwnLoss, False),
        (SaidPlain, True),
        (HeirOfSaidPlain, True),
        (NoLongerPlain, False),
        (SaidNotPlain, False),
    ],
)
def test_a_method_with_hooks_that_train_is_not_plain_unless_it_says_so(method: type[Algorithm], plain: bool) -> None:
    assert method.plain_training is plain


@pytest.fixture
def client(make_view: Callable[..., View], make_client: Callable[..., Client]) -> Client:
    rng = np.random.default_rng(0)
    view = make_view(9, [], rng.integers(3, size=9), [1, 4, 5], 3, rng.standard_normal((9, 4)).astype(np.float32))
    torch.manual_seed(0)
    return make_client(view, build("mlp", 4, 3, 0, 0.5, {"hidden": 5}))


def test_the_server_of_a_bare_method_has_nothing() -> None:
    bare: Any = Algorithm()
    assert (bare.keeps_model, bare.centralized, bare.mixed_models) == (False, False, False)
    assert bare.models() == {MODEL: None}
    assert bare.setup(None) == {}
    assert bare.global_model({"w": torch.ones(2)}) == {}
    with pytest.raises(NotImplementedError):
        bare.round({}, None, [0])


def test_begin_loads_what_is_sent_and_hands_it_on(client: Client) -> None:
    before, down = client.model.w.clone(), {"anchor": torch.ones(2)}
    assert Algorithm().receive(client, down) is down
    assert torch.equal(client.model.w, before)
    assert not client.model.received
    sent: Tree = {"w": torch.arange(float(len(before)))}
    assert Algorithm().receive(client, sent) is sent
    assert torch.equal(client.model.w, sent["w"])
    assert client.model.received


def test_training_is_the_trainers(client: Client) -> None:
    """A trainer that only says what it was asked for."""
    asked: list[tuple[Any, ...]] = []

    class Teller:
        options = TrainOptions()

        def fit(self, *args: Any, **more: Any) -> float:
            asked.append((*args, more))
            return 2.5

    received, teller = {"x": torch.ones(1)}, Teller()
    assert Algorithm().train(client, received, teller, "train") == 2.5  # type: ignore[arg-type]
    assert asked == [(client, received, {})]
    assert Algorithm().regularizer(client, received) is None
    assert Algorithm().upload(client, received, "train") == Upload({}, {}, {})


def test_the_loss_is_the_mean_negative_log_likelihood() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0]])
    by_hand = [np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits.double().numpy(), (1, 2))]
    loss = Algorithm().loss(Output(logits, logits), torch.tensor([1, 2]), torch.ones(1), {})
    assert loss.item() == pytest.approx(np.mean(by_hand), rel=1e-6)


@pytest.mark.parametrize("part", ["train", "val", "test", "all"])
def test_the_models_logits_answer(client: Client, part: str) -> None:
    module = client.model.module.eval()
    with torch.no_grad():
        everything = module([client.data.x]).logits_NC
    module.train()
    rows = torch.arange(9) if part == "all" else getattr(client.data, part)
    torch.testing.assert_close(Algorithm().predict(client, {}, part), everything[rows])
