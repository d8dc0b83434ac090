"""Reading a config: from a file or a run folder, with overrides; a fault is one line that names file or key."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rooms import ROOT
from support.errors import refused

import shoal
from shoal.algorithms.models.build import backbone
from shoal.algorithms.models.names import BACKBONES, OF_GRAPHS
from shoal.engine.config import config_text
from shoal.engine.config.config import Config, config_from, device_choice, load_config, parse_config, require_names
from shoal.engine.config.config_text import MOST_VALUES, MOVED, RENAMED, require_small, with_seal
from shoal.engine.config.round_sections import DeviceOptions
from shoal.engine.config.run_identity import flatten, identity_keys, name_digits
from shoal.engine.config.sizes import size
from shoal.partition.methods.options import Methods
from shoal.partition.partitioning import METHODS
from shoal.storage.datasets.registry import record
from shoal.storage.datasets.synthetic.twin import ORIGINALS
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import DATASETS, TWINS
from shoal.study.study import Study

Capture = pytest.CaptureFixture[str]
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


def test_names_of_collections_are_ours() -> None:
    for name, ours in (("ogb:arxiv", "ogbn-arxiv"), ("tu:NCI1", "nci1"), ("tu:MUTAG", "tu:MUTAG")):
        plain = {"name": "a", "data": {"dataset": name}, "algorithm": "fedavg"}
        assert parse_config(plain, "x.yaml").data.dataset == ours
    with refused("data.dataset", says="expected tu:NAME as TUDataset has it"):
        require_names(parse_config({"name": "a", "data": {"dataset": "tu:../x"}, "algorithm": "fedavg"}, "x.yaml"))


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
    for override in ("model.name=gcn", "model.x.name=gcn", "model.7.name=gcn"):
        with refused(override, says="named by its place, as in model.0.hidden=32"):
            load_config(file, [override])


@pytest.mark.parametrize(
    ("overrides", "models"),
    [
        (["model=gcn"], [("gcn", {})]),
        (["model=gcn", "model.hidden=8"], [("gcn", {"hidden": 8})]),
        (["model=[gcn,sage]"], [("gcn", {}), ("sage", {})]),
        (["model=[gcn,sage]", "model.1.hidden=8"], [("gcn", {}), ("sage", {"hidden": 8})]),
    ],
)
def test_models_by_bare_names_are_those_by_mappings(
    file: Path, overrides: list[str], models: list[tuple[str, dict[str, Any]]]
) -> None:
    config = load_config(file, overrides)
    assert [(model.name, model.options) for model in config.models()] == models
    chosen = load_config(file, ["algorithm=fedavg", "algorithm.weight=uniform"]).algorithm
    assert (chosen.name, chosen.options) == ("fedavg", {"weight": "uniform"})


def test_a_wrong_override_is_named(file: Path) -> None:
    # A wrong value is of the file's key: `test_sections.py` has them all.
    for override in ("train.learning_rate=0.1", "algorithm.name=null", "model=[]"):
        with refused("command line", override.partition("=")[0]):
            load_config(file, [override])
    for other in ("rounds 3", "=3", "a b=3", "--rounds=3", "file.yaml"):
        with refused(other, says=f"{other}: an override has the form key.sub=value"):
            load_config(file, [other])
    for words, meant in (
        (["rounds", "3"], "rounds=3"),
        (["train.lr"], "train.lr=VALUE"),
        (["lr", "seed=1"], "train.lr=VALUE"),
        (["FedGTA"], "algorithm=fedgta"),
        (["Cora"], "data.dataset=cora"),
    ):
        with refused(words[0], says=f"{words[0]}: write {meant}; an override has the form"):
            load_config(file, words)


def test_an_error_names_where_the_key_was_given(file: Path) -> None:
    for override, says in (
        ("train=null", "give train.epochs, train.optimizer, train.lr or another of its keys; expected"),
        ("evaluation.clients=x", "expected a whole number, or 'all' or 'cohort', found 'x'"),
    ):
        with refused("command line", override.partition("=")[0], says=f": {says}"):
            load_config(file, [override])
    plain = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**plain, "participation": 0.1}))
    with refused(str(file), "participation", says="write participation: {ratio: 0.1}; expected keys of its own"):
        load_config(file, ["train.lr=0.1"])
    with refused("config", "participation", says="write participation: {ratio: 0.1}; "):
        load_config(QUICKSTART, values={"participation": 0.1})


@pytest.mark.parametrize(("key", "name"), [("algorithm", "FedGTA"), ("model", "GCN"), ("model.0", "SGC")])
def test_methods_and_models_are_taken_in_any_case(file: Path, key: str, name: str) -> None:
    lists = ["model=[{name: mlp}, {name: sgc}]"] if key == "model.0" else []
    written = [load_config(file, [*lists, f"{key}={{name: {text}}}"]) for text in (name, name.lower(), name.upper())]
    assert written[0] == written[1] == written[2]
    digits = {name_digits(config.plain(), {}) for config in written}
    assert len(digits) == 1


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
        ({"resources.gpus_per_host": 2}, refused("resources.gpus_per_host")),
        ({"engine.device": "cuda", "engine.backend": "ray"}, "cuda"),
        ({"engine.precision": "tf32"}, refused("engine.precision")),
        (
            {"engine.precision": "tf32", "engine.device": "cpu", "resources.gpus_per_host": 1},
            refused("engine.precision"),
        ),
    ],
)
def test_device_choice(configure: Callable[..., Config], keys: dict[str, Any], device: Any) -> None:
    with nullcontext() if isinstance(device, str) else device:
        assert device_choice(configure(keys)) == device


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
    assert all(new in known and old not in known for old, (new, _) in {**RENAMED, **MOVED}.items())


@pytest.mark.usefixtures("_unannounced")
@pytest.mark.parametrize(("old", "new"), VALUES.items())
@pytest.mark.parametrize("source", ["file", "override", "value", "section", "dict", "program", "dict of a program"])
def test_renamed_key_is_read(tmp_path: Path, capsys: Capture, source: str, old: str, new: str) -> None:
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
    file = tmp_path / "config.yaml"
    file.write_text(TEXT + "engine: {trainer: analytic}\n")
    study = Study(str(file), ("engine.path=loop,stacked", "seed=0,1"))
    assert [config.engine.trainer for config in study.configs] == ["autograd"] * 2 + ["batched"] * 2
    assert capsys.readouterr().err.count("engine.path is now engine.trainer") == 1
    file.write_text(TEXT + "engine: {path: loop, trainer: batched}\n")
    with refused(file, says="not a config: engine.path is now engine.trainer, and both are"):
        load_config(file)
    with refused("engine.trainer", says="found 'fast'"):
        config_from({**OLD, "engine": {"path": "fast"}})


@pytest.mark.usefixtures("_unannounced")
@pytest.mark.parametrize("source", ["file", "override", "section", "program"])
def test_moved_keys_are_read_in_their_section(tmp_path: Path, capsys: Capture, source: str) -> None:
    file, part = tmp_path / "config.yaml", {"devices": "phones", "network": "institutions", "deadline": 9.0}
    file.write_text(TEXT + (f"participation: {json.dumps(part)}\n" if source == "file" else ""))
    config = {
        "file": lambda: load_config(file),
        "override": lambda: load_config(file, [f"participation.{key}={value}" for key, value in part.items()]),
        "section": lambda: load_config(file, ["participation={devices: phones, network: institutions, deadline: 9.0}"]),
        "program": lambda: shoal.load_config(OLD, participation=part),
    }[source]()
    assert config.devices == DeviceOptions("phones", "institutions")
    assert config.participation.deadline == 9.0
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "shoal: participation.devices is now devices.kind: write devices.kind: phones",
        "shoal: participation.network is now devices.network: write devices.network: institutions",
    ]


@pytest.mark.usefixtures("_unannounced")
def test_moved_keys_of_a_resolved_config_are_those_that_its_schedule_read(capsys: Capture) -> None:
    standard = {"devices": "phones", "network": "consumer", "seed": 0}
    of_rounds = {"devices": "hospital", "network": "institutions", "seed": 3}
    config = config_from({**OLD, "participation": of_rounds, "schedule": standard})
    assert config.devices == DeviceOptions("hospital", "institutions", 3)
    nothing = {"devices": None, "network": None, "seed": 0}
    late = {"participation": nothing, "schedule": {"name": "fedbuff", **of_rounds}}
    assert config_from({**OLD, **late}).devices == config.devices
    late = {"participation": of_rounds, "schedule": {"name": "fedbuff", **of_rounds, "seed": 5}}
    assert config_from({**OLD, **late}).devices.seed == 5
    # A section of which all keys moved leaves others of it as they are.
    counted = {**OLD, "participation": {"count": 2}}
    assert (
        config_from(counted, {"participation": {"devices": "phones", "network": "consumer"}}).participation.count == 2
    )
    capsys.readouterr()
    # What needs no key is no news.
    assert config_from({**OLD, "participation": nothing, "schedule": standard}).devices == DeviceOptions()
    assert not capsys.readouterr().err
    with refused("config", says="participation.devices is now devices.kind, and both are there"):
        config_from({**OLD, "participation": {"devices": "phones"}, "devices": {"kind": "phones"}})


QUICKSTART = "configs/quickstart.yaml"
# Each takes a tenth of a second or more to load.
HEAVY = {"torch", "numpy", "scipy", "pyarrow", "numba", "pandas", "ray", "networkit"}
ARGUMENTS = [
    ["sweep", QUICKSTART, "seed=0,1", "algorithm=fedavg,fedavgg"],
    ["run", QUICKSTART, "model.name=ssgc"],
    ["prepare", QUICKSTART, "data.dataset=coraa"],
    ["run", QUICKSTART, "rounds=many"],
]
SAID = [
    "algorithm.name: did you mean 'fedavg'?",
    "there is no 'ssgc'",
    "unknown dataset 'coraa'",
    "command line: rounds: ",
]


def test_wrong_name_is_refused_before_torch_is_imported() -> None:
    code = f"""
