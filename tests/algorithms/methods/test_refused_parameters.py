"""Parameters out of their bounds, and models and training that a method cannot have, method by method."""

from pathlib import Path
from typing import Any

import pytest
from support.errors import refused
from support.fixtures import Start

from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.models.names import HEADLESS

# Each alone is refused, and the line names it.
OUT_OF_RANGE: dict[str, dict[str, list[Any]]] = {
    "adafgl": {
        "shared_rounds": [0], "most_nodes": [0], "steps": [0], "hidden": [0], "alpha": [1.1], "beta": [-1],
        "cut": [1], "preserve": [-1],
    },
    "class_means": {"hops": [-1], "at_least": [0], "noise": [2.0, -0.1], "weight": [-1.0]},
    "feddc": {"alpha": [-0.1]},
    "feddistill": {"gamma": [-1.0]},
    "fedgen": {
        "alpha": [-1.0], "beta": [-1.0], "diversity_weight": [-1.0], "decay": [0.0, 1.01], "server_steps": [0],
        "server_lr": [0], "server_batch": [0], "noise": [0], "hidden": [4097],
    },
    "fedgkc": {
        "alpha": [-0.1], "beta": [-0.1], "lam": [-0.1], "ramp": [-1], "weak": [[0.1, 1.0]],
        "strong": [[-0.1, 0.5]], "kama_terms": [[], ["strength", "strength"]],
    },
    "fedgl": {"pseudo": [-1], "threshold": [-0.1, 1.1]},
    "fedgl_fedgta": {"pseudo": [-1], "threshold": [-0.1, 1.1], "sketch_every": [0]},
    "fedgl_moon": {"pseudo": [-1], "threshold": [-0.1, 1.1], "mu": [-1], "tau": [0]},
    "fedgl_feddc": {"pseudo": [-1], "threshold": [-0.1, 1.1], "alpha": [-0.1]},
    "fedgpl": {"server_lr": [0.0], "epsilon": [0.0], "clip": [0.0], "most_rows": [0]},
    "fedgta": {"lp_steps": [0, 1001], "orders": [0, 1001], "sketch_every": [0], "lp_seed_weight": [1.5, -0.5]},
    "fediih": {"scale": [-1.0], "encoder_layers": [0]},
    "fedkd": {"energy_start": [0.0, -0.5, 1.1], "energy_end": [0.0, -0.5, 1.1]},
    "fednh": {"scale": [0, -1], "rho": [-0.1, 1.1]},
    "fedopt": {"eta": [0, -1], "tau": [0], "beta1": [1, -1], "beta2": [1, -0.1], "momentum": [1]},
    "fedpg": {
        "hops": [5, -1], "similar": [0], "alpha": [1.5], "noise": [-0.1], "cross_hop": [2.0], "mu": [-1.0],
        "margin_cap": [-0.1], "temperature": [0.0], "server_steps": [0], "server_lr": [0.0],
        "attention_lr": [0.0], "attention": ["node"], "hop_mean": ["eq2"],
    },
    "fedproc": {"alpha": [-0.1, 1.1], "temperature": [0, -1]},
    "fedproto": {"lam": [-1]},
    "fedproto_averaged": {"lam": [-1]},
    "fedprox": {"mu": [-1]},
    "fedpub": {"tau": [-1.0], "l1": [-1.0], "proximal": [-1.0], "threshold": [-1.0]},
    "fedsage_plus": {
        "generator_rounds": [-1], "hide": [0, 1], "most_neighbours": [0], "hidden": [0], "degree": [-1],
        "feature": [-1], "label": [-1], "across": [-1], "peers": [0], "sampled_nodes": [0],
    },
    "fedlog": {
        "nodes": [0, 1025], "degree": [-1], "spread": [-1.0], "generalize": [-1.0], "pre_epochs": [-1],
        "mastered": [-0.1, 1.1], "pace": [-0.1, 1.1],
    },
    "fedgm": {
        "ratio": [0.0, 1.1], "steps": [0], "condense_lr": [0.0], "edge_steps": [-1], "node_steps": [0],
        "match_steps": [-1], "server_epochs": [0],
    },
    "feddep": {
        "hide": [0, 1], "most_neighbours": [0], "hidden": [0], "degree": [-1], "feature": [-1], "label": [-1],
        "across": [-1], "clusters": [0], "peers": [0], "encoder_epochs": [0], "generator_epochs": [0],
        "neighbours": [-1],
    },
    "fedspray": {"lam": [-1.0], "threshold": [-0.1, 1.1], "hidden": [0, 4097], "proxy_lr": [0.0]},
    "fedtad": {
        "server_epochs": [-1], "generator_steps": [0], "distil_steps": [0], "generator_lr": [0.0], "distil_lr": [0.0],
        "nodes": [0, 4097], "neighbours": [0], "noise": [0, 4097], "walks": [0, 17], "semantic": [-1.0],
        "diversity": [-1.0],
    },
    "fedtgp": {"server_steps": [0], "server_lr": [0.0], "margin_cap": [-1.0], "lam": [-1.0]},
    "fggp": {
        "fcpp": [False], "k": [0], "neighbours": [0], "tau": [0.0], "gamma": [-1.0], "lam": [1.5, -0.1],
        "random_pairs": [-1], "edge_temperature": [0.0],
    },
    "fgssl": {
        "contrast": [-1], "structure": [-1], "tau": [0], "omega": [0], "anchors": [1], "weak": [[1, 0]],
        "strong": [[0, -1]],
    },
    "fml": {"alpha": [-0.1, 1.1], "beta": [-0.1, 1.1]},
    "fpl": {"cpcl": [-1], "upcr": [-1], "tau": [0, -1], "cluster_from": [0]},
    "gcfl_plus": {"eps1": [-0.1], "eps2": [-0.1], "window": [0, 1001], "warmup": [-1]},
    "moon": {"mu": [-1], "tau": [0, -1]},
    "s2fgl": {
        "semantic": [-1.0], "spectral": [-1.0], "slots": [0], "sampled": [0.0, 1.1], "central": [0.0, 1.1],
        "aligned": [0.0, 1.1], "restart": [0.0, 1.0], "tau": [0.0], "neighbours": [0], "vectors": [0],
        "most_aligned": [1],
    },
    "scaffold": {"eta": [0]},
}  # fmt: skip
TOGETHER: list[tuple[str, dict[str, Any], str]] = [
    ("fedgkc", {"alpha": 0.9, "beta": 0.2}, "at most 1"),
    ("fedgkc", {"alpha": 0.0, "mutual": "none", "self_distillation": False}, "alpha must be positive"),
    ("fedgta", {"rows": "raw", "confidence": "normalized"}, "set rows: stochastic"),
    ("fedpg", {"attention": "node", "alignment": "prototype", "hops": 0}, "attention"),
    ("fedpg", {"hop_mean": "eq2", "alignment": "prototype", "hops": 0}, "hop_mean"),
]
# Just what is still in bounds.
ALLOWED: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in METHODS),
    ("fedgen", dict.fromkeys(("alpha", "beta", "diversity_weight"), 0)),
    ("fedgen", {**dict.fromkeys(("decay", "server_steps", "server_batch", "hidden"), 1), "noise": 4096}),
    ("fedgl", {"pseudo": 0, "threshold": 1}),
    ("fedgta", {"lp_steps": 1, "orders": 1000, "lp_seed_weight": 0}),
    ("fedgta", {"lp_steps": 1000, "orders": 1, "lp_seed_weight": 1}),
    ("fedkd", {"energy_start": 1.0, "energy_end": 1.0}),
    ("fedopt", {"beta1": 0, "beta2": 0, "momentum": 0}),
    ("fml", {"alpha": 0.0, "beta": 1.0}),
    ("fedpg", dict.fromkeys(("hops", "mu", "alpha", "noise", "cross_hop", "margin_cap"), 0)),
    ("fedpg", {"hops": 2, "similar": 1, "alpha": 1.0, "noise": 1.0, "cross_hop": 1.0, "server_steps": 1}),
    ("fedpg", {"hops": 1, "attention": "node", "alignment": "prototype", "temperature": 0.01, "server_lr": 1e-4}),
    ("gcfl_plus", {"eps1": 0, "eps2": 0, "window": 1, "warmup": 0}),
    ("gcfl_plus", {"window": 1000}),
]


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        *((name, {key: v}, key) for name, of in OUT_OF_RANGE.items() for key, values in of.items() for v in values),
        *TOGETHER,
    ],
    ids=str,
)
def test_out_of_range(method: str, options: dict[str, Any], says: str) -> None:
    with refused(says=says):
        load(describe(method, options))


