"""GNNs that training leaves as they start: what is trained and sent, with which numbers, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.errors import refused
from torch import Tensor

from shoal.algorithms.methods.registry.load import methods_for
from shoal.algorithms.protocol import MODEL
from shoal.engine.config.config import Config
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run

Configure = Callable[..., Config]
PROMPTS = ("none", "gpf", "gpf_plus", "supt", "all_in_one", "vpg")
# Methods that cut the model, or need one without a prompt.
ELSEWHERE = {"fedgpl", "fedstar"}
OF_GNN = "backbone.backbone.convs."


@pytest.fixture
def keys(graph_task: dict[str, Any]) -> dict[str, Any]:
    return {**graph_task, "model.hidden": 8, "model.prompt": "gpf", "model.frozen": True, "rounds": 2}


def is_trained(name: str) -> bool:
    return name.startswith("prompt.") or ".head." in name


def written(folder: Path) -> dict[str, Tensor]:
    """Returns the parameters that a finished run of one global model exports, by name in the model."""
    tensors = load_file(export(folder) / "models.safetensors")
    return {name.removeprefix("global/"): t for name, t in tensors.items() if name.startswith("global/")}


def drawn(config: Config) -> dict[str, Tensor]:
    """Returns the parameters that clients start from, by name."""
    store = prepare(config)
    job = make_job(config, store, "job")
    (built,) = job.build_models(store, job.algorithm())[MODEL]
    job.initial(built, MODEL, 0)
    return {name: p.detach().clone() for name, p in built.flat.module.named_parameters()}


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompt_and_classifier_learn_and_the_gnn_stays(
    configure: Configure, keys: dict[str, Any], tmp_path: Path, prompt: str
) -> None:
    own = {**keys, "model.prompt": prompt, "run.root": str(tmp_path), "train.weight_decay": 0.1}
    whole = drawn(configure({**own, "model.frozen": False}))
    assert whole.keys() == drawn(configure(own)).keys()
    now = written(run(configure(own)))
    assert now.keys() == whole.keys()
    for name, start in whole.items():
        assert torch.equal(now[name], start) != is_trained(name), name


def test_places_in_w_are_those_of_what_is_trained(configure: Configure, keys: dict[str, Any]) -> None:
    store = prepare(config := configure(keys))
    job = make_job(config, store, "job")
    (built,) = job.build_models(store, job.algorithm())[MODEL]
    flat, trained = built.flat, {n: p for n, p in built.flat.module.named_parameters() if is_trained(n)}
    assert list(built.info.shapes) == list(trained)
    for p, part in zip(trained.values(), flat.parts(flat.w.detach()), strict=True):
        assert p.data_ptr() == part.data_ptr()
    last = flat.module.head.linears[-1]
    assert torch.equal(flat.w[flat.classifier], torch.cat([last.weight.flatten(), last.bias]))
    copied = flat.on(torch.device("cpu"))
    assert torch.equal(copied.w, flat.w)
    assert copied.frozen


def test_no_message_has_the_gnn(configure: Configure, keys: dict[str, Any], tmp_path: Path) -> None:
    config = configure({**keys, "run.root": str(tmp_path)})
    folder = run(config)
    numbers = sum(p.numel() for name, p in drawn(config).items() if is_trained(name))
    nbytes = json.loads((folder / "summary.json").read_text())["bytes"]
    # A weight of the average goes up beside the parameters.
    assert (nbytes["up_per_client_round"], nbytes["down_per_client_round"]) == (4 * numbers + 4, 4 * numbers)


def test_one_step_is_that_of_the_whole_model(configure: Configure, keys: dict[str, Any], tmp_path: Path) -> None:
    """By plain SGD prompt and classifier take the first step that they take where the GNN takes one, too."""
    step = {"train.optimizer": "sgd", "train.lr": 0.1, "train.weight_decay": 0.01, "train.dropout": 0.0}
    own = {**keys, **step, "train.epochs": 1, "rounds": 1, "run.root": str(tmp_path)}
    whole, frozen = (written(run(configure({**own, "model.frozen": value}))) for value in (False, True))
    for name, tensor in whole.items():
        if is_trained(name):
            torch.testing.assert_close(frozen[name], tensor, rtol=1e-5, atol=1e-7)
        else:
            assert not torch.equal(frozen[name], tensor)


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize("name", sorted({*methods_for("graph")} - ELSEWHERE))
def test_every_method_leaves_it(configure: Configure, keys: dict[str, Any], tmp_path: Path, name: str) -> None:
    copilot = {"algorithm.copilot": {"name": "gin", "hidden": 8}} if name in ("fml", "fedkd") else {}
    off = {"algorithm.gkic": "off"} if name == "fggp" else {}
    away = {} if name == "global" else {"participation.ratio": 0.5}
    own = {**copilot, **off, **away, "run.root": str(tmp_path)}
    config = configure({**keys, "algorithm.name": name, **own})
    start, moved, kept = drawn(config), 0, 0
    for entry, tensor in load_file(export(run(config)) / "models.safetensors").items():
        parameter = next((known for known in start if entry.partition("/")[2].rpartition("/")[2] == known), None)
        if parameter is None:
            # Of a copilot, or of another network that the method describes.
            continue
        if is_trained(parameter):
            moved += not torch.equal(tensor, start[parameter])
        else:
            assert torch.equal(tensor, start[parameter]), entry
            kept += 1
    assert moved
    assert kept


def test_the_gnn_of_a_file_is_kept(configure: Configure, keys: dict[str, Any], tmp_path: Path) -> None:
    rng, plain = torch.Generator().manual_seed(3), drawn(configure(keys))
    of_file = {
        name.removeprefix("backbone.backbone."): torch.randn(p.shape, generator=rng)
        for name, p in plain.items()
        if name.startswith(OF_GNN)
    }
    save_file(of_file, tmp_path / "gnn.safetensors")
    config = configure({**keys, "model.pretrained": str(tmp_path / "gnn.safetensors"), "run.root": str(tmp_path)})
    now = written(run(config))
    for name, tensor in of_file.items():
        assert torch.equal(now[f"backbone.backbone.{name}"], tensor)
    assert not torch.equal(now["prompt.added"], plain["prompt.added"])


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        ({"model.prompt": None}, "model.frozen", "set model.prompt, none for a classifier alone"),
        ({"heterogeneity.embedding": 3}, "model.frozen", "leave heterogeneity.embedding out"),
        ({"model.init": "own"}, "model", "one GNN for all clients, and init: own draws one for each"),
        ({"algorithm.name": "fedgpl"}, "model.frozen", "set algorithm.gnn=frozen instead"),
    ],
)
def test_what_cannot_be_frozen_is_refused(
    configure: Configure, keys: dict[str, Any], tmp_path: Path, change: dict[str, Any], key: str, says: str
) -> None:
    given = {k: v for k, v in {**keys, **change, "run.root": str(tmp_path)}.items() if v is not None}
    with refused(key, says=says):
        run(configure(given))
