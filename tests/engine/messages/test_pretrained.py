"""Runs that start from a file: which parameters, at which clients, and files that do not fit."""

import json
import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from support.errors import refused
from support.small_cells import require_same_tree
from torch import Tensor

from shoal.algorithms.models.build import build
from shoal.algorithms.models.names import ModelSpec
from shoal.algorithms.protocol import MODEL, Tree
from shoal.engine.config.config import Config
from shoal.engine.config.run_identity import identity_keys
from shoal.engine.messages.job import make_job
from shoal.engine.messages.pretrained import METADATA, read_pretrained, write_pretrained
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.inputs import contents
from shoal.engine.records.run_folder import run_path
from shoal.engine.runs.dry_run import show_plan
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run

FEATURES = 5
Configure = Callable[..., Config]


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    """Of a GCN of two layers of width 8, without its classifier."""
    rng = torch.Generator().manual_seed(8)
    shapes = {"0.bias": (8,), "0.lin.weight": (8, FEATURES), "1.bias": (8,), "1.lin.weight": (8, 8)}
    return {f"convs.{name}": torch.randn(shape, generator=rng) for name, shape in shapes.items()}


@pytest.fixture
def file(tmp_path: Path, tensors: dict[str, Tensor]) -> Path:
    path = tmp_path / "gnn.safetensors"
    save_file(tensors, path)
    return path


@pytest.fixture
def configured(configure: Configure, tmp_path: Path, file: Path) -> Configure:
    def configured(keys: Mapping[str, Any] | None = None) -> Config:
        own = {"run.root": str(tmp_path), "run.tensorboard": False, "rounds": 2, "model.name": "gcn"}
        return configure({**own, "model.pretrained": str(file), **(keys or {})})

    return configured


def initials(config: Config, clients: list[int]) -> list[dict[str, Tensor]]:
    """Parameters by name that clients start from."""
    store = prepare(config)
    job = make_job(config, store, "job")
    models = job.build_models(store, job.algorithm())[MODEL]
    found = []
    for client in clients:
        built = models[job.model_of[client]]
        w = job.initial(built, MODEL, client)
        assert torch.equal(w, built.flat.w.detach())
        parts = zip(built.flat.module.named_parameters(), built.flat.parts(w), strict=True)
        found.append({name: part.clone() for (name, _), part in parts})
    return found


def those(tree: Tree, names: Iterable[str], prefix: str = "") -> Tree:
    return {name: tree[prefix + name] for name in names}


@pytest.mark.parametrize("init", ["shared", "own"])
def test_the_gnn_is_the_files_and_the_rest_is_drawn(configured: Configure, tensors: Tree, init: str) -> None:
    one, two = initials(configured({"model.init": init}), [0, 3])
    plain, _ = initials(configured({"model.init": init, "model.pretrained": None, "model.head": "linear"}), [0, 3])
    for found in (one, two):
        require_same_tree(those(found, tensors), tensors)
    assert not any(torch.equal(plain[name], tensor) for name, tensor in tensors.items())
    rest = one.keys() - tensors.keys()
    assert rest == {"head.linears.0.weight", "head.linears.0.bias"}
    require_same_tree(those(one, rest), those(plain, rest))
    assert torch.equal(one["head.linears.0.weight"], two["head.linears.0.weight"]) == (init == "shared")


@pytest.mark.parametrize("task", ["graph", "edge", "adapted"])
def test_one_file_fits_whatever_wraps_the_backbone(
    request: pytest.FixtureRequest, configured: Configure, tensors: Tree, file: Path, task: str
) -> None:
    keys = {"heterogeneity.embedding": 3} if task == "adapted" else request.getfixturevalue(f"{task}_task")
    if task == "edge":
        width = np.load(Path(keys["data.path"]) / "x.npy").shape[1]
        tensors["convs.0.lin.weight"] = torch.randn(8, width)
        save_file(tensors, file)
    (found,) = initials(configured(keys), [1])
    require_same_tree(those(found, tensors, "backbone."), tensors)


def test_of_several_models_each_has_its_own_file(configured: Configure, tensors: Tree, file: Path) -> None:
    gcn, plain = {"name": "gcn", "hidden": 8}, {"name": "sgc"}
    other = file.with_name("other.safetensors")
    negative = {name: -tensor for name, tensor in tensors.items()}
    save_file(negative, other)
    models = [{**gcn, "pretrained": str(file)}, plain, {**gcn, "pretrained": str(other)}]

    def config_of(models: list[dict[str, Any]]) -> Config:
        return Config.model_validate({**configured().plain(), "model": models, "algorithm": {"name": "local"}})

    config = config_of(models)
    first, _, third = initials(config, [0, 1, 2])
    require_same_tree(those(first, tensors), tensors)
    require_same_tree(those(third, tensors), negative)
    assert contents(config).keys() >= {"model.0.pretrained", "model.2.pretrained"}
    # Without files the name is what it was before there were any.
    without = config_of([gcn, plain, gcn])
    named = [{**model, "init": "shared"} for model in (gcn, plain, gcn)]
    assert identity_keys(without.plain())["model"] == named
    assert len({run_path(config), run_path(without), run_path(config_of(models[::-1]))}) == 3


