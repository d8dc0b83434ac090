"""How clients are trained, as asked for or as fits the device."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from other_device import load
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Given, Output, Trainer
from shoal.algorithms.flat_model import FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.config.config import Config
from shoal.engine.hosts.job_context import training_paths
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.run import run as run_config
from shoal.storage.errors import ShoalError

WHOLE = TrainOptions()
PLAIN = "a method of plain cross-entropy"


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
    """Backbones; `recursive` is GAMLP with that attention, the one model whose gradients have no formula here."""
    kinds = [("gamlp", {"attention": name}) if name == "recursive" else (name, {}) for name in names]
    return [FlatModel(build(name, 5, 4, 2, 0.5, options)) for name, options in kinds]


@pytest.mark.parametrize(
    ("path", "device", "expected"),
    [
        ("loop", "cpu", ["loop", "loop", "loop", "loop"]),
        ("loop", "cuda", ["loop", "loop", "loop", "loop"]),
        ("auto", "cpu", ["closed_form", "closed_form", "closed_form", "loop"]),
        ("auto", "cuda", ["stacked", "stacked", "loop", "stacked"]),
    ],
)
def test_what_fits_the_device(path: str, device: str, expected: list[str]) -> None:
    assert training_paths(path, device, Algorithm(), models("sgc", "gcn", "gat", "recursive"), WHOLE) == expected


@pytest.mark.parametrize("embedding", [None, 3])
def test_graphs_are_trained_in_the_loop(embedding: int | None) -> None:
    pooled = [FlatModel(build(name, 5, 4, 2, 0.5, {}, embedding, task="graph")) for name in ("sgc", "gcn")]
    for device in ("cpu", "cuda"):
        assert training_paths("auto", device, Algorithm(), pooled, WHOLE) == ["loop", "loop"]
    for path in ("stacked", "closed_form"):
        with pytest.raises(ShoalError, match=rf"^engine\.path: {path} needs a node task \(task: node\); use loop$"):
            training_paths(path, "cpu", Algorithm(), pooled, WHOLE)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("stacked", r"a decoupled model \(.*\), or gcn, gin, sage or gcnii on the whole graph"),
        ("closed_form", r"another model\.attention than recursive"),
    ],
)
def test_asked_for(path: str, why: str, device: str) -> None:
    assert training_paths(path, device, Algorithm(), models("sgc", "mlp"), WHOLE) == [path, path]
    with pytest.raises(ShoalError, match=rf"^engine\.path: {path} needs {why}; use loop$"):
        training_paths(path, device, Algorithm(), models("gat", "recursive")[path == "closed_form" :], WHOLE)


@pytest.mark.parametrize(
    ("method", "train", "stacked", "closed_form"),
    [
        (OwnLoss(), WHOLE, f"{PLAIN} or with loss_of_several, which OwnLoss is not", f"{PLAIN}, which OwnLoss is not"),
        (OwnLoop(), WHOLE, f"{PLAIN} or with loss_of_several, which OwnLoop is not", f"{PLAIN}, which OwnLoop is not"),
        (StillPlain(), TrainOptions(batch_size=8), "whole batches", None),
        (StillPlain(), WHOLE, None, None),
    ],
)
def test_what_a_method_and_its_batches_allow(
    method: Algorithm, train: TrainOptions, stacked: str | None, closed_form: str | None
) -> None:
    for path, device, why in (("stacked", "cuda", stacked), ("closed_form", "cpu", closed_form)):
        assert training_paths("auto", device, method, models("sgc"), train) == [path if why is None else "loop"]
        if why is not None:
            with pytest.raises(ShoalError, match=f"^engine.path: {path} needs {why}"):
                training_paths(path, "cpu", method, models("sgc"), train)


def test_a_closed_form_is_of_one_width_and_of_float32() -> None:
    wide, adapted = (build("mlp", 5, 4, 2, 0.5, {"hidden": 6}, embedding) for embedding in (None, 3))
    assert training_paths("auto", "cpu", Algorithm(), [FlatModel(wide), FlatModel(adapted)], WHOLE) == [
        "closed_form",
        "loop",
    ]
    with pytest.raises(ShoalError, match=r"^engine\.path: closed_form needs a model that is not adapted"):
        training_paths("closed_form", "cpu", Algorithm(), [FlatModel(adapted)], WHOLE)
    half = [FlatModel(wide, bfloat16=True)]
    assert training_paths("auto", "cpu", Algorithm(), half, WHOLE) == ["loop"]
    with pytest.raises(ShoalError, match=r"needs products in float32 \(engine\.precision\); use loop$"):
        training_paths("closed_form", "cpu", Algorithm(), half, WHOLE)


@pytest.mark.parametrize("name", ["gamlp", "gat"])
def test_formulas_with_loops_of_our_own_are_of_a_processor(name: str) -> None:
    elsewhere = [FlatModel(build(name, 5, 4, 2, 0.5, {}).to(load()))]
    with pytest.raises(ShoalError, match=rf"^engine\.path: closed_form needs a processor, for {name}; use loop$"):
        training_paths("closed_form", "cuda", Algorithm(), elsewhere, WHOLE)
    assert training_paths("closed_form", "cpu", Algorithm(), models(name), WHOLE) == ["closed_form"]


@pytest.mark.parametrize(
    ("path", "keys", "why"),
    [
        ("stacked", {"model.name": "gat"}, "a decoupled model"),
        ("stacked", {"train.batch_size": 8}, "whole batches"),
        (
            "stacked",
            {"algorithm": {"name": "fedpg", "alignment": "prototype", "attention": "node"}},
            "other options of FedPG; use loop",
        ),
        ("closed_form", {"model": {"name": "gamlp", "attention": "recursive"}}, "another model.attention"),
    ],
)
def test_a_run_is_refused_before_it_starts(
    configure: Callable[..., Config], tmp_path: Path, path: str, keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(ShoalError, match=f"^engine.path: {path} needs {why}"):
        run_config(configure({"engine.path": path, "run.root": str(tmp_path), **keys}))


@pytest.mark.parametrize(
    ("models", "paths"),
    [
        ({"name": "sgc"}, ["closed_form"]),
        ([{"name": "sgc"}, {"name": "gcn", "hidden": 5}, {"name": "gamlp"}], ["closed_form", "closed_form", "loop"]),
    ],
)
def test_the_summary_says_how_clients_were_trained(
    configure: Callable[..., Config], tmp_path: Path, models: Any, paths: list[str]
) -> None:
    keys = {"algorithm.name": "local", "rounds": 1, "run.root": str(tmp_path), "run.tensorboard": False}
    assert read_summary(run_config(configure({**keys, "model": models})))["paths"] == paths
