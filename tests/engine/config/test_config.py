"""Reading a config: from a file or a run folder, with overrides; a fault is one line that names file or key."""

from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.config.config_text import with_seal
from shoal.engine.config.run_identity import identity_keys
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


def test_values_and_defaults(file: Path) -> None:
    config = load_config(file)
    assert (config.name, config.rounds, config.seed) == ("read", 2, 0)
    assert (config.data.dataset, config.data.options) == ("sbm", {"nodes": 120, "features": 8})
    assert (config.partition.clients, config.train.epochs) == (4, 3)
    assert (config.engine.backend, config.ray.address, config.evaluation.every) == ("ray", None, 1)


def test_a_config_written_out_is_read_back(file: Path, tmp_path: Path) -> None:
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
    with pytest.raises(ShoalError, match=r"data\.synthetic: there are synthetic twins of ogbn-arxiv, .* found 'sbm'"):
        load_config(file, ["data.synthetic=true"])


def test_without_a_limit_the_memory_is_that_of_the_machine(file: Path) -> None:
    assert load_config(file).memory_limit() == psutil.virtual_memory().total


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
    with pytest.raises(ShoalError) as refused:
        load_config(file, [override])
    assert str(refused.value).startswith(f"{override}: cannot be set: ")
    assert str(refused.value).endswith("named by its place, as in model.0.hidden=32")


@pytest.mark.parametrize("override", ["rounds", "rounds 3", "=3", "a b=3", "--rounds=3"])
def test_an_override_of_another_form(file: Path, override: str) -> None:
    with pytest.raises(ShoalError, match=rf"^{override}: an override has the form key\.sub=value$"):
        load_config(file, [override])


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/none\.yaml: no such config$"):
        load_config(tmp_path / "none.yaml")
    # A folder that is no run.
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/config\.yaml: no such config$"):
        load_config(tmp_path)


@pytest.mark.parametrize("content", [b"name: [", b"name: ${nowhere}", b"name: \xff\xfe", b"- name\n- rounds\n"])
def test_load_config_wrong_value_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.yaml").write_bytes(content)
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/broken\.yaml: not a config: ") as refused:
        load_config(tmp_path / "broken.yaml")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["", "read", "3"])
def test_a_file_that_holds_no_keys(tmp_path: Path, content: str) -> None:
    (tmp_path / "broken.yaml").write_text(content)
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/broken\.yaml: "):
        load_config(tmp_path / "broken.yaml")


def test_a_config_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(ShoalError, match=r"config\.yaml: cannot be read: Is a directory"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("train.learning_rate=0.1", ("train.learning_rate", "unknown key", "lr")),
        ("participants=3", ("participants", "unknown key", "participation")),
        ("rounds=many", ("rounds", "many", "integer")),
        ("rounds=0", ("rounds", "greater than or equal to 1")),
        ("participation.ratio=1.5", ("participation.ratio", "less than or equal to 1")),
        ("engine.cell_size=auto4", ("engine.cell_size", "auto4")),
        ("data.split=random", ("data.split", "random", "stratified")),
        ("data.fractions=[0.9,0.2,0.2]", ("fractions", "at most 1")),
        ("partition.method=leiden", ("partition.method", "leiden", "metis")),
        ("algorithm.name=null", ("algorithm.name", "string", "None")),
        ("model=[]", ("model", "at least 1")),
    ],
)
def test_a_wrong_key_is_named_with_its_file(file: Path, override: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ShoalError) as refused:
        load_config(file, [override])
    assert str(refused.value).startswith(f"{file}: {parts[0]}" if "." in parts[0] else f"{file}: ")
    assert all(part in str(refused.value) for part in parts), refused.value
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["name", "data", "algorithm"])
def test_a_missing_key(key: str) -> None:
    with pytest.raises(ShoalError, match=rf"^x\.yaml: {key}: missing$"):
        parse_config({name: value for name, value in PLAIN.items() if name != key}, "x.yaml")


def test_user_method_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("mine.py:Mine", {"name": "mine.py:Mine", "mu": 1}):
        config = parse_config({**PLAIN, "algorithm": given}, "test")
        assert config.algorithm.name == f"{tmp_path}/mine.py:Mine"
    assert config.algorithm.options == {"mu": 1}


def test_a_config_does_not_change(file: Path) -> None:
    config = load_config(file)
    with pytest.raises(ValueError, match="frozen"):
        config.rounds = 3  # type: ignore[misc]
    assert isinstance(config, Config)
