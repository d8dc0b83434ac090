"""A federation of six small clients for all tests, and single clients made from arrays."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from support.exhaustive import choose, pytest_addoption, pytest_configure  # noqa: F401  # hooks of pytest
from support.plain_fedavg import row_counts
from support.small_graphs import write_graphs
from support.small_pairs import OF_CLIENT, SHARES, write_nodes
from support.user_graph import write_arrays
from torch import nn

from shoal.algorithms.client import Client, ClientInfo, ClientModel, FlatModel
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config, parse_config
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import Pool
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import plan_of
from shoal.storage.files import digest
from shoal.storage.graph.graph import clean_edges
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import CPU, Cache, View
from shoal.storage.store.store import Store

CLIENTS, NODES, CLASSES, FEATURES = 6, 30, 4, 5
WITHOUT_TRAIN, WITHOUT_TEST, RARE_CLASS = 5, 4, 3

# Fixtures of whole runs, for tests of the engine and of the rooms above it.
pytest_plugins = ["support.run_fixtures"]
HERE = Path(__file__).parent
# Methods of ours are checked in every round and guarded against writes, as those of users are.
os.environ.setdefault("SHOAL_CHECK_ALWAYS", "1")
# No test has a clock: a loaded machine holds up any example.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")
Start = Callable[..., Server]


@pytest.hookimpl(trylast=True)  # after `-m` has deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts tests that kill processes to the front, so that no worker is left alone with a long file at the end.

    Files that share the hosts of a session come last: no test behind them starts a Ray of its own.
    """
    choose(config, items)
    # Those of `integration` are its own.
    of_runs = (item for item in items if item.path.relative_to(HERE).parts[0] != "integration")
    on_hosts = {item.path for item in of_runs if "hosts" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (item.path.parent not in (HERE, HERE / "integration"), item.path in on_hosts))


def pytest_collectstart() -> None:
    """Modules and tests that are loaded stay: no garbage collection looks at them, now or later."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(5_000, 10, 20)
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _disk_is_not_awaited() -> Iterator[None]:
    """What this process writes need not outlive the machine: a small run would wait 22 times, longer than it computes.

    Commands in processes of their own, and hosts, wait for the disk; so do digests, which read a file's time behind it.
    """
    fsync = os.fsync

    def only_for_digests(file: Any) -> None:
        if sys._getframe(1).f_globals["__name__"] == digest.__name__:
            fsync(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", only_for_digests)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _sigint_interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, in child processes too: `nohup make test &` starts with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def _one_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray reads the token once in the life of a process, whatever clusters this one starts."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.touch(mode=0o600)
    token.write_text("0" * 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        yield


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client has files of its own in stores that are prepared."""
    monkeypatch.setattr("shoal.storage.store.client_table.PACKED_BELOW", 0)


