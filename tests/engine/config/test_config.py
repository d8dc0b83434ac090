"""Reading a config: from a file or a run folder, with overrides; a fault is one line that names file or key."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refused

import shoal
from shoal.engine.config import config_text
from shoal.engine.config.config import Config, config_from, device_choice, load_config, parse_config
from shoal.engine.config.config_text import RENAMED, with_seal
from shoal.engine.config.run_identity import flatten, identity_keys
from shoal.engine.config.sizes import size
from shoal.engine.studies.study import Study
from shoal.storage.datasets.synthetic.twin import ORIGINALS
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import TWINS

PLAIN: dict[str, Any] = {
    "name": "read",
    "rounds": 2,
    "data": {"dataset": "sbm", "options": {"nodes": 120, "features": 8}},
    "partition": {"method": "metis", "clients": 4},
    "algorithm": {"name": "fedavg"},
}
SEVERAL: dict[str, Any] = {**PLAIN, "model": [{"name": "sgc"}, {"name": "gcn", "hidden": 8}]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(PLAIN))
    return path


def test_a_config_written_out_is_read_back(file: Path, tmp_path: Path) -> None:
    assert load_config(file).memory_limit() == psutil.virtual_memory().total
    config = load_config(file, ["model.name=gcn", "model.hidden=8", "engine.memory_limit=1GiB"])
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(with_seal(yaml.safe_dump(config.plain())))
    # A run folder stands for the config in it.
    assert load_config(run) == config == load_config(run / "config.yaml")
    assert config.memory_limit() == config.engine.memory_limit == 2**30


def test_the_twin_of_a_dataset_that_is_not_at_hand(file: Path) -> None:
    products = PLAIN | {"data": {"dataset": "OGBN-products", "options": {"scale": 0.1}}}
    twin = parse_config({**products, "data": {**products["data"], "synthetic": True}}, "here")
    plain = parse_config({**products, "data": {**products["data"], "dataset": "products-like"}}, "here")
    assert twin.data.dataset == "products-like"
    assert parse_config(twin.plain(), "here") == twin
    assert identity_keys(twin.plain()) == identity_keys(plain.plain()), "one run, by whatever name"
    assert set(TWINS.values()) == set(ORIGINALS)
    with refused("data.synthetic"):
        load_config(file, ["data.synthetic=true"])


def test_overrides(file: Path) -> None:
    overrides = ["rounds=7", "train.lr=1e-3", "data.options.nodes=99", "data.fractions=[0.6,0.2,0.2]", "rounds=8"]
    config = load_config(file, [*overrides, "participation.count=null", "ray.address=auto", "algorithm=local"])
    assert (config.rounds, config.train.lr, config.data.fractions) == (8, 1e-3, (0.6, 0.2, 0.2))
    assert config.data.options == {"nodes": 99, "features": 8}
    assert (config.participation.count, config.ray.address, config.algorithm.name) == (None, "auto", "local")


def test_an_override_of_a_list_names_the_place(file: Path) -> None:
    file.write_text(yaml.safe_dump(SEVERAL))
    config = load_config(file, ["model.1.hidden=32", "model.0.name=mlp"])
    assert [(model.name, model.options) for model in config.models()] == [("mlp", {}), ("gcn", {"hidden": 32})]


@pytest.mark.parametrize("override", ["model.name=gcn", "model.x.name=gcn", "model.7.name=gcn"])
def test_an_override_that_names_no_place_of_a_list(file: Path, override: str) -> None:
    file.write_text(yaml.safe_dump(SEVERAL))
    with refused(override, says="named by its place, as in model.0.hidden=32"):
        load_config(file, [override])


@pytest.mark.parametrize(
    "content", [b"name: [", b"name: ${nowhere}", b"name: \xff\xfe", b"- name\n", b"", b"read", b"3"]
)
def test_load_config_wrong_content_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.yaml"
    # The second is a folder that is no run.
    for path in (tmp_path / "none.yaml", tmp_path):
        with refused(tmp_path / ("none.yaml" if path != tmp_path else "config.yaml"), says="no such config"):
            load_config(path)
    file.write_bytes(content)
    with pytest.raises(ShoalError) as caught:
        load_config(file)
    assert str(caught.value.places[0]) == str(file)
    file.unlink()
    file.mkdir()
    with refused(file, says="cannot be read: Is a directory"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("override", "key", "says"),
    [
        ("train.learning_rate=0.1", "train.learning_rate", "unknown key"),
        ("participants=3", "participants", "unknown key"),
        ("rounds=many", "rounds", "found 'many'"),
        ("data.fractions=[0.9,0.2,0.2]", "data.fractions", "at most 1"),
        ("algorithm.name=null", "algorithm.name", "found None"),
        ("model=[]", "model", "at least 1"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(file: Path, override: str, key: str, says: str) -> None:
    with refused(str(file), key, says=says):
        load_config(file, [override])
    # An override of another form.
    for other in ("rounds", "rounds 3", "=3", "a b=3", "--rounds=3"):
        with refused(other):
            load_config(file, [other])


def test_user_method_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for method in ("mine.py:Mine", {"name": "mine.py:Mine", "mu": 1}):
        config = parse_config({**PLAIN, "algorithm": method}, "test")
        assert config.algorithm.name == f"{tmp_path}/mine.py:Mine"
    assert config.algorithm.options == {"mu": 1}


@pytest.mark.parametrize(
    ("keys", "device"),
    [
        ({}, "cpu"),
        ({"resources.gpus_per_host": 0.25}, "cuda"),
        ({"resources.gpus_per_host": 0.25, "engine.device": "cpu"}, "cpu"),
        ({"resources.gpus_per_host": 2, "engine.device": "cpu"}, "cpu"),
        ({"engine.device": "cuda"}, "cuda"),
        ({"engine.device": "cuda", "engine.backend": "ray", "resources.gpus_per_host": 1}, "cuda"),
        ({"engine.device": "cuda", "engine.precision": "tf32"}, "cuda"),
        ({"engine.precision": "bfloat16"}, "cpu"),
        # The server's share says nothing of the hosts.
        ({"resources.server_gpus": 1.0}, "cpu"),
    ],
)
def test_chosen(configure: Callable[..., Config], keys: dict[str, Any], device: str) -> None:
    assert device_choice(configure(keys)) == device


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"resources.gpus_per_host": 2}, "resources.gpus_per_host"),
        ({"engine.device": "cuda", "engine.backend": "ray"}, "engine.device"),
        ({"engine.precision": "tf32"}, "engine.precision"),
        ({"engine.precision": "tf32", "engine.device": "cpu", "resources.gpus_per_host": 1}, "engine.precision"),
    ],
)
def test_device_choice_refuses_contradictions(configure: Callable[..., Config], keys: dict[str, Any], key: str) -> None:
    with refused(key):
        device_choice(configure(keys))


UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@given(st.integers(0, 2**52))
def test_size_shows_one_decimal(count: int) -> None:
    number, unit = size(count).split()
    assert abs(float(number) * UNITS[unit] - count) <= 0.0501 * UNITS[unit]
    assert count < 1024 * UNITS[unit] or unit == "TiB"
    assert ("." in number) == (unit != "B")


OLD: dict[str, Any] = {"name": "old", "data": {"dataset": "sbm"}, "algorithm": {"name": "fedavg"}}
TEXT = "name: old\ndata: {dataset: sbm}\nalgorithm: fedavg\n"
VALUES = {"loop": "autograd", "closed_form": "analytic", "stacked": "batched", "auto": "auto", "analytic": "analytic"}


@pytest.fixture
def _unannounced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_text, "_announced", set())


def test_renamed_every_key_of_today_is_in_a_config() -> None:
    known = flatten(Config.model_validate(OLD).plain())
    assert all(new in known and old not in known for old, (new, _) in RENAMED.items())


@pytest.mark.usefixtures("_unannounced")
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
        "dict": lambda: config_from({**OLD, "engine": section}),
        "program": lambda: shoal.load_config(load_config(file), engine={"path": old}),
        "dict of a program": lambda: shoal.load_config({**OLD, "engine": {"hosts": 3}}, **{"engine.path": old}),
    }[source]()
    assert (config.engine.trainer, config.engine.hosts) == (new, 3)
    assert capsys.readouterr().err == f"shoal: engine.path is now engine.trainer: write engine.trainer: {new}\n"


@pytest.mark.usefixtures("_unannounced")
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
        config_from({**OLD, "engine": {"path": "fast"}})
