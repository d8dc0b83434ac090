"""Callbacks of whole runs: what they are called with, how they end a run, and what becomes of one that fails."""

import csv
import json
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refused
from support.small_cells import require_same_tree
from support.small_runs import small_run

from shoal.engine.callbacks.callback import Running
from shoal.engine.callbacks.calls import load_callbacks
from shoal.engine.callbacks.early_stopping import EarlyStopping
from shoal.engine.config.config import Config, config_from
from shoal.engine.records import checkpoint
from shoal.engine.records.client_scores import read_client_scores
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary, run_path
from shoal.engine.runs import driver
from shoal.engine.runs.run import run

Configure = Callable[..., Config]
NOTES = """
import json
from dataclasses import dataclass
from notes_of import FOLDER
from shoal import Callback

@dataclass
class Notes(Callback):
    stop_after: int = 99
    fail_in: int = 99
    exit_in: int = 99

    def note(self, *what):
        with open(FOLDER / "notes.jsonl", "a") as file:
            file.write(json.dumps(what) + "\\n")

    def start(self, run):
        self.note("start", len(run.lines), run.rounds, run.keys["seed"], run.config["name"], run.path.name)

    def after_round(self, run, line):
        self.note("round", line["round"], len(run.lines))
        if line["round"] == self.fail_in:
            raise KeyError("gone")
        if line["round"] == self.exit_in:
            raise SystemExit(3)
        if line["round"] >= self.stop_after:
            run.stop("enough")

    def after_evaluation(self, run, line):
        self.note("evaluation", line["round"])

    def end(self, run, summary):
        self.note("end", summary and summary["rounds"])
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("callbacks")


@pytest.fixture
def configure(store: Path, tmp_path: Path) -> Configure:
    """A run of six rounds in this process, evaluated in every second one."""
    (tmp_path / "mine.py").write_text(NOTES)
    (tmp_path / "notes_of.py").write_text(f"from pathlib import Path\nFOLDER = Path({str(tmp_path)!r})\n")
    run = {"root": str(tmp_path / "runs"), "checkpoint_every": 1, "keep": 9}
    data = {"store": str(store / "store")}
    plain = small_run(store, name="called", rounds=6, data=data, evaluation={"every": 2}, run=run)
    return lambda *callbacks, **keys: config_from(plain, {"callbacks": list(callbacks), **keys})


def notes(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / "notes.jsonl").read_text().splitlines()]


def killed_after(config: Config, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose process is gone after the checkpoint of a round."""
    save = checkpoint.save

    def save_and_die(root: Path, kept: checkpoint.Checkpoint, keep: int) -> Path:
        folder = save(root, kept, keep)
        if kept.state.round == number:
            raise MemoryError
        return folder

    with monkeypatch.context() as patch:
        patch.setattr(driver.checkpoint, "save", save_and_die)
        with pytest.raises(MemoryError):
            run(config)


def test_user_callback_is_called_and_changes_the_name(configure: Configure, tmp_path: Path) -> None:
    mine = {"name": str(tmp_path / "mine.py:Notes"), "stop_after": 3}
    config, plain = configure(mine), configure()
    folder = run(config)
    assert notes(tmp_path) == [
        ["start", 0, 6, 0, "called", folder.name],
        ["round", 1, 1], ["round", 2, 2], ["evaluation", 2], ["round", 3, 3], ["round", 4, 4], ["evaluation", 4],
        ["end", 4],
    ]  # fmt: skip
    summary = read_summary(folder)
    assert (summary["rounds"], summary["stopped"]) == (4, "enough")
    # It may end a run: another text is another run, and so is another option; what only writes is not.
    assert len({folder, run_path(plain), run_path(configure({**mine, "stop_after": 2}))}) == 3
    assert run_path(configure("csv", "tensorboard")) == run_path(plain)
    assert run_path(configure("csv", mine)) == folder
    (tmp_path / "mine.py").write_text(NOTES + "\n")
    assert run_path(config) != folder


