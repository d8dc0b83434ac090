"""Which clients are trained in one batch, as asked for or as fits the device."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from algorithms.backbones import build
from algorithms.base import Algorithm, Client, Given, Output, Trainer
from algorithms.flat_model import FlatModel
from algorithms.train_options import TrainOptions
from engine.commands.run import run as run_config
from engine.hosts.stacking import stacked_models
from engine.settings.config import Config
from storage.errors import ShoalError

WHOLE = TrainOptions()


@dataclass(frozen=True)
class OwnLoss(Algorithm):
    def loss(self, out: Output, y: Tensor, w: Tensor, given: Given) -> Tensor:
        return out.logits_NC.sum()


@dataclass(frozen=True)
class OwnLoop(Algorithm):
    def train(self, client: Client, given: Given, trainer: Trainer, phase: str) -> float:
        return 0.0


@dataclass(frozen=True)
class StillPlain(OwnLoop):
    plain_training = True


def models(*names: str) -> list[FlatModel]:
    return [FlatModel(build(name, 5, 4, 2, 0.5, {})) for name in names]


@pytest.mark.parametrize(
    ("path", "device", "expected"),
    [
        ("loop", "cpu", [False, False]),
        ("loop", "cuda", [False, False]),
        ("auto", "cpu", [False, False]),
        ("auto", "cuda", [True, False]),
    ],
)
def test_a_batch_where_it_is_wanted_and_can_be(path: str, device: str, expected: list[bool]) -> None:
    assert stacked_models(path, device, Algorithm(), models("sgc", "gcn"), WHOLE) == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_asked_for(device: str) -> None:
    assert stacked_models("stacked", device, Algorithm(), models("sgc", "mlp"), WHOLE) == [True, True]
    with pytest.raises(ShoalError, match=r"^engine\.path: stacked needs a decoupled model \(.*\); use loop$"):
        stacked_models("stacked", device, Algorithm(), models("sgc", "gcn"), WHOLE)


@pytest.mark.parametrize(
    ("method", "train", "why"),
    [
        (OwnLoss(), WHOLE, "a method of plain cross-entropy, which OwnLoss is not"),
        (OwnLoop(), WHOLE, "a method of plain cross-entropy, which OwnLoop is not"),
        (StillPlain(), TrainOptions(batch_size=8), "whole batches"),
        (StillPlain(), WHOLE, None),
    ],
)
def test_what_a_method_and_its_batches_allow(method: Algorithm, train: TrainOptions, why: str | None) -> None:
    assert stacked_models("auto", "cuda", method, models("sgc"), train) == [why is None]
    if why is not None:
        with pytest.raises(ShoalError, match=f"^engine.path: stacked needs {why}"):
            stacked_models("stacked", "cpu", method, models("sgc"), train)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"model.name": "gcn"}, "a decoupled model"),
        ({"train.batch_size": 8}, "whole batches"),
        ({"algorithm.name": "fedpg"}, "a method of plain cross-entropy, which FedPG is not"),
    ],
)
def test_a_run_is_refused_before_it_starts(
    configure: Callable[..., Config], tmp_path: Path, keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(ShoalError, match=f"^engine.path: stacked needs {why}"):
        run_config(configure({"engine.path": "stacked", "run.root": str(tmp_path), **keys}))
