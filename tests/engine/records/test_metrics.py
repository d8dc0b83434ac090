"""Lines of metrics: whole or not there, sealed, and rebuilt from a checkpoint."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused

from shoal.engine.records.metrics import METRICS, Metrics, read_metrics
from shoal.storage.errors import ShoalError


def line(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, "loss": 0.1 * number, **more}


@pytest.fixture
def five(tmp_path: Path) -> Metrics:
    metrics = Metrics(tmp_path)
    for number in range(1, 6):
        metrics.append(line(number, scopes={"served": {"val": {"nodes": 0.1}}}))
    return metrics


def test_metrics_append_round_trip(five: Metrics, tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == five.lines
    assert [found["round"] for found in five.lines] == [1, 2, 3, 4, 5]
    assert five.path.read_text() == five.text
    assert read_metrics(tmp_path / "none") == []


def test_read_metrics_skips_a_cut_line(five: Metrics, tmp_path: Path) -> None:
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
    with refused(says="round 6: NaN or infinity in scopes.served.test.1, loss; not written"):
        five.append({"round": 6, "scopes": {"served": {"test": [1.0, value]}}, "loss": value})
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
    damage(five.path)
    again = Metrics(tmp_path)
    assert again.restore(five.text) == (said and f"{five.path}: {said}; rebuilt from the checkpoint")
    assert read_metrics(tmp_path) == five.lines == again.lines
    # Without a checkpoint there is no line.
    for _ in range(2):
        assert again.restore("") is None
        assert not five.path.exists()


def test_a_file_that_cannot_be_read_stays(tmp_path: Path) -> None:
    (tmp_path / METRICS).symlink_to(METRICS)
    with refused(tmp_path / METRICS, says="cannot be read"):
        Metrics(tmp_path).restore("")
    with refused(says="cannot be read"):
        read_metrics(tmp_path)
    with refused(says="cannot be written"):
        Metrics(tmp_path).append(line(1))
    assert (tmp_path / METRICS).is_symlink()
