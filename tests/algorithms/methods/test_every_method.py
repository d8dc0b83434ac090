"""What all methods hold: hidden labels, terms that are off, a resume, options and models that are refused."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from support.errors import refused
from torch import Tensor

from shoal.algorithms.methods.registry.load import describe, load, methods_for, mixing_methods
from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.models.names import HEADLESS
from shoal.engine.config.config import Config
from shoal.engine.messages.models import require_mixable
from shoal.engine.rounds.server import Server

Run = Callable[..., Server]
Keys = Mapping[str, Any]
COPILOT = {"copilot": {"name": "sgc", "layers": 2, "hidden": 6}}
GEN = {"server_steps": 3, "server_batch": 8}
PERSONAL = {"alignment": "prototype", "attention": "node"}
# Models that pass messages, over whole graphs and drawn neighbours, and one that reads hops.
MIXED = [
    {"name": "gcn", "hidden": 8},
    {"name": "gat", "hidden": 8, "fanouts": [3, 2]},
    {"name": "gin", "hidden": 8},
    {"name": "sage", "hidden": 8, "fanouts": [-1, 2]},
    {"name": "gcnii", "hidden": 8},
    {"name": "sgc"},
]
# Models that may teach a copilot.
WHOLE = [{"name": "gcn", "hidden": 8}, {"name": "gamlp", "hidden": 12, "init": "own"}, {"name": "sgc"}]
GCN = {"name": "gcn", "hidden": 8, "head": "linear"}
GAMLP = {"name": "gamlp", "hidden": 8}


def keys_of(name: str, options: Keys, model: Any = None) -> dict[str, Any]:
    mixed = {"heterogeneity.rule": "round-robin", "heterogeneity.embedding": 8} if model is MIXED else {}
    return {"algorithm": {"name": name, **options}, **mixed, **({"model": model} if model else {})}


def tensors(server: Server) -> dict[str, Tensor]:
    return server.state.to_tensors()[0]


def assert_same(one: Server, other: Server) -> None:
    """What the server, all clients and all inboxes have, to the last bit."""
    mine, theirs = tensors(one), tensors(other)
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("class_means", {}),
        ("feddistill", {}),
        ("fpl", {}),
        ("fedproto", {}),
        ("fedtgp", {}),
        ("moon", {"rows": "all"}),
        ("fedgl", {"threshold": 0.0}),
        ("fedgl_fedgta", {"threshold": 0.0}),
        ("fml", {}),
        ("fedkd", {}),
    ],
)
def test_labels_outside_the_training_rows_change_nothing(run: Run, name: str, options: Keys) -> None:
    plain, shuffled = (run(keys_of(name, options), rounds=2, graph=graph) for graph in ("plain", "shuffled"))
    mine, theirs = ({**server.state.server, **flat_state(server.state.clients)} for server in (plain, shuffled))
    assert mine.keys() == theirs.keys()
    assert [key for key in mine if not torch.equal(mine[key], theirs[key])] == []


def flat_state(clients: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{i}/{name}": t for i, tree in clients.items() for name, t in tree.items()}


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("name", "more", "off", "plain", "model"),
    [
        ("fedprox", {}, {"mu": 0.0}, "fedavg", GAMLP),
        ("fedproto_averaged", {}, {"lam": 0.0}, "fedavg", GAMLP),
        ("fedproc", {}, {"alpha": 0.0}, "fedavg", GAMLP),
        ("fpl", {}, {"cpcl": 0.0, "upcr": 0.0}, "fedavg", GAMLP),
        ("moon", {}, {"mu": 0.0}, "fedavg", GAMLP),
        ("moon", {"rows": "all"}, {"mu": 0.0}, "fedavg", GCN),
        ("fgssl", {}, {"contrast": 0.0, "structure": 0.0}, "fedavg", GAMLP),
        ("fgssl", {}, {"contrast": 0.0, "structure": 0.0}, "fedavg", GCN),
        ("fedgl", {"threshold": 0.0}, {"pseudo": 0.0}, "fedavg", GAMLP),
        ("fedgl", {"threshold": 0.0}, {"pseudo": 0.0}, "fedavg", GCN),
        ("fedgl_fedgta", {"threshold": 0.0}, {"pseudo": 0.0}, "fedgta", GCN),
        ("scaffold", {"weight": "nodes"}, {"variate": "off"}, "fedavg", GAMLP),
        ("feddc", {"weight": "nodes"}, {"alpha": 0.0, "variate": "off", "sends": "off"}, "fedavg", GAMLP),
        ("fedgen", GEN, {"alpha": 0.0, "beta": 0.0}, "lg_fedavg", MIXED),
        ("feddistill", {}, {"gamma": 0.0}, "local", MIXED),
        ("fedproto", {}, {"lam": 0.0}, "local", MIXED),
        ("fedtgp", {}, {"lam": 0.0}, "local", MIXED),
        ("fedpg", {}, {"mu": 0.0}, "local", MIXED),
        ("fedpg", {"alignment": "prototype"}, {"mu": 0.0}, "local", MIXED),
        ("fedpg", PERSONAL, {"mu": 0.0}, "local", MIXED),
        ("class_means", {}, {"weight": 0.0}, "local", MIXED),
        ("fml", {**COPILOT, "beta": 0.3}, {"alpha": 1.0}, "local", WHOLE),
        ("fml", {**COPILOT, "beta": 1.0, "rows": "train"}, {"alpha": 1.0}, "local", WHOLE),
    ],
)
def test_switched_off_it_is_the_plain_method_to_the_last_bit(
    run: Run, name: str, more: Keys, off: Keys, plain: str, model: Any
) -> None:
    """Each of its terms alone makes another model; with dropout, weight decay and clients that stay away."""
    rest = {"train.dropout": 0.5, "train.weight_decay": 0.01, "participation.ratio": 0.7, "engine.trainer": "autograd"}
    expected = run({**rest, **keys_of(plain, {}, model)}, rounds=3)
    found = run({**rest, **keys_of(name, {**more, **off}, model)}, rounds=3)
    own = flat_state(expected.state.clients)
    kept = flat_state(found.state.clients)
    assert all(torch.equal(kept[key], t) for key, t in own.items())
    assert all(torch.equal(found.state.server[key], t) for key, t in expected.state.server.items())
    assert all(torch.equal(found.state.inboxes[i]["w"], tree["w"]) for i, tree in expected.state.inboxes.items())
    if plain == "fedavg":
        assert kept.keys() == own.keys()
    if "off" in off.values():
        assert found.state.server.keys() == expected.state.server.keys()
    for term in off:
        rest_off = {option: value for option, value in off.items() if option != term}
        some = run({**rest, **keys_of(name, {**more, **rest_off}, model)}, rounds=3)
        one, other = ({**server.state.server, **flat_state(server.state.clients)} for server in (some, expected))
        assert all(t.isfinite().all() for t in one.values())
        assert any(not torch.equal(one[key], t) for key, t in other.items())


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("name", "options", "model", "stop"),
    [
        *((name, {}, MIXED, 4) for name in ("fedproto", "feddistill", "fedtgp", "fedpg", "class_means", "lg_fedavg")),
        ("fedpg", PERSONAL, MIXED, 4),
        ("fedgen", GEN, MIXED, 4),
        ("fedgl", {"threshold": 0.0}, GCN, 4),
        ("fedgl_fedgta", {"threshold": 0.0}, GCN, 4),
        ("fgssl", {"anchors": 5}, GAMLP, 4),
        ("moon", {"mu": 5.0}, GAMLP, 4),
        ("moon", {"mu": 5.0, "rows": "all"}, GAMLP, 4),
        ("scaffold", {}, GAMLP, 3),
        ("feddc", {}, GAMLP, 3),
        ("fedopt", {}, GAMLP, 3),
        ("fml", COPILOT, GAMLP, 4),
        ("fedkd", COPILOT, GAMLP, 1),
        # The last change is that of a client that cannot train.
        ("fedkd", COPILOT, GAMLP, 4),
    ],
)
def test_a_resumed_run_goes_on_to_the_bit(
    start: Run, run: Run, patchy: Keys, name: str, options: Keys, model: Any, stop: int
) -> None:
    """From what a checkpoint holds, with clients that come and go."""
    keys = {key: value for key, value in patchy.items() if key != "model.name"} | keys_of(name, options, model)
    state = run(keys, rounds=stop).state
    resumed = start(keys, state=type(state).from_tensors(*state.to_tensors()))
    for _ in range(stop, 6):
        resumed.round()
    assert_same(resumed, run(keys, rounds=6))


OUT_OF_RANGE: dict[str, dict[str, list[Any]]] = {
    "class_means": {"hops": [-1], "at_least": [0], "noise": [2.0, -0.1], "weight": [-1.0]},
    "feddc": {"alpha": [-0.1]},
    "feddistill": {"gamma": [-1.0]},
    "fedgen": {
        **{name: [-1.0] for name in ("alpha", "beta", "diversity_weight")},
        "decay": [0.0, 1.01],
        **{name: [0] for name in ("server_steps", "server_lr", "server_batch", "noise")},
        "hidden": [4097],
    },
    "fedgl": {"pseudo": [-1], "threshold": [-0.1, 1.1]},
    "fedgl_fedgta": {"pseudo": [-1], "threshold": [-0.1, 1.1], "sketch_every": [0]},
    "fedkd": {name: [0.0, -0.5, 1.1] for name in ("energy_start", "energy_end")},
    "fednh": {"scale": [0, -1], "rho": [-0.1, 1.1]},
    "fedopt": {"eta": [0, -1], "tau": [0], "beta1": [1, -1], "beta2": [1, -0.1], "momentum": [1]},
    "fedproc": {"alpha": [-0.1, 1.1], "temperature": [0, -1]},
    "fedproto": {"lam": [-1]},
    "fedproto_averaged": {"lam": [-1]},
    "fedprox": {"mu": [-1]},
    "fedtgp": {"server_steps": [0], "server_lr": [0.0], "margin_cap": [-1.0], "lam": [-1.0]},
    "fgssl": {
        **{name: [-1] for name in ("contrast", "structure")},
        **{name: [0] for name in ("tau", "omega")},
        "anchors": [1],
        "weak": [(1, 0)],
        "strong": [(0, -1)],
    },
    "fml": {"alpha": [-0.1, 1.1], "beta": [-0.1, 1.1]},
    "fpl": {"cpcl": [-1], "upcr": [-1], "tau": [0, -1], "cluster_from": [0]},
    "moon": {"mu": [-1], "tau": [0, -1]},
    "scaffold": {"eta": [0]},
}
AT_THE_ENDS: dict[str, dict[str, Any]] = {
    "fedgen": {
        **dict.fromkeys(("alpha", "beta", "diversity_weight"), 0),
        **dict.fromkeys(("decay", "server_steps", "server_batch", "hidden"), 1),
        "noise": 4096,
    },
    "fedkd": {"energy_start": 1.0, "energy_end": 1.0},
    "fedopt": {"beta1": 0, "beta2": 0, "momentum": 0},
    "fml": {"alpha": 0.0, "beta": 1.0},
    "fedgl": {"pseudo": 0, "threshold": 1},
}


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        (name, option, value)
        for name, options in OUT_OF_RANGE.items()
        for option, values in options.items()
        for value in values
    ],
)
def test_options_out_of_range_are_refused(name: str, option: str, value: Any) -> None:
    with refused("algorithm", name, says=option):
        load(describe(name, {option: list(value) if isinstance(value, tuple) else value}))


@pytest.mark.parametrize("name", METHODS)
def test_options_at_their_ends_and_defaults_are_taken(name: str) -> None:
    load(describe(name, AT_THE_ENDS.get(name, {})))
    load(describe(name, {}))


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        *(
            ({"algorithm.name": name, "model": model}, "model.layers")
            for name in ("fednh", "lg_fedavg")
            for model in ({"name": "sgc"}, {"name": "gamlp", "layers": 1})
        ),
        # On five features it needs no adapter.
        ({"algorithm.name": "lg_fedavg", "model": [{"name": "gcn", "hidden": 5}, {"name": "sgc"}]}, "model.layers"),
        ({"algorithm.name": "fgssl", "model": {"name": "sgc"}}, "model.layers"),
        ({"algorithm.name": "fgssl", "model": {"name": "gcn", "fanouts": [2, 2]}}, "model.fanouts"),
        ({"algorithm.name": "moon", "train.batch_size": 4}, "train.batch_size"),
        ({"algorithm.name": "fml", "algorithm.copilot": {"name": sorted(HEADLESS)[0]}}, "algorithm.copilot"),
        *(
            ({**train, "algorithm.name": name, "algorithm.variate": "steps"}, "algorithm.variate")
            for name in ("scaffold", "feddc")
            for train in ({"train.optimizer": "adam"}, {"train.optimizer": "sgd", "train.momentum": 0.9})
        ),
    ],
)
def test_what_a_method_cannot_train_is_refused(start: Run, keys: Keys, place: str) -> None:
    with refused(place):
        start(keys)


def test_what_needs_no_term_takes_any_model(start: Run) -> None:
    off = {"algorithm.name": "fgssl", "algorithm.contrast": 0.0, "algorithm.structure": 0.0}
    for model in ({"name": "sgc"}, {"name": "gcn", "fanouts": [2, 2]}):
        start({**off, "model": model})


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"algorithm.name": "class_means", "algorithm.hops": 5}, "algorithm.hops"),
        *(
            ({"algorithm.name": name, **wrong}, place)
            for name in ("fml", "fedkd")
            for wrong, place in (
                ({"train.batch_size": 2}, "train.batch_size"),
                ({"algorithm.copilot": {"name": "gcn", "fanouts": [2, 2]}}, "algorithm.copilot.fanouts"),
            )
        ),
    ],
)
def test_what_a_client_cannot_train_is_refused(start: Run, keys: Keys, place: str) -> None:
    with refused("round 1, client 0", says=place):
        start(keys).round()


@pytest.mark.parametrize("task", ["graph", "edge"])
@pytest.mark.parametrize("name", ["moon", "fml", "fedkd"])
def test_items_of_the_test_are_in_no_term(start: Run, graph_task: Keys, edge_task: Keys, name: str, task: str) -> None:
    copilot = {} if name == "moon" else {"algorithm.copilot": {"name": "gin", "hidden": 8}}
    keys = graph_task if task == "graph" else edge_task
    with refused("algorithm.rows"):
        start({**keys, "algorithm.name": name, **copilot, "algorithm.rows": "all"})


NODE_ONLY = {"fedgta", "fedgkc", "fedpub", "fgssl", "adafgl", "fedgl", "fggp", "class_means"}
NODE_ONLY |= {"fedsage_plus", "fedsage_plus_fedgta", "fedgl_fedgta"}
GRAPH_ONLY = {"fedstar", "fedgpl"}
HETEROGENEOUS = {"local", "lg_fedavg", "fedgen", "fedproto", "fedtgp", "feddistill", "fedpg", "fedgkc", "fml", "fedkd"}


def test_which_methods_are_for_which_tasks_and_models(configure: Callable[..., Config]) -> None:
    assert set(METHODS) - set(methods_for("node")) == GRAPH_ONLY
    assert set(METHODS) - set(methods_for("graph")) == NODE_ONLY
    assert set(METHODS) - set(methods_for("edge")) == NODE_ONLY | GRAPH_ONLY | {"fedpg"}
    assert set(mixing_methods()) == HETEROGENEOUS | {"class_means"}
    for name in mixing_methods():
        models = {"model": [{"name": "mlp"}, {"name": "gcn"}], "heterogeneity.embedding": 8}
        require_mixable(configure({"algorithm.name": name, **models}), load(describe(name, {})))