import json, sys
from shoal.cli.cli import app
said = []
for arguments in {ARGUMENTS}:
    try:
        app(args=arguments, standalone_mode=False)
    except Exception as error:
        said.append(f"{{type(error).__name__}} {{error}}")
print(json.dumps([said, sorted(sys.modules)]))
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    said, loaded = json.loads(answer.stdout)
    assert [line.split()[0] for line in said] == ["ShoalError"] * len(ARGUMENTS)
    for line, expected in zip(said, SAID, strict=True):
        assert expected in line
    assert not HEAVY & set(loaded)


def test_known_names_equal_the_registries() -> None:
    assert [record(name).name for name in DATASETS] == list(DATASETS)
    assert get_args(Methods) == tuple(METHODS)
    for name in [*BACKBONES, *OF_GRAPHS]:
        backbone(name, task="graph")


@pytest.mark.parametrize(
    ("overrides", "key", "says"),
    [
        ("model.name=star", "model.name", "star reads codes of small graphs"),
        ("model.name=saage", "model.name", "did you mean 'sage'"),
        ("data.dataset=[digits,pubmd] partition.clients=[3,3]", "data.dataset", "did you mean 'pubmed'"),
        ("ray.runtime_env.pips=3", "ray.runtime_env.pips", "env_vars"),
    ],
)
def test_a_wrong_name_is_refused(overrides: str, key: str, says: str) -> None:
    with refused(key, says=says):
        require_names(load_config(QUICKSTART, overrides.split()))


