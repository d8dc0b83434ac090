"""Which keys change numbers: the names of run folders are made from these, and a resume may not change them."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.recorded_defaults import RECORDED, REMEDY, all_defaults

from shoal.engine.config import run_identity
from shoal.engine.config.config import config_from, load_config, parse_config
from shoal.engine.config.run_identity import NUMBERS, changes_numbers, defaults, flatten, identity_keys, name_digits
from shoal.engine.preparing.identity import store_path
from shoal.engine.records.run_folder import run_path

PLAIN: dict[str, Any] = {"name": "keys", "data": {"dataset": "sbm"}, "algorithm": {"name": "fedavg"}}


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        (
            True,
            "seed rounds data.dataset data.path data.split_seed partition.clients model.hidden model.0.name train.lr "
            "algorithm.name participation.trace evaluation.every evaluation.domains engine.cell_size engine.device "
            "engine.trainer engine.precision engine.threads resources.server_gpus names data.rooted engines runs.root",
        ),
        (
            False,
            "name data.root data.store ray.address run.root run.keep run.max_seconds engine.backend engine.hosts "
            "engine.retries engine.memory_limit engine.cell_timeout engine.on_client_error engine.verify "
            "resources.cpus_per_host resources.gpus_per_host resources.server_cpus",
        ),
    ],
    ids=["numbers", "none"],
)
def test_keys_that_change_numbers(changes: bool, keys: str) -> None:
    assert [key for key in keys.split() if changes_numbers(key) != changes] == []
    assert flatten({"a": {}, "b": {"c": {}, "d": {"e": [1]}}}) == {"a": {}, "b.c": {}, "b.d.e": [1]}


def named(keys: dict[str, Any] | None = None, inputs: dict[str, str] | None = None) -> str:
    return name_digits(parse_config({**PLAIN, **(keys or {})}, "test").plain(), inputs or {})


def test_name_digits_equal_a_hash_by_hand() -> None:
    values = {"algorithm.name": "fedavg", "data.dataset": "sbm", "numbers": NUMBERS, "seed": 3}
    assert named({"seed": 3}) == hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def test_name_digits_take_the_content_of_a_file_for_its_path() -> None:
    here, there = ({"data": {"dataset": "files", "path": path}} for path in ("/here", "/there"))
    assert named(here, {"data.path": "abc"}) == named(there, {"data.path": "abc"})
    assert named(here, {"data.path": "abc"}) != named(here, {"data.path": "abd"})


def test_identity_keys_are_all_keys_that_change_numbers() -> None:
    found = identity_keys(parse_config({**PLAIN, "callbacks": ["csv", {"name": "early_stopping"}]}, "test").plain())
    assert found["train.lr"] == 0.01
    assert found["callbacks.0.name"] == "early_stopping"
    assert not any(key.startswith(("ray", "run.", "data.root")) for key in found)
    assert defaults().items() <= found.items()


def test_recorded_defaults_are_those_of_today() -> None:
    recorded, now = json.loads(RECORDED.read_text()), all_defaults()
    changed = [f"{key}: {old} -> {now.get(key)}" for key, old in recorded["defaults"].items() if now.get(key) != old]
    assert not changed, f"a default changed, so raise NUMBERS; then {REMEDY}"
    assert recorded == {"numbers": NUMBERS, "defaults": now}, f"NUMBERS or a new key is not recorded: {REMEDY}"


@pytest.mark.parametrize(
    "keys",
    [
        {"seed": 0},
        {"task": "node"},
        {"model": {"name": "gamlp", "pretrained": None}},
        {"resources": {"server_gpus": 0.0, "gpus_per_host": 1.0}},
        {"evaluation": {"domains": True, "metrics": "accuracy"}},
        {"data": {"dataset": "sbm", "sparsity": {"edges": 0.0}, "inductive": False}},
        {"callbacks": ["csv", "wandb"]},
        {"engine": {"hosts": 7}},
        {"propagation": {"keep": "none"}},
        {"algorithm": {"name": "fedavg", "weight": "nodes"}},
        {"model": {"name": "gamlp", "hidden": 64}},
    ],
)
def test_name_digits_keys_at_their_defaults_change_nothing(keys: dict[str, Any]) -> None:
    assert named(keys) == named()


def test_name_digits_other_values_change_the_name() -> None:
    others: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"model": {"name": "gamlp", "hidden": 3}},
        {"model": [{"name": "gcn"}, {"name": "sgc"}]},
        {"resources": {"server_gpus": 0.25}},
        {"evaluation": {"every": 2}},
        {"data": {"dataset": "sbm", "sparsity": {"edges": 0.5}}},
        {"data": {"dataset": "sbm", "inductive": True}},
        {"data": {"dataset": "digits"}},
        {"train": {"schedule": {"name": "StepLR", "step_size": 2}}},
        {"algorithm": {"name": "fedavg", "weight": "train"}},
        {"callbacks": [{"name": "early_stopping", "patience": 3}]},
    ]
    assert len({named(keys) for keys in others}) == len(others)


def test_another_partition_by_a_method_gives_its_runs_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {method: config_from({**PLAIN, "partition": method}).plain() for method in ("metis", "semi-external")}
    before = {method: name_digits(values, {}) for method, values in plain.items()}
    monkeypatch.setattr(run_identity, "PARTITIONS", {"semi-external": run_identity.PARTITIONS["semi-external"] + 1})
    after = {method: name_digits(values, {}) for method, values in plain.items()}
    assert [before[method] == after[method] for method in plain] == [True, False]


FILE = str(Path("/d.csv"))


# These names had such runs when participation and schedule had keys of devices each.
@pytest.mark.parametrize(
    ("old", "inputs", "new", "name"),
    [
        (
            {"participation": {"devices": "phones", "network": "consumer", "seed": 3, "deadline": 5.0}}, {},
            {"participation": {"deadline": 5.0}, "devices": {"kind": "phones", "network": "consumer", "seed": 3}},
            "c5b4d9c4",
        ),
        (
            {"participation": {"devices": FILE, "network": "consumer"}}, {"devices.kind": "1"},
            {"devices": {"kind": FILE, "network": "consumer"}}, "c63ee277",
        ),
        (
            {"participation": {"availability": "weibull", "seed": 2}, "schedule": {"devices": "phones"}}, {},
            {"participation": {"availability": "weibull"}, "devices": {"seed": 2}}, "4a5a643b",
        ),
        ({"schedule": {"name": "fedbuff", "devices": "phones"}}, {}, {"schedule": "fedbuff"}, "b3bc78c4"),
        ({"schedule": "fedbuff"}, {}, {"schedule": "fedbuff", "devices": {"kind": "phones", "network": "consumer"}},
         "b3bc78c4"),
        (
            {"schedule": {"name": "fedbuff", "devices": FILE, "network": "none", "seed": 4}}, {"devices.kind": "1"},
            {"schedule": "fedbuff", "devices": {"kind": FILE, "network": "none", "seed": 4}}, "e1dbad32",
        ),
    ],
)  # fmt: skip
def test_runs_on_devices_keep_their_names(
    old: dict[str, Any], inputs: dict[str, str], new: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The arithmetic of these runs, which is part of their names.
    monkeypatch.setattr(run_identity, "NUMBERS", 6)
    base = {**PLAIN, "name": "n"}
    before, now = (config_from({**base, **keys}).plain() for keys in (old, new))
    assert name_digits(before, inputs) == name_digits(now, inputs) == name
    assert identity_keys(before) == identity_keys(now)


CONFIGS = Path(__file__).resolve().parents[3] / "configs"
# Config, overrides; store, split, hops.
CORA, QUICK, SBM = "cora-louvain10-c4c76723", "digits-louvain10-9f9415de", "sbm-metis200-309ef85f"
SPLIT, BY_CLIENT, HOPS = "stratified-20-40-40-seed0", "per_client-20-40-40-seed0", "r0.5-k3-float32"
SEMI_EXTERNAL = "partition.method=semi-external partition.imbalance=1.1 partition.seed=5 engine.memory_limit=8GiB"
NO_STORE_KEYS = "train.lr=1 train.batch_size=64 participation.ratio=0.3 participation.trace=FILE model.name=gcn"
MODELS = "model.1.name=gin model.1.hidden=32 heterogeneity.rule=random heterogeneity.seed=3"
OTHER_HOPS = "propagation.hops=2 propagation.r=0 propagation.dtype=float16 propagation.rows=labelled"
OTHER_SPLIT = "data.split=per_client data.split_seed=3 data.fractions=[0.6,0.2,0.2]"
NAMES = [
    ("cora", "", CORA, BY_CLIENT, HOPS),
    ("pubmed", "", "pubmed-louvain10-d9a63476", BY_CLIENT, HOPS),
    ("quickstart", "", QUICK, SPLIT, HOPS),
    ("sbm-200", "", SBM, SPLIT, HOPS),
    ("cora-heterogeneous", MODELS, CORA, SPLIT, HOPS),
    ("quickstart", OTHER_HOPS, QUICK, SPLIT, "r0.0-k2-float16-labelled"),
    ("quickstart", OTHER_SPLIT, QUICK, "per_client-60-20-20-seed3", HOPS),
    ("quickstart", f"{NO_STORE_KEYS} model.init=own", QUICK, SPLIT, HOPS),
    ("sbm-200", SEMI_EXTERNAL, "sbm-semi-external200-363cc050", SPLIT, HOPS),
    ("sbm-200", "partition.method=file partition.file=FILE", "sbm-file200-2bc0e121", SPLIT, HOPS),
    # Stores of dense features have the same names by whatever key.
    ("cora", "data.layout=dense", "cora-louvain10-0a44b7a9", BY_CLIENT, HOPS),
    ("quickstart", "data.layout=dense", "digits-louvain10-1b5ca882", SPLIT, HOPS),
    ("sbm-200", "data.layout=dense", SBM, SPLIT, HOPS),
]


@pytest.mark.parametrize(("name", "overrides", "store", "split", "hops"), NAMES)
def test_names(name: str, overrides: str, store: str, split: str, hops: str, tmp_path: Path) -> None:
    """Files count by their content, wherever they lie."""
    (tmp_path / "file").write_text("content")
    changed = overrides.replace("FILE", str(tmp_path / "file")).split()
    config = load_config(CONFIGS / f"{name}.yaml", ["data.root=/data", "run.root=/runs", *changed])
    assert (store_path(config).name, config.data.split_name, config.propagation.name) == (store, split, hops)
    assert re.fullmatch(rf"{config.name}-[0-9a-f]{{8}}", run_path(config).name)
