"""Every option refuses what it cannot be, in a config with one line that names file and key, and in its class alike."""

import dataclasses
import math
import re
from typing import Any, get_type_hints

import pytest
from pydantic import ValidationError
from support.errors import refused
from support.needs import has, has_keys, has_schedules

from shoal.algorithms.models.names import ModelSpec
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.config import config, round_sections, sections
from shoal.engine.config.config import Config, parse_config
from shoal.engine.sections.sections import SECTIONS
from shoal.partition.methods.options import PartitionOptions
from shoal.storage.errors import ShoalError
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.types import Named

PLAIN = {"name": "table", "data": {"dataset": "sbm"}, "algorithm": {"name": "fedavg"}}
NAN, INF = math.nan, math.inf

CLASSES: dict[str, type] = {
    "data": config.DataConfig,
    "partition": PartitionOptions,
    "propagation": PropagationOptions,
    "model": ModelSpec,
    "heterogeneity": sections.HeterogeneityOptions,
    "train": TrainOptions,
    "participation": round_sections.ParticipationOptions,
    "schedule": round_sections.ScheduleOptions,
    "devices": round_sections.DeviceOptions,
    **{section.name: section.options for section in SECTIONS if section.options is not None},
    "evaluation": config.EvaluationConfig,
    "engine": sections.EngineConfig,
    "resources": sections.ResourcesConfig,
    "ray": sections.RayConfig,
    "run": config.RunConfig,
}

