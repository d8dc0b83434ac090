"""A dataset of many small graphs becomes a store: graphs stay whole, and labels, parts and counts are theirs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.shards import adjacency, assert_holds
from support.user_graph import user_graph

from shoal.engine.config.config import Config, parse_config
from shoal.engine.preparing.checks import read_graph
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.verify import verify_folder
from shoal.engine.screen.tables import show_store
from shoal.storage.shards.split import to_codes
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify

GRAPHS = 40
ONE_EACH = {"method": "random", "clients": [1, 1]}
Make = Callable[..., Config]


def write(folder: Path, name: str = "mine", seed: int = 0, **changed: Any) -> str:
    """Forty graphs of one to seven nodes; some have no edge, some several components, one in ten no label."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 8, size=GRAPHS)
    first = np.cumsum([0, *sizes])
    edges = [start + rng.integers(size, size=(2, size - 1)) for start, size in zip(first, sizes)]
    y = np.where(np.arange(GRAPHS) % 10 == 9, -1, rng.integers(3, size=GRAPHS))
    graph_of = np.repeat(np.arange(GRAPHS), sizes)
    arrays = {"edge_index": np.concatenate(edges, axis=1), "y": y, "graph": graph_of, **changed}
    return user_graph(folder, int(first[-1]), name, seed, **arrays)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Gives a config of the forty graphs."""
    path = write(tmp_path)

    def make(partition: Any = None, task: str = "graph", hops: Any = None, **data: Any) -> Config:
        plain = {
            "name": "many",
            "task": task,
            "data": {"dataset": "files", "path": path, "root": str(tmp_path), "fractions": [0.4, 0.3, 0.3], **data},
            "partition": partition or {"method": "random", "clients": 4},
            "propagation": hops or {"hops": 1},
            "algorithm": "fedavg",
            "engine": {"backend": "local"},
        }
        return parse_config(plain, "many.yaml")

    return make


def assert_holds_graphs(store: Store, client: int, graphs: Sequence[int], config: Config) -> None:
    """A shard holds these graphs whole, and what the manifest says of it is true."""
    graph, shard = read_graph(config), store.shard(client)
    assert graph.graph_of is not None
    nodes = np.flatnonzero(np.isin(graph.graph_of, graphs))
    assert_holds(store, client, nodes, graph)
    assert shard.entries == adjacency(graph)[nodes].nnz
    labels = graph.y[list(graphs)]
    assert shard.item.tolist() == list(graphs)
    assert shard.item_label.tolist() == labels.tolist()
    assert np.diff(shard.graph_ptr).tolist() == [int((graph.graph_of == number).sum()) for number in graphs]
    record = store.manifest.clients[client]
    assert (record.items, record.nodes, record.labelled) == (len(graphs), len(nodes), int((labels >= 0).sum()))
    assert record.classes == [int((labels == label).sum()) for label in range(graph.classes)]


@pytest.mark.parametrize(
    ("method", "option"), [("random", {}), ("dirichlet", {"alpha": 0.3}), ("index", {"chunks": 5})]
)
def test_clients_hold_whole_graphs(make: Make, method: str, option: dict[str, Any]) -> None:
    config = make({"method": method, "clients": 4, **option})
    store, graph = prepare(config), read_graph(config)
    assignment = np.load(store.path / "assignment.npy")
    held = [int(assignment[graph.graph_of == number].max()) for number in range(GRAPHS)]
    for client in range(store.clients):
        assert_holds_graphs(store, client, [number for number in range(GRAPHS) if held[number] == client], config)
    assert (store.manifest.graphs, store.manifest.items, store.manifest.item_name) == (GRAPHS, GRAPHS, "graph")
    kept = sum(client.entries for client in store.manifest.clients)
    assert (kept == graph.entries) == (method != "index")
    assert store.manifest.quality["cut_fraction"] == pytest.approx(1 - kept / graph.entries)


def test_graphs_of_a_class_are_split_by_the_shares(make: Make) -> None:
    config = make({"method": "random", "clients": 2})
    store = prepare(config)
    for client in range(2):
        shard, split = store.shard(client), store.split(config.data.split_name, client)
        code, label = to_codes(split, shard.items), shard.item_label
        assert (code[label < 0] == 0).all()
        for of in range(3):
            count = int((label == of).sum())
            train, val = int(0.4 * count + 1e-9), int(0.3 * count + 1e-9)
            assert np.bincount(code[label == of], minlength=4).tolist() == [0, train, val, count - train - val]
        counts = store.manifest.splits[config.data.split_name].counts[client].tolist()
        assert counts == [len(split.train), len(split.val), len(split.test)]


@pytest.mark.parametrize("kind", ["public", "file"])
def test_a_split_that_is_given_is_of_graphs(make: Make, tmp_path: Path, kind: str) -> None:
    code = np.arange(GRAPHS) % 4
    code[np.arange(GRAPHS) % 10 == 9] = 0
    np.save(tmp_path / "split.npy", code)
    file = {"split_file": str(tmp_path / "split.npy")} if kind == "file" else {}
    usual = {"fractions": [0.2, 0.4, 0.4]}
    config = make(path=write(tmp_path, split=code), split=kind, **usual, **file)
    store = prepare(config)
    for client in range(store.clients):
        shard = store.shard(client)
        assert to_codes(store.split(config.data.split_name, client), shard.items).tolist() == code[shard.item].tolist()
    for entries, says in ((41, "41 entries for 40 graphs"), (40, "an unlabelled graph in its")):
        np.save(tmp_path / "split.npy", np.arange(entries) % 3 + 1)
        with refused(says=says):
            prepare(make(split="file", split_file=str(tmp_path / "split.npy"), **usual))


def test_domains_of_graphs(make: Make, tmp_path: Path) -> None:
    """One dataset has one client, the other two of three chunks; graphs that nobody holds are split all the same."""
    paths = [write(tmp_path, "north", 1), write(tmp_path, "south", 2)]
    config = make({"method": "index", "clients": [1, 2], "chunks": 3}, dataset=["files", "files"], path=paths)
    store = prepare(config)
    # Pieces of 14, 13 and 13 graphs.
    for client, (first, end) in enumerate([(0, 14), (40, 54), (54, 67)]):
        assert_holds_graphs(store, client, range(first, end), config)
    domains = store.domain_graphs()
    name = config.data.split_name
    for number in range(2):
        assert_holds_graphs(domains, number, range(40 * number, 40 * number + 40), config)
        code = to_codes(domains.split(name, number), GRAPHS)
        assert ((code > 0) == (domains.shard(number).item_label >= 0)).all()
    assert code[:14].tolist() == to_codes(store.split(name, 1), 14).tolist()
    verify_folder(store.path)


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize(
    ("changed", "places", "says"),
    [
        ({"task": "node"}, ["task"], "dataset 'files' are those of graphs; set graph"),
        ({"partition": {"method": "metis"}}, ["partition.method"], ""),
        ({"hops": {"rows": "labelled"}}, ["propagation.rows"], "with task graph"),
        ({"dataset": "nci1", "path": None, "task": "node"}, ["task"], "'nci1' are those of graphs"),
        ({"dataset": "sbm", "path": None}, ["task"], "'sbm' are those of nodes; set node"),
        ({"partition": {"method": "random", "clients": 41}}, [], "has 40 graphs: choose from 1 to 40"),
        ({"dataset": ["digits", "nci1"], "path": None, "partition": ONE_EACH}, ["task"], ""),
    ],
)
def test_impossible_graphs_are_refused(make: Make, changed: Any, places: list[str], says: str, ready: bool) -> None:
    if ready:
        prepare(make())
    with refused(*places, says=says):
        prepare(make(**changed))


def test_graphs_and_nodes_are_no_federation(make: Make, tmp_path: Path) -> None:
    paths = [write(tmp_path, "north"), user_graph(tmp_path, 3, "one")]
    with refused(says="all of graphs, found north of graphs, one of nodes"):
        prepare(make({"method": "random", "clients": [2, 1]}, dataset=["files", "files"], path=paths))


def test_alpha_tells_stores_of_dirichlet_apart(make: Make) -> None:
    one, other = (prepare(make({"method": "dirichlet", "clients": 4, "alpha": alpha})) for alpha in (0.1, 0.2))
    assert one.path != other.path
    assert "alpha" in one.manifest.identity["partition"]
    assert "alpha" not in prepare(make()).manifest.identity["partition"]


def test_of_graphs_features_edges_and_training_labels_may_be_masked(make: Make) -> None:
    full, masked = make(), make(sparsity={"features": 0.5, "edges": 0.5, "labels": 0.5})
    before, after = prepare(full), prepare(masked)
    assert verify(after) == []
    kept = every = 0
    for client in range(4):
        whole, shard = before.shard(client), after.shard(client)
        assert whole.node.tolist() == shard.node.tolist()
        assert (adjacency(shard) > adjacency(whole)).nnz == 0
        kept, every = kept + shard.entries, every + whole.entries
        assert ((shard.x == whole.x) | (shard.x == 0)).all()
        assert 0 < np.count_nonzero(shard.x) < np.count_nonzero(whole.x)
        parts = before.split(full.data.split_name, client), after.split(masked.data.split_name, client)
        assert set(parts[1].train.tolist()) <= set(parts[0].train.tolist())
        assert len(parts[1].train) == len(parts[0].train) - len(parts[0].train) // 2
        assert parts[0].test.tolist() == parts[1].test.tolist()
    assert 0 < kept < every


def test_prepare_and_inspect_speak_of_graphs(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = read_graph(make()).nodes
    store = prepare(make())
    said = " ".join(capsys.readouterr().err.split())
    assert f"files: 40 graphs, {nodes} nodes," in said
    assert "test graphs" in said
    show_store(store.path, store.manifest)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in (f"40 graphs, {nodes} nodes", "4, of 10 to 10 graphs and", "36 labelled graphs"):
        assert part in shown
