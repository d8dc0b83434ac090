"""Models, options and tasks that do not go together: the error is at the key."""

import math
from typing import Any

import pytest
from support.errors import refused
from support.fixtures import Keys

from shoal.algorithms.models.build import build
from shoal.algorithms.models.layers.readout import Readout

WHOLE, POINT, BOOLEAN = "must be a whole number", "must be a number with a point, as 0.5", "must be true or false"
NONE, TYPE, CHOICE, RANGE = "no such option", "must be of type", "must be one of", "must be at least"
AT_LEAST, AT_MOST = "at least", "at most"
VALUES: list[tuple[str, dict[str, Any], str, str]] = [
    ("gcnn", {}, "name", "did you mean"),
    ("star", {}, "name", "for graph tasks"),
    ("topology", {}, "name", "there is no"),
    ("sgc", {"depth": 2}, "depth", "has no such option; it has head_dropout, hidden, layers"),
    ("sgc", {"hiden": 2}, "hiden", "did you mean 'hidden'?"),
    ("mlp", {"features": 2}, "features", NONE),
    ("sage", {"jumping": "max"}, "jumping", "it has fanouts, head, head_dropout, hidden, layers"),
    ("gbp", {"alpha": 0.1}, "alpha", "it has beta, head_dropout, hidden, layers"),
    ("gcnii", {"hops": 2}, "hops", NONE),
    ("transformer", {"head": "conv"}, "head", NONE),
    ("disengcn", {"head": "conv"}, "head", NONE),
    ("disengcn", {"routing": 0}, "routing", AT_LEAST),
    ("gcn", {"head_dropout": 0}, "head_dropout", BOOLEAN),
    ("mlp", {"hidden": "64"}, "hidden", WHOLE),
    ("mlp", {"hidden": 64.0}, "hidden", WHOLE),
    ("mlp", {"hidden": 2**30}, "hidden", "must be at most"),
    ("mlp", {"layers": True}, "layers", WHOLE),
    ("mlp", {"layers": None}, "layers", WHOLE),
    ("mlp", {"layers": 1001}, "layers", "must be at most"),
    ("gamlp", {"attention": 3}, "attention", "must be a text"),
    ("gamlp", {"attention": "x"}, "attention", "there is no"),
    ("gamlp", {"layers": 0}, "layers", RANGE),
    ("gin", {"layers": 0}, "layers", RANGE),
    ("sign", {"layers": 0}, "layers", RANGE),
    ("sign", {"hidden": 0}, "hidden", RANGE),
    ("sgc", {"hidden": 0, "layers": 2}, "hidden", RANGE),
    ("gat", {"heads": 3}, "heads", "must divide"),
    ("transformer", {"heads": 0}, "heads", "must divide"),
    ("gcn", {"fanouts": [5]}, "fanouts", "must be 2 numbers"),
    ("gcn", {"fanouts": [5, 0]}, "fanouts", "must be 2 numbers"),
    ("sage", {"fanouts": [5, 1.5]}, "fanouts", TYPE),
    ("gcn", {"fanouts": [3, 2], "norm": "batch"}, "fanouts", "norm: batch reads"),
    ("gcn", {"jumping": "last"}, "jumping", CHOICE),
    ("gcn", {"jumping": True}, "jumping", CHOICE),
    ("gin", {"norm": "batch"}, "norm", CHOICE),
    ("gcnii", {"alpha": 2.0}, "alpha", AT_MOST),
    ("gcnii", {"alpha": -0.5}, "alpha", AT_LEAST),
    ("gcnii", {"theta": 0}, "theta", "more than 0"),
    ("s2gc", {"alpha": 1.1}, "alpha", AT_MOST),
    ("s2gc", {"alpha": -0.1}, "alpha", AT_LEAST),
    ("s2gc", {"alpha": math.nan}, "alpha", "must be finite"),
    ("gbp", {"beta": 0.0}, "beta", "more than 0"),
    ("gbp", {"beta": 1.5}, "beta", AT_MOST),
    *(
        (name, options, key, says)
        for name in ("gcn", "sage", "gat", "gin", "gcnii")
        for options, key, says in (
            ({"head": "conv", "layers": 1}, "layers", "with head: conv"),
            ({"head": "conv", "fanouts": [3, 2]}, "fanouts", "head: conv reads"),
            ({"head": "mlp"}, "head", CHOICE),
        )
    ),
]
OTHER_TASKS: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("node", "gcn", {"readout": "sum"}, "readout", "a node task pools nothing"),
    ("edge", "gcn", {"readout": "mean"}, "readout", "an edge task pools nothing"),
    ("graph", "gcn", {"readout": "median"}, "readout", CHOICE),
    ("graph", "gcn", {"fanouts": [2, 2]}, "fanouts", "reads whole graphs"),
    ("edge", "sage", {"fanouts": [2, 2]}, "fanouts", "reads the whole graph"),
    ("graph", "gcn", {"norm": "batch"}, "norm", "normalises none"),
    ("graph", "gcn", {"head": "conv"}, "head", "pools nodes"),
    ("edge", "gcn", {"head": "conv"}, "head", "joins two nodes"),
    ("graph", "star", {"fanouts": [2, 2]}, "fanouts", "it has head_dropout, hidden, layers, norm, readout"),
    ("graph", "star", {"layers": 0}, "layers", RANGE),
    ("graph", "star", {"hidden": 0}, "hidden", RANGE),
    ("node", "gcn", {"prompt": "vpg"}, "prompt", "is for graph tasks"),
    ("edge", "gcn", {"prompt": "vpg"}, "prompt", "is for graph tasks"),
    ("graph", "mlp", {"prompt": "vpg"}, "prompt", "mlp reads what was computed"),
    ("graph", "star", {"prompt": "gpf"}, "prompt", "star reads what was computed"),
    *(
        ("graph", "gcn", {"prompt": prompt}, "prompt", "name one of all_in_one, gpf, gpf_plus, none, supt, vpg")
        for prompt in ("best", 3, None, {"nodes": 0.5}, {"name": ["vpg"]})
    ),
]
PROMPTS: list[tuple[str, str, Any, str]] = [
    ("gpf", "nodes", 0.5, "it has none"),
    ("vpg", "nodes", "x", POINT),
    ("vpg", "nodes", 0.0, "more than 0"),
    ("vpg", "nodes", 1.5, AT_MOST),
    ("vpg", "nodes", math.nan, "must be finite"),
    ("vpg", "edges", -0.1, AT_LEAST),
    ("vpg", "edges", 1.1, AT_MOST),
    ("vpg", "rule", "mid", CHOICE),
    ("vpg", "candidates", -1, AT_LEAST),
    ("vpg", "joined", 1.0, "less than 1"),
    ("vpg", "learnt", False, "set candidates"),
    ("vpg", "join", "below", "set candidates"),
    ("vpg", "seed", 1, "learnt: false"),
    ("gpf_plus", "vectors", 0, AT_LEAST),
    ("supt", "vectors", 0, AT_LEAST),
    ("supt", "share", 0.0, "more than 0"),
    ("supt", "share", 1.1, AT_MOST),
    ("supt", "form", "mid", CHOICE),
    ("all_in_one", "tokens", 0, AT_LEAST),
    ("all_in_one", "inner", 0.0, "more than 0"),
    ("all_in_one", "cross", 1.0, "less than 1"),
]


