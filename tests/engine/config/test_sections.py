"""Every option refuses what it cannot be, in a config with one line that names file and key, and in its class alike."""

import ast
import dataclasses
import math
import re
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import ValidationError
from rooms import ROOT, modules

from shoal.algorithms.models.model_options import ModelSpec
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.config import sections
from shoal.engine.config.config import Config, parse_config
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import METHODS
from shoal.storage.errors import ShoalError
from shoal.storage.options.masking import Sparsity
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.types import Named

PLAIN = {"name": "table", "data": {"dataset": "sbm"}, "algorithm": {"name": "fedavg"}}
NAN, INF = math.nan, math.inf

CLASSES: dict[str, type] = {
    "data": sections.DataConfig,
    "partition": PartitionOptions,
    "propagation": PropagationOptions,
    "model": ModelSpec,
    "heterogeneity": sections.HeterogeneityOptions,
    "train": TrainOptions,
    "participation": sections.ParticipationOptions,
    "evaluation": sections.EvaluationConfig,
    "engine": sections.EngineConfig,
    "resources": sections.ResourcesConfig,
    "ray": sections.RayConfig,
    "run": sections.RunConfig,
}

REFUSED: dict[str, list[Any]] = {
    "data.dataset": [None, 3],
    "data.root": [3, "a" * 256, "a/" * 2100, "a\0b", "\ud800"],
    "data.store": [3, "b" * 256],
    "data.overlay": [3, "b" * 256],
    "data.path": [3, "c\0"],
    "data.split": ["random", None],
    "data.split_seed": [-1, 0.5, 2**63, "3", True],
    "data.split_file": [3, "d" * 256],
    "data.fractions": [
        [0.9, 0.2, 0.2],
        [-0.1, 0.5, 0.5],
        [0, 0, 0],
        [0.5, NAN, 0.1],
        [0.5, INF, 0.1],
        [0.5, "0.1", 0.1],
        "half",
    ],
    "data.dtype": ["int8"],
    "data.layout": ["csr", None, True],
    "data.row_normalize": ["perhaps", 1, "true"],
    "data.options": ["nodes"],
    "data.sparsity": [0.5, None, "half"],
    "data.synthetic": ["perhaps", 1, None],
    "data.inductive": ["perhaps", 1, None],
    "data.edge_weights": ["none", 1, None, True],
    "data.name": [3, "", "a/b", "a b", "a" * 61],
    "data.features": [0.5, None, ["degree"]],
    "partition.method": ["leiden", None],
    "partition.clients": [0, -1, 2.5, 10**12, True, "4"],
    "partition.domains": [3, [0, 2], ["a"]],
    "partition.chunks": [0, 2.5, "4", True],
    "partition.options": ["seeds", None, 3],
    "partition.alpha": [0.0, 0.0009, -1.0, NAN, INF, "1", True],
    "partition.seed": [-1, 2**31, True],
    "partition.resolution": [0.0, -1.0, NAN, INF, "1", True],
    "partition.imbalance": [1.0, 1.0009, NAN, INF, 1e300],
    "partition.balance": ["edges"],
    "partition.file": [3, "e" * 256],
    "propagation.hops": [-1, 1.5, None, 1001, 10**12, True],
    "propagation.r": [-0.1, 1.1, NAN, "0.5", True],
    "propagation.dtype": ["int8"],
    "propagation.rows": ["some"],
    "model.name": [3, None],
    "model.init": ["equal"],
    "model.pretrained": [3, "h" * 256],
    "heterogeneity.rule": ["alphabetical"],
    "heterogeneity.seed": [-1, 2**63],
    "heterogeneity.clients": [3, [True], ["0"]],
    "heterogeneity.embedding": [0, 10**12, True],
    "train.epochs": [0, 2**63, True, "3"],
    "train.optimizer": ["lion"],
    "train.lr": [0.0, -0.1, NAN, INF, "fast", "0.1", True],
    "train.weight_decay": [-1e-9, NAN, INF],
    "train.momentum": [-0.1, 1.0, NAN, INF],
    "train.batch_size": [0, 2**63, True],
    "train.opt_state": ["forget"],
    "train.dropout": [-0.1, 1.0, NAN],
    "train.schedule": ["StepLR", 0.5, {"name": "StepLR"}, {"name": "StepLR", "step_size": "2"}, {"name": "LambdaLR"}],
    "participation.ratio": [0.0, 1.1, NAN, True, "1"],
    "participation.count": [0, True],
    "participation.at_least": [0, None],
    "participation.trace": [3, "f" * 256],
    "evaluation.every": [0],
    "evaluation.domains": ["perhaps", 1, None],
    "evaluation.metric": ["f1", "ROC_AUC", None, True],
    "engine.backend": ["mpi"],
    "engine.hosts": [0, 10**12, True],
    "engine.threads": [0, 10**12],
    "engine.trainer": ["batch"],
    "engine.device": ["tpu"],
    "engine.precision": ["float16"],
    "engine.cell_size": [0, "auto4", True],
    "engine.memory_limit": [
        0,
        -1,
        "lots",
        "8 gigs",
        "1.2.3GiB",
        "-1GiB",
        "nan",
        "1e400GiB",
        "9" * 400 + "GiB",
        NAN,
        INF,
        True,
    ],
    "engine.cell_timeout": [0.0, NAN, INF, 1e300],
    "engine.retries": [-1, True],
    "engine.on_client_error": ["wait"],
    "engine.verify": ["always", True],
    "resources.cpus_per_host": [-0.5, NAN, INF],
    "resources.gpus_per_host": [-0.5, 1.5, NAN, INF],
    "resources.server_cpus": [-0.5, NAN, INF],
    "resources.server_gpus": [-0.5, 1.5, NAN],
    "ray.address": [3],
    "run.root": [3, None, "g" * 256],
    "run.checkpoint_every": [0],
    "run.checkpoint_seconds": [0.0, NAN],
    "run.keep": [0],
    "run.keep_finished": [0, "all"],
    "run.keep_best": ["perhaps", 0],
    "run.keep_records": ["perhaps", 0],
    "run.client_scores": ["perhaps", 1],
    "run.tensorboard": ["perhaps", 0],
    "run.max_seconds": [0.0, NAN, INF, "9"],
}

