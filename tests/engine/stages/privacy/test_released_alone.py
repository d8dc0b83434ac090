"""What leaves the server where clients are hidden, on neighbouring federations: equal bits where releases are.

A clip of 1e-15 with noise of 1e15 clips leaves of a release its noise, which is keyed: a float has no room for changes
beside it. So releases are constants, whatever clients hold, and the state of the server, downloads and columns of the
log have to be, too. Losses, scores and seconds are outside of epsilon.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Start
from support.methods import GCN, GRAPH_ONLY, NEEDS
from support.needs import has_keys
from support.small_cells import require_same_tree
from support.small_graphs import write_graphs
from support.user_graph import write_arrays

from shoal.algorithms.base import Context, Requests
from shoal.algorithms.client import ClientInfo, ClientTable
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.protocol import Tree
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.costs import Pool
from shoal.storage.errors import ShoalError
from shoal.storage.options.split_codes import TEST, TRAIN, VAL

ROUNDS, CLIENTS, HIDDEN_CLIENT = 2, 4, 2
# Training nodes and all nodes of the client that is replaced, and how many classes its labels have.
NEIGHBOURS = ((6, 20, 3), (0, 14, 1), (15, 33, 2))
OUTSIDE = ("loss", "seconds", "scopes")
ALONE: dict[str, Any] = {"privacy.unit": "client", "privacy.noise": 1e15, "privacy.clip": 1e-15, "train.epochs": 1}
ALONE |= {"rounds": ROUNDS, "evaluation.every": ROUNDS}
# What send means alone, and what has norms for the rest, which noise at clients takes, too.
MEANS = {
    *("fedavg", "fedprox", "fedopt", "scaffold", "feddc", "moon", "fedproc", "fednh", "fedproto", "fedproto_averaged"),
    *(
        "lg_fedavg",
        "feddistill",
        "fml",
        "fedkd",
        "adafgl",
        "fedgl",
        "fedgl_moon",
        "fedgl_feddc",
        "fgssl",
        "fedgcn",
        "class_means",
        "fedstar",
        "fedspray",
        "fedlog",
    ),
}
OF_NORMS = {"fedgta", "fedgl_fedgta"}
# What keeps something of every client, or mixes it, and what sends nothing.
OTHERS = {
    *("local", "global", "fpl", "fedgen", "fedtgp", "fedpg", "fedgkc", "fggp", "gcfl_plus", "fedpub", "fedgpl"),
    *("fedsage_plus", "fedsage_plus_fedgta", "fedsage_plus_moon", "fedsage_plus_feddc", "fedtad", "s2fgl", "fediih"),
    "fedgm",
    "feddep",
}
TAKEN = [(method, where) for method in sorted(MEANS | OF_NORMS) for where in ("server", "client")]
TAKEN = [(method, where) for method, where in TAKEN if where == "client" or method in MEANS]
REFUSED = [("fedgta", "server"), ("fedgl_fedgta", "server")]
REFUSED += [(method, where) for method in sorted(OTHERS) for where in ("server", "client")]


def write_neighbour(folder: Path, train: int, nodes: int, classes: int) -> Path:
    """A graph of four clients of 20 nodes, of which one has other nodes, edges, features, labels and parts."""
    arrays: dict[str, list[np.ndarray]] = {"x": [], "y": [], "split": [], "assignment": []}
    edges, first = [], 0
    for client in range(CLIENTS):
        replaced = client == HIDDEN_CLIENT
        size, trained, kinds = (nodes, train, classes) if replaced else (20, 6, 3)
        rng = np.random.default_rng(1000 * nodes if replaced else client)
        y = np.arange(size) % kinds
        split = np.full(size, TEST, dtype=np.int8)
        split[:trained], split[trained : trained + 5] = TRAIN, VAL
        ring = first + np.arange(size)
        edges.append(np.stack([ring, np.roll(ring, 1 + replaced * nodes % 3)]))
        x: np.ndarray = np.eye(3, 4)[y] + rng.normal(0, 0.5, (size, 4))
        columns: tuple[np.ndarray, ...] = x, y, split, np.full(size, client)
        for name, values in zip(arrays, columns):
            arrays[name].append(values)
        first += size
    whole = {name: np.concatenate(values) for name, values in arrays.items()}
    whole["x"] = whole["x"].astype(np.float32)
    return write_arrays(folder, edge_index=np.concatenate(edges, axis=1), **whole)


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Keys of three federations that differ in all data of one client."""
    folder, found = tmp_path_factory.mktemp("neighbours"), []
    for number, sizes in enumerate(NEIGHBOURS):
        path = write_neighbour(folder / str(number), *sizes)
        keys = {"data.path": str(path), "data.store": str(folder / f"store{number}")}
        found.append({**keys, "partition.clients": CLIENTS})
    return found


