"""Configs of a program."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.errors import refused

import shoal


def test_a_dict_is_the_file_of_the_same_keys(plain: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(plain))
    assert shoal.load_config(plain) == shoal.load_config(file) == shoal.load_config(str(file))
    assert shoal.load_config(shoal.load_config(plain)) == shoal.load_config(plain)


def test_overrides(plain: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**plain, "train": {"epochs": 7}}))
    for source in (file, yaml.safe_load(file.read_text()), shoal.load_config(file)):
        found = shoal.load_config(source, rounds=np.int64(9), train={"lr": 0.5}, **{"data.root": tmp_path})
        assert (found.rounds, found.train.lr, found.train.epochs, found.data.root) == (9, 0.5, 7, str(tmp_path))
        assert shoal.load_config(source, model={"name": "mlp"}).plain()["model"]["name"] == "mlp"
        assert shoal.load_config(source, **{"partition.clients": 3}).partition.method == "metis"
    two = shoal.load_config(plain, model=[{"name": "sgc"}, {"name": "mlp", "hidden": 4}], **{"model.1.hidden": 8})
    assert [model.options for model in two.models()] == [{}, {"hidden": 8}]


@pytest.mark.parametrize(
    ("overrides", "key", "says"),
    [
        ({"rounds": 0}, "rounds", "found 0"),
        ({"train": {"rate": 1}}, "train.rate", "unknown key; known here: epochs, "),
        ({"rounds": object}, "rounds", "cannot be set: "),
        ({"seed.x": 1}, "seed", "a valid integer"),
    ],
)
def test_a_mistake_is_one_line(plain: dict[str, Any], overrides: dict[str, Any], key: str, says: str) -> None:
    with refused(key, says=says):
        shoal.load_config(plain, **overrides)


def test_run_root_is_relative_to_the_program(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = {key: value for key, value in plain.items() if key != "run"}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert shoal.load_config(without).run.root == str(tmp_path / name / "runs")
