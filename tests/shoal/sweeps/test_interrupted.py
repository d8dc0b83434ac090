"""SIGTERM in the last round of a run: that run is finished, its study begins no other, and the same command goes on."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.forked import shoal
from support.needs import needs
from support.small_runs import small_config

from shoal.engine.config.config import load_config
from shoal.engine.records.run_folder import finished
from shoal.engine.runs.run import run
from shoal.study.sweep_folder import read_rows

# Ends the process that it is named, once, in the last round of the first run that comes so far.
CALLBACK = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from shoal import Callback

@dataclass
class Ends(Callback):
    def after_round(self, run, line):
        who, mark = os.environ.get("ENDS"), Path(__file__).with_name("ended")
        if who and line["round"] == run.rounds:
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getppid() if who == "parent" else os.getpid(), signal.SIGTERM)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    mark = tmp_path / "ends.py"
    # A run has a copy of its code; the mark is beside the original.
    mark.write_text(CALLBACK.replace("Path(__file__)", f"Path({str(mark)!r})"))
    return Path(small_config(tmp_path, rounds=2, callbacks=[f"{mark}:Ends"]))


def paper(config: Path) -> Path:
    columns = {name: {"set": {"data.options.homophily": h}} for name, h in (("Near", 0.9), ("Far", 0.4))}
    table = {"title": "One", "runs": 2, "seeds": 1, "columns": columns, "rows": {"FedAvg": {"set": {"seed": 0}}}}
    path = config.with_name("paper.yaml")
    plain = {"title": "Mine", "config": config.name, "tables": {"one": table, "two": table}}
    path.write_text(yaml.safe_dump(plain, sort_keys=False))
    return path


SEARCH = ["--search", "optuna", "--space", "train.lr=0.01:0.1:log", "--trials", "3", "--choose-seeds", "1"]
# Words of a command, of a study of several runs.
STUDIES: dict[str, Callable[[Path], list[object]]] = {
    "sweep": lambda config: ["sweep", config, "seed=0,1,2", "--no-report"],
    "with a choice": lambda config: ["sweep", config, "train.lr=0.1,0.01", "--choose", "train.lr", "--no-report"],
    "search": lambda config: ["sweep", config, *SEARCH, "--no-report"],
    "forked sweep": lambda config: ["sweep", config, "train.lr=0.1,0.01", "--fork-at", "1", "--no-report"],
    "scaling": lambda config: ["scale", config, "--clients", "2,3"],
    "reproduce": lambda config: ["reproduce", paper(config)],
    "forecast": lambda config: ["sweep", config, "algorithm=fedavg,local", "--forecast"],
}


# Studies of which a run may stay unfinished.
PAUSES = ("forked sweep",)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("study", STUDIES)
def test_sigterm_in_the_last_round_of_a_run_ends_its_study(
    tmp_path: Path,
    config: Path,
    study: str,
    status: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = STUDIES[study](config)
    monkeypatch.setenv("ENDS", "itself")
    assert status(*words) == 128 + signal.SIGTERM
    assert (tmp_path / "ended").exists()
    begun = [path.parent for path in (tmp_path / "runs").glob("*/metrics.jsonl")]
    done = [folder for folder in begun if finished(folder)]
    # All forks begin with the rounds of one run, which pauses.
    assert (len(begun), len(done)) == ((3, 1) if study == "forked sweep" else (1, 1))
    if study == "sweep":
        (folder,) = (tmp_path / "runs" / "sweeps").iterdir()
        assert [row.state for row in read_rows(folder)] == ["finished", "waiting", "waiting"]
        assert "finished" in (folder / "table.csv").read_text()
        assert f"continue with: shoal {' '.join(map(str, words[:-1]))}" in capsys.readouterr().err
    # The same command goes on.
    assert status(*words) == 0
    assert all(finished(path.parent) for path in (tmp_path / "runs").glob("*/metrics.jsonl")) or study in PAUSES


@pytest.mark.slow
def test_sigterm_in_the_last_round_of_a_run_of_several_at_once(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDS", "parent")
    words = ("sweep", config, "seed=0,1,2,3,4,5", "--at-once", "2", "--no-report")
    status, said = shoal(*words, printed=tmp_path / "printed")
    assert status == 128 + signal.SIGTERM, said
    begun = list((tmp_path / "runs").glob("*/metrics.jsonl"))
    assert 1 <= len(begun) <= 3, said


@needs("influence")
def test_sigterm_in_the_last_round_of_a_run_without_a_client_ends_the_others(
    tmp_path: Path, config: Path, status: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(load_config(config))
    (whole,) = (path.parent for path in (tmp_path / "runs").glob("*/metrics.jsonl"))
    monkeypatch.setenv("ENDS", "itself")
    assert status("influence", whole) == 128 + signal.SIGTERM
    assert len(list((tmp_path / "runs").glob("*-without-*/summary.json"))) == 1


def test_sigterm_in_the_last_round_of_a_run_alone_leaves_it_finished(
    tmp_path: Path, config: Path, status: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDS", "itself")
    assert status("run", config, "--no-report") == 0
    assert (tmp_path / "ended").exists()
    assert len(list((tmp_path / "runs").glob("*/summary.json"))) == 1
