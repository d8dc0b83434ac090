"""Scores of all clients' items together, against scikit-learn on what `shoal export` writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
)
from support.errors import refused
from support.needs import needs
from support.small_runs import run_small
from support.user_graph import user_graph

from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.export import export
from shoal.past.rewind import PastRun
from shoal.pooled.pooled import PooledReader

NODES = 200


def predictions(run: Path) -> dict[str, np.ndarray]:
    with pa.OSFile(str(export(run, probabilities=True) / "predictions.arrow")) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    columns = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if pa.types.is_fixed_size_list(column.type):
            columns[name] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
        else:
            columns[name] = np.array(column.to_pylist(), dtype=object if name == "part" else None)
    return columns


def values(run: Path) -> dict[tuple[str, str, str], float]:
    (table,) = PooledReader().read(PastRun(run)).tables
    return {(scope, part, metric): float(value) for scope, part, metric, _, _, value in table.rows}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_classes(tmp_path: Path, classes: int, method: str) -> None:
    options = {"nodes": NODES, "features": 8, "classes": classes, "homophily": 0.4}
    run = run_small(tmp_path, algorithm={"name": method}, data={"options": options})
    found, told = values(run), predictions(run)
    for scope in ("deployed", "global") if method == "fedavg" else ("deployed",):
        for part in ("val", "test"):
            of_part = told["part"] == part
            y, p_NC = told["label"][of_part], told[f"{scope}_probability"][of_part]
            hard, one_hot = told[scope][of_part], np.eye(classes)[y]
            areas = [roc_auc_score(one_hot[:, c], p_NC[:, c]) for c in range(classes)]
            precisions = [average_precision_score(one_hot[:, c], p_NC[:, c]) for c in range(classes)]
            expected = {
                "accuracy": accuracy_score(y, hard),
                "f1": f1_score(y, hard, average="macro"),
                "roc_auc": areas[1] if classes == 2 else np.mean(areas),
                "average_precision": precisions[1] if classes == 2 else np.mean(precisions),
            }
            for metric, value in expected.items():
                assert found[scope, part, metric] == pytest.approx(value, abs=2e-6)


def test_an_area_of_all_items_is_no_mean_over_clients(tmp_path: Path) -> None:
    run = run_small(tmp_path, algorithm={"name": "local"}, evaluation={"metrics": ["accuracy", "roc_auc"]})
    recorded = read_summary(run)["scopes"]["deployed"]["final"]["test"]
    found = values(run)
    assert found["deployed", "test", "accuracy"] == pytest.approx(recorded["rows"], abs=1e-6)
    assert abs(found["deployed", "test", "roc_auc"] - recorded["roc_auc"]["rows"]) > 1e-4


@needs("targets")
def test_numbers(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(3, 2, size=NODES).astype(np.float32)
    data: dict[str, Any] = {"dataset": "files", "path": user_graph(tmp_path, NODES, y=y), "options": {}}
    run = run_small(tmp_path, target="regression", data=data, evaluation={"metrics": ["r2", "mae"]})
    found, told = values(run), predictions(run)
    of_part = told["part"] == "test"
    label, stated = told["label"][of_part], told["deployed"][of_part]
    assert found["deployed", "test", "r2"] == pytest.approx(r2_score(label, stated), abs=2e-6)
    assert found["deployed", "test", "mae"] == pytest.approx(mean_absolute_error(label, stated), abs=2e-6)
    assert ("deployed", "test", "accuracy") not in found


@needs("targets")
def test_several_labels_with_empty_ones(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = (rng.random((NODES, 3)) < 0.4).astype(np.float32)
    y[rng.random(y.shape) < 0.2] = np.nan
    data: dict[str, Any] = {"dataset": "files", "path": user_graph(tmp_path, NODES, y=y), "options": {}}
    run = run_small(tmp_path, target="multilabel", data=data)
    found, told = values(run), predictions(run)
    of_part = told["part"] == "val"
    label, stated = told["label"][of_part], told["deployed"][of_part]
    for metric, theirs in {"label_roc_auc": roc_auc_score, "label_average_precision": average_precision_score}.items():
        given = ~np.isnan(label)
        each = [theirs(label[given[:, t], t], stated[given[:, t], t]) for t in range(3)]
        assert found["deployed", "val", metric] == pytest.approx(np.mean(each), abs=2e-6)


@needs("targets")
def test_clusters_have_none(tmp_path: Path) -> None:
    run = run_small(tmp_path, target="clustering", model={"name": "gcn", "hidden": 4})
    with refused("target"):
        PooledReader().read(PastRun(run))


def test_scores_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    options = {"nodes": 4000, "features": 2, "classes": 40, "degree": 2.0}
    changes = {"data": {"options": options, "split": "per_client"}, "model": {"name": "mlp", "hidden": 2}, "rounds": 1}
    run = run_small(tmp_path, **changes, engine={"memory_limit": "3MiB"})
    with refused("engine.memory_limit"):
        PooledReader().read(PastRun(run))


def test_command(tmp_path: Path, shoal: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    run = run_small(tmp_path)
    capsys.readouterr()
    shoal("read", run, "pooled", "--json", "--out", tmp_path / "pooled.csv")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["metric"] for row in rows[:4]] == ["accuracy", "f1", "roc_auc", "average_precision"]
    assert len((tmp_path / "pooled.csv").read_text().splitlines()) == len(rows) + 1
    with refused(tmp_path / "nothing"):
        PooledReader().read(PastRun(tmp_path / "nothing"))
