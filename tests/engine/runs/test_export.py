"""An export holds enough to check a run's accuracies, with nothing of Check in the checking."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from support.errors import refused
from support.fixtures import Check, Status
from support.needs import needs
from support.shards import adjacency, dense_hops
from support.small_runs import small_run

from shoal.algorithms.models.build import build
from shoal.engine.config.config import load_config, parse_config
from shoal.engine.records import checkpoint
from shoal.engine.records.checkpoint import BEST
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.engine.runs.verify import verify_run
from shoal.storage.store.store import Store

NOT_NUMBERS = ("seconds", "retries", "hosts", "memory", "seal")


def finished(folder: Path, **changes: Any) -> Path:
    digits = {"dataset": "digits", "options": {}}
    partition = {"method": "louvain", "resolution": 4.0, "clients": 5}
    fixed = {"data": digits, "partition": partition, "propagation": {"hops": 2}}
    plain = small_run(folder, **{**fixed, "rounds": 4, "evaluation": {"every": 4}, **changes})
    return run(parse_config(plain, "test"))


def predictions(run_folder: Path, best: str | None = None, probabilities: bool = False) -> dict[str, np.ndarray]:
    batch = pa.ipc.open_file(export(run_folder, best, probabilities) / "predictions.arrow").get_batch(0)
    return {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("algorithm", "ratio", "scopes"),
    [
        ("local", 1.0, {"deployed"}),
        ("fedgta", 0.5, {"deployed"}),
        ("fedavg", 0.5, {"deployed", "global"}),
        ("global", 1.0, {"deployed"}),
    ],
)
def test_accuracies_follow_from_the_predictions(tmp_path: Path, algorithm: str, ratio: float, scopes: set[str]) -> None:
    folder = finished(tmp_path, algorithm={"name": algorithm}, participation={"ratio": ratio})
    columns = predictions(folder)
    assert sorted(columns["node"]) == list(range(1797))
    test = columns["part"] == "test"
    logged = read_summary(folder)["scopes"]
    assert {name for name in columns if name in ("deployed", "global")} == scopes
    for scope in scopes:
        right = columns[scope][test] == columns["label"][test]
        assert logged[scope]["final"]["test"]["rows"] == pytest.approx(right.mean(), abs=1e-12)
        clients = columns["client"][test]
        accuracy = [right[clients == c].mean() for c in np.unique(clients)]
        assert logged[scope]["final"]["test"]["clients"] == pytest.approx(np.mean(accuracy), abs=1e-12)


@needs("hostile")
def test_accuracies_follow_from_predictions_of_a_run_with_a_backdoor(tmp_path: Path) -> None:
    """Hostile clients train on more nodes than they have; predictions are of those that they have."""
    attack = {"kind": "backdoor", "share": 0.4}
    folder = finished(tmp_path, attack=attack, propagation={"hops": 2, "rows": "all"}, algorithm={"name": "fedavg"})
    columns = predictions(folder)
    assert sorted(columns["node"]) == list(range(1797))
    test = columns["part"] == "test"
    for scope in ("deployed", "global"):
        right = columns[scope][test] == columns["label"][test]
        logged = read_summary(folder)["scopes"][scope]["final"]["test"]["rows"]
        assert logged == pytest.approx(right.mean(), abs=1e-12)


def test_exported_model_is_the_server_s(tmp_path: Path) -> None:
    """Logits by hand: hop 2 of the store times the exported weight."""
    folder = finished(tmp_path, rounds=3, evaluation={"every": 1}, algorithm={"name": "fedavg"})
    with refused(says="were not kept; run it again with run.keep_best=true --fresh"):
        export(folder, "deployed")
    with refused(says="no scope domains with a best validation round"):
        export(folder, "domains")
    columns = predictions(folder)
    models = load_file(folder / "export" / "models.safetensors")
    assert all(name.startswith("global/") for name in models)
    weight = next(t for t in models.values() if t.ndim == 2)
    bias = next(t for t in models.values() if t.ndim == 1)
    (store,) = (tmp_path / "stores").iterdir()
    (file,) = (store / "hops" / "r0.5-k2-float32").iterdir()
    hop = pa.ipc.open_file(file).get_batch(0).column("hop2").flatten().to_numpy().reshape(-1, 64)
    logits_NC = torch.from_numpy(hop.copy()) @ weight.T + bias
    of_first = columns["client"] == 0
    assert np.array_equal(logits_NC.argmax(1).numpy(), columns["global"][of_first])
    more = predictions(folder, probabilities=True)
    p_NC = np.stack(more.pop("global_probability"))
    assert p_NC.dtype == np.float32
    np.testing.assert_allclose(p_NC[of_first], torch.softmax(logits_NC, 1), rtol=1e-4, atol=1e-7)
    # No other column is changed.
    assert {*more} - {"deployed_probability"} == {*columns}
    assert all(np.array_equal(more[name], column) for name, column in columns.items())


@pytest.mark.parametrize(("algorithm", "scopes"), [("fedavg", ("deployed", "global")), ("fedgta", ("deployed",))])
def test_the_best_round_follows_from_its_predictions(tmp_path: Path, algorithm: str, scopes: tuple[str, ...]) -> None:
    """A large step makes accuracies jump, so that the best rounds are not the last; they differ from it."""
    folder = finished(
        tmp_path,
        algorithm={"name": algorithm},
        participation={"ratio": 0.5},
        rounds=11,
        evaluation={"every": 2},
        train={"lr": 30.0},
        run={"keep_best": True, "keep_finished": 1},
    )
    logged = read_summary(folder)["scopes"]
    best = {scope: logged[scope]["best"]["round"] for scope in logged}
    assert checkpoint.rounds_kept(folder / BEST) == sorted(set(best.values()), reverse=True)
    assert checkpoint.rounds_kept(folder / "checkpoints") == [11]
    last = predictions(folder)
    for scope in scopes:
        assert best[scope] < 11
        columns = predictions(folder, scope)
        test = columns["part"] == "test"
        right = columns[scope][test] == columns["label"][test]
        assert logged[scope]["best"]["test"]["rows"] == pytest.approx(right.mean(), abs=1e-12)
        assert not np.array_equal(columns[scope], last[scope])
        assert (folder / "export" / f"best-{scope}" / "models.safetensors").exists()
    assert not verify_run(folder)
    (folder / BEST / f"round-{best['deployed']:06d}" / "state.safetensors").write_bytes(b"")
    assert [line for line in verify_run(folder) if "best" in line and "checksum" in line]
    with refused(says="state.safetensors: checksum does not match"):
        export(folder, "deployed")


def numbers(folder: Path) -> tuple[dict[str, bytes], list[dict[str, object]]]:
    """Every tensor of the newest checkpoint, and every round's line."""
    newest = max((folder / "checkpoints").glob("round-*"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if key not in NOT_NUMBERS} for line in lines]
    return {name: t.numpy().tobytes() for name, t in load_file(newest / "state.safetensors").items()}, kept