@pytest.mark.parametrize(("method", "options"), ALLOWED, ids=str)
def test_in_range(method: str, options: dict[str, Any]) -> None:
    load(describe(method, options))


COPILOT = {"algorithm.copilot": {"name": "gcn", "hidden": 8}}
AUGMENTING = {"algorithm.generator_rounds": 2, "algorithm.hidden": 6, "model.name": "sage"}
PERSONAL = {"algorithm.shared_rounds": 2, "algorithm.hidden": 6}
SGC: dict[str, Any] = {"model": {"name": "sgc"}}
GCN: dict[str, Any] = {"model": {"name": "gcn"}}
DRAWN: dict[str, Any] = {"model": {"name": "gcn", "fanouts": [2, 2]}}
UNKNOWING = {"algorithm.kama_terms": ["smoothness"], "algorithm.lam": 0.0}
NO_TERM = {"algorithm.contrast": 0.0, "algorithm.structure": 0.0}
VISIT = "round 1, client 0"
# The method, its keys, where the error is, if anywhere, what it says there.
IMPOSSIBLE: list[tuple[str, dict[str, Any], str, str]] = [
    ("adafgl", {**PERSONAL, "algorithm.most_nodes": 29}, "algorithm.most_nodes", "900 pairs"),
    ("adafgl", {**PERSONAL, "train.batch_size": 4}, "train.batch_size", ""),
    ("fedgkc", {"algorithm.copilot": {"name": "gcn", "hidden": 16}}, "algorithm.copilot", "16 wide"),
    ("fedgkc", {"algorithm.copilot": {"name": "gcn", "pretrained": "gnn"}}, "", "models()['copilot']: pretrained"),
    ("fedgkc", {"algorithm.copilot": {"hidden": 8}}, "", "models()['copilot']: give a word"),
    ("fedgkc", {**COPILOT, "train.batch_size": 4}, VISIT, "train.batch_size"),
    ("fedgkc", {**COPILOT, "model": {"name": "gcn", "hidden": 8, "fanouts": [2, 2]}}, VISIT, "model.fanouts"),
    ("fedgkc", {**COPILOT, "propagation.rows": "labelled", "data.store": "STORE"}, VISIT, "propagation.rows"),
    *(
        (name, {"model": model}, "model.layers", "")
        for name in ("fednh", "lg_fedavg")
        for model in ({"name": "sgc"}, {"name": "gamlp", "layers": 1})
    ),
    # On five features it needs no adapter.
    ("lg_fedavg", {"model": [{"name": "gcn", "hidden": 5}, {"name": "sgc"}]}, "model.layers", ""),
    ("fgssl", SGC, "model.layers", ""),
    ("fgssl", DRAWN, "model.fanouts", ""),
    ("s2fgl", SGC, "model.layers", ""),
    ("moon", {"train.batch_size": 4}, "train.batch_size", ""),
    ("fedlog", {"train.batch_size": 4}, "train.batch_size", ""),
    ("fedlog", DRAWN, "model.fanouts", ""),
    ("fedlog", SGC, "model.layers", ""),
    ("fedgm", {"train.batch_size": 4}, "train.batch_size", ""),
    ("fedgm", {"model": {"name": "gcn", "fanouts": [2, 2]}}, "model.fanouts", ""),
    ("fedgm", {"model": {"name": "sage"}}, "model.name", ""),
    ("feddep", {**GCN, "train.batch_size": 4}, "train.batch_size", ""),
    ("feddep", DRAWN, "model.fanouts", "algorithm.neighbours"),
    *(
        ("feddep", {"model": {"name": name}}, "model.name", f"found {name}")
        for name in ("gamlp", "gat", "gin", "gcnii")
    ),
    ("feddep", {"model": {"name": "gcn", "norm": "batch"}}, "model.norm", ""),
    ("fedspray", {"train.batch_size": 4}, "train.batch_size", ""),
    ("fedspray", DRAWN, VISIT, "model.fanouts"),
    ("class_means", {"algorithm.hops": 5}, "algorithm.hops", ""),
    ("fml", {"algorithm.copilot": {"name": sorted(HEADLESS)[0]}}, "algorithm.copilot", ""),
    *((name, {"train.batch_size": 2}, "train.batch_size", "") for name in ("fml", "fedkd")),
    *((name, {"algorithm.copilot": DRAWN["model"]}, VISIT, "algorithm.copilot.fanouts") for name in ("fml", "fedkd")),
    *(
        (name, {**train, "algorithm.variate": "steps"}, "algorithm.variate", "")
        for name in ("scaffold", "feddc")
        for train in ({"train.optimizer": "adam"}, {"train.optimizer": "sgd", "train.momentum": 0.9})
    ),
    ("fedgkc", {**COPILOT, "algorithm.strong": [0.1]}, "algorithm.strong", ""),
    ("fedgkc", {**COPILOT, **UNKNOWING, "algorithm.floor": False}, "algorithm.floor", ""),
    ("fedgkc", {**COPILOT, "algorithm.kama_terms": ["courage"]}, "algorithm.kama_terms", ""),
    ("fedgpl", {"algorithm.mixing": "all"}, "algorithm.mixing", ""),
    ("fedpg", {"model": {"name": "gcn", "layers": 5}, "algorithm.hops": "depth"}, "algorithm.hops", "gcn reads"),
    ("fediih", GCN, "model.name", "take disengcn"),
    ("fedpub", SGC, "model.layers", "one layer"),
    ("fedsage_plus", {**AUGMENTING, "model.name": "gamlp"}, "model.name", "gamlp reads hops"),
    ("fedsage_plus", {**AUGMENTING, "model.fanouts": [2, 2]}, "model.fanouts", ""),
    ("fedsage_plus", {**AUGMENTING, "algorithm.generator_rounds": 6}, "algorithm.generator_rounds", "none of 6"),
    ("fggp", {"model": {"name": "gamlp"}}, "algorithm.gkic", "passes messages"),
    ("fggp", {"model": {"name": "sage"}}, "algorithm.gkic", "for gcn, gcnii and gin, not for sage"),
    ("fggp", DRAWN, "model.fanouts", ""),
    ("fggp", {**GCN, "train.batch_size": 4}, "train.batch_size", ""),
    ("fggp", {"model": {"name": "mlp", "layers": 1}, "algorithm.gkic": "off"}, "model.layers", ""),
    ("gcfl_plus", SGC, "model.layers", "one layer"),
    ("moon", {"engine.trainer": "analytic"}, "engine.trainer", "analytic"),
    ("gcfl_plus", {"engine.trainer": "batched"}, "engine.trainer", "batched"),
]