@pytest.mark.parametrize(
    ("option", "raised", "said"),
    [("fail_in", 'KeyError("gone")', "KeyError: 'gone'"), ("exit_in", "SystemExit(3)", "SystemExit: 3")],
)
def test_its_failure_keeps_the_run(configure: Configure, tmp_path: Path, option: str, raised: str, said: str) -> None:
    mine = tmp_path / "mine.py"
    config = configure({"name": f"{mine}:Notes", option: 3})
    line = NOTES.splitlines().index(f"            raise {raised}") + 1
    with refused("callbacks", says=f"{mine}:Notes: {mine}, line {line}, in after_round(): {said}"):
        run(config)
    assert notes(tmp_path)[-1] == ["end", None]
    folder = run(config, resume=True)
    assert ["start", 3, 6, 0, "called", folder.name] in notes(tmp_path)
    assert [each["round"] for each in read_metrics(folder)] == [1, 2, 3, 4, 5, 6]


def test_early_stopping_ends_as_before_after_a_kill(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    # A loss that never gets so much better: the second and the third round are no improvement.
    stop = {"name": "early_stopping", "figure": "loss", "mode": "min", "min_delta": 9.0, "patience": 2}
    whole = run(configure(**{"run.root": str(configure().run.root) + "-whole", "rounds": 4}))
    # After the last round it is done, and no summary is written yet.
    for number in (2, 4):
        config = configure(stop, **{"run.root": f"{configure().run.root}-{number}"})
        killed_after(config, number, monkeypatch)
        assert not (run_path(config) / "summary.json").exists()
        resumed = run(config, resume=True)
        assert [line["round"] for line in read_metrics(resumed)] == [1, 2, 3, 4]
        assert read_summary(resumed)["stopped"].endswith(" 2 times in a row")
        ends = [checkpoint.load_round(folder / "checkpoints", 4).state.server for folder in (resumed, whole)]
        require_same_tree(*ends)


def test_csv_has_the_lines_after_a_kill(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("csv")
    killed_after(config, 4, monkeypatch)
    # The checkpoint of the last round was not written, though the round was logged.
    shutil.rmtree(run_path(config) / "checkpoints" / "round-000004")
    with (run_path(config) / "metrics.csv").open("a") as file:
        file.write("4,a round that is run once more\n")
    folder = run(config, resume=True)
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = read_metrics(folder)
    # Scores of clients are cut off and go on, too.
    assert sorted(set(read_client_scores(folder)["round"].to_pylist())) == [2, 4, 6]
    assert len(read_client_scores(folder)) == 3 * 3 * 2 * 4
    assert [row["round"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert [row["loss"] for row in rows] == [str(line["loss"]) for line in lines]
    scores = [line["scopes"]["deployed"]["test"]["nodes"] if "scopes" in line else "" for line in lines]
    assert [row["deployed.test.nodes"] for row in rows] == [str(score) for score in scores]


def test_failing_logger_is_dropped(configure: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    config = configure("csv", "tensorboard")
    (run_path(config) / "tensorboard").parent.mkdir(parents=True)
    (run_path(config) / "tensorboard").write_text("a file in the place of a folder")
    folder = run(config)
    said = capsys.readouterr().err
    assert said.count("callbacks: tensorboard") == 1
    assert "the run continues without it" in said
    assert "Traceback" in (folder / "run.log").read_text()
    assert len((folder / "metrics.csv").read_text().splitlines()) == 7


def test_tensorboard_is_on_by_default(configure: Configure) -> None:
    assert list(load_callbacks(configure("csv", **{"run.tensorboard": True}))) == ["tensorboard", "csv"]
    assert list(load_callbacks(configure("csv", "tensorboard", **{"run.tensorboard": True}))) == ["csv", "tensorboard"]
    assert list(load_callbacks(configure("csv"))) == ["csv"]


SEEN = """
from dataclasses import dataclass, field
from shoal import Callback

@dataclass
class Seen(Callback):
    found: dict = field(default_factory=dict, init=False)

    def after_predictions(self, run, line, predictions):
        for each in predictions:
            right = (int((each.predicted == each.label).sum()), len(each.label), str(each.label.dtype))
            assert self.found.setdefault((line["round"], each.scope, each.part, each.client), right) == right

    def end(self, run, summary):
        SEEN.append(self.found)

SEEN = []
"""


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_predictions_are_those_that_were_counted(configure: Configure, tmp_path: Path, method: str) -> None:
    file = tmp_path / "seen.py"
    file.write_text(SEEN)
    name = f"{file}:Seen"
    folder = run(configure(name, algorithm=method, participation={"count": 2}))
    (found,) = vars(sys.modules[type(load_callbacks(configure(name))[name]).__module__])["SEEN"]
    counted = {}
    for row in read_client_scores(folder).to_pylist():
        key = (row["round"], row["scope"], row["part"], row["client"])
        counted[key] = (row["correct"], row["rows"], "int16")
    # A client's model is trained in a round before the one that is evaluated, or in that.
    assert {key[:1] + key[2:] for key in found} >= {(6, part, i) for part in ("val", "test") for i in range(2)}
    for (number, scope, part, client), right in found.items():
        assert counted[number + number % 2, scope, part, client] == right
    scopes = {"trained", "deployed", "global"} if method == "fedavg" else {"trained", "deployed"}
    assert {scope for _, scope, _, _ in found} == scopes


STOPPING = {"name": "early_stopping"}


@pytest.mark.parametrize(
    ("callbacks", "says"),
    [
        (["cvs"], "callbacks: 'cvs' is unknown; there are csv, "),
        (["csv", "csv"], "callbacks: csv is there twice"),
        ([{"name": "csv", "a": 1}], "callbacks: csv.a: unknown"),
        ([{**STOPPING, "patiense": 1}], "callbacks: early_stopping.patiense: did you mean 'patience'? unknown"),
        *(
            ([{**STOPPING, name: value}], f"callbacks: early_stopping.{name}: ")
            for name, value in (("patience", 0), ("patience", True), ("mode", "up"), ("min_delta", -1))
        ),
        ([{**STOPPING, "figure": "deployed.val.node"}], "no round has the number 'deployed.val.node'; there are "),
        (["nowhere.py:Mine"], "nowhere.py cannot be read: No such file or directory"),
        (["HERE/mine.py:Nothing"], "mine.py: has no class Nothing; it has Notes"),
        (["HERE/mine.py:dataclass"], "is no callback; derive a class from shoal.Callback"),
        ([{"name": "HERE/mine.py:Notes", "stop": 1}], ": unknown; it has stop_after, fail_in, exit_in"),
    ],
)
def test_a_mistake_is_refused(configure: Configure, tmp_path: Path, callbacks: list[Any], says: str) -> None:
    put = json.loads(json.dumps(callbacks).replace("HERE", str(tmp_path)))
    with refused(says=says):
        run(configure(*put))


def first_end(values: Sequence[float | None], patience: int, mode: str, min_delta: float) -> int | None:
    """Round, from 1, in which so many known values in a row were no better than the best before them."""
    sign = 1 if mode == "max" else -1
    best, waited = -math.inf, 0
    for number, value in enumerate(values, 1):
        if value is not None:
            better = sign * value - best > min_delta
            best, waited = (sign * value, 0) if better else (best, waited + 1)
            if waited == patience:
                return number
    return None


def line(number: int, value: float | None) -> dict[str, Any]:
    return {"round": number, "loss": value, "scopes": {"deployed": {"val": {"nodes": 0.5}}}}


def test_stop_takes_a_text_that_a_summary_can_hold() -> None:
    for wrong in (object(), None, 3, "", "  "):
        with pytest.raises(TypeError, match="stop\\(\\) expects a text that says why, got "):
            Running(Path(), {}, {}, 9).stop(wrong)  # type: ignore[arg-type]
    running = Running(Path(), {}, {}, 9)
    running.stop("a\udcff\n")
    assert running.stopped == "a\\udcff\\n"


@given(
    values=st.lists(st.none() | st.integers(-4, 4).map(lambda n: n / 4), max_size=12),
    patience=st.integers(1, 3),
    mode=st.sampled_from(["max", "min"]),
    min_delta=st.sampled_from([0.0, 0.25, 0.5]),
    cut=st.integers(0, 12),
)
def test_early_stopping_after_any_resume(values: Any, patience: int, mode: Any, min_delta: float, cut: int) -> None:
    """Against a plain search for the round."""
    lines = [line(number, value) for number, value in enumerate(values, 1)]
    cut = min(cut, len(lines))
    stopping = EarlyStopping("loss", patience, mode, min_delta)
    # One that remembers other rounds, which were lost.
    stopping.start(Running(Path(), {}, {}, 99, _lines=lambda: [line(1, 9.0), line(2, -9.0)]))
    running = Running(Path(), {}, {}, 99, _lines=lambda: lines[:cut])
    stopping.start(running)
    ended = [cut] if running.stopped else []
    for each in lines[cut:]:
        running.stopped = None
        stopping.after_round(running, each)
        ended += [each["round"]] if running.stopped else []
    expected = first_end(values, patience, mode, min_delta)
    assert (ended[0] if ended else None) == (expected if expected is None else max(expected, cut))