@pytest.mark.parametrize(("name", "options", "key", "says"), VALUES)
def test_build_refuses_values(name: str, options: dict[str, Any], key: str, says: str) -> None:
    with refused(f"model.{key}", says=says):
        build(name, 5, 4, 3, 0.5, options)


@pytest.mark.parametrize(("task", "name", "options", "key", "says"), OTHER_TASKS)
def test_build_refuses_what_is_for_another_task(task: str, name: str, options: Keys, key: str, says: str) -> None:
    with refused(f"model.{key}", says=says):
        build(name, 5, 4, 3, 0.5, options, task=task)


@pytest.mark.parametrize(("prompt", "key", "value", "says"), PROMPTS)
def test_build_refuses_options_of_prompts(prompt: str, key: str, value: Any, says: str) -> None:
    with refused(f"model.prompt.{key}", says=says):
        build("gcn", 5, 3, 0, 0.5, {"prompt": {"name": prompt, key: value}}, task="graph")


@pytest.mark.parametrize(
    ("hops", "dropout", "place"), [(-1, 0.5, "propagation.hops"), (3, 1.0, "train.dropout"), (3, -0.1, "train.dropout")]
)
def test_build_refuses_numbers_of_other_sections(hops: int, dropout: float, place: str) -> None:
    with refused(place):
        build("sgc", 5, 4, hops, dropout, {})


@pytest.mark.parametrize(("options", "key"), [({"hidden": 0}, "hidden"), ({"layers": 3}, "layers")])
def test_build_refuses_options_of_topology(options: dict[str, Any], key: str) -> None:
    with refused(f"model.{key}"):
        build("topology", 5, 3, 2, 0.5, options, headless=True)


def test_graph_task_accepts_plain_options_of_nodes() -> None:
    plain = {"fanouts": None, "norm": "none", "head": "linear", "jumping": "max"}
    assert isinstance(build("gcn", 5, 3, 0, 0.5, plain, task="graph"), Readout)
