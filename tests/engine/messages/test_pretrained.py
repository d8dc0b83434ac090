"""Runs that start from a file: which parameters, at which clients, and files that do not fit."""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.model_options import ModelSpec
from shoal.algorithms.protocol import MODEL
from shoal.engine.config.config import Config
from shoal.engine.config.run_identity import identity_keys
from shoal.engine.messages.job import make_job
from shoal.engine.messages.pretrained import METADATA, read_pretrained, start_from, write_pretrained
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.inputs import contents
from shoal.engine.records.run_folder import run_path
from shoal.engine.runs.dry_run import show_plan
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.storage.errors import ShoalError

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


@pytest.mark.parametrize("init", ["shared", "own"])
def test_the_gnn_is_the_files_and_the_rest_is_drawn(
    configured: Configure, tensors: dict[str, Tensor], init: str
) -> None:
    one, two = initials(configured({"model.init": init}), [0, 3])
    plain, _ = initials(configured({"model.init": init, "model.pretrained": None, "model.head": "linear"}), [0, 3])
    for name, tensor in tensors.items():
        assert torch.equal(one[name], tensor)
        assert torch.equal(two[name], tensor)
        assert not torch.equal(plain[name], tensor)
    rest = one.keys() - tensors.keys()
    assert rest == {"head.linears.0.weight", "head.linears.0.bias"}
    for name in rest:
        assert torch.equal(one[name], plain[name])
    assert torch.equal(one["head.linears.0.weight"], two["head.linears.0.weight"]) == (init == "shared")


@pytest.mark.parametrize("task", ["graph", "edge", "adapted"])
def test_one_file_fits_whatever_wraps_the_backbone(
    request: pytest.FixtureRequest, configured: Configure, tensors: dict[str, Tensor], file: Path, task: str
) -> None:
    keys = {"heterogeneity.embedding": 3} if task == "adapted" else request.getfixturevalue(f"{task}_task")
    if task == "edge":
        width = np.load(Path(keys["data.path"]) / "x.npy").shape[1]
        tensors["convs.0.lin.weight"] = torch.randn(8, width)
        save_file(tensors, file)
    (found,) = initials(configured(keys), [1])
    for name, tensor in tensors.items():
        assert torch.equal(found[f"backbone.{name}"], tensor)


def test_weights_that_lie_by_column(tensors: dict[str, Tensor]) -> None:
    flat = FlatModel(build("gcn", FEATURES, 4, 0, 0.0, {"hidden": 8}), sparse=True)
    w = start_from(flat, save(tensors))
    names = [name for name, _ in flat.module.named_parameters()]
    found = dict(zip(names, flat.parts(w), strict=True))
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_of_several_models_each_has_its_own_file(configured: Configure, tensors: dict[str, Tensor], file: Path) -> None:
    gcn, plain = {"name": "gcn", "hidden": 8}, {"name": "sgc"}
    other = file.with_name("other.safetensors")
    save_file({name: -tensor for name, tensor in tensors.items()}, other)
    models = [{**gcn, "pretrained": str(file)}, plain, {**gcn, "pretrained": str(other)}]

    def config_of(models: list[dict[str, Any]]) -> Config:
        config = configured()
        return Config.model_validate({**config.plain(), "model": models, "algorithm": {"name": "local"}})

    config = config_of(models)
    first, _, third = initials(config, [0, 1, 2])
    for name, tensor in tensors.items():
        assert torch.equal(first[name], tensor)
        assert torch.equal(third[name], -tensor)
    assert contents(config).keys() >= {"model.0.pretrained", "model.2.pretrained"}
    # Without files the name is what it was before there were any.
    without = config_of([gcn, plain, gcn])
    assert identity_keys(without.plain())["model"] == [
        {"name": "gcn", "init": "shared", "hidden": 8}, {"name": "sgc", "init": "shared"},
        {"name": "gcn", "init": "shared", "hidden": 8},
    ]  # fmt: skip
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
        for name, tensor in tensors.items():
            torch.testing.assert_close(found[f"client/{client:05d}/{name}"], tensor, rtol=0, atol=1e-6)
    save_file({**tensors, "convs.0.bias": tensors["convs.0.bias"] + 1}, file)
    with pytest.raises(ShoalError, match=r"model\.pretrained changed since this run started; restore the content$"):
        export(folder)
    file.unlink()
    with pytest.raises(ShoalError, match=rf"^model\.pretrained: {file}: cannot be read: No such file"):
        export(folder)