# Wrong values of keys of one kind, which stand beside those of `REFUSED`.
KINDS: list[tuple[str, list[Any]]] = [
    (
        "data.root data.store data.cache data.overlay data.path data.split_file partition.file model.pretrained "
        "participation.trace run.root devices.kind devices.network",
        [3, "a" * 256, "a/" * 2100, "a\0b", "\ud800"],
    ),
    (
        "data.root data.cache data.overlay data.path data.split_file partition.file model.pretrained",
        ["s3://bucket/folder"],
    ),
    ("data.store run.root", ["http://host/store", "s3://bucket", "s3:///store", "gs://key:secret@bucket/store"]),
    (
        "data.cache_limit engine.memory_limit",
        [
            *(0, -1, NAN, INF, True),
            *("lots", "8 gigs", "1.2.3GiB", "-1GiB", "nan", "1e400GiB", "9" * 400 + "GiB"),
        ],
    ),
    (
        "propagation.relations data.row_normalize data.synthetic data.inductive data.allow_untrained data.cross_hidden "
        "communication.error_feedback "
        "evaluation.domains run.keep_best run.keep_records run.client_scores run.keep_digests run.tensorboard "
        "model.frozen",
        ["perhaps", "true", 1, None],
    ),
    (
        "partition.clients partition.chunks partition.overlap "
        "heterogeneity.embedding train.epochs train.batch_size participation.count "
        "participation.at_least participation.candidates evaluation.every evaluation.clients engine.hosts "
        "engine.threads engine.cell_size "
        "run.checkpoint_every run.keep run.keep_finished data.cross_min_neighbours evaluation.newcomer_epochs "
        "schedule.concurrency schedule.buffer schedule.tiers propagation.max_degree privacy.bands",
        [0, -1, 2.5, "4", True],
    ),
    (
        "data.split_seed data.cross_seed partition.seed heterogeneity.seed devices.seed schedule.b",
        [-1, 0.5, 2**63, "3", True],
    ),
    (
        "partition.alpha partition.resolution train.lr attack.scale aggregation.bound participation.deadline "
        "schedule.a engine.cell_timeout privacy.clip privacy.epsilon privacy.delta "
        "run.checkpoint_seconds run.max_seconds",
        [0.0, -1.0, NAN, INF, "1", True],
    ),
    (
        "train.weight_decay resources.cpus_per_host resources.gpus_per_host resources.server_cpus "
        "resources.server_gpus",
        [-0.5, NAN, INF],
    ),
    ("train.momentum train.dropout participation.dropout data.newcomers", [-0.1, 1.0, NAN, INF]),
    (
        "data.cross_share partition.drawn participation.ratio communication.ratio attack.share attack.poison "
        "schedule.mixing secure.threshold",
        [0.0, 1.1, NAN, True, "1"],
    ),
    (
        "data.dtype data.layout data.split data.edge_weights data.edge_features data.cross_edges partition.method "
        "partition.balance propagation.dtype propagation.rows propagation.keep model.init heterogeneity.rule "
        "train.optimizer train.opt_state communication.upload attack.kind aggregation.kind privacy.unit privacy.where "
        "privacy.mechanism secure.kind target.kind target.scale participation.draw participation.selection "
        "schedule.name schedule.staleness "
        "engine.backend engine.trainer engine.device engine.precision "
        "engine.on_client_error engine.verify run.log_format evaluation.last",
        ["another", True],
    ),
]
REFUSED: dict[str, list[Any]] = {
    "data.dataset": [None, 3],
    "data.fractions": [[0.9, 0.2, 0.2], [-0.1, 0.5, 0.5], [0, 0, 0], [0.5, NAN, 0.1], [0.5, "0.1", 0.1], "half"],
    "data.options": ["nodes"],
    "data.sparsity": [0.5, None, "half"],
    "data.noise": [0.5, None, "half"],
    "data.cross_edges": ["generate"],
    "data.name": [3, "", "a/b", "a b", "a" * 61],
    "data.features": [0.5, None, ["degree"]],
    "partition.clients": [10**12],
    "partition.domains": [3, [0, 2], ["a"]],
    "partition.options": ["seeds", None, 3],
    "partition.alpha": [0.0009],
    "partition.skew": [-0.1, 1.1, NAN, True, "1"],
    "partition.zipf": [-0.1, 10.5, NAN, True, "1"],
    "partition.seed": [2**31],
    "partition.imbalance": [1.0, 1.0009, NAN, INF, 1e300],
    "propagation.hops": [-1, 1.5, None, 1001, 10**12, True],
    "propagation.r": [-0.1, 1.1, NAN, "0.5", True],
    "model.name": [3, None],
    "heterogeneity.clients": [3, [True], ["0"]],
    "heterogeneity.embedding": [10**12],
    "train.batch_size": [2**63],
    "train.schedule": ["StepLR", 0.5, {"name": "StepLR"}, {"name": "StepLR", "step_size": "2"}, {"name": "LambdaLR"}],
    "evaluation.metrics": ["roc", [], ["f1", "f1"], ["f1", "a.py:f1"], ["a.py:A", "b.py:A"], ["a.py"], [3], 3],
    "participation.without": [3, [True], ["0"], [0.5]],
    "participation.availability": [0.5, None, ["weibull"]],
    "participation.over_selection": [0.9, 101.0, NAN, True, "2"],
    "attack.target": [-1, 0.5, "0", True],
    "aggregation.root": [-1, 0.5, "0", True],
    "attack.nodes": [0, 101, 2.5, "3", True],
    "aggregation.share": [-0.1, 0.5, NAN, True, "1"],
    "privacy.unit": ["nodes"],
    "privacy.quantile": [-0.1, 1.1, NAN, True, "1"],
    "privacy.noise": [-0.1, NAN, INF, True, "1"],
    "privacy.delta": [1.0],
    "engine.hosts": [10**12],
    "engine.threads": [10**12],
    "engine.cell_size": ["auto4"],
    "engine.cell_timeout": [1e300],
    "engine.retries": [-1, True],
    "resources.gpus_per_host": [1.5],
    "resources.server_gpus": [1.5],
    "ray.address": [3],
    "ray.runtime_env": [3, {"env_vars": "A=1"}],
    "ray.start_timeout": [0, -1, 1.5],
    "run.root": [None],
}
for names, wrong in KINDS:
    for key in names.split():
        REFUSED[key] = [*REFUSED.get(key, []), *wrong]
REFUSED = {key: values for key, values in REFUSED.items() if has_keys(key)}