@pytest.mark.parametrize(("method", "keys", "place", "says"), IMPOSSIBLE, ids=str)
def test_impossible(start: Start, tmp_path: Path, method: str, keys: dict[str, Any], place: str, says: str) -> None:
    keys = {name: str(tmp_path) if value == "STORE" else value for name, value in keys.items()}
    with refused(*filter(None, [place]), says=says):
        start({"algorithm.name": method, **keys}).round()


# What the lines above advise.
@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("adafgl", {"algorithm.shared_rounds": 6, "algorithm.most_nodes": 29, "train.batch_size": 4}),
        (
            "fedgkc",
            {**COPILOT, "propagation.rows": "labelled", "data.store": "STORE", "algorithm.self_distillation": False},
        ),
        ("fedgkc", {"algorithm.copilot": {"name": "sgc", "layers": 2, "hidden": 3}, "algorithm.beta": 0.0}),
        ("fedsage_plus", {"algorithm.generator_rounds": 0, "model.name": "gamlp"}),
        ("fgssl", {**NO_TERM, **SGC}),
        ("fgssl", {**NO_TERM, **DRAWN}),
        ("gcfl_plus", {"algorithm.share": "all", **SGC}),
    ],
    ids=str,
)
def test_possible(start: Start, tmp_path: Path, method: str, keys: dict[str, Any]) -> None:
    keys = {name: str(tmp_path) if value == "STORE" else value for name, value in keys.items()}
    start({"algorithm.name": method, **keys}).round()


@pytest.mark.parametrize("name", METHODS)
def test_a_form_sets_options_and_those_given_win(name: str) -> None:
    cls = type(load(describe(name, {})))
    for form, options in cls.forms.items():
        assert form in ("paper", "code")
        found = load(describe(name, {"form": form}))
        assert {key: getattr(found, key) for key in options} == dict(options) != {}
        key, value = next(iter(cls().__dict__.items()))
        assert getattr(load(describe(name, {"form": form, key: value})), key) == value
    assert load(describe(name, {"form": "recommended"})) == load(describe(name, {}))
    with refused("algorithm.form", says=name):
        load(describe(name, {"form": "papers"}))
