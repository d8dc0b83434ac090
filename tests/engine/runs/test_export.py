"""An export holds enough to check a run's accuracies, with nothing of Shoal in the checking."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from support.errors import refused

from shoal.engine.config.config import parse_config
from shoal.engine.records import checkpoint
from shoal.engine.records.checkpoint import BEST
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.engine.runs.verify import verify_run
from shoal.storage.options.split_codes import TEST


def finished(folder: Path, **changes: Any) -> Path:
    plain = {
        "name": "exported",
        "rounds": 4,
        "data": {"dataset": "digits", "root": str(folder)},
        "partition": {"method": "louvain", "resolution": 4.0, "clients": 5},
        "propagation": {"hops": 2},
        "model": {"name": "sgc"},
        "evaluation": {"every": 4},
        "engine": {"backend": "local"},
        "run": {"root": str(folder / "runs"), "tensorboard": False},
        **changes,
    }
    return run(parse_config(plain, "test"))


def predictions(run_folder: Path, best: str | None = None) -> dict[str, np.ndarray]:
    batch = pa.ipc.open_file(export(run_folder, best) / "predictions.arrow").get_batch(0)
    return {name: batch.column(name).to_numpy() for name in batch.schema.names}


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("algorithm", "ratio", "scopes"),
    [
        ("local", 1.0, {"served"}),
        ("fedgta", 0.5, {"served"}),
        ("fedavg", 0.5, {"served", "global"}),
        ("global", 1.0, {"served"}),
    ],
)
def test_accuracies_follow_from_the_predictions(tmp_path: Path, algorithm: str, ratio: float, scopes: set[str]) -> None:
    folder = finished(tmp_path, algorithm={"name": algorithm}, participation={"ratio": ratio})
    columns = predictions(folder)
    assert sorted(columns["node"]) == list(range(1797))
    test = columns["part"] == TEST
    logged = read_summary(folder)["scopes"]
    assert {name for name in columns if name in ("served", "global")} == scopes
    for scope in scopes:
        right = columns[scope][test] == columns["label"][test]
        assert logged[scope]["last"]["test"]["rows"] == pytest.approx(right.mean(), abs=1e-12)
        clients = columns["client"][test]
        accuracy = [right[clients == c].mean() for c in np.unique(clients)]
        assert logged[scope]["last"]["test"]["clients"] == pytest.approx(np.mean(accuracy), abs=1e-12)


def test_exported_model_is_the_server_s(tmp_path: Path) -> None:
    """Logits by hand: hop 2 of the store times the exported weight."""
    folder = finished(tmp_path, algorithm={"name": "fedavg"})
    columns = predictions(folder)
    models = load_file(folder / "export" / "models.safetensors")
    assert all(name.startswith("global/") for name in models)
    weight = next(t for t in models.values() if t.ndim == 2)
    bias = next(t for t in models.values() if t.ndim == 1)
    (store,) = (tmp_path / "stores").iterdir()
    file = store / "hops" / "r0.5-k2-float32" / "00000.arrow"
    hop = pa.ipc.open_file(file).get_batch(0).column("hop2").flatten().to_numpy().reshape(-1, 64)
    predicted = (torch.from_numpy(hop.copy()) @ weight.T + bias).argmax(1).numpy()
    assert np.array_equal(predicted, columns["global"][columns["client"] == 0])


@pytest.mark.parametrize(("algorithm", "scopes"), [("fedavg", ("served", "global")), ("fedgta", ("served",))])
def test_the_best_round_follows_from_its_predictions(tmp_path: Path, algorithm: str, scopes: tuple[str, ...]) -> None:
    """A large step makes accuracies jump, so that the best rounds are not the last; they differ from it."""
    folder = finished(
        tmp_path,
        algorithm={"name": algorithm},
        participation={"ratio": 0.5},
        rounds=11,
        evaluation={"every": 2},
        train={"lr": 30.0},
        run={"root": str(tmp_path / "runs"), "tensorboard": False, "keep_best": True, "keep_finished": 1},
    )
    logged = read_summary(folder)["scopes"]
    best = {scope: logged[scope]["best"]["round"] for scope in logged}
    assert checkpoint.rounds_kept(folder / BEST) == sorted(set(best.values()), reverse=True)
    assert checkpoint.rounds_kept(folder / "checkpoints") == [11]
    last = predictions(folder)
    for scope in scopes:
        assert best[scope] < 11
        columns = predictions(folder, scope)
        test = columns["part"] == TEST
        right = columns[scope][test] == columns["label"][test]
        assert logged[scope]["best"]["test"]["rows"] == pytest.approx(right.mean(), abs=1e-12)
        assert not np.array_equal(columns[scope], last[scope])
        assert (folder / "export" / f"best-{scope}" / "models.safetensors").exists()
    assert not verify_run(folder)
    (folder / BEST / f"round-{best['served']:06d}" / "state.safetensors").write_bytes(b"")
    assert [line for line in verify_run(folder) if "best" in line and "checksum" in line]
    with refused(says="state.safetensors: checksum does not match"):
        export(folder, "served")


def test_export_without_best_round_is_refused(tmp_path: Path) -> None:
    folder = finished(tmp_path, rounds=3, evaluation={"every": 1}, algorithm={"name": "fedavg"})
    with refused(says="were not kept; run it again with run.keep_best=true --fresh"):
        export(folder, "served")
    with refused(says="no scope domains with a best validation round"):
        export(folder, "domains")