def test_inductive_run_is_resumed_and_exported(tiny: Path, tmp_path: Path, shoal: Check, status: Status) -> None:
    keys = ["data.inductive=true", "rounds=3", "algorithm.name=fedgta", "participation.ratio=0.5", "model.name=gcn"]
    keys.append("model.head=linear")
    whole = run(load_config(tiny, [*keys, f"run.root={tmp_path / 'whole'}"]))
    assert status("run", tiny, *keys, "run.max_seconds=1e-6") == 130
    shoal("run", tiny, *keys, "--resume")
    (parts,) = (tmp_path / "runs").iterdir()
    assert numbers(parts) == numbers(whole)
    shoal("verify", parts)

    column = predictions(parts)
    models = load_file(parts / "export" / "models.safetensors")
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
        np.testing.assert_array_equal(column["deployed"][column["client"] == client], logits.argmax(1))


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_first_weight_of_a_raw_state_is_by_column_with_sparse_features_and_by_name_in_an_export(
    tmp_path: Path, layout: str
) -> None:
    data = {"dataset": "digits", "options": {}, "layout": layout}
    folder = finished(tmp_path, data=data, model={"name": "mlp", "hidden": 3, "layers": 2}, rounds=1)
    found = checkpoint.load_newest(folder / "checkpoints")
    assert found is not None
    (first, *_) = (t for name, t in load_file(export(folder) / "models.safetensors").items() if t.shape == (3, 64))
    raw = found.state.server["w"][: 3 * 64]
    assert torch.equal(raw.view(64, 3).t() if layout == "sparse" else raw.view(3, 64), first)
