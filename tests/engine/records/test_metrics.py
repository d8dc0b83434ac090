"""Lines of metrics: whole or not there, sealed, and rebuilt from a checkpoint."""

import json
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.errors import refused
from support.fixtures import Start

from shoal.engine.config.sections import current_name
from shoal.engine.records import checkpoint, logged_lines
from shoal.engine.records.checkpoint import CHECKPOINTS, Checkpoint
from shoal.engine.records.client_scores import ClientScores, read_client_scores
from shoal.engine.records.logged_lines import Logged
from shoal.engine.records.metrics import METRICS, Metrics, read_metrics
from shoal.engine.records.run_folder import SUMMARY, read_summary
from shoal.engine.records.summary import summarize_run
from shoal.engine.rounds.evaluation import client_scores
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import ShoalError
from shoal.storage.files import digest as digest_module
from shoal.storage.files.checksummed_json import sealed
from shoal.storage.store.store import Store


def line(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, "loss": 0.1 * number, **more}


@pytest.fixture
def five(tmp_path: Path) -> Metrics:
    metrics = Metrics(tmp_path)
    for number in range(1, 6):
        metrics.append(line(number, scopes={"deployed": {"val": {"nodes": 0.1}}}))
    return metrics


def test_metrics_append_round_trip(five: Metrics, tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == five.lines
    assert [found["round"] for found in five.lines] == [1, 2, 3, 4, 5]
    assert [found["round"] for found in five.lines[1:4][1:]] == [3, 4]
    assert (five.lines[-1]["round"], five.lines[2:][0]["round"], len(five.lines[4:2])) == (5, 3, 0)
    assert five.path.read_bytes() == b"".join(five.logged.lines()) == b"".join(five.logged.chunks())
    assert read_metrics(tmp_path / "none") == []
    # A line that was cut off is none.
    with five.path.open("a") as file:
        file.write(json.dumps(line(6)))
    assert read_metrics(tmp_path) == five.lines


@pytest.mark.parametrize("change", ["number", "cut", "seal", "bytes"])
def test_a_changed_line_is_named(five: Metrics, tmp_path: Path, change: str) -> None:
    lines = five.path.read_bytes().splitlines(keepends=True)
    lines[1] = {
        "number": lines[1].replace(b"0.2", b"0.3"),
        "cut": lines[1][:20] + b"\n",
        "seal": json.dumps(line(2)).encode() + b"\n",
        "bytes": b"\xff" + lines[1],
    }[change]
    five.path.write_bytes(b"".join(lines))
    with pytest.raises(ShoalError, match=rf"^{five.path}: line 2 (was changed|is damaged).*; --resume rebuilds it"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_append_nan_is_refused(five: Metrics, value: float) -> None:
    before = five.path.read_bytes()
    with refused(says="round 6: NaN or infinity in scopes.deployed.test.1, loss; not written"):
        five.append({"round": 6, "scopes": {"deployed": {"test": [1.0, value]}}, "loss": value})
    assert five.path.read_bytes() == before
    assert len(five.lines) == 5


def test_a_full_disk_leaves_whole_lines(five: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    before = five.path.read_bytes()
    write = os.write

    def a_little(file: int, data: bytes) -> int:
        if len(data) < 40:
            raise OSError(28, "No space left on device")
        return write(file, data[:30])

    monkeypatch.setattr(os, "write", a_little)
    with refused(five.path, says="cannot be written: No space left on device"):
        five.append(line(6))
    assert five.path.read_bytes() == before
    monkeypatch.undo()
    five.append(line(6))
    assert len(read_metrics(five.path.parent)) == 6


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: None, None),
        (lambda path: path.write_bytes(2 * path.read_bytes()), None),
        (lambda path: path.unlink(), "was deleted"),
        (lambda path: path.write_text(""), "was emptied"),
        (lambda path: os.truncate(path, 50), "was changed or cut off"),
        (lambda path: path.write_text(path.read_text().replace("0.2", "0.3", 1)), "was changed or cut off"),
        (lambda path: path.write_bytes(b"\xff" + path.read_bytes()), "was changed or cut off"),
    ],
)
def test_restore_rebuilds_the_file(five: Metrics, tmp_path: Path, damage: Any, said: str | None) -> None:
    (checkpoint := tmp_path / "checkpoint").write_bytes(five.path.read_bytes())
    before, kept = list(five.lines), replace(five.logged, path=checkpoint)
    damage(five.path)
    again = Metrics(tmp_path)
    assert again.restore(kept) == (said and f"{five.path}: {said}; rebuilt from the checkpoint")
    assert read_metrics(tmp_path) == before == again.lines
    assert again.logged == five.logged
    again.append(line(6))
    assert [found["round"] for found in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
    # Without a checkpoint there is no line.
    for _ in range(2):
        assert again.restore(Logged()) is None
        assert not five.path.exists()


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_file_that_is_changed_while_a_run_writes_it_is_refused(five: Metrics, tmp_path: Path, number: int) -> None:
    """By the reader of a line, by the next checkpoint, and, where lines are missing, by the next line."""
    lines, text = five.lines, five.path.read_bytes()
    changed = text.splitlines(keepends=True)
    changed[number] = changed[number].replace(b"0.1", b"0.7", 1)
    five.path.write_bytes(b"".join(changed))
    with refused(five.path, says="was changed while the run writes it"):
        list(lines)
    with refused(five.path, says="was changed while the run writes it"):
        lines[number]
    with refused(five.path, says="was changed while the run writes it"):
        five.logged.copy_to(tmp_path / "checkpoint")
    for shorter in (text[:-1], b""):
        five.path.write_bytes(shorter)
        with refused(five.path, says="was changed while the run writes it"):
            five.append(line(6))
        assert five.path.read_bytes() == shorter
    five.path.write_bytes(text)
    assert lines == read_metrics(tmp_path)


def test_memory_does_not_grow_with_the_lines(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that logs, writes checkpoints, goes on from one, and is summarized."""
    for module in (logged_lines, digest_module):
        monkeypatch.setattr(module, "CHUNK", 2**14)
    manifest = Store(start().job.store_path).manifest
    spent = dict.fromkeys(("round", "train", "upload", "evaluate", "aggregate", "transfer", "wait"), 1.0)
    long = {
        "cohort": [0], "failures": {"0": "x" * 5000}, "bytes_up": 1, "bytes_down": 1, "seconds": spent, "retries": 0,
        "hosts": {}, "memory": {}, "scopes": {"deployed": {"val": {"nodes": 0.5}, "test": {"nodes": 0.5}}},
    }  # fmt: skip

    def peak(run: Path, rounds: int) -> int:
        """Bytes that such a run takes at most, beyond those before it."""
        run.mkdir()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        metrics, again = Metrics(run), Metrics(run)
        for number in range(1, rounds + 1):
            metrics.append({"round": number, **long})
        checkpoint.save(run / CHECKPOINTS, Checkpoint(FederationState(round=1), {}, {}, metrics.logged), 2)
        found = checkpoint.load_newest(run / CHECKPOINTS)
        assert found is not None
        again.restore(found.metrics)
        assert summarize_run(again.lines, manifest, 0, "cpu")["rounds"] == rounds
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        _, short, whole = peak(tmp_path / "first", 2), peak(tmp_path / "short", 2), peak(tmp_path / "whole", 100)
    finally:
        tracemalloc.stop()
    assert (logged := (tmp_path / "whole" / METRICS).stat().st_size) > 300_000
    assert whole < short + logged / 10


def test_a_file_that_cannot_be_read_stays(tmp_path: Path) -> None:
    (tmp_path / METRICS).symlink_to(METRICS)
    with refused(tmp_path / METRICS, says="cannot be read"):
        Metrics(tmp_path).restore(Logged())
    with refused(says="cannot be read"):
        read_metrics(tmp_path)
    with refused(says="cannot be written"):
        Metrics(tmp_path).append(line(1))
    assert (tmp_path / METRICS).is_symlink()


# Validation and test of two clients and three classes: rows of the class, predicted so, rightly so.
COUNTS = {
    4: np.array([[[2, 0, 0], [1, 1, 0], [1, 0, 0]], [[1, 2, 1], [2, 1, 1], [1, 1, 1]]]),
    7: np.array([[[0, 0, 0], [0, 0, 0], [0, 0, 0]], [[0, 3, 0], [0, 3, 0], [0, 3, 0]]]),
}


def columns(times: int = 1) -> dict[str, np.ndarray]:
    return client_scores({"deployed": {client: times * counts for client, counts in COUNTS.items()}, "domains": COUNTS})


def test_columns_by_hand() -> None:
    found = {name: values.tolist() for name, values in columns().items()}
    assert found == {
        "scope": ["deployed"] * 3,
        "part": ["val", "test", "test"],
        "client": [4, 4, 7],
        "rows": [2, 4, 3],
        "correct": [1, 3, 3],
        # Of class 0: 2 * 1 / (2 + 1), of class 1, which is predicted once and never right: 0; the third does not occur.
        "f1": [pytest.approx((2 / 3 + 0) / 2), pytest.approx((2 / 3 + 2 / 3 + 1) / 3), 1.0],
    }
    assert client_scores({"deployed": {}}) == {}


def test_another_metric() -> None:
    """Twice the area counts wins of class 1 over class 0, and halves for draws."""
    counts = np.array([[[2, 2], [2, 2], [2, 1], [0, 7]], [[2, 0], [2, 0], [2, 0], [0, 0]]])
    found = client_scores({"global": {0: counts}}, ["roc_auc"])
    assert found["part"].tolist() == ["val", "test"]
    assert found["roc_auc"][0] == 7 / 8
    assert np.isnan(found["roc_auc"][1])


@pytest.mark.parametrize("lost", [0, 1, 20, 100, 400])
def test_a_resume_after_a_kill_is_as_if_there_was_none(tmp_path: Path, lost: int) -> None:
    """Some bytes of the last batch are not written, and the checkpoint is of round 4."""
    paths = [tmp_path / name for name in ("whole", "cut")]
    for path in paths:
        path.mkdir()
        for number in (2, 4, 6):
            ClientScores(path).append(number, columns(number))
    file = paths[1] / "clients.arrows"
    file.write_bytes(file.read_bytes()[: file.stat().st_size - lost])
    resumed = ClientScores(paths[1])
    assert resumed.restore({2: None, 4: None}) is None
    assert read_client_scores(paths[1])["round"].to_pylist() == [2, 2, 2, 4, 4, 4]
    resumed.append(6, columns(6))
    assert file.read_bytes() == (paths[0] / "clients.arrows").read_bytes()


def test_a_file_with_plain_text_goes_on(tmp_path: Path) -> None:
    """As files of before have it."""
    of_before = {name: np.array(values.tolist()) for name, values in columns().items()}
    of_before["scope"] = np.array(["served"] * 3)
    numbers = {
        name: values.astype(np.int32) for name, values in of_before.items() if name not in ("scope", "part", "f1")
    }
    plain = pa.RecordBatch.from_pydict({"round": np.full(3, 2, np.int32), **of_before, **numbers})
    with pa.ipc.new_stream(tmp_path / "clients.arrows", plain.schema) as stream:
        stream.write_batch(plain)
    content = (tmp_path / "clients.arrows").read_bytes()[:-8]
    (tmp_path / "clients.arrows").write_bytes(content)
    ClientScores(tmp_path).append(4, columns())
    table = read_client_scores(tmp_path)
    assert table["round"].to_pylist() == [2, 2, 2, 4, 4, 4]
    assert set(table["scope"].to_pylist()) == {"deployed"}
    assert table["part"].to_pylist() == 2 * columns()["part"].tolist()


def test_client_scores_missing_rounds_are_named(tmp_path: Path) -> None:
    scores = ClientScores(tmp_path)
    assert scores.restore({}) is None

    def missing(count: int, first: int) -> str:
        return f"{scores.path}: is without {count} rounds that were kept, of which {first} is the first"

    assert scores.restore({2: None, 4: None, 6: None}) == missing(3, 2)
    scores.append(2, columns())
    scores.append(4, columns())
    scores.append(5, {})
    table = read_client_scores(tmp_path)
    assert table["rows"].to_pylist() == 2 * [2, 4, 3]
    types = [(name, str(table.schema.field(name).type)) for name in ("round", "client", "rows", "correct", "f1")]
    assert types == [*((name, "int32") for name, _ in types[:4]), ("f1", "double")]
    scores.path.write_bytes(scores.path.read_bytes()[:-30])
    assert scores.restore({2: None, 4: None}) == missing(1, 4)
    assert read_client_scores(tmp_path)["round"].to_pylist() == [2, 2, 2]
    # A run that is started over.
    assert scores.restore({}) is None
    with refused(scores.path, says="no scores of clients"):
        read_client_scores(tmp_path)


def test_names_of_earlier_versions_are_read_by_todays(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    metrics.append(line(1, scopes={"served": {"val": {"nodes": 0.1}}}))
    (found,) = read_metrics(tmp_path)
    assert found["scopes"] == metrics.lines[0]["scopes"] == {"deployed": {"val": {"nodes": 0.1}}}
    (tmp_path / SUMMARY).write_text(sealed({"rounds": 1, "scopes": {"served": {"last": {"round": 1}, "best": None}}}))
    assert read_summary(tmp_path)["scopes"] == {"deployed": {"final": {"round": 1}, "best": None}}
    names = ("served.last.test", "trained.best.val", "served.val.nodes", "seconds.last.round")
    assert [*map(current_name, names)] == [
        "deployed.final.test", "trained.best.val", "deployed.val.nodes", "seconds.last.round",
    ]  # fmt: skip