def wrong_files(tensors: dict[str, Tensor]) -> dict[str, tuple[bytes, str]]:
    """Contents, and what is said of them."""
    strange, other = dict(tensors), dict(tensors)
    strange["convs.2.bias"] = torch.zeros(8)
    other["convs.1.bias"] = torch.zeros(9)
    fewer = {name: tensor for name, tensor in tensors.items() if name != "convs.1.bias"}
    infinite = {**tensors, "convs.1.bias": torch.full((8,), torch.inf)}
    whole = {**tensors, "convs.1.bias": torch.zeros(8, dtype=torch.int64)}
    return {
        "strange": (save(strange), r"has convs\.2\.bias, which this model, gcn, has not; take a file"),
        "shape": (save(other), r"convs\.1\.bias is \[9\], that of this model, gcn, is \[8\]; take a file"),
        "fewer": (save(fewer), r"has no convs\.1\.bias, which this model, gcn, starts from; take a file"),
        "none": (save({}), r"has no convs\.0\.bias, which"),
        "infinite": (save(infinite), r"convs\.1\.bias has numbers that are not finite"),
        "whole": (save(whole), r"convs\.1\.bias has numbers that are not finite, or no numbers"),
        "cut off": (save(tensors)[:-5], r"damaged, or no safetensors \("),
        "empty": (b"", r"damaged, or no safetensors \("),
        "text": (b"convs" * 50, r"damaged, or no safetensors \("),
    }


@pytest.mark.parametrize(
    "fault", ["strange", "shape", "fewer", "none", "infinite", "whole", "cut off", "empty", "text"]
)
def test_a_file_that_does_not_fit(configured: Configure, tensors: dict[str, Tensor], file: Path, fault: str) -> None:
    content, line = wrong_files(tensors)[fault]
    file.write_bytes(content)
    for begin in (run, show_plan):
        with pytest.raises(ShoalError, match=rf"^model\.pretrained: {file}: {line}") as refused:
            begin(configured())
        assert "\n" not in str(refused.value)


def test_files_that_cannot_be_read(configured: Configure, file: Path) -> None:
    for begin in (run, show_plan):
        for path, reason in ((file.parent / "gone", "No such file"), (file.parent, "Is no file|Is a directory")):
            with pytest.raises(ShoalError, match=rf"^model\.pretrained: {path}: cannot be read: ({reason})"):
                begin(configured({"model.pretrained": str(path)}))


def test_what_is_written(tmp_path: Path, configured: Configure) -> None:
    path = tmp_path / "folder" / "made.safetensors"
    module = build("gcn", FEATURES, 4, 0, 0.0, {"hidden": 8})
    write_pretrained(path, module, {"method": "graphcl", "seed": 3, "options": {"hidden": 8}})
    own = dict(module.named_parameters())
    found = load_file(path)
    assert found.keys() == {f"convs.{i}.{name}" for i in (0, 1) for name in ("bias", "lin.weight")}
    assert all(torch.equal(tensor, own[name]) for name, tensor in found.items())
    with safe_open(path, "pt") as opened:
        assert json.loads(opened.metadata()[METADATA]) == {"method": "graphcl", "seed": 3, "options": {"hidden": 8}}
    content = path.read_bytes()
    write_pretrained(path, module, {"method": "graphcl", "seed": 3, "options": {"hidden": 8}})
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["made.safetensors"]
    (start,) = initials(configured({"model.pretrained": str(path)}), [2])
    assert torch.equal(start["convs.1.lin.weight"], own["convs.1.lin.weight"])


def test_the_innermost_module_is_the_backbone() -> None:
    flat = FlatModel(build("gin", FEATURES, 4, 0, 0.0, {"hidden": 8, "readout": "mean"}, embedding=3, task="graph"))
    assert type(flat.backbone).__name__ == "GIN"
    assert isinstance(flat.backbone, nn.Module)


def test_no_more_memory_is_taken_than_the_file_has(tmp_path: Path) -> None:
    file = tmp_path / "gnn.safetensors"
    file.write_bytes(b"x" * 100)
    models = (ModelSpec(name="gcn", pretrained=str(file)),)
    for most in (100, 1 << 60):
        assert read_pretrained(models, most) == {str(file): b"x" * 100}
    with pytest.raises(ShoalError, match=rf"^model\.pretrained: {file}: is larger than engine\.memory_limit"):
        read_pretrained(models, 99)
