"""Tables and tensors of a run, against its files and against one another."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused

import shoal
from shoal.engine.runs.verify import verify_run


def test_metrics_are_the_lines(finished: shoal.Run) -> None:
    lines = [json.loads(line) for line in (finished.path / "metrics.jsonl").read_text().splitlines()]
    table = finished.metrics
    assert table["round"].to_pylist() == [1, 2, 3]
    assert table["cohort"].to_pylist() == [line["cohort"] for line in lines]
    assert table["loss"].to_pylist() == [line["loss"] for line in lines]
    assert table["seconds.train"].to_pylist() == [line["seconds"]["train"] for line in lines]
    # Evaluated every two rounds, and after the last.
    test = [line["scopes"]["served"]["test"]["nodes"] for line in lines[1:]]
    assert table["served.test.nodes"].to_pylist() == [None, *test]
    assert str(table.schema.field("bytes_up").type) == "int64"
    assert str(table.schema.field("served.test.nodes").type) == "double"


def test_predictions_make_the_accuracies_of_the_summary(finished: shoal.Run) -> None:
    predictions = finished.predictions()
    table = {name: predictions[name].to_numpy() for name in predictions.column_names}
    rows = table["part"] == 3
    right = table["served"] == table["label"]
    of_clients = [right[rows & (table["client"] == client)].mean() for client in range(4)]
    assert np.mean(of_clients) == pytest.approx(finished.summary["scopes"]["served"]["last"]["test"]["clients"])


def test_scores_of_clients_make_the_accuracies_of_the_lines(finished: shoal.Run) -> None:
    rows = finished.clients.to_pylist()
    assert {row["round"] for row in rows} == {2, 3}
    lines = {line["round"]: line for line in finished.metrics.to_pylist()}
    for number in (2, 3):
        for scope in ("trained", "served", "global"):
            for part in ("val", "test"):
                own = [row for row in rows if (row["round"], row["scope"], row["part"]) == (number, scope, part)]
                assert [row["client"] for row in own] == [0, 1, 2, 3]
                mean = np.mean([row["correct"] / row["rows"] for row in own])
                assert mean == pytest.approx(lines[number][f"{scope}.{part}.clients"])
                assert np.mean([row["accuracy"] for row in own]) == pytest.approx(mean)
                assert np.mean([row["f1"] for row in own]) == pytest.approx(lines[number][f"{scope}.{part}.f1_clients"])


@pytest.mark.parametrize("damage", ["cut off", "a number", "sound"])
def test_verify_reads_the_scores_of_clients(finished: shoal.Run, damage: str) -> None:
    path = finished.path / "clients.arrows"
    sound = path.read_bytes()
    rows = np.array(finished.clients["correct"].to_pylist()[:8], dtype=np.int32).tobytes()
    assert rows in sound
    other = {"cut off": sound[:-9], "a number": sound.replace(rows, b"\1" + rows[1:], 1), "sound": sound}[damage]
    assert rows[0] != 1
    path.write_bytes(other)
    try:
        faults = verify_run(finished.path)
    finally:
        path.write_bytes(sound)
    number = {"cut off": 3, "a number": 2}.get(damage)
    expected = [f"{path}: the scores of round {number} are damaged or missing"] if number else []
    assert [fault.partition(";")[0] for fault in faults] == expected


def test_models(finished: shoal.Run) -> None:
    models = finished.models()
    assert sum(t.numel() for t in models.values()) == 3 * 8 + 3
    assert all(name.startswith("global/") and t.dtype == torch.float32 for name, t in models.items())


def test_a_run_of_a_folder(finished: shoal.Run, plain: dict[str, Any], tmp_path: Path) -> None:
    again = shoal.Run(str(finished.path))
    assert again.finished
    assert again.config == shoal.load_config(plain)
    assert (shoal.prepare(plain) / "manifest.json").exists()
    # A second run of the same config is that run.
    assert shoal.run(plain).path == finished.path
    with refused(tmp_path, says="no run folder"):
        shoal.Run(tmp_path)


def test_sweep(elsewhere: dict[str, Any]) -> None:
    found = shoal.sweep({**elsewhere, "rounds": 1}, {"train.lr": [0.1, 1e-3], "seed": range(2)})
    assert found.complete
    assert found.table["train.lr"].to_pylist() == ["0.1", "0.1", "0.001", "0.001"]
    assert found.table["seed"].to_pylist() == ["0", "1", "0", "1"]
    assert [run.config.train.lr for run in found.runs] == [0.1, 0.1, 1e-3, 1e-3]
    tests = [run.summary["scopes"]["served"]["best"]["test"]["nodes"] for run in found.runs]
    assert found.table["served.best.test"].to_pylist() == tests
    with refused("algorithm.name", says="'nothing' is unknown"):
        shoal.sweep(elsewhere, {"algorithm.name": ["nothing"]})