@pytest.mark.parametrize(
    "override", ["algorithm=mine.py:Mine", "model.name=mine.py:Mine", "data.dataset=Mine.py:Mine", "data.dataset=Cora"]
)
def test_require_names_user_files_and_capitals_pass(override: str) -> None:
    require_names(load_config(QUICKSTART, [override]))


PLAIN_TEXT = "name: text\ndata: {dataset: sbm}\nalgorithm: fedavg\n"
LAUGHS = "a: &a [x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n" for before, after in zip("abcdefghij", "bcdefghijk")
)


def line_of(file: Path, content: str | bytes, *overrides: str) -> str:
    """The line that a config is refused with, in less than a second."""
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    began = time.perf_counter()
    with pytest.raises(ShoalError) as error:
        load_config(file, overrides)
    assert time.perf_counter() - began < 2
    line = str(error.value)
    assert line.isprintable()
    assert len(line) < 1100
    return line


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name: " + "[" * 500 + "]" * 500, "line 1: nested more than 32 deep"),
        ("a: " + "{a: " * 500, "line 1: nested more than 32 deep"),
        # Some versions of libyaml refuse these themselves.
        ("[" * 100_000, "nested more than 32 deep|exceeded maximum nesting depth"),
        ("a: " + "{a: " * 100_000, "nested more than 32 deep|exceeded maximum nesting depth"),
        (LAUGHS, "more than 200,000 values"),
        ("a: &a [*a]", "names nothing before it"),
        (PLAIN_TEXT + "rounds: !!int abc", r"line 4: a tag \(tag:yaml.org,2002:int\); write the value without it"),
        (PLAIN_TEXT + "rounds: !!timestamp x", "line 4: a tag"),
        (PLAIN_TEXT + "rounds: !!binary x", "line 4: a tag"),
        (PLAIN_TEXT + "rounds: !!python/object:os.system x", "line 4: a tag"),
        (PLAIN_TEXT + "rounds: 3\nrounds: 4", "duplicate key rounds"),
        (PLAIN_TEXT + "3: 4", "3: a key must be a text"),
        (PLAIN_TEXT + "rounds: " + "9" * 5000, "not a config: Exceeds the limit"),
        (PLAIN_TEXT + "rounds: 0x" + "f" * 5000, "found a number of thousands of digits"),
        (PLAIN_TEXT + "rounds: ${nowhere.at}", r"\$\{nowhere.at\}: there is no such key"),
        (PLAIN_TEXT + "rounds: ${rounds}", r"must name one value, which is no \$\{…\} itself"),
        (PLAIN_TEXT + "rounds: ${data}", "must name one value"),
        (PLAIN_TEXT + "rounds: ${" * 100, "none within another"),
        (PLAIN_TEXT + "rounds: ${oc.env:NO_SUCH_VARIABLE}", "not a config: .*NO_SUCH_VARIABLE"),
        *((text, "") for text in ("name: [", "- name\n", "", "read", "3")),
        (b"\xff\xfe\x00n", "not a config"),
        (b"name: a\0b", "not a config"),
        (b"#" * (5 << 20), "larger than 4 MiB"),
        (PLAIN_TEXT.replace("text", "a" * 201), "name: .*at most 200 characters"),
    ],
)
def test_load_config_bad_text_is_one_line(file: Path, content: str | bytes, says: str) -> None:
    line = line_of(file, content)
    assert line.startswith(f"{file}: ")
    assert re.search(says, line), line