@pytest.fixture(scope="module")
def of_graphs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The same of clients of small graphs: client 0 with other labels, features and parts."""
    folder, found = tmp_path_factory.mktemp("of_graphs"), []
    for number, part in enumerate((None, 0, TRAIN)):
        path, rng = write_graphs(folder / str(number)), np.random.default_rng(number)
        arrays = {name: np.load(path / f"{name}.npy") for name in ("x", "y", "split", "assignment", "graph")}
        if part is not None:
            replaced = arrays["assignment"] == 0
            arrays["split"][replaced], arrays["y"][replaced] = part, rng.integers(2, size=int(replaced.sum()))
            rows = replaced[arrays["graph"]]
            arrays["x"][rows] = rng.standard_normal((int(rows.sum()), arrays["x"].shape[1]))
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
        keys = {"task": "graph", "data.path": str(path), "data.store": str(folder / f"store{number}")}
        found.append({**keys, "partition.clients": 6})
    return found


class Noting:
    """A pool that notes what every client is sent: the phase, and all of its download."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.sent: list[tuple[str, int, Tree]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterable[tuple[int, Outcome]]:
        now = []
        for cell in cells:
            # An evaluation sends what the server's state says.
            for client in cell.ids if cell.phase else ():
                trees = {"shared": shared, "private": cell.private.get(client, {}), "scored": cell.score_with}
                now.append(
                    (
                        cell.phase,
                        client,
                        {f"{of}/{name}": t.clone() for of, tree in trees.items() for name, t in tree.items()},
                    )
                )
        self.sent += sorted(now, key=lambda one: one[:2])
        return self.pool.run_cells(cells, shared)


def require_same(keys: Mapping[str, Any], start: Start, neighbours: Sequence[Mapping[str, Any]]) -> None:
    """Runs rounds on all neighbours, and compares what leaves the server."""
    first: Any = None
    for of_data in neighbours:
        pools: list[Noting] = []

        def noting(pool: Pool, pools: list[Noting] = pools) -> Any:
            pools.append(Noting(pool))
            return pools[-1]

        server = start({**ALONE, **keys, **of_data}, pool=noting)
        states, lines = [server.state.server], []
        for _ in range(ROUNDS):
            line = server.round()
            lines.append({name: value for name, value in line.items() if name not in OUTSIDE})
            states.append({name: t.clone() for name, t in server.state.server.items()} | server.state.extras["privacy"])
        seen = states, lines, pools[0].sent
        if first is None:
            first = seen
            assert len({tuple(t.double().sum().item() for t in state.values()) for state in states}) > 1
        for one, other in zip(first[0], states):
            require_same_tree(one, other)
        assert first[1] == lines
        assert [one[:2] for one in first[2]] == [one[:2] for one in seen[2]]
        for (*_, one), (*_, other) in zip(first[2], seen[2]):
            require_same_tree(one, other)


def keys_of(method: str, where: str) -> dict[str, Any]:
    options, model = NEEDS.get(method, ({}, GCN))
    keys: dict[str, Any] = {"algorithm.name": method, "model": model, "privacy.where": where}
    if where == "client" and method.endswith("fedgta"):
        options = {**options, "confidence": "uniform"}
    return keys | {f"algorithm.{name}": value for name, value in options.items()}


@pytest.mark.parametrize(("method", "where"), TAKEN)
def test_what_leaves_is_of_releases_alone(
    method: str,
    where: str,
    start: Start,
    neighbours: list[dict[str, Any]],
    of_graphs: list[dict[str, Any]],
) -> None:
    require_same(keys_of(method, where), start, of_graphs if method in GRAPH_ONLY else neighbours)


