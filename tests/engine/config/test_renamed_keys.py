"""Keys by their earlier names: understood wherever a config comes from, and announced in one line."""

from pathlib import Path
from typing import Any

import pytest
from support.errors import refused

import shoal
from shoal.engine.config import config_text
from shoal.engine.config.config import Config, config_from, load_config
from shoal.engine.config.config_text import RENAMED
from shoal.engine.config.run_identity import flatten
from shoal.engine.studies.study import Study

PLAIN: dict[str, Any] = {"name": "old", "data": {"dataset": "sbm"}, "algorithm": {"name": "fedavg"}}
TEXT = "name: old\ndata: {dataset: sbm}\nalgorithm: fedavg\n"
VALUES = {"loop": "autograd", "closed_form": "analytic", "stacked": "batched", "auto": "auto", "analytic": "analytic"}


@pytest.fixture(autouse=True)
def _unannounced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_text, "_announced", set())


def test_renamed_every_key_of_today_is_in_a_config() -> None:
    known = flatten(Config.model_validate(PLAIN).plain())
    assert all(new in known and old not in known for old, (new, _) in RENAMED.items())


@pytest.mark.parametrize(("old", "new"), VALUES.items())
@pytest.mark.parametrize("source", ["file", "override", "value", "section", "dict", "program", "dict of a program"])
def test_renamed_key_is_read_from_every_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, old: str, new: str
) -> None:
    file, section = tmp_path / "config.yaml", {"path": old, "hosts": 3}
    file.write_text(TEXT + (f"engine: {{path: {old}, hosts: 3}}\n" if source == "file" else "engine: {hosts: 3}\n"))
    config = {
        "file": lambda: load_config(file),
        "override": lambda: load_config(file, [f"engine.path={old}"]),
        "value": lambda: load_config(file, values={"engine.path": old}),
        "section": lambda: load_config(file, values={"engine": section}),
        "dict": lambda: config_from({**PLAIN, "engine": section}),
        "program": lambda: shoal.load_config(load_config(file), engine={"path": old}),
        "dict of a program": lambda: shoal.load_config({**PLAIN, "engine": {"hosts": 3}}, **{"engine.path": old}),
    }[source]()
    assert (config.engine.trainer, config.engine.hosts) == (new, 3)
    assert capsys.readouterr().err == f"shoal: engine.path is now engine.trainer: write engine.trainer: {new}\n"


def test_renamed_key_of_a_sweep_is_announced_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(TEXT)
    study = Study(str(tmp_path / "config.yaml"), ("engine.path=loop,stacked", "seed=0,1"))
    assert [config.engine.trainer for config in study.configs] == ["autograd"] * 2 + ["batched"] * 2
    assert capsys.readouterr().err.count("engine.path is now engine.trainer") == 1


def test_renamed_key_override_replaces_the_key_of_today(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(TEXT + "engine: {trainer: batched}\n")
    assert load_config(tmp_path / "config.yaml", ["engine.path=loop"]).engine.trainer == "autograd"


def test_renamed_key_with_the_key_of_today_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(TEXT + "engine: {path: loop, trainer: batched}\n")
    with refused(file, says="not a config: engine.path is now engine.trainer, and both are"):
        load_config(file)


def test_renamed_key_with_a_wrong_value_names_the_key_of_today(tmp_path: Path) -> None:
    with refused("engine.trainer", says="found 'fast'"):
        config_from({**PLAIN, "engine": {"path": "fast"}})
