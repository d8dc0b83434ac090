"""`shoal pretrain`: from a config to a file that a run starts from, and what is refused in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file
from support.errors import refused as is_refused
from support.fixtures import Check, Configure, Refused

from shoal.algorithms.training.graph_contrast import ContrastOptions
from shoal.engine.config.config import Config, load_config
from shoal.engine.runs.pretrain import pretrain
from shoal.engine.runs.run import run
from shoal.storage.options.split_codes import TRAIN
from shoal.storage.shards.view import View
from shoal.storage.store.store import Store

Capture = pytest.CaptureFixture[str]
Keys = dict[str, Any]
SHORT = ContrastOptions(epochs=2)


def described(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as opened:
        return json.loads(opened.metadata()["shoal"])  # type: ignore[no-any-return]


@pytest.fixture
def configured(configure: Configure, tmp_path: Path) -> Configure:
    def configured(keys: dict[str, Any], graph: str = "plain") -> Config:
        own = {"run.root": str(tmp_path / "runs"), "run.tensorboard": False, "rounds": 1, "model.name": "gcn"}
        return configure({**own, **keys}, graph)

    return configured


def test_a_run_from_its_file(tiny: Path, shoal: Check, capsys: Capture, tmp_path: Path) -> None:
    plain = yaml.safe_load(tiny.read_text())
    out = tmp_path / "made" / "gnn.safetensors"
    tiny.write_text(yaml.safe_dump({**plain, "model": {"name": "sage", "hidden": 16, "pretrained": str(out)}}))
    shoal("pretrain", tiny, "--out", out, "--epochs", "3", "--parts", "9", "--batch", "4", "seed=5")
    said = capsys.readouterr()
    assert f"written: {out}; a run starts from it with model.pretrained={out}" in said.out
    assert "pretrain: sage on all 120 nodes in 9 parts, in this process" in said.err
    assert "no label is read" in said.err
    assert "pretrain: 9/9 steps" in said.err
    about = described(out)
    assert about == {
        "method": "graphcl", "centralised": "trained in one place on all 120 nodes in 9 parts, without labels",
        "dataset": "sbm", "synthetic": True, "backbone": "sage", "options": {"hidden": 16}, "features": 8, "seed": 5,
        "epochs": 3, "batch": 4, "lr": 1e-3, "temperature": 0.5, "drop_nodes": 0.2, "perturb_edges": 0.2,
    }  # fmt: skip
    content = out.read_bytes()
    shoal("pretrain", tiny, "--out", out, "--epochs", "3", "--parts", "9", "--batch", "4", "seed=5")
    assert out.read_bytes() == content
    shoal("run", tiny)
    shoal("run", tiny, "model.pretrained=null")
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_it_learns_from_training_graphs_alone(configured: Configure, graph_task: Keys, tmp_path: Path) -> None:
    config = configured({**graph_task, "model.readout": "attention"})
    own = pretrain(config, tmp_path / "train", SHORT, 200, "train")
    every = pretrain(config, tmp_path / "all", SHORT, 200, "all")
    count = int((np.load(Path(graph_task["data.path"]) / "split.npy") == TRAIN).sum())
    assert described(own)["centralised"] == f"trained in one place on the {count} training graphs, without labels"
    assert described(every)["centralised"] == "trained in one place on all 45 graphs, without labels"
    one, two = load_file(own), load_file(every)
    # Neither a classifier nor a readout.
    assert one.keys() == two.keys() == {f"convs.{i}.{name}" for i in (0, 1) for name in ("bias", "lin.weight")}
    assert not torch.equal(one["convs.0.lin.weight"], two["convs.0.lin.weight"])
    for path in (own, every):
        run(configured({**graph_task, "model.pretrained": str(path)}))


def test_no_label_is_read(configured: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def label(data: View) -> None:
        raise AssertionError

    monkeypatch.setattr(View, "label", property(label))
    monkeypatch.setattr(View, "train_label", property(label))
    files = [pretrain(configured({}, graph), tmp_path / graph, SHORT, 20, "train") for graph in ("plain", "shuffled")]
    one, two = ({name: t.tolist() for name, t in load_file(file).items()} for file in files)
    assert one == two


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["model.name=sgc"],
            "model.name: sgc trains no layer that passes messages; take one of disengcn, gat",
        ),
        (["model.name=gcm"], "model.name: there is no 'gcm'; choose one of"),
        (["model.name=gcn", "model.width=3"], "model.width: gcn has no such option; it has"),
        (["model.name=gcn", "--epochs", "0"], "--epochs: expected at least 1, found 0"),
        (["model.name=gcn", "--drop-nodes", "1"], "--drop-nodes: expected less than 1, found 1.0"),
        (["model.name=gcn", "--lr", "nan"], "--lr: expected a finite number, found nan"),
        (["model.name=gcn", "--parts", "1"], "--parts: must be at least 2, found 1"),
        (["model.name=gcn", "--out", "/dev/null/gnn"], "/dev/null/gnn: is a pipe or a device"),
        (["model.name=gcn", "--out", "/proc"], "/proc: cannot be written: Is a directory"),
        (["model.name=gcn", "data.dataset=nowhere"], "data.dataset: unknown dataset 'nowhere'"),
    ],
)
def test_refused(tiny: Path, refused: Refused, tmp_path: Path, arguments: list[str], line: str) -> None:
    out = [] if "--out" in arguments else ["--out", tmp_path / "gnn"]
    assert refused("pretrain", tiny, *arguments, *out).startswith(f"shoal: {line}")
    assert not list(tmp_path.glob("gnn*"))


def test_pretrain_failure_writes_no_file(configured: Configure, tmp_path: Path) -> None:
    out = tmp_path / "gnn"
    out.write_text("of before")
    with is_refused(says="the loss of epoch 1 is nan"):
        pretrain(configured({}), out, ContrastOptions(lr=1e20, epochs=4), 20, "train")
    assert out.read_text() == "of before"
    assert [path.name for path in tmp_path.iterdir()] == ["gnn"]


def test_pretraining_sees_training_nodes_alone(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    config = load_config(tiny, ["data.inductive=true", "model.name=gcn"])
    pretrain(config, tmp_path / "gnn.safetensors", ContrastOptions(epochs=1), 6, "train")
    counts = Store(tmp_path / "store").manifest.splits["stratified-20-40-40-seed0"].counts
    count = sum(train for train, _, _ in counts)
    assert f"pretrain: gcn on the {count} training nodes in 6 parts" in capsys.readouterr().err
