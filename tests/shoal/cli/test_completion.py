"""What shells complete: keys and their values, methods, configs and runs, each as the shell splits words."""

from pathlib import Path

import pytest
from support.small_runs import small_run
from typer.testing import CliRunner

from shoal.algorithms.methods.registry.names import METHODS
from shoal.cli.cli import app
from shoal.cli.completion import closed_values
from shoal.engine.config.config import config_from
from shoal.engine.config.key_reference import config_keys
from shoal.storage.errors import ShoalError


def in_bash(*words: str) -> list[str]:
    """What bash gets for the last of some words; it splits words at `=`."""
    env = {"_SHOAL_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    return CliRunner().invoke(app, [], prog_name="shoal", env=env).stdout.split()


def in_fish(line: str) -> list[str]:
    env = {"_SHOAL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": line}
    return CliRunner().invoke(app, [], prog_name="shoal", env=env).stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("run quickstart train.l", ["train.lr=", "train.lr=0.01"]),
        ("run quickstart train.opt", ["train.optimizer=", "train.opt_state="]),
        ("run quickstart train.optimizer =", ["adam", "sgd"]),
        ("run quickstart train.optimizer = s", ["sgd"]),
        ("run quickstart rounds = 2 engine.backend = l", ["local"]),
        ("run quickstart attack = s", ["sign_flip", "scaled"]),
        ("run quickstart partition = m", ["metis"]),
        ("run quickstart run.tensorboard = ", ["true", "false"]),
        ("run quickstart algorithm = fedprox algorithm.m", ["algorithm.mu=", "algorithm.mu=0.01"]),
        ("run quickstart nothing.l", []),
        ("sweep quickstart algorithm = fedavg,fedgt", ["fedavg,fedgta"]),
        ("run qui", ["quickstart"]),
        ("export mi", ["mine-00000001"]),
        ("table x --format m", ["markdown"]),
        ("attack x --kind p", ["properties"]),
        ("predict x y --best ", ["deployed", "global"]),
        ("list da", ["datasets"]),
        ("explain fedgl", ["fedgl", "fedgl_fedgta", "fedgl_moon", "fedgl_feddc"]),
        ("read x led", ["ledger"]),
        ("init own", ["own-graph", "own-method"]),
        ("reproduce fedp", ["fedpg"]),
    ],
)
def test_bash_completes(words: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine-00000001").mkdir(parents=True)
    (tmp_path / "runs" / "mine-00000001" / "config.yaml").touch()
    assert in_bash("shoal", *words.split(" ")) == found


def test_other_shells_complete_whole_words() -> None:
    assert in_fish("shoal run quickstart train.optimizer=s") == ["train.optimizer=sgd"]
    assert in_fish("shoal sweep quickstart train.optimizer=sgd,") == ["train.optimizer=sgd,adam"]
    assert in_fish("shoal run quickstart algorithm=") == [f"algorithm={name}" for name in METHODS]


def test_a_config_takes_every_closed_value(tmp_path: Path) -> None:
    """Or refuses it for another reason than its type: a value may need other keys."""
    closed = [(key.name, value) for key in config_keys() for value in closed_values(key.hint)]
    assert len(closed) > 150
    refusals = []
    for name, value in closed:
        try:
            config_from(small_run(tmp_path), {name: {"true": True, "false": False, "null": None}.get(value, value)})
        except ShoalError as error:
            refusals.append(str(error))
    assert not [line for line in refusals if "expected" in line]
