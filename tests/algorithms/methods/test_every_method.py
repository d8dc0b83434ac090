"""What all methods hold: hidden labels, terms that are off, a resume, options and models that are refused."""

import shutil
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.both_layouts import both_layouts
from support.errors import refused
from support.fixtures import Configure, Keys, Start
from support.methods import (
    CONV,
    DISENTANGLED,
    FEDDEP,
    FEDGM,
    FGGP,
    GCN,
    GEN,
    GRAPH_ONLY,
    MENDED,
    NEEDS,
    NODE_ONLY,
    SAGE,
)
from support.same_bits import assert_same_runs, assert_same_trees
from support.user_graph import write_arrays
from torch import Tensor

from shoal.algorithms.methods.registry.load import describe, load, methods_for, mixing_methods
from shoal.algorithms.methods.registry.names import METHODS
from shoal.engine.messages.models import require_mixable
from shoal.engine.rounds.server import Server
from shoal.storage.options.split_codes import TEST, TRAIN

COPILOT = {"copilot": {"name": "sgc", "layers": 2, "hidden": 6}}
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
GAMLP = {"name": "gamlp", "hidden": 8}
EVERY_PAIR = list(combinations(range(6), 2))
PHASES = {"shared_rounds": 2, "hidden": 6}
SAGE_PLUS = {"generator_rounds": 2, "hidden": 6}


def keys_of(name: str, options: Keys, model: Any = None) -> dict[str, Any]:
    mixed = {"heterogeneity.rule": "round-robin", "heterogeneity.embedding": 8} if model is MIXED else {}
    return {"algorithm": {"name": name, **options}, **mixed, **({"model": model} if model else {})}


LABELLED: list[tuple[str, Keys]] = [
    *(
        (name, {})
        for name in (
            "class_means",
            "feddistill",
            "fpl",
            "fedproto",
            "fedtgp",
            "fml",
            "fedkd",
            "fedgta",
            "s2fgl",
            "fedspray",
        )
    ),
    ("fedlog", {"nodes": 2, "pre_epochs": 1}),
    ("fedgm", FEDGM),
    ("feddep", FEDDEP),
    ("moon", {"rows": "all"}),
    ("fedtad", {"nodes": 12}),
    ("fedgl", {"threshold": 0.0}),
    *((name, {"threshold": 0.0}) for name in ("fedgl_fedgta", "fedgl_moon", "fedgl_feddc")),
    ("fedpg", {"pseudo_centres": 0.5}),
]


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(("name", "options"), LABELLED)
def test_labels_outside_the_training_rows_change_nothing(run: Start, name: str, options: Keys) -> None:
    keys = keys_of(name, options, SAGE if name == "feddep" else None)
    assert_same_runs(*(run(keys, rounds=3, graph=graph) for graph in ("plain", "shuffled")))