# The ends of what is allowed.
TAKEN: dict[str, list[Any]] = {
    "data.fractions": [(1.0, 0.0, 0.0), (0.7, 0.2, 0.1), (0.6, 0.3, 0.1)],
    "partition.clients": [1],
    "partition.chunks": [1, 30],
    "partition.alpha": [1e-3, 1e6],
    "partition.skew": [0, 0.5],
    "partition.zipf": [0.5, 10],
    "partition.overlap": [1, 5, 10],
    "partition.drawn": [1e-9, 1],
    "partition.seed": [0, 2**31 - 1],
    "partition.resolution": [1e-9],
    "partition.imbalance": [1.001],
    "propagation.hops": [0],
    "propagation.r": [0.0, 1.0],
    "data.name": [None, "My-graph_2.1"],
    "data.store": [None, "/store", "s3://bucket/store?region=eu-west-1", "gs://bucket/a/store", "file:///store"],
    "run.root": ["/runs", "s3://bucket/runs"],
    "train.lr": [1e-20],
    "train.weight_decay": [0.0],
    "train.momentum": [0.0, 0.999],
    "train.batch_size": [None, 1],
    "train.schedule": [None, Named(name="StepLR", step_size=1)],  # type: ignore[call-arg]
    "train.dropout": [0.0, 0.999],
    "participation.ratio": [1e-9, 1.0],
    "participation.count": [None, 1],
    "participation.without": [(), (0, 3)],
    "data.newcomers": [0.0, 0.999],
    "evaluation.newcomer_epochs": [None],
    "participation.over_selection": [1.0, 100.0],
    "participation.dropout": [0.0, 0.999],
    "participation.selection": ["random", "oort", "/my.py:Select"],
    "participation.candidates": [None, 1],
    "communication.ratio": [1.0],
    "attack.kind": ["none", "scaled", "/my.py:Own"],
    "attack.share": [1.0],
    "attack.poison": [1.0],
    "attack.target": [0],
    "attack.nodes": [1, 100],
    "aggregation.share": [0.0, 0.49],
    "schedule.name": ["synchronous", "fedbuff"],
    "devices.kind": ["phones", "/mine.csv"],
    "devices.network": ["none", "/mine.csv"],
    "schedule.b": [0],
    "schedule.mixing": [1.0],
    "evaluation.metrics": [("accuracy",), ("f1", "/my.py:ECE", "roc_auc")],
    "evaluation.clients": ["all", "cohort", 1],
    "engine.cell_size": ["auto", 1],
    "engine.retries": [0],
    "resources.gpus_per_host": [0.0, 0.25, 1.0, 2.0],
    "resources.server_gpus": [0.0, 1.0],
}
TAKEN = {
    key: [value for value in values if has_schedules(value)]
    for key, values in TAKEN.items()
    # Synchronous rounds read devices for availability alone.
    if has_keys(key) and (has("availability") or not key.startswith("devices."))
}

# What else is chosen where a key has an effect.
BESIDE: dict[str, dict[str, Any]] = {
    "partition.chunks": {"method": "index"},
    "partition.alpha": {"method": "dirichlet"},
    "partition.skew": {"method": "features"},
    "partition.zipf": {"method": "random"},
    "partition.drawn": {"overlap": 5},
    "partition.resolution": {"method": "louvain"},
    "data.name": {"dataset": "files"},
    "train.momentum": {"optimizer": "sgd"},
    "participation.candidates": {"selection": "power_of_choice"},
    "communication.ratio": {"upload": "topk"},
    "attack.share": {"kind": "scaled"},
    **{f"attack.{key}": {"kind": "backdoor"} for key in ("target", "poison", "nodes")},
    "aggregation.share": {"kind": "krum"},
    "aggregation.root": {"kind": "fltrust"},
    "schedule.b": {"name": "fedbuff", "staleness": "hinge"},
    "schedule.mixing": {"name": "fedasync"},
    "schedule.tiers": {"name": "tiers"},
    "devices.kind": {"network": "consumer"},
    "devices.network": {"kind": "phones"},
    "secure.threshold": {"kind": "masks"},
    **{f"privacy.{key}": {"unit": "client"} for key in ("where", "clip", "quantile", "noise", "epsilon", "delta")},
}


def keys() -> set[str]:
    """All keys of all sections."""
    hints = {name: hint for name, hint in get_type_hints(Config).items() if name in CLASSES}
    assert hints.keys() == {
        name
        for name in Config.model_fields
        if name not in ("name", "seed", "rounds", "task", "algorithm", "callbacks", "stages")
    }
    fields = {
        name: [field.name for field in dataclasses.fields(kind)] for name, kind in CLASSES.items() if name != "model"
    }
    return {f"{name}.{key}" for name, of in (fields | {"model": list(ModelSpec.model_fields)}).items() for key in of}


def rows(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(key, value) for key, values in table.items() for value in values]


def given(key: str, value: Any) -> tuple[str, str, dict[str, Any]]:
    """A key's section and name, and the plain values of that section."""
    section, name = key.split(".")
    return section, name, {**PLAIN.get(section, {}), **BESIDE.get(key, {}), name: value}  # type: ignore[dict-item]


def test_the_table_has_every_key() -> None:
    assert REFUSED.keys() == keys()


@pytest.mark.parametrize(("key", "value"), rows(REFUSED))
def test_refused(key: str, value: Any) -> None:
    section, name, values = given(key, value)
    with pytest.raises(ShoalError) as caught:
        parse_config({**PLAIN, section: values}, "x.yaml")
    # Of a list the wrong entry is named, a path is made absolute, and what is long is cut off.
    where, place = caught.value.places
    assert (where, re.sub(r"\.\d$", "", str(place))) == ("x.yaml", key)
    line = caught.value.line
    assert ", found " in line if isinstance(value, str | list) else line.endswith(f", found {value!r}")
    assert len(line) < 1100
    with pytest.raises(ValidationError) as direct:
        CLASSES[section](**values)
    assert {error["loc"][0] for error in direct.value.errors()} == {name}