def write_graph(folder: Path, shuffle_hidden_labels: bool = False) -> Path:
    """180 nodes; client 5 has no training node, client 4 no test node, class 3 occurs among test nodes only.

    Every client has two isolated nodes. Labels are skewed by client, so that models drift apart.
    """
    rng = np.random.default_rng(7)
    assignment = np.repeat(np.arange(CLIENTS), NODES)
    y = np.where(rng.random(CLIENTS * NODES) < 0.6, assignment % 3, rng.integers(3, size=CLIENTS * NODES))
    split = np.tile(np.repeat([TRAIN, VAL, TEST], NODES // 3), CLIENTS).astype(np.int8)
    split[(assignment == WITHOUT_TRAIN) & (split == TRAIN)] = 0
    split[(assignment == WITHOUT_TEST) & (split == TEST)] = VAL
    rare = np.flatnonzero(split == TEST)[[0, 11]]
    x = np.eye(3, FEATURES)[y] + 0.7 * rng.standard_normal((CLIENTS * NODES, FEATURES))
    y[rare] = RARE_CLASS
    source = rng.integers(CLIENTS * NODES, size=900)
    target = rng.integers(CLIENTS * NODES, size=900)
    alike = (y[source] == y[target]) | (rng.random(900) < 0.2)
    connected = (source % NODES > 1) & (target % NODES > 1)
    edges = np.stack([source, target])[:, alike & connected]
    # All clients are rings as well, so that each has edges.
    ring = np.arange(CLIENTS * NODES)[np.arange(CLIENTS * NODES) % NODES > 2]
    edges = np.concatenate([edges, np.stack([ring, ring - 1])], axis=1)
    if shuffle_hidden_labels:
        hidden = np.flatnonzero(split != TRAIN)
        y[hidden] = rng.permutation(y[hidden])
    x = x.astype(np.float32)
    return write_arrays(folder, edge_index=edges, x=x, y=y, split=split, assignment=assignment)


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Folders of the graph as it is, and of one whose labels outside the training rows are shuffled."""
    folder = tmp_path_factory.mktemp("graphs")
    return {"plain": write_graph(folder / "plain"), "shuffled": write_graph(folder / "shuffled", True)}


@pytest.fixture(scope="session")
def configure(graphs: Mapping[str, Path]) -> Callable[..., Config]:
    """Gives a config of the small federation; keys are dotted."""

    def configure(keys: Mapping[str, Any], graph: str = "plain") -> Config:
        folder = graphs[graph]
        defaults = {
            "name": "small",
            "rounds": 6,
            "evaluation.every": 1,
            "data.dataset": "files",
            "data.path": str(folder),
            "data.store": str(folder.with_name(f"{graph}-store")),
            "data.split": "public",
            "partition.method": "file",
            "partition.clients": CLIENTS,
            "propagation.hops": 2,
            "model.name": "gamlp",
            "model.hidden": 8,
            "algorithm.name": "fedavg",
            "engine.backend": "local",
        }
        tree: dict[str, Any] = {}
        for dotted, value in {**defaults, **keys}.items():
            *sections, last = dotted.split(".")
            section = tree
            for name in sections:
                section = section.setdefault(name, {})
            section[last] = value
        return parse_config(tree, "test")

    return configure


@pytest.fixture(scope="session")
def weighted(tmp_path_factory: pytest.TempPathFactory, graphs: Mapping[str, Path]) -> dict[str, Any]:
    """Keys of the small federation whose edges have weights; a self loop weighs 7, which nobody shall see."""
    folder = tmp_path_factory.mktemp("weighted")
    shutil.copytree(graphs["plain"], folder / "graph")
    source, target = np.load(folder / "graph" / "edge_index.npy")
    drawn = np.random.default_rng(5).uniform(0.05, 4, (CLIENTS * NODES,) * 2)
    weight = drawn[np.minimum(source, target), np.maximum(source, target)]
    np.save(folder / "graph" / "edge_weight.npy", np.where(source == target, 7, weight))
    return {"data.path": str(folder / "graph"), "data.store": str(folder / "store")}


@pytest.fixture(scope="session")
def graph_task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Keys of a config whose clients hold many small graphs, and predict them."""
    folder = tmp_path_factory.mktemp("graph_task")
    path = write_graphs(folder / "graphs")
    return {"task": "graph", "data.path": str(path), "data.store": str(folder / "store"), "model.name": "gcn"}


@pytest.fixture(scope="session")
def edge_task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Keys of a config whose clients predict edges among their nodes."""
    folder = tmp_path_factory.mktemp("edge_task")
    path = write_nodes(folder / "nodes")
    data = {"data.path": str(path), "data.store": str(folder / "store")}
    split = {"data.split": "stratified", "data.fractions": list(SHARES), "partition.clients": len(OF_CLIENT)}
    return {"task": "edge", **data, **split, "model.name": "gcn"}


@pytest.fixture(scope="session")
def start(configure: Callable[..., Config]) -> Start:
    """Starts the server of a config in this process, fresh or from a state; `server.round()` runs a round."""

    def start(
        keys: Mapping[str, Any] | None = None,
        graph: str = "plain",
        state: FederationState | None = None,
        pool: Callable[[Pool], Pool] = lambda pool: pool,
        device: torch.device = CPU,
    ) -> Server:
        config = configure(keys or {}, graph)
        centralized = load(describe(config.algorithm.name, config.algorithm.options)).centralized
        job = make_job(config, prepare(config, centralized), "test")
        return Server(job, plan_of(config, centralized), pool(LocalBackend().enter(job)), state, device)

    return start


@pytest.fixture(scope="session")
def run(start: Start) -> Callable[..., Server]:
    """Runs a config for some rounds (its own number by default) and returns the server."""

    def run(keys: Mapping[str, Any] | None = None, rounds: int | None = None, **more: Any) -> Server:
        server = start(keys, **more)
        for _ in range(rounds or server.plan.rounds):
            server.round()
        return server

    return run


@pytest.fixture(scope="session")
def views(start: Start) -> Callable[..., list[View]]:
    """Gives the data of all clients of a server."""

    def views(server: Server | None = None) -> list[View]:
        job = (server or start()).job
        store = Store(job.store_path)
        return [job.view(store, client, Cache(2**24)) for client in range(store.clients)]

    return views


@pytest.fixture(scope="session")
def module_of() -> Callable[..., nn.Module]:
    """Makes a backbone that holds given parameters `[P]`, by torch's own `vector_to_parameters`."""

    def module_of(server: Server, w: torch.Tensor) -> nn.Module:
        job = server.job
        (model,) = job.models
        module = build(model.name, FEATURES, CLASSES, job.hops, job.train.dropout, model.options)
        nn.utils.vector_to_parameters(w.clone(), module.parameters())
        return module

    return module_of


@pytest.fixture(scope="session")
def counts_of(module_of: Callable[..., nn.Module]) -> Callable[..., np.ndarray]:
    """Counts `[2, 3, C]` of a model on a client's rows, row by row from its predictions."""

    def counts_of(server: Server, view: View, w: torch.Tensor) -> np.ndarray:
        module = module_of(server, w).eval()
        with torch.no_grad():
            predicted = module([view.hop(k) for k in module.inputs]).logits_NC.argmax(1).tolist()
        return row_counts(view, predicted, CLASSES)

    return counts_of


@pytest.fixture(scope="session")
def make_view() -> Callable[..., View]:
    """Makes the data of one client from edges, labels and training rows; every other row is tested.

    `weight` is a dense symmetric matrix of float32, of which the edges' entries are read.
    """

    def make_view(
        nodes: int,
        edges: Sequence[tuple[int, int]] | np.ndarray,
        label: Sequence[int],
        train: Sequence[int],
        classes: int,
        x: np.ndarray | None = None,
        weight: np.ndarray | None = None,
    ) -> View:
        indptr, indices, _ = clean_edges(np.asarray(edges, dtype=np.int64).reshape(-1, 2).T, nodes, "test")
        features = np.eye(nodes, dtype=np.float32) if x is None else x
        shard = Shard(
            0,
            np.arange(nodes),
            np.asarray(label, dtype=np.int32),
            indptr.astype(np.int32),
            indices.astype(np.int32),
            features,
            edge_weight=None if weight is None else weight[np.repeat(np.arange(nodes), np.diff(indptr)), indices],
        )
        rows = [np.asarray(part, dtype=np.int32) for part in (train, [], np.setdiff1d(np.arange(nodes), train))]
        return View("test", shard, Split(*rows), [], classes, Cache(2**24))

    return make_view


@pytest.fixture(scope="session")
def make_client() -> Callable[..., Client]:
    """Puts a client with a module on some data, as a host does."""

    def make_client(view: View, module: nn.Module, round_number: int = 1) -> Client:
        info = ClientInfo(view.client, view.nodes, len(view.train), view.classes)
        random = partial(key, 0, round_number, view.client)
        return Client(info, view, {MODEL: ClientModel(FlatModel(module), view, random)}, {}, {}, random)

    return make_client