# The ends of what is allowed.
TAKEN: dict[str, list[Any]] = {
    "data.fractions": [(1.0, 0.0, 0.0), (0.7, 0.2, 0.1), (0.6, 0.3, 0.1)],
    "partition.clients": [1],
    "partition.chunks": [1, 30],
    "partition.alpha": [1e-3, 1e6],
    "partition.seed": [0, 2**31 - 1],
    "partition.resolution": [1e-9],
    "partition.imbalance": [1.001],
    "propagation.hops": [0],
    "propagation.r": [0.0, 1.0],
    "data.name": [None, "My-graph_2.1"],
    "train.lr": [1e-20],
    "train.weight_decay": [0.0],
    "train.momentum": [0.0, 0.999],
    "train.batch_size": [None, 1],
    "train.schedule": [None, Named(name="StepLR", step_size=1)],  # type: ignore[call-arg]
    "train.dropout": [0.0, 0.999],
    "participation.ratio": [1e-9, 1.0],
    "participation.count": [None, 1],
    "engine.cell_size": ["auto", 1],
    "engine.retries": [0],
    "resources.gpus_per_host": [0.0, 0.25, 1.0, 2.0],
    "resources.server_gpus": [0.0, 1.0],
}


def keys() -> set[str]:
    """All keys of all sections."""
    hints = {name: hint for name, hint in get_type_hints(Config).items() if name in CLASSES}
    assert hints.keys() == {
        name for name in Config.model_fields if name not in ("name", "seed", "rounds", "task", "algorithm", "callbacks")
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
    return section, name, {**PLAIN.get(section, {}), name: value}  # type: ignore[dict-item]


def test_the_table_has_every_key() -> None:
    assert REFUSED.keys() == keys()


@pytest.mark.parametrize(("key", "value"), rows(REFUSED))
def test_refused(key: str, value: Any) -> None:
    section, name, values = given(key, value)
    with pytest.raises(ShoalError) as refused:
        parse_config({**PLAIN, section: values}, "x.yaml")
    line = str(refused.value)
    assert re.match(rf"x\.yaml: {re.escape(key)}(\.\d)?: ", line)
    # A path is made absolute, of a list the wrong entry is named, and what is long is cut off.
    assert ", found " in line if isinstance(value, str | list) else line.endswith(f", found {value!r}")
    assert len(line) < 1100
    assert "\n" not in line
    with pytest.raises(ValidationError) as direct:
        CLASSES[section](**values)
    assert {error["loc"][0] for error in direct.value.errors()} == {name}


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("rows", 0.1, "unknown key; known here: features, edges, labels, seed; did you mean 'propagation.rows'.*"),
        ("features", -0.1, ".* greater than or equal to 0, found -0.1"),
        ("features", 1.1, ".* less than or equal to 1, found 1.1"),
        ("edges", NAN, ".* finite number, found nan"),
        ("edges", "0.1", ".* valid number, found '0.1'"),
        ("edges", True, ".* valid number, found True"),
        ("labels", 1.0, ".* less than 1, found 1.0"),
        ("labels", -0.1, ".* greater than or equal to 0, found -0.1"),
        ("seed", -1, ".* greater than or equal to 0, found -1"),
        ("seed", 0.5, ".* valid integer, found 0.5"),
    ],
)
def test_refused_in_a_section_inside_a_section(key: str, value: Any, line: str) -> None:
    data = {"dataset": "sbm", "sparsity": {key: value}}
    with pytest.raises(ShoalError, match=rf"^x\.yaml: data\.sparsity\.{key}: {line}$"):
        parse_config({**PLAIN, "data": data}, "x.yaml")


