"""Inductive runs as a user has them: resumed, exported, verified, planned, and their models pretrained."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors
from support.shards import adjacency, dense_hops

from shoal.algorithms.models.build import build
from shoal.algorithms.training.graph_contrast import ContrastOptions
from shoal.engine.config.config import load_config
from shoal.engine.runs.export import export
from shoal.engine.runs.pretrain import pretrain
from shoal.engine.runs.run import run
from shoal.storage.store.store import Store

NOT_NUMBERS = ("seconds", "retries", "hosts", "memory", "seal")
SPLIT = "stratified-20-40-40-seed0"


def numbers(folder: Path) -> tuple[dict[str, bytes], list[dict[str, object]]]:
    """Every tensor of the newest checkpoint, and every round's line."""
    newest = max((folder / "checkpoints").glob("round-*"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if key not in NOT_NUMBERS} for line in lines]
    return {name: t.tobytes() for name, t in load_file(newest / "state.safetensors").items()}, kept


def test_resumed_and_exported(
    tiny: Path, tmp_path: Path, shoal: Callable[..., None], status: Callable[..., int]
) -> None:
    keys = ["data.inductive=true", "rounds=3", "algorithm.name=fedgta", "participation.ratio=0.5", "model.name=gcn"]
    keys.append("model.head=linear")
    whole = run(load_config(tiny, [*keys, f"run.root={tmp_path / 'whole'}"]))
    assert status("run", tiny, *keys, "run.max_seconds=1e-6") == 130
    shoal("run", tiny, *keys, "--resume")
    (parts,) = (tmp_path / "runs").iterdir()
    assert numbers(parts) == numbers(whole)
    shoal("verify", parts)

    out = export(parts)
    models = load_tensors(out / "models.safetensors")
    with pa.OSFile(str(out / "predictions.arrow")) as file:
        table = pa.ipc.open_file(file).get_batch(0)
    column = {name: table.column(name).to_numpy() for name in table.schema.names}
    assert sorted(column["node"]) == list(range(120))
    store = Store(tmp_path / "store")
    names = [name for name, _ in build("gcn", 8, 3, 1, 0.0, {}).named_parameters()]
    for client in range(store.clients):
        shard = store.shard(client)
        s = next(dense_hops(adjacency(shard).toarray(), np.eye(shard.nodes)))
        p = {name: models[f"client/{client:05d}/{name}"].numpy() for name in names}
        z = np.maximum(s @ shard.x @ p["convs.0.lin.weight"].T + p["convs.0.bias"], 0)
        z = s @ z @ p["convs.1.lin.weight"].T + p["convs.1.bias"]
        logits = z @ p["head.linears.0.weight"].T + p["head.linears.0.bias"]
        np.testing.assert_array_equal(column["served"][column["client"] == client], logits.argmax(1))


def test_pretraining_sees_training_nodes_alone(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(tiny, ["data.inductive=true", "model.name=gcn"])
    pretrain(config, tmp_path / "gnn.safetensors", ContrastOptions(epochs=1), 6, "train")
    counts = Store(tmp_path / "store").manifest.splits[SPLIT].counts
    count = sum(train for train, _, _ in counts)
    assert f"pretrain: gcn on the {count} training nodes in 6 parts" in capsys.readouterr().err
