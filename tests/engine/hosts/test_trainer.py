"""How clients are trained, as asked for or as fits the device."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.other_device.device import load
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Output, Received, Trainer
from shoal.algorithms.client import ClientInfo, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.config.config import Config
from shoal.engine.messages.trainers import Clients, trainers_of
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.run import run as run_config
from shoal.storage.errors import ShoalError

WHOLE = TrainOptions()
PLAIN = "a method of plain cross-entropy"


@dataclass(frozen=True)
class OwnLoss(Algorithm):
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
        return out.logits_NC.sum()


@dataclass(frozen=True)
class OwnLoop(Algorithm):
    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        return 0.0


def models(*names: str) -> list[FlatModel]:
    """Backbones; `recursive` is GAMLP with that attention, the one model whose gradients have no formula here."""
    kinds = [("gamlp", {"attention": name}) if name == "recursive" else (name, {}) for name in names]
    return [FlatModel(build(name, 5, 4, 2, 0.5, options)) for name, options in kinds]


@pytest.mark.parametrize(
    ("path", "device", "expected"),
    [
        ("autograd", "cpu", ["autograd", "autograd", "autograd", "autograd"]),
        ("autograd", "cuda", ["autograd", "autograd", "autograd", "autograd"]),
        ("auto", "cpu", ["analytic", "analytic", "analytic", "autograd"]),
        ("auto", "cuda", ["batched", "batched", "autograd", "batched"]),
    ],
)
def test_what_fits_the_device(path: str, device: str, expected: list[str]) -> None:
    assert trainers_of(path, device, Algorithm(), models("sgc", "gcn", "gat", "recursive"), WHOLE) == expected


@pytest.mark.parametrize(
    ("clients", "rows", "features", "batched"),
    [
        (64, 8, 128, True),
        (63, 8, 128, False),
        (64, 8, 129, False),
        (64, 64, 128, True),
        (64, 200, 128, False),
    ],
)
def test_auto_on_processor_batches_many_small_clients(clients: int, rows: int, features: int, batched: bool) -> None:
    infos = [ClientInfo(i, rows, rows, 4) for i in range(clients)]
    expected = "batched" if batched else "analytic"
    sizes = Clients(infos, features, clients)
    for model in models("sgc", "gcn"):
        assert trainers_of("auto", "cpu", Algorithm(), [model], WHOLE, sizes) == [expected]
    # Half of them train each of two models.
    assert trainers_of("auto", "cpu", Algorithm(), models("sgc", "gcn"), WHOLE, sizes) == ["analytic"] * 2
    assert trainers_of("auto", "cpu", OwnLoss(), models("sgc"), WHOLE, sizes) == ["autograd"]


@pytest.mark.parametrize("embedding", [None, 3])
def test_graphs_are_trained_in_the_loop(embedding: int | None) -> None:
    pooled = [FlatModel(build(name, 5, 4, 2, 0.5, {}, embedding, task="graph")) for name in ("sgc", "gcn")]
    for device in ("cpu", "cuda"):
        assert trainers_of("auto", device, Algorithm(), pooled, WHOLE) == ["autograd", "autograd"]
    for path in ("batched", "analytic"):
        with pytest.raises(
            ShoalError, match=rf"^engine\.trainer: {path} needs a node task \(task: node\); use autograd$"
        ):
            trainers_of(path, "cpu", Algorithm(), pooled, WHOLE)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("batched", r"a decoupled model \(.*\), or gcn, gin, sage or gcnii on the whole graph"),
        ("analytic", r"another model\.attention than recursive"),
    ],
)
def test_asked_for(path: str, why: str, device: str) -> None:
    assert trainers_of(path, device, Algorithm(), models("sgc", "mlp"), WHOLE) == [path, path]
    with pytest.raises(ShoalError, match=rf"^engine\.trainer: {path} needs {why}; use autograd$"):
        trainers_of(path, device, Algorithm(), models("gat", "recursive")[path == "analytic" :], WHOLE)


@pytest.mark.parametrize(
    ("method", "train", "batched", "analytic"),
    [
        (OwnLoss(), WHOLE, f"{PLAIN}, which OwnLoss is not", f"{PLAIN}, which OwnLoss is not"),
        (OwnLoop(), WHOLE, f"{PLAIN}, which OwnLoop is not", f"{PLAIN}, which OwnLoop is not"),
        (Algorithm(), TrainOptions(batch_size=8), "whole batches", None),
        (Algorithm(), WHOLE, None, None),
    ],
)
def test_what_a_method_and_its_batches_allow(
    method: Algorithm, train: TrainOptions, batched: str | None, analytic: str | None
) -> None:
    for path, device, why in (("batched", "cuda", batched), ("analytic", "cpu", analytic)):
        assert trainers_of("auto", device, method, models("sgc"), train) == [path if why is None else "autograd"]
        if why is not None:
            with pytest.raises(ShoalError, match=f"^engine.trainer: {path} needs {why}"):
                trainers_of(path, "cpu", method, models("sgc"), train)


def test_a_closed_form_is_of_one_width_and_of_float32() -> None:
    wide, adapted = (build("mlp", 5, 4, 2, 0.5, {"hidden": 6}, embedding) for embedding in (None, 3))
    assert trainers_of("auto", "cpu", Algorithm(), [FlatModel(wide), FlatModel(adapted)], WHOLE) == [
        "analytic",
        "autograd",
    ]
    with pytest.raises(ShoalError, match=r"^engine\.trainer: analytic needs a model that is not adapted"):
        trainers_of("analytic", "cpu", Algorithm(), [FlatModel(adapted)], WHOLE)
    half = [FlatModel(wide, bfloat16=True)]
    assert trainers_of("auto", "cpu", Algorithm(), half, WHOLE) == ["autograd"]
    with pytest.raises(ShoalError, match=r"needs products in float32 \(engine\.precision\); use autograd$"):
        trainers_of("analytic", "cpu", Algorithm(), half, WHOLE)


@pytest.mark.parametrize("name", ["gamlp", "gat"])
def test_formulas_with_loops_of_our_own_are_of_a_processor(name: str) -> None:
    elsewhere = [FlatModel(build(name, 5, 4, 2, 0.5, {}).to(load()))]
    with pytest.raises(ShoalError, match=rf"^engine\.trainer: analytic needs a processor, for {name}; use autograd$"):
        trainers_of("analytic", "cuda", Algorithm(), elsewhere, WHOLE)
    assert trainers_of("analytic", "cpu", Algorithm(), models(name), WHOLE) == ["analytic"]


@pytest.mark.parametrize(
    ("path", "keys", "why"),
    [
        ("batched", {"model.name": "gat"}, "a decoupled model"),
        ("batched", {"train.batch_size": 8}, "whole batches"),
        (
            "batched",
            {"algorithm": {"name": "fedpg", "alignment": "prototype", "attention": "node"}},
            "a method of plain cross-entropy, which FedPG is not; use autograd",
        ),
        ("analytic", {"model": {"name": "gamlp", "attention": "recursive"}}, "another model.attention"),
    ],
)
def test_a_run_is_refused_before_it_starts(
    configure: Callable[..., Config], tmp_path: Path, path: str, keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(ShoalError, match=f"^engine.trainer: {path} needs {why}"):
        run_config(configure({"engine.trainer": path, "run.root": str(tmp_path), **keys}))


@pytest.mark.parametrize(
    ("models", "paths"),
    [
        ({"name": "sgc"}, ["analytic"]),
        ([{"name": "sgc"}, {"name": "gcn", "hidden": 5}, {"name": "gamlp"}], ["analytic", "analytic", "autograd"]),
    ],
)
def test_the_summary_says_how_clients_were_trained(
    configure: Callable[..., Config], tmp_path: Path, models: Any, paths: list[str]
) -> None:
    keys = {"algorithm.name": "local", "rounds": 1, "run.root": str(tmp_path), "run.tensorboard": False}
    assert read_summary(run_config(configure({**keys, "model": models})))["paths"] == paths
