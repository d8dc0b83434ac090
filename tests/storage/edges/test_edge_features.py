"""Features of edges: each way its own, by the entries of a client, in a file and out of it, refused where wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from support.errors import refused
from support.induced_parts import part_of
from torch_geometric.data import Data, HeteroData

from shoal.storage.adapters import from_pyg, to_pyg
from shoal.storage.adapters.clients import from_clients
from shoal.storage.datasets.domains import join_domains
from shoal.storage.datasets.registry import fingerprint, load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.user.files import save_graph
from shoal.storage.graph.edge_features import clean_edge_attr, merge_relations
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import Induced, entries_among
from shoal.storage.shards import arrow_file
from shoal.storage.shards.bounds import Limits
from shoal.storage.shards.shard import open_shard, write_shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.trigger import Trigger

# The edge from 0 to 1 is given alone, that of 1 and 2 both ways, 3 to itself; 4 has none.
EDGES = np.array([[0, 1, 2, 3, 0], [1, 2, 1, 3, 3]])
ATTR = np.array([[1.0, 10], [2, 20], [3, 30], [4, 40], [5, 50]], dtype=np.float32)
# By row, which receives, and column, which sends.
ENTRIES = {(0, 1): [1, 10], (0, 3): [5, 50], (1, 0): [1, 10], (1, 2): [3, 30], (2, 1): [2, 20], (3, 0): [5, 50]}


def graph_of(**more: object) -> Graph:
    arrays = {"edge_index": EDGES, "x": np.ones((5, 2), np.float32), "y": np.arange(5) % 2, "edge_attr": ATTR, **more}
    return graph_from_arrays("mine", arrays, {key: key for key in arrays}, own=True)


def entries_of(graph: object) -> dict[tuple[int, int], list[float]]:
    """Features by row and column of the whole graph."""
    node = getattr(graph, "node", np.arange(len(graph.indptr) - 1))  # type: ignore[attr-defined]
    row = node[np.repeat(np.arange(len(graph.indptr) - 1), np.diff(graph.indptr))]  # type: ignore[attr-defined]
    column = node[graph.indices]  # type: ignore[attr-defined]
    return {(int(i), int(j)): values.tolist() for i, j, values in zip(row, column, graph.edge_attr)}  # type: ignore[attr-defined]


def test_an_entry_has_the_features_of_the_edge_that_it_hears() -> None:
    graph = graph_of(edge_names=np.array(["near", "far"]))
    assert entries_of(graph) == ENTRIES
    assert (graph.edge_features, graph.edge_names) == (2, ("near", "far"))
    assert graph_of(edge_attr=np.array([1, 2, 3, 4, 5])).edge_features == 1
    # In any order of edges.
    order = np.random.default_rng(0).permutation(5)
    assert entries_of(graph_of(edge_index=EDGES[:, order], edge_attr=ATTR[order])) == ENTRIES


@pytest.mark.parametrize(
    ("attr", "says"),
    [
        (ATTR[:4], "must be numbers [5, D], D features of every edge, at most 4096, found float32 [4, 2]"),
        (ATTR.astype(str), "found <U32 [5, 2]"),
        (ATTR[:, :0], "found float32 [5, 0]"),
        (ATTR[..., None], "found float32 [5, 2, 1]"),
        (np.where(ATTR == 30, np.nan, ATTR), "row 2, column 1 is nan; features are finite"),
        (np.where(ATTR == 4, 1e300, ATTR.astype(float)), "row 3, column 0 is 1e+300"),
    ],
)
def test_what_are_no_features_of_edges_is_refused(attr: np.ndarray, says: str) -> None:
    with refused("edge_attr", says=says):
        graph_of(edge_attr=attr)


def test_an_edge_that_is_given_twice_has_the_same_features_twice() -> None:
    twice = np.concatenate([EDGES, EDGES[:, 1:2]], axis=1)
    nearly = np.concatenate([ATTR, ATTR[1:2] * (1 + 1e-6)])
    assert entries_of(graph_of(edge_index=twice, edge_attr=nearly)) == ENTRIES
    with refused("edge_attr", says="the edge from node 1 to node 2 is given twice, and differs in column 1"):
        graph_of(edge_index=twice, edge_attr=np.concatenate([ATTR, [[2, 21]]]))
    # Of one that is given one way alone, twice, too.
    twice = np.concatenate([EDGES, EDGES[:, :1]], axis=1)
    with refused("edge_attr", says="the edge from node 0 to node 1 is given twice"):
        graph_of(edge_index=twice, edge_attr=np.concatenate([ATTR, [[9, 10]]]))
    assert clean_edge_attr(np.zeros((2, 0), np.int64), ATTR[:0], 5, "none").shape == (0, 2)


def test_several_relations_of_two_nodes_are_one_edge() -> None:
    edges, attr = merge_relations(np.array([[4, 0, 4, 1], [2, 1, 2, 0]]), np.eye(4, dtype=np.float32), 4, "edges")
    assert (edges.tolist(), attr.tolist()) == ([[4, 0, 1], [2, 1, 0]], [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    none = np.zeros((2, 0), np.int64)
    assert merge_relations(none, attr[:0], 4, "edges")[0] is none


def test_a_part_has_the_features_of_its_edges(tmp_path: Path) -> None:
    graph = graph_of()
    part = part_of(graph, np.array([0, 1, 3]))
    attr = graph.edge_attr[entries_among(part, graph.indptr, graph.indices)]  # type: ignore[index]
    record = write_shard(tmp_path / "a", 0, part, graph.y, graph.x[part.node], edge_attr=attr)
    limits = Limits(nodes=5, features=2, classes=2, edge_features=2)
    shard = open_shard(tmp_path / "a", 0, record, limits)
    assert entries_of(shard) == {key: values for key, values in ENTRIES.items() if 2 not in key}
    assert shard.edge_attr.dtype == np.float32  # type: ignore[union-attr]
    for width, says in ((0, "its edges have features"), (3, "edges have 2 features and not 3")):
        with refused(tmp_path / "a", says=says):
            open_shard(tmp_path / "a", 0, record, replace(limits, edge_features=width))
    wrong = np.where(attr == 1, np.inf, attr)
    record = write_shard(tmp_path / "a", 0, part, graph.y, graph.x[part.node], edge_attr=wrong)
    with refused(tmp_path / "a", says="a feature of an edge is not finite"):
        open_shard(tmp_path / "a", 0, record, limits)
    record = write_shard(tmp_path / "a", 0, part, graph.y, graph.x[part.node])
    with refused(tmp_path / "a", says="its edges have no features"):
        open_shard(tmp_path / "a", 0, record, limits)


def test_features_of_other_edges_are_a_damaged_file(tmp_path: Path) -> None:
    part = Induced(np.arange(2), np.array([0, 1, 2]), np.array([1, 0], dtype=np.int32))
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(2, np.float32)), 1)
    columns = {
        "node": pa.array(part.node),
        "label": pa.array(np.zeros(2, np.int32)),
        "neighbors": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(part.indices)),
        "x": arrow_file.rows_column(np.ones((2, 1), np.float32)),
        "edge_attr": pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), rows),
    }
    arrow_file.write(tmp_path / "a", "shard", columns)
    with refused(tmp_path / "a", says="the features of edges do not fit the neighbours"):
        open_shard(tmp_path / "a", 0)


def test_a_trigger_has_edges_of_zero_features(tmp_path: Path) -> None:
    graph = graph_of()
    part = part_of(graph, np.arange(5))
    attr = graph.edge_attr[entries_among(part, graph.indptr, graph.indices)]  # type: ignore[index]
    write_shard(tmp_path / "a", 0, part, graph.y, graph.x[part.node], edge_attr=attr)
    rows = np.arange(5, dtype=np.int32)
    planted, _ = Trigger(nodes=1, target=0, seed=0).apply(
        open_shard(tmp_path / "a", 0), Split(rows[:1], rows[:0], rows[1:2]), None
    )
    found = entries_of(planted)
    assert {key: values for key, values in found.items() if min(key) >= 0} == ENTRIES
    assert [values for key, values in found.items() if min(key) < 0] == [[0, 0], [0, 0]]


def test_graphs_go_out_and_come_back(tmp_path: Path) -> None:
    graph = graph_of(edge_names=np.array(["near", "far"]))
    again = load(DataSource("files", path=str(save_graph(graph, tmp_path / "mine"))))
    assert (entries_of(again), again.edge_names) == (ENTRIES, ("near", "far"))
    data = to_pyg(graph)
    of_edges = {(int(t), int(s)): row for (s, t), row in zip(data.edge_index.t(), data.edge_attr.tolist())}
    assert of_edges == ENTRIES
    assert entries_of(from_pyg(data)) == ENTRIES
    assert load(DataSource("files", path=str(tmp_path / "mine"), edge_features="drop")).edge_attr is None
    np.savez(tmp_path / "one.npz", edge_index=EDGES, x=graph.x, y=graph.y, edge_attr=ATTR)
    assert entries_of(load(DataSource("files", path=str(tmp_path / "one.npz")))) == ENTRIES


def test_graphs_of_a_list_have_features_of_one_width() -> None:
    def data(edges: int, width: int | None) -> Data:
        ends = torch.stack([torch.arange(edges), torch.arange(edges) + 1])
        attr = {} if width is None else {"edge_attr": torch.full((edges, width), float(edges))}
        return Data(x=torch.ones(4, 1), edge_index=ends, y=torch.tensor([edges % 2]), **attr)

    graph = from_pyg([data(2, 3), data(3, 3), data(1, 3)])
    assert graph.edge_features == 3
    assert [values[0] for values in entries_of(graph).values()] == [2.0] * 4 + [3.0] * 6 + [1.0] * 2
    with refused("data[1].edge_attr", says="must be [3, 3], features of its edges, found [3, 2]"):
        from_pyg([data(2, 3), data(3, 2)])
    with refused("data[...].edge_attr", says="1 of 2 graphs have it"):
        from_pyg([data(2, 3), data(3, None)])
    adjacency = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (4, 4)).coalesce()
    of_rows = {"x": torch.ones(4, 1), "y": torch.tensor([0, 1, 0, 1])}
    with refused("data.edge_attr", says="in another order than adj_t"):
        from_pyg(Data(**of_rows, adj_t=adjacency, edge_attr=torch.ones(2, 1)))


def test_graphs_of_clients_have_the_same_features_of_edges() -> None:
    def data(width: int, edges: int = 1) -> Data:
        ends = torch.tensor([[0], [1]])[:, :edges]
        return Data(
            x=torch.ones(2, 1), edge_index=ends, y=torch.tensor([0, 1]), edge_attr=torch.full((edges, width), 3.0)
        )

    assert entries_of(from_clients([data(1), data(1, 0), data(1)])) == {
        (a + first, b + first): [3.0] for first in (0, 4) for a, b in ((0, 1), (1, 0))
    }
    with refused("client 1.edge_attr", says="expected 1 features an edge, as client 0 has, got 2"):
        from_clients([data(1), data(2)])
    with refused("client 0", says="is a HeteroData"):
        from_clients([HeteroData()])


def test_graphs_of_one_federation_have_the_same_features_of_edges() -> None:
    one = replace(graph_of(), name="one")
    both = join_domains([one, replace(one, name="two")])
    moved = {(i + 5, j + 5): values for (i, j), values in ENTRIES.items()}
    assert entries_of(both) == ENTRIES | moved
    for other in (replace(one, edge_attr=None), replace(one, edge_attr=one.edge_attr[:, :1])):  # type: ignore[index]
        with refused("data.dataset", says="found widths one 2, two"):
            join_domains([one, replace(other, name="two")])


TABLE = "source,target,Relation,hours\n1,2,reads,1.5\n2,1,writes,0\n1,2,cites,1.5\n3,1,reads,2\n"
NODES = "id,label,Kind,pages\n1,a,book,10\n2,b,author,\n3,a,book,30\n"


def write(folder: Path, edges: str = TABLE, nodes: str = NODES) -> DataSource:
    (folder / "edges.csv").write_text(edges)
    (folder / "nodes.csv").write_text(nodes)
    return DataSource("files", path=str(folder))


def test_tables_have_kinds_of_nodes_and_of_edges(tmp_path: Path) -> None:
    graph = load(write(tmp_path))
    assert graph.edge_names == ("relation cites", "relation reads", "relation writes", "hours")
    assert entries_of(graph) == {
        (0, 1): [0, 0, 1, 0],
        (1, 0): [1, 1, 0, 1.5],
        (0, 2): [0, 1, 0, 2],
        (2, 0): [0, 1, 0, 2],
    }
    assert graph.vocabulary.tolist() == ["pages", "kind author", "kind book"]  # type: ignore[union-attr]
    assert graph.x.toarray().tolist() == [[10, 0, 1], [0, 1, 0], [30, 0, 1]]
    assert fingerprint(write(tmp_path))["kinds"] == "read"
    assert "kinds" not in fingerprint(write(tmp_path, nodes=NODES.replace("Kind", "sort")))
    dropped = load(replace(write(tmp_path), edge_features="drop"))
    assert (dropped.edge_attr, dropped.entries) == (None, 4)
    assert sum("is left out, as data.edge_features has it" in note for note in dropped.notes) == 2


@pytest.mark.parametrize(
    ("edges", "nodes", "says"),
    [
        (
            TABLE.replace("1.5", "long"),
            NODES,
            "column 'hours' is a feature of edges and must be numbers; row 0 is 'long'",
        ),
        (TABLE.replace("writes", ""), NODES, "column 'relation': row 1 has no value; name its kind"),
        (TABLE.replace("Relation", "rel"), NODES, "did you mean 'relation' by 'rel'? rename it"),
        (TABLE.replace("hours", "weight").replace(",0\n", ",1\n"), NODES, "there are both 'weight' and 'relation'"),
        (TABLE.replace("cites,1.5", "cites,9"), NODES, "the edge of row 0 is given again with other numbers"),
        (TABLE, NODES.replace("author", ""), "column 'kind': row 1 has no value"),
        (TABLE, NODES.replace("10", "ten"), "column 'pages' is a feature and must be numbers; row 0 is 'ten'"),
    ],
)
def test_wrong_kinds_in_tables(edges: str, nodes: str, says: str, tmp_path: Path) -> None:
    with refused(says=says):
        load(write(tmp_path, edges, nodes))
