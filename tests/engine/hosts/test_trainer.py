"""How clients are trained, as asked for or as fits the device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused
from support.fixtures import Configure
from support.other_device.device import load
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Output, Received, Trainer
from shoal.algorithms.client import ClientInfo, FlatModel
from shoal.algorithms.methods.moon import MOON
from shoal.algorithms.models.build import build
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.messages.trainers import Clients, trainers_of
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.run import run as run_config

WHOLE, PARTS = TrainOptions(), TrainOptions(batch_size=8)


@dataclass(frozen=True)
class OwnLoss(Algorithm):
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
        return out.logits_NC.sum()


@dataclass(frozen=True)
class OwnLoop(Algorithm):
    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        return 0.0


def model(
    name: str, embedding: int | None = None, bfloat16: bool = False, task: str = "node", sparse: bool = False
) -> FlatModel:
    """A backbone; `recursive` is GAMLP with that attention, the one model whose gradients have no formula here."""
    options = {"recursive": {"attention": name}, "mlp": {"hidden": 6}}.get(name, {})
    built = build("gamlp" if name == "recursive" else name, 5, 4, 2, 0.5, options, embedding, task=task)
    return FlatModel(built, bfloat16, sparse)


def test_what_fits_the_device() -> None:
    models = [model(name) for name in ("sgc", "gcn", "gat", "recursive")]
    expected = {
        "cpu": ["analytic", "analytic", "analytic", "autograd"],
        "cuda": ["batched", "batched", "autograd", "batched"],
    }
    for device, paths in expected.items():
        assert trainers_of("auto", device, Algorithm(), models, WHOLE) == paths
        assert trainers_of("autograd", device, Algorithm(), models, WHOLE) == ["autograd"] * 4


@pytest.mark.parametrize(
    ("clients", "rows", "features", "batched"),
    [(64, 8, 128, True), (63, 8, 128, False), (64, 8, 129, False), (64, 64, 128, True), (64, 200, 128, False)],
)
def test_auto_on_processor_batches_many_small_clients(clients: int, rows: int, features: int, batched: bool) -> None:
    sizes = Clients([ClientInfo(i, rows, rows, 4) for i in range(clients)], features, clients)
    models = [model("gcn"), model("sage")]
    for one in models:
        expected = "batched" if batched else "analytic"
        assert trainers_of("auto", "cpu", Algorithm(), [one], WHOLE, sizes) == [expected]
    # Half of them train each of two models.
    assert trainers_of("auto", "cpu", Algorithm(), models, WHOLE, sizes) == ["analytic"] * 2
    assert trainers_of("auto", "cpu", OwnLoss(), models[:1], WHOLE, sizes) == ["autograd"]
    # Its loss is compiled there.
    assert trainers_of("auto", "cpu", MOON(), models[:1], WHOLE, sizes) == ["analytic"]
    assert trainers_of("auto", "cuda", MOON(), models[:1], WHOLE, sizes) == ["batched"]


@pytest.mark.parametrize(
    ("name", "rows", "train", "batched"),
    [
        ("sgc", 8, WHOLE, False),
        ("mlp", 8, WHOLE, False),
        # No single call trains these.
        ("sgc", 8, TrainOptions(optimizer="sgd", momentum=0.5), True),
        ("mlp", 6_000, WHOLE, True),
        ("gcn", 8, WHOLE, True),
    ],
)
def test_auto_on_processor_batches_no_heads_that_one_call_trains(
    name: str, rows: int, train: TrainOptions, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.engine.messages.trainers.SMALL", 10**6)
    sizes = Clients([ClientInfo(i, rows, rows, 4) for i in range(64)], 5, 64)
    expected = "batched" if batched else "analytic"
    assert trainers_of("auto", "cpu", Algorithm(), [model(name)], train, sizes) == [expected]


@pytest.mark.parametrize(
    ("path", "device", "method", "one", "train", "says"),
    [
        *(
            (path, device, own(), model("sgc"), WHOLE, f"a method of {what}, which {own.__name__} is not")
            for path, device, what in (
                ("batched", "cuda", "cross-entropy and means over training rows"),
                ("analytic", "cpu", "plain cross-entropy"),
            )
            for own in (OwnLoss, OwnLoop)
        ),
        ("batched", "cuda", Algorithm(), model("sgc"), PARTS, "whole batches"),
        ("analytic", "cpu", Algorithm(), model("sgc"), PARTS, None),
        ("batched", "cuda", Algorithm(), model("sgc"), WHOLE, None),
        ("analytic", "cpu", Algorithm(), model("mlp"), WHOLE, None),
        ("batched", "cuda", Algorithm(), model("gat"), WHOLE, "a decoupled model ("),
        ("analytic", "cpu", Algorithm(), model("recursive"), WHOLE, "another model.attention than recursive"),
        ("analytic", "cpu", Algorithm(), model("mlp", 3), WHOLE, "a model that is not adapted"),
        ("analytic", "cpu", Algorithm(), model("mlp", bfloat16=True), WHOLE, None),
        ("analytic", "cpu", Algorithm(), model("mlp", bfloat16=True, sparse=True), WHOLE, "products in float32 ("),
        ("analytic", "cpu", Algorithm(), model("gamlp", bfloat16=True), WHOLE, "products in float32 ("),
        ("batched", "cuda", Algorithm(), model("sgc", task="graph"), WHOLE, "a node task (task: node)"),
        ("analytic", "cpu", Algorithm(), model("gcn", 3, task="graph"), WHOLE, "a node task (task: node)"),
    ],
)
def test_what_a_trainer_needs(path: str, device: str, method: Any, one: Any, train: Any, says: str | None) -> None:
    """Asked for what cannot be there is an error; `auto` takes the loop."""
    assert trainers_of("auto", device, method, [one], train) == [path if says is None else "autograd"]
    for where in ("cpu", "cuda"):
        if says is None:
            assert trainers_of(path, where, method, [one], train) == [path]
        else:
            with refused("engine.trainer", says=f"{path} needs {says}"):
                trainers_of(path, where, method, [model("sgc"), one] if method == Algorithm() else [one], train)


@pytest.mark.parametrize("name", ["gamlp", "gat"])
def test_formulas_with_loops_of_our_own_are_of_a_processor(name: str) -> None:
    elsewhere = [FlatModel(build(name, 5, 4, 2, 0.5, {}).to(load()))]
    with refused("engine.trainer", says=f"analytic needs a processor, for {name}"):
        trainers_of("analytic", "cuda", Algorithm(), elsewhere, WHOLE)


def test_a_run_is_refused_before_it_starts(configure: Configure, tmp_path: Path) -> None:
    with refused("engine.trainer", says="batched needs a decoupled model"):
        run_config(configure({"engine.trainer": "batched", "model.name": "gat", "run.root": str(tmp_path)}))


def test_the_summary_says_how_clients_were_trained(configure: Configure, tmp_path: Path) -> None:
    keys = {"algorithm.name": "local", "rounds": 1, "run.root": str(tmp_path), "run.tensorboard": False}
    models = [{"name": "sgc"}, {"name": "gcn", "hidden": 5}, {"name": "gamlp"}]
    folder = run_config(configure({**keys, "model": models}))
    assert read_summary(folder)["paths"] == ["analytic", "analytic", "autograd"]