@pytest.mark.parametrize(
    ("features", "line"),
    [
        ("pagerank", r"data\.features\.kind: .*, found 'pagerank'"),
        ({"kind": "degree", "cap": 3}, r"data\.features\.cap: unknown key; known here: kind, width, seed"),
        ({"kind": "random", "width": 0}, r"data\.features\.width: .*, found 0"),
        ({"kind": "random", "seed": -1}, r"data\.features\.seed: .*, found -1"),
    ],
)
def test_refused_of_made_features(features: Any, line: str) -> None:
    with pytest.raises(ShoalError, match=rf"^x\.yaml: {line}$"):
        parse_config({**PLAIN, "data": {"dataset": "sbm", "features": features}}, "x.yaml")


@pytest.mark.parametrize("values", [{}, {"features": 0, "edges": 0, "labels": 0}, {"features": 1, "edges": 1}])
def test_the_ends_of_shares_are_taken(values: dict[str, int]) -> None:
    found = parse_config({**PLAIN, "data": {"dataset": "sbm", "sparsity": values}}, "x.yaml").data.sparsity
    assert found == Sparsity(**{key: float(value) for key, value in values.items()})


@pytest.mark.parametrize(("key", "value"), rows(TAKEN))
def test_the_ends_are_taken(key: str, value: Any) -> None:
    section, name, values = given(key, value)
    config = parse_config({**PLAIN, section: values}, "x.yaml")
    assert getattr(getattr(config, section), name) == value
    assert getattr(config, section) == CLASSES[section](**values)


@pytest.mark.parametrize("section", sorted(CLASSES.keys() - {"model"}))
def test_an_unknown_key_lists_the_known(section: str) -> None:
    _, _, values = given(f"{section}.colour", "red")
    with pytest.raises(ShoalError) as refused:
        parse_config({**PLAIN, section: values}, "x.yaml")
    known = ", ".join(field.name for field in dataclasses.fields(CLASSES[section]))
    assert str(refused.value) == f"x.yaml: {section}.colour: unknown key; known here: {known}"
    with pytest.raises(ValidationError):
        CLASSES[section](**values)


@pytest.mark.parametrize(
    ("key", "value"), [("seed", -1), ("rounds", 0), ("name", "a/b"), ("task", "edges"), ("callbacks", "csv")]
)
def test_keys_of_no_section(key: str, value: Any) -> None:
    with pytest.raises(ShoalError, match=rf"^x\.yaml: {key}: .*, found {value!r}$"):
        parse_config({**PLAIN, key: value}, "x.yaml")
    with pytest.raises(
        ShoalError, match=r"^x\.yaml: colour: unknown key; known here: name, seed, task, rounds, data, .*, run$"
    ):
        parse_config({**PLAIN, "colour": "red"}, "x.yaml")
    with pytest.raises(ShoalError, match=r"^x\.yaml: data\.dataset: missing$"):
        parse_config({**PLAIN, "data": {}}, "x.yaml")


def test_wrong_model_in_a_list_is_named_by_its_place() -> None:
    with pytest.raises(ShoalError, match=r"^x\.yaml: model\.1\.init: .*, found 'equal'$"):
        parse_config({**PLAIN, "model": [{"name": "gcn"}, {"name": "sgc", "init": "equal"}]}, "x.yaml")
    with pytest.raises(ShoalError, match=r"^x\.yaml: heterogeneity\.clients\.1: .*, found 'two'$"):
        parse_config({**PLAIN, "heterogeneity": {"clients": [0, "two"]}}, "x.yaml")


def test_every_method_of_partition_can_be_chosen() -> None:
    assert get_args(get_args(get_type_hints(PartitionOptions)["method"])[0]) == tuple(METHODS)


def test_a_model_keeps_the_keys_of_its_backbone() -> None:
    config = parse_config({**PLAIN, "model": {"name": "gcn", "hidden": 8, "init": "own"}}, "x.yaml")
    (model,) = config.models()
    assert model == ModelSpec(name="gcn", init="own", hidden=8)  # type: ignore[call-arg]
    assert model.options == {"hidden": 8}


def test_no_other_class_has_the_fields_of_a_section() -> None:
    fields = {
        (path, node.name): {line.target.id for line in node.body if isinstance(line, ast.AnnAssign)}  # type: ignore[union-attr]
        for path in modules().values()
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.ClassDef)
    }
    for kind in CLASSES.values():
        ((own, names),) = [(place, of) for place, of in fields.items() if place[1] == kind.__name__]
        copies = [place for place, of in fields.items() if place != own and names <= of]
        assert not copies or len(names) < 3, kind