def flat_state(clients: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{i}/{name}": t for i, tree in clients.items() for name, t in tree.items()}


@pytest.mark.parametrize("name", ["local", "scaffold", "feddc", "moon", "fedgl", "fedpg"])
def test_a_round_leaves_the_states_that_it_began_from(start: Start, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where visits get no copies of what methods only replace, and evaluations none at all, as in runs."""
    monkeypatch.setenv("SHOAL_CHECK_ALWAYS", "0")
    server = start({**keys_of(name, {}, GCN), "evaluation.every": 1})
    for _ in range(3):
        began = flat_state(server.state.clients)
        copies = {key: t.clone() for key, t in began.items()}
        server.round()
        assert all(torch.equal(began[key], t) for key, t in copies.items())
    assert load(describe(name, {})).only_replaced <= {key.partition("/")[2] for key in began}


@pytest.mark.exhaustive(4)
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
        ("fedtad", {}, {"server_epochs": 0}, "fedavg", GCN),
        ("s2fgl", {}, {"semantic": 0.0, "spectral": 0.0}, "fedavg", GAMLP),
        ("s2fgl", {}, {"semantic": 0.0, "spectral": 0.0}, "fedavg", GCN),
        ("fedgl", {"threshold": 0.0}, {"pseudo": 0.0}, "fedavg", GAMLP),
        ("fedgl", {"threshold": 0.0}, {"pseudo": 0.0}, "fedavg", GCN),
        ("fedgl_fedgta", {"threshold": 0.0}, {"pseudo": 0.0}, "fedgta", GCN),
        ("fedgl_moon", {"threshold": 0.0}, {"pseudo": 0.0}, "moon", GCN),
        ("fedgl_moon", {}, {"mu": 0.0}, "fedgl", GCN),
        ("fedgl_feddc", {"threshold": 0.0}, {"pseudo": 0.0}, "feddc", GCN),
        ("scaffold", {"weight": "nodes"}, {"variate": "off"}, "fedavg", GAMLP),
        (
            "feddc",
            {"weight": "nodes", "sends": "before"},
            {"alpha": 0.0, "variate": "off", "sends": "off"},
            "fedavg",
            GAMLP,
        ),
        ("fedgen", GEN, {"alpha": 0.0, "beta": 0.0}, "lg_fedavg", MIXED),
        ("feddistill", {}, {"gamma": 0.0}, "local", MIXED),
        ("fedproto", {}, {"lam": 0.0}, "local", MIXED),
        ("fedtgp", {}, {"lam": 0.0}, "local", MIXED),
        ("fedpg", {}, {"mu": 0.0}, "local", MIXED),
        ("fedpg", {"alignment": "prototype"}, {"mu": 0.0}, "local", MIXED),
        ("fedpg", PERSONAL, {"mu": 0.0}, "local", MIXED),
        ("class_means", {}, {"weight": 0.0}, "local", MIXED),
        ("fedspray", {"hidden": 6}, {"lam": 0.0}, "local", WHOLE),
        ("fml", {**COPILOT, "beta": 0.3}, {"alpha": 1.0}, "local", WHOLE),
        ("fml", {**COPILOT, "beta": 1.0, "rows": "train"}, {"alpha": 1.0}, "local", WHOLE),
    ],
)
def test_off_it_is_the_plain_method(run: Start, name: str, more: Keys, off: Keys, plain: str, model: Any) -> None:
    """Each of its terms alone makes another model; with dropout, weight decay and clients that stay away."""
    rest = {"train.dropout": 0.5, "train.weight_decay": 0.01, "participation.ratio": 0.7, "engine.trainer": "autograd"}
    expected = run({**rest, **keys_of(plain, {}, model)}, rounds=2)
    found = run({**rest, **keys_of(name, {**more, **off}, model)}, rounds=2)
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
        some = run({**rest, **keys_of(name, {**more, **rest_off}, model)}, rounds=2)
        one, other = ({**server.state.server, **flat_state(server.state.clients)} for server in (some, expected))
        assert all(t.isfinite().all() for t in one.values())
        assert any(not torch.equal(one[key], t) for key, t in other.items())


# Nodes, edges and training nodes: one node, no edges, one training node, none, all edges.
TINY = [(1, [], [0]), (4, [], [0, 1, 2]), (5, [(0, 1)], [3]), (5, [(0, 1), (1, 2)], []), (6, EVERY_PAIR, [0, 3])]
ZEROS = slice(1, 5)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, graph_task: Keys) -> list[Keys]:
    """Keys of clients that have nearly nothing, and of small graphs; isolated nodes have one feature at most.

    Class 2 is that of a single test node.
    """
    folder, first = tmp_path_factory.mktemp("tiny"), np.cumsum([0, *(nodes for nodes, _, _ in TINY)])
    ends = [(a + low, b + low) for low, (_, edges, _) in zip(first, TINY) for a, b in edges]
    split, y = np.full(first[-1], TEST, dtype=np.int8), np.arange(first[-1]) % 2
    split[[low + row for low, (_, _, train) in zip(first, TINY) for row in train]], y[-1] = TRAIN, 2
    x = np.random.default_rng(0).standard_normal((first[-1], 4)).astype(np.float32)
    x[ZEROS] = 0
    x[1, 0] = x[3, 0] = 1
    arrays = {"edge_index": np.array(ends).T, "assignment": np.repeat(np.arange(len(TINY)), np.diff(first))}
    path = write_arrays(folder / "graph", **arrays, x=x, y=y, split=split)
    shutil.copytree(graph_task["data.path"], folder / "graphs")
    of_graphs, edges = np.load(folder / "graphs" / "x.npy"), np.load(folder / "graphs" / "edge_index.npy")
    of_graphs[np.setdiff1d(np.arange(len(of_graphs)), edges)] = 0
    np.save(folder / "graphs" / "x.npy", of_graphs)
    places = [(path, len(TINY), {}), (folder / "graphs", 6, {"task": "graph"})]
    return [
        {
            **task,
            "data.path": str(place),
            "data.store": str(folder / place.stem / "store"),
            "partition.clients": clients,
        }
        for place, clients, task in places
    ]


def require_finite(server: Server) -> None:
    for tree in (server.state.server, *server.state.clients.values(), *server.state.inboxes.values()):
        assert all(bool(t.isfinite().all()) for t in tree.values())


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("name", METHODS)
def test_clients_that_have_nearly_nothing(run: Start, tiny: list[Keys], name: str) -> None:
    """They are new when the others' prototypes reach them, and rows of zeros move no parameter far."""
    keys = {**tiny[name in GRAPH_ONLY], **keys_of(name, *NEEDS.get(name, ({}, GCN)))}
    keys |= {} if name == "global" else {"participation.ratio": 0.5}
    server = run({**keys, "train.optimizer": "sgd", "train.lr": 0.1, "train.epochs": 2}, rounds=2)
    require_finite(server)
    kept = {**server.state.server, **flat_state(server.state.clients)}
    numbers = {key: t for key, t in kept.items() if t.numel() and not key.endswith(("step", "count", "sum"))}
    assert all(not t.is_floating_point() or float(t.abs().max()) < 10 for t in numbers.values())
    if name not in GRAPH_ONLY:
        tested = sum(nodes - len(train) for nodes, _, train in TINY)
        assert sum(counts[1, 0].sum() for counts in server.state.scores["deployed"].values()) == tested


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize(
    ("name", "options", "model"),
    [
        *(("fedpub", {}, model) for model in ("gat", "gin", "gcnii", "transformer")),
        ("fedpub", {}, {**SAGE, "fanouts": [3, 2]}),
        ("fgssl", {}, DISENTANGLED),
        *(("fggp", {"gkic": "knn_only"}, model) for model in ("gat", "gin", "sage", "gcnii")),
        *(
            (name, {}, model)
            for name in ("fgssl", "fedtad", "s2fgl")
            for model in ("gat", "gin", "gcnii", "transformer")
        ),
        *(("fedsage_plus", {**SAGE_PLUS, "generator_rounds": 1}, model) for model in ("gcn", "gat")),
        (
            "fedsage_plus",
            {**SAGE_PLUS, "generator_rounds": 1},
            {"name": "gin", "hidden": 8, "layers": 2, "head": "conv"},
        ),
    ],
)
def test_models_that_pass_messages(run: Start, name: str, options: Keys, model: Any) -> None:
    chosen = {"name": model, "hidden": 8} if isinstance(model, str) else model
    batch = {} if name == "fggp" else {"train.batch_size": 4}
    server = run({**keys_of(name, options, chosen), **batch}, rounds=2)
    require_finite(server)
    held = {**server.state.server, **flat_state(server.state.inboxes)}
    moved = [not torch.equal(t, server._initial) for entry, t in held.items() if entry == "w" or entry.endswith("/w")]
    assert moved
    assert all(moved)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(
    ("name", "options", "model"),
    [
        ("adafgl", {**PHASES, "shared_rounds": 1}, GAMLP),
        ("fedpub", {}, {"name": "sgc", "layers": 2}),
        ("fedspray", {"hidden": 6, "threshold": 0.3}, WHOLE),
        ("fediih", {}, DISENTANGLED),
        ("fedlog", {"nodes": 2, "pre_epochs": 1}, GCN),
        ("fedgm", FEDGM, GCN),
        ("feddep", FEDDEP, SAGE),
        ("fedsage_plus", {**SAGE_PLUS, "generator_rounds": 1}, SAGE),
        *((name, COPILOT, WHOLE) for name in ("fml", "fedkd")),
    ],
)
def test_sparse_features_give_the_same_numbers(
    run: Start, graphs: Mapping[str, Path], tmp_path: Path, name: str, options: Keys, model: Any
) -> None:
    """Weights of the first layer lie column by column, so numbers are compared in ascending order."""
    keys = {**keys_of(name, options, model), "train.optimizer": "sgd", "train.lr": 0.05, "train.dropout": 0.3}
    dense, other = (run({**keys, **data}, rounds=2).state for data in both_layouts(graphs["plain"], tmp_path))
    kept, expected = ({**state.server, **flat_state(state.clients)} for state in (other, dense))
    assert kept.keys() == expected.keys()
    for entry, t in expected.items():
        torch.testing.assert_close(kept[entry].flatten().sort()[0], t.flatten().sort()[0], rtol=1e-3, atol=1e-4)


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(
    ("name", "options", "model", "stop"),
    [
        *((name, {}, MIXED, 4) for name in ("fedproto", "feddistill", "fedpg", "class_means", "lg_fedavg")),
        ("fedpg", {**PERSONAL, "noise": 0.1}, MIXED, 4),
        ("fedgen", GEN, MIXED, 4),
        *(("fedgta", {"eps": 0.9, "sketch_every": every}, GAMLP, 4) for every in (2, 3)),
        *(("fggp", {**FGGP, **more}, CONV, 4) for more in ({}, {"gkic": "gen_only"}, {"head_mode": "personal"})),
        *((name, SAGE_PLUS, SAGE, stop) for name in MENDED for stop in (1, 3)),
        *((name, {"threshold": 0.0}, GCN, 4) for name in ("fedgl_fedgta", "fedgl_moon", "fedgl_feddc")),
        ("fedtad", {"nodes": 12}, GCN, 4),
        ("fediih", {}, DISENTANGLED, 4),
        ("s2fgl", {}, GAMLP, 4),
        ("fedlog", {"nodes": 2, "pre_epochs": 1}, GAMLP, 4),
        ("fedgm", FEDGM, GAMLP, 4),
        *(("feddep", FEDDEP, SAGE, stop) for stop in (1, 4)),
        ("fedspray", {"hidden": 6, "threshold": 0.3}, GAMLP, 4),
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
def test_resumed_runs(start: Start, run: Start, patchy: Keys, name: str, options: Keys, model: Any, stop: int) -> None:
    """From what a checkpoint holds, with clients that come and go; golden runs of the other methods are resumed."""
    keys = {key: value for key, value in patchy.items() if key != "model.name"} | keys_of(name, options, model)
    state = run(keys, rounds=stop).state
    resumed = start(keys, state=type(state).from_tensors(*state.to_tensors()))
    for _ in range(stop, 6):
        resumed.round()
    assert_same_trees({0: resumed.state.to_tensors()[0]}, {0: run(keys, rounds=6).state.to_tensors()[0]})


@pytest.mark.parametrize("task", ["graph", "edge"])
@pytest.mark.parametrize("name", ["moon", "fml", "fedkd"])
def test_items_of_the_test_are_refused(start: Start, graph_task: Keys, edge_task: Keys, name: str, task: str) -> None:
    copilot = {} if name == "moon" else {"algorithm.copilot": {"name": "gin", "hidden": 8}}
    keys = graph_task if task == "graph" else edge_task
    with refused("algorithm.rows"):
        start({**keys, "algorithm.name": name, **copilot, "algorithm.rows": "all"})


HETEROGENEOUS = {"local", "lg_fedavg", "fedgen", "fedproto", "fedtgp", "feddistill", "fedpg", "fedgkc", "fml", "fedkd"}


def test_which_methods_are_for_which_tasks_and_models(configure: Configure) -> None:
    assert set(METHODS) - set(methods_for("node")) == GRAPH_ONLY
    assert set(METHODS) - set(methods_for("graph")) == NODE_ONLY
    assert set(METHODS) - set(methods_for("edge")) == NODE_ONLY | GRAPH_ONLY | {"fedpg", "fggp"}
    assert set(mixing_methods()) == HETEROGENEOUS | {"class_means", "fedspray", "fggp"}
    for name in mixing_methods():
        models = {"model": [{"name": "mlp"}, {"name": "gcn"}], "heterogeneity.embedding": 8}
        require_mixable(configure({"algorithm.name": name, **models}), load(describe(name, {})))