@pytest.mark.parametrize(
    "keys",
    [
        keys
        for keys in [
            {"algorithm.name": "fedavg", "algorithm.weight": "train", "participation.count": 2},
            {"algorithm.name": "scaffold", "participation.count": 2, "participation.draw": "poisson"},
            {"algorithm.name": "scaffold", "participation.count": 2, "participation.draw": "cyclic"},
            {"algorithm.name": "fedavg", "communication.upload": "topk", "communication.ratio": 0.1},
            {"algorithm.name": "fedproto", "communication.upload": "int8"},
            {"algorithm.name": "fedavg", "secure.kind": "masks"},
        ]
        if has_keys(*keys)
    ],
    ids=lambda keys: " ".join(map(str, keys.values())),
)
def test_so_it_does_with_other_keys(
    keys: dict[str, Any], start: Start, neighbours: list[dict[str, Any]], of_graphs: list[dict[str, Any]]
) -> None:
    """Of compressed uploads, too, whose size would tell how much was there to compress."""
    require_same({"model": {"name": "gcn", "hidden": 128}, **keys}, start, neighbours)
    if keys["algorithm.name"] == "fedproto":
        require_same({"model": {"name": "gcn", "hidden": 8}, **keys}, start, of_graphs)


@dataclass(frozen=True)
class Sizes(FedAvg):
    """FedAvg whose server writes down all that it knows of clients, before rounds and in them."""

    def setup(self, ctx: Context) -> Tree:
        return {**super().setup(ctx), "sizes": sizes_in(ctx)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        yield from super().round(server, ctx, cohort)
        server["sizes"] = server["sizes"] + sizes_in(ctx)


def sizes_in(ctx: Context) -> torch.Tensor:
    """`[2 N, 4]`: nodes, training items, predictions and model of each client, in training and where it is scored."""
    return torch.tensor([[i.nodes, i.train, i.items, i.model] for infos in (ctx.clients, ctx.scored) for i in infos])


@pytest.mark.parametrize("where", ["server", "client"])
def test_a_method_is_shown_no_sizes(where: str, start: Start, neighbours: list[dict[str, Any]]) -> None:
    keys = {"algorithm.name": f"{__file__}:Sizes", "model": GCN, "privacy.where": where}
    require_same(keys, start, neighbours)
    plain = [start({**of_data, "algorithm.name": keys["algorithm.name"]}) for of_data in neighbours]
    assert len({str(server.state.server["sizes"].tolist()) for server in plain}) == len(neighbours)


def test_a_method_that_comes_new_is_audited() -> None:
    assert set(METHODS) == MEANS | OF_NORMS | OTHERS


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(("method", "where"), REFUSED)
def test_other_methods_are_refused(
    method: str, where: str, start: Start, neighbours: list[dict[str, Any]], of_graphs: list[dict[str, Any]]
) -> None:
    data = (of_graphs if method in GRAPH_ONLY else neighbours)[0]
    with pytest.raises(ShoalError, match=r"privacy\.(unit|where)"):
        start({**data, **ALONE, **keys_of(method, where)}).round()


def test_sizes_may_end_a_run_that_hides_clients(start: Start, neighbours: list[dict[str, Any]]) -> None:
    with refused("algorithm.most_nodes", says="client 2 has 33 nodes"):
        start({**neighbours[2], **ALONE, **keys_of("adafgl", "server"), "algorithm.most_nodes": 25})


def test_a_table_without_sizes_keeps_who_and_which_model() -> None:
    columns = {"client": [0, 1], "nodes": [5, 9], "train": [0, 4], "model": [1, 0], "domain": [0, 1]}
    of_nodes = ClientTable(columns, 3).without_sizes()
    of_graphs = ClientTable(columns | {"graphs": [7, 8]}, 3, graphs_of_node=6).without_sizes()
    assert list(of_nodes) == [ClientInfo(0, 2, 1, 3, 1), ClientInfo(1, 2, 1, 3, 0, domain=1)]
    assert list(of_graphs) == [ClientInfo(0, 2, 1, 3, 1, 2), ClientInfo(1, 2, 1, 3, 0, 2, domain=1)]