@pytest.mark.parametrize(
    ("plain", "key", "says"),
    [
        *(
            ({"data": {"dataset": "sbm", "sparsity": {key: value}}}, f"data.sparsity.{key}", says)
            for key, value, says in [
                (
                    "rows",
                    0.1,
                    "did you mean 'propagation.rows'? unknown key; known here: features, edges",
                ),
                ("features", -0.1, "at least 0, found -0.1"),
                ("features", 1.1, "at most 1, found 1.1"),
                ("edges", NAN, "finite number, found nan"),
                ("edges", "0.1", "expected a number, found '0.1'"),
                ("edges", True, "expected a number, found True"),
                ("labels", 1.0, "less than 1, found 1.0"),
                ("labels", -0.1, "at least 0, found -0.1"),
                ("seed", -1, "at least 0, found -1"),
                ("seed", 0.5, "expected a whole number, found 0.5"),
            ]
        ),
        *(
            (
                {"participation": {"availability": {"kind": "weibull", key: value}}},
                f"participation.availability.{key}",
                says,
            )
            for key, value, says in [
                ("hours", 3, "known here: kind, period, share, shape"),
                ("kind", "daily", "expected always, periodic, weibull or my_file.csv, found 'daily'"),
                ("period", 0, "at least 1, found 0"),
                ("share", 0.0, "more than 0, found 0.0"),
                ("share", 1.0, "less than 1, found 1.0"),
                ("shape", 0.1, "at least 0.2, found 0.1"),
            ]
            if has("availability")
        ),
        *(
            ({"data": {"dataset": "sbm", "features": features}}, f"data.features.{key}", says)
            for features, key, says in [
                ("pagerank", "kind", "found 'pagerank'"),
                ({"kind": "degree", "cap": 3}, "cap", "known here: kind, width, seed"),
                ({"kind": "random", "width": 0}, "width", "found 0"),
                ({"kind": "random", "seed": -1}, "seed", "found -1"),
            ]
        ),
        ({"seed": -1}, "seed", "found -1"),
        ({"rounds": 0}, "rounds", "found 0"),
        ({"name": "a/b"}, "name", "found 'a/b'"),
        ({"name": "a" * 201}, "name", "at most 200 characters"),
        ({"task": "edges"}, "task", "found 'edges'"),
        ({"callbacks": "csv"}, "callbacks", "found 'csv'"),
        ({"colour": "red"}, "colour", "known here: name, seed, task, rounds, data, "),
        ({"data": {}}, "data.dataset", "missing"),
        ({"model": [{"name": "gcn"}, {"name": "sgc", "init": "equal"}]}, "model.1.init", "found 'equal'"),
        ({"heterogeneity": {"clients": [0, "two"]}}, "heterogeneity.clients.1", "found 'two'"),
    ],
)
def test_refused_elsewhere(plain: dict[str, Any], key: str, says: str) -> None:
    with refused("x.yaml", key, says=says):
        parse_config({**PLAIN, **plain}, "x.yaml")


def test_a_missing_key() -> None:
    for key in PLAIN:
        with refused("x.yaml", key, says="missing"):
            parse_config({name: value for name, value in PLAIN.items() if name != key}, "x.yaml")


@pytest.mark.parametrize(("key", "value"), rows(TAKEN))
def test_the_ends_are_taken(key: str, value: Any) -> None:
    section, name, values = given(key, value)
    on_devices = {"devices": {"kind": "phones", "network": "consumer"}} if name == "over_selection" else {}
    config = parse_config({**PLAIN, **on_devices, section: values}, "x.yaml")
    assert getattr(getattr(config, section), name) == value
    assert getattr(config, section) == CLASSES[section](**values)


@pytest.mark.parametrize("section", sorted(CLASSES.keys() - {"model"}))
def test_an_unknown_key_lists_the_known(section: str) -> None:
    _, _, values = given(f"{section}.colour", "red")
    known = ", ".join(field.name for field in dataclasses.fields(CLASSES[section]))
    with refused("x.yaml", f"{section}.colour", says=f"unknown key; known here: {known}"):
        parse_config({**PLAIN, section: values}, "x.yaml")
    with pytest.raises(ValidationError):
        CLASSES[section](**values)


def test_auc_is_roc_auc() -> None:
    found = [parse_config({**PLAIN, "evaluation": {"metrics": given}}, "x.yaml") for given in ("auc", ["f1", "auc"])]
    assert [config.evaluation.metrics for config in found] == [("roc_auc",), ("f1", "roc_auc")]