def test_hosts_need_no_file(configured: Configure, tensors: dict[str, Tensor], file: Path) -> None:
    store = prepare(configured())
    made = make_job(configured(), store, "job")
    file.unlink()
    job = pickle.loads(pickle.dumps(made))
    assert job == made
    (built,) = job.build_models(store, job.algorithm())[MODEL]
    job.initial(built, MODEL, 4)
    assert torch.equal(dict(built.flat.module.named_parameters())["convs.1.bias"], tensors["convs.1.bias"])


def test_the_content_counts_and_not_the_place(configured: Configure, tensors: dict[str, Tensor], file: Path) -> None:
    name = run_path(configured())
    assert name != run_path(configured({"model.pretrained": None}))
    moved = file.rename(file.with_name("moved"))
    assert run_path(configured({"model.pretrained": str(moved)})) == name
    save_file({**tensors, "convs.0.bias": tensors["convs.0.bias"] + 1}, moved)
    assert run_path(configured({"model.pretrained": str(moved)})) != name


def test_a_whole_run_starts_from_the_file(configured: Configure, tensors: dict[str, Tensor], file: Path) -> None:
    config = configured({"train.lr": 1e-12, "train.weight_decay": 0.0, "algorithm.name": "local"})
    folder = run(config)
    found = load_file(export(folder) / "models.safetensors")
    for client in range(6):
        torch.testing.assert_close(those(found, tensors, f"client/{client:05d}/"), tensors, rtol=0, atol=1e-6)
    save_file({**tensors, "convs.0.bias": tensors["convs.0.bias"] + 1}, file)
    with refused(says="model.pretrained changed since this run started"):
        export(folder)
    file.unlink()
    with refused("model.pretrained", str(file), says="cannot be read: No such file"):
        export(folder)


def test_what_is_written(tmp_path: Path, configured: Configure) -> None:
    path = tmp_path / "folder" / "made.safetensors"
    module, made = build("gcn", FEATURES, 4, 0, 0.0, {"hidden": 8}), {"seed": 3, "options": {"hidden": 8}}
    write_pretrained(path, module, made)
    own = dict(module.named_parameters())
    names = [f"convs.{i}.{name}" for i in (0, 1) for name in ("bias", "lin.weight")]
    require_same_tree(load_file(path), those(own, names))
    with safe_open(path, "pt") as opened:
        assert json.loads(opened.metadata()[METADATA]) == made
    content = path.read_bytes()
    write_pretrained(path, module, made)
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["made.safetensors"]
    (start,) = initials(configured({"model.pretrained": str(path)}), [2])
    assert torch.equal(start["convs.1.lin.weight"], own["convs.1.lin.weight"])


BIAS = "convs.1.bias"
DAMAGED = "damaged, or no safetensors ("
FAULTS: dict[str, tuple[Callable[[Tree], bytes], str]] = {
    "strange": (lambda t: save({**t, "convs.2.bias": torch.zeros(8)}), "has convs.2.bias, which this model, gcn, has"),
    "shape": (lambda t: save({**t, BIAS: torch.zeros(9)}), "convs.1.bias is [9], that of this model, gcn, is [8]"),
    "fewer": (lambda t: save(those(t, t.keys() - {BIAS})), "has no convs.1.bias, which this model, gcn"),
    "none": (lambda t: save({}), "has no convs.0.bias, which"),
    "infinite": (lambda t: save({**t, BIAS: torch.full((8,), torch.inf)}), "has numbers that are not finite"),
    "whole": (lambda t: save({**t, BIAS: torch.zeros(8).long()}), "has numbers that are not finite, or no numbers"),
    "cut off": (lambda t: save(t)[:-5], DAMAGED),
    "empty": (lambda t: b"", DAMAGED),
    "text": (lambda t: b"convs" * 50, DAMAGED),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_does_not_fit(configured: Configure, tensors: Tree, file: Path, fault: str) -> None:
    content, line = FAULTS[fault]
    file.write_bytes(content(tensors))
    for begin in (run, show_plan):
        with refused(f"model.pretrained: {file}", says=line):
            begin(configured())


def test_files_that_cannot_be_read(configured: Configure, file: Path) -> None:
    for begin in (run, show_plan):
        for path in (file.parent / "gone", file.parent):
            with refused(says=f"model.pretrained: {path}: cannot be read: "):
                begin(configured({"model.pretrained": str(path)}))
    with refused("model.pretrained", str(file), says="is larger than engine.memory_limit"):
        read_pretrained((ModelSpec(name="gcn", pretrained=str(file)),), file.stat().st_size - 1)
