"""Clients' own graphs: against the same graphs as a folder with an assignment, and against their masks and edges."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.small_runs import small_run
from torch_geometric.data import Data, TemporalData
from torch_geometric.utils import remove_self_loops, to_undirected

import shoal
from shoal.engine.runs.plan import RunPlan
from shoal.storage.adapters import to_pyg

MASKS = ("train_mask", "val_mask", "test_mask")
EDGES = {"edge_index": torch.tensor([[0], [1]]), "y": torch.tensor([0, 1])}


def client(nodes: int, edges: int, seed: int, **changes: Any) -> Data:
    """A random graph of three classes with masks that leave nodes out."""
    rng = np.random.default_rng(seed)
    part = torch.from_numpy(rng.integers(0, 4, nodes))
    found = Data(
        x=torch.from_numpy(rng.normal(size=(nodes, 8)).astype(np.float32)),
        edge_index=torch.from_numpy(rng.integers(0, nodes, (2, edges))),
        y=torch.from_numpy(rng.integers(0, 3, nodes)),
        **{name: part == number for number, name in enumerate(MASKS, 1)},
    )
    return found.update(changes)


@pytest.fixture
def graphs() -> list[Data]:
    """Four clients: one has no edge, one a class that no other has, one no training node, one no label."""
    alone, strange = client(20, 0, 1), client(25, 40, 2, y=torch.full((25,), 3))
    idle = client(15, 20, 3, train_mask=torch.zeros(15, dtype=torch.bool))
    blank = client(4, 4, 4, y=torch.full((4,), -1), **dict.fromkeys(MASKS, torch.zeros(4, dtype=torch.bool)))
    return [alone, strange, idle, blank]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of another graph in another partition; what a program writes lies in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    other = {"method": "louvain", "resolution": 3.0, "clients": 7}
    return small_run(tmp_path, data={"options": {}}, partition=other)


def test_numbers_are_those_of_the_same_graphs_in_a_folder(graphs: list[Data], config: dict[str, Any]) -> None:
    folder, first = Path("by-hand"), np.cumsum([0, *(data.num_nodes for data in graphs)])
    arrays = {name: np.concatenate([data[name].numpy() for data in graphs]) for name in ("x", "y", *MASKS)}
    arrays["split"] = sum(number * arrays.pop(name) for number, name in enumerate(MASKS, 1))
    arrays["edge_index"] = np.hstack([data.edge_index.numpy() + start for data, start in zip(graphs, first)])
    arrays["assignment"] = np.repeat(np.arange(4), np.diff(first))
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    by_hand = {"data": {"dataset": "files", "path": "by-hand", "split": "public"}}
    by_hand["partition"] = {"method": "file", "clients": 4}
    runs = [shoal.run(shoal.load_config(config, data=shoal.from_clients(graphs))), shoal.run({**config, **by_hand})]
    own, folders = ([run.metrics["loss"].to_pylist(), run.clients.to_pylist()] for run in runs)
    assert own == folders
    models = [run.models() for run in runs]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    assert runs[0].predictions()["node"] == runs[1].predictions()["node"]


def test_a_client_has_its_edges_labels_and_masks(graphs: list[Data], config: dict[str, Any]) -> None:
    graph = shoal.from_clients(graphs)
    # No key of another partition is left, and a graph that is written is not written again.
    within = {**{key: value for key, value in config.items() if key != "partition"}, "data": {"dataset": graph}}
    read = shoal.load_config(within, **{"data.root": config["data"]["root"]})
    assert shoal.load_config(config, data=graph) == read
    assert shoal.load_config(shoal.load_config(config), data=graph) == read
    store = RunPlan.of(read, trains=False).prepare()
    assert store.manifest.classes == 4
    before = 0
    for number, given in enumerate(graphs):
        found = to_pyg(store.shard(number), store.split(read.data.split_name, number))
        own = found.n_id - before
        assert sorted(own.tolist()) == list(range(given.num_nodes))
        for name in ("x", "y", *MASKS):
            assert torch.equal(found[name], given[name][own]), name
        edges = to_undirected(remove_self_loops(given.edge_index)[0], num_nodes=given.num_nodes)
        assert {*map(tuple, own[found.edge_index].T.tolist())} == {*map(tuple, edges.T.tolist())}
        before += given.num_nodes
    without = [Data(x=data.x, edge_index=data.edge_index, y=data.y) for data in graphs]
    assert shoal.load_config(config, data=shoal.from_clients(without)).data.split == "stratified"
    assert shoal.load_config(config, data=graph, **{"data.split": "per_client"}).data.split == "per_client"


NAMED = np.array(["paper", "talk", "book", "poster"])
WAYS = {
    "from 1": lambda y: torch.from_numpy(y + 1),
    "with gaps": lambda y: torch.from_numpy(np.array([0, 5, 900, 7])[y]),
    "floats": lambda y: torch.from_numpy(np.where(y == 0, 4.0, y)),
    "names": lambda y: NAMED[y].tolist(),
    "texts": lambda y: np.array(["10", "2", "30", "4"])[y],
    "one-hot": lambda y: torch.eye(4)[torch.from_numpy(y)],
    "a column": lambda y: torch.from_numpy(y[:, None]),
    "some missing": lambda y: torch.from_numpy(np.where(np.arange(len(y)) % 5, y.astype(float), np.nan)),
}


@pytest.mark.parametrize("several", [False, True])
def test_numbers_to_predict_are_those_of_each_client(several: bool, config: dict[str, Any]) -> None:
    """Of nodes, two numbers a node; of graphs, one a graph."""
    rows = [client(12, 30, seed) for seed in range(3)]
    for data in rows:
        data.y = torch.stack([data.x.sum(1), data.x[:, 0]], dim=1)
    graphs: list[Any] = rows
    if several:
        small = [[client(5, 8, 10 * number + seed) for seed in range(8)] for number in range(3)]
        graphs = [
            [Data(x=data.x, edge_index=data.edge_index, y=data.x.sum()[None, None]) for data in of] for of in small
        ]
    graph = shoal.from_clients(graphs, target="regression")
    truth = torch.cat([data.y for part in graphs for data in (part if several else [part])])
    np.testing.assert_array_equal(graph.target, truth)
    assert graph.classes == truth.shape[1]
    changes = {"task": "graph"} if several else {}
    run = shoal.run(
        {**config, "target": "regression", "model": "gcn", "data": {"split": "per_client"}, **changes}, data=graph
    )
    assert np.isfinite(run.metrics["loss"].to_pylist()).all()
    wrong = rows[0].clone()
    wrong.y = wrong.y[:, :1]
    with refused("client 1.y", says="expected 2 targets, as client 0 has, got 1"):
        shoal.from_clients([rows[1], wrong], target="regression")
    silent = rows[2].clone()
    del silent.y
    graph = shoal.from_clients([silent, rows[0]], target="regression")
    assert np.isnan(graph.target[:12]).all()
    np.testing.assert_array_equal(graph.target[12:], rows[0].y)
    with refused("client 0.y", says="missing, at all clients"):
        shoal.from_clients([silent, silent], target="regression")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("several", [False, True])
def test_labels_are_those_of_the_same_graph_as_one(way: str, several: bool) -> None:
    """However labels are written, clients have the classes that the joined graph has by `from_pyg`."""
    rng, sizes = np.random.default_rng(0), [9, 1, 12, 6]
    codes = [rng.integers(0, 4, size) for size in sizes]
    # A client with one class alone, and one without a label.
    codes[2][:] = 3
    x, apart = torch.ones(sum(sizes), 3), np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    edges = torch.zeros(2, 0, dtype=torch.int64)
    whole = WAYS[way](np.concatenate(codes))
    if several:
        one = [Data(x=x[:2], edge_index=edges, y=whole[place : place + 1]) for place in range(sum(sizes))]
        clients: list[Any] = [[one[place] for place in places] for places in apart]
        right = shoal.from_pyg(one)
    else:
        clients = [Data(x=x[places], edge_index=edges, y=whole[places[0] : places[-1] + 1]) for places in apart]
        clients.append(Data(x=x[:4], edge_index=edges))
        right = shoal.from_pyg(Data(x=x, edge_index=edges, y=whole))
    graph = shoal.from_clients(clients)
    assert np.array_equal(graph.y[: sum(sizes)], right.y)
    assert (graph.y[sum(sizes) :] == -1).all()
    assert (graph.classes, graph.label_names) == (right.classes, right.label_names)
    assert graph.classes == 4


def test_clients_may_write_the_same_labels_in_other_types() -> None:
    edges = torch.zeros(2, 0, dtype=torch.int64)
    written: list[Any] = [torch.tensor([3, 1, -1]), torch.tensor([2.0, 3.0, torch.nan]), ["1", "2", ""], None]
    written += [torch.full((3,), -1), np.array([b"3", b"1", b"nan"], dtype=object)]
    graph = shoal.from_clients([Data(x=torch.ones(3, 2), edge_index=edges, y=y) for y in written])
    assert graph.label_names == ("1", "2", "3")
    assert graph.y.reshape(-1, 3).tolist() == [[2, 0, -1], [1, 2, -1], [0, 1, -1], [-1] * 3, [-1] * 3, [2, 0, -1]]
    # A client's own labels, 1 and none, are not the two classes 1 and -1.
    mixed = [Data(x=torch.ones(2, 2), edge_index=edges, y=torch.tensor(y)) for y in ([1, -1], [0, 1])]
    assert shoal.from_clients(mixed).y.tolist() == [1, -1, 0, 1]


@pytest.mark.parametrize(
    ("second", "place", "says"),
    [
        (client(5, 5, 1, x=torch.ones(5, 7)), "client 1.x", "expected 8 features, as client 0 has, got 7"),
        (Data(x=torch.ones(2, 8), **EDGES), "client 1", "has no masks, and client 0 has some"),
        (client(5, 5, 1, y=torch.rand(5)), "client 1.y", "labels are classes 0 … C-1: for regression set target"),
        (client(5, 5, 1, y=torch.tensor([0, 1, 2, -2, 0])), "client 1.y", "row 3"),
        (
            client(5, 5, 1, y=torch.eye(6)[:5]),
            "client 1.y",
            "as client 0.y has, got 6",
        ),
        (client(5, 5, 1, y=torch.ones(4)), "client 1.y", "shape [4], but x has 5 rows"),
        (client(5, 5, 1, y=torch.ones(5, 3)), "client 1.y", "row 0 is of several classes"),
        (
            client(5, 5, 1, edge_attr=torch.ones(5, 2)),
            "client 1.edge_attr",
            "expected 0 features an edge, as client 0 has, got 2",
        ),
        (client(5, 5, 1, assignment=torch.zeros(5)), "client 1.assignment", "the place in the list"),
        (Data(x=torch.ones(0, 8), edge_index=torch.zeros(2, 0)), "client 1", "no nodes"),
        (TemporalData(), "client 1", "graphs over time are not supported"),
        ([client(5, 5, 1)], "client 1[0].y", "the one label"),
    ],
)
def test_wrong_graph_names_its_client(second: Any, place: str, says: str) -> None:
    with refused(place, says=says):
        first = client(9, 9, 0, y=torch.eye(3)[torch.arange(9) % 3]) if says.endswith("got 6") else client(9, 9, 0)
        shoal.from_clients([first, second])


@pytest.mark.parametrize(
    ("given", "place", "says"),
    [
        (lambda graphs: {"data": graphs}, "data", "shoal.from_clients(list)"),
        (lambda graphs: {"data": {"dataset": graphs[0]}}, "data", "shoal.from_pyg"),
        (
            lambda graphs: {"data": shoal.from_clients(graphs), "partition.clients": 3},
            "partition.clients",
            "leave the section out",
        ),
    ],
)
def test_data_that_are_no_graph_are_refused(
    graphs: list[Data], config: dict[str, Any], given: Callable[[list[Data]], dict[str, Any]], place: str, says: str
) -> None:
    with refused(place, says=says):
        shoal.load_config(config, **given(graphs))