def test_an_override_is_no_way_around_it(file: Path) -> None:
    deep, long = "seed=" + "[" * 100_000, "x" * 300 + "=1"
    for text in ("rounds=3\nseed: 4", "rounds=3\0", deep, "seed=!!int abc", "seed=*a", long, "seed"):
        assert line_of(file, PLAIN_TEXT, text).startswith(text[:4])


def test_load_config_without_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with refused(place, says="not a config: Is no file"):
            load_config(place)
    # A file that is not there, a folder that is no run, and one whose config is a folder.
    for path, says in ((tmp_path / "none.yaml", "no such config"), (tmp_path, "is a folder without config.yaml")):
        with refused(path, says=says):
            load_config(path)
    (tmp_path / "config.yaml").mkdir()
    with refused(tmp_path / "config.yaml", says="cannot be read: Is a directory"):
        load_config(tmp_path)
    with refused(says="no such config: a path has at most 4095 bytes, and a name in it 255"):
        load_config("a" * 256)


def test_ordinary_yaml(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TEST_NAME", "from-outside")
    text = "\ufeffname: ${oc.env:SHOAL_TEST_NAME}-${seed}\nseed: &s 3\ndata: {dataset: sbm, split_seed: '${seed}'}\n"
    file.write_text(text + "algorithm: fedavg\npartition: {seed: *s}\n")
    config = load_config(file, ["data.sparsity={edges: 0.5, seed: '${seed}'}"])
    assert (config.name, config.data.split_seed, config.partition.seed) == ("from-outside-3", 3, 3)
    assert config.data.sparsity.seed == 3


def test_the_longest_list() -> None:
    require_small("a: [" + "0," * (MOST_VALUES - 10) + "]")
    with pytest.raises(ValueError, match="more than 200,000 values"):
        require_small("a: [" + "0," * MOST_VALUES + "]")
