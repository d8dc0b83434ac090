"""Graphs with kinds of nodes and edges: one graph with a block of features a kind and a column a relation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.errors import refused
from torch_geometric.data import HeteroData

from shoal.storage.adapters import from_pyg
from shoal.storage.datasets.registry import fingerprint, load, published_contents
from shoal.storage.datasets.sources import kinds
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.user.files import save_graph
from shoal.storage.errors import Unread

PAPERS, AUTHORS, VENUES = torch.tensor([[1.0, 2], [3, 4], [5, 6]]), torch.tensor([[7.0], [8]]), 1


def papers() -> HeteroData:
    """Papers with classes and two features, authors with one, a venue with none; an author also reviews a paper."""
    data = HeteroData()
    data["paper"].x, data["paper"].y = PAPERS, torch.tensor([0, 1, -1])
    data["author"].x = AUTHORS
    data["venue"].num_nodes = VENUES
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 0, 1], [0, 1, 2]])
    data["author", "reviews", "paper"].edge_index = torch.tensor([[0], [1]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 2], [1, 1]])
    data["paper", "at", "venue"].edge_index = torch.tensor([[0, 1], [0, 0]])
    data["venue", "has", "paper"].edge_index = torch.tensor([[0, 0], [0, 1]])
    return data


def test_kinds_are_one_graph() -> None:
    graph = from_pyg(papers())
    # Papers 0 to 2, authors 3 and 4, the venue 5.
    assert graph.x.toarray().tolist() == [
        [1, 2, 0, 0, 1, 0, 0],
        [3, 4, 0, 0, 1, 0, 0],
        [5, 6, 0, 0, 1, 0, 0],
        [0, 0, 7, 0, 0, 1, 0],
        [0, 0, 8, 0, 0, 1, 0],
        # The venue has no features, and a column of its own.
        [0, 0, 0, 1, 0, 0, 1],
    ]
    names = ["paper[0]", "paper[1]", "author[0]", "venue[0]", "kind paper", "kind author", "kind venue"]
    assert graph.vocabulary.tolist() == names  # type: ignore[union-attr]
    assert (graph.y.tolist(), graph.classes) == ([0, 1, -1, -1, -1, -1], 2)
    assert graph.edge_names == (
        "author writes paper",
        "paper writes author, the other way",
        "author reviews paper",
        "paper reviews author, the other way",
        "paper cites paper",
        "paper at venue",
        "venue has paper",
    )
    rows = np.repeat(np.arange(6), np.diff(graph.indptr))
    found = {(int(i), int(j)): np.flatnonzero(row).tolist() for i, j, row in zip(rows, graph.indices, graph.edge_attr)}  # type: ignore[arg-type]
    # By receiver and sender; what is cited hears by the same relation as what cites.
    assert found == {
        (0, 1): [4], (1, 0): [4], (1, 2): [4], (2, 1): [4],
        (0, 3): [0], (3, 0): [1], (1, 3): [0, 2], (3, 1): [1, 3], (2, 4): [0], (4, 2): [1],
        (5, 0): [5], (0, 5): [6], (5, 1): [5], (1, 5): [6],
    }  # fmt: skip


def test_edges_that_are_given_back_in_part_have_both_columns() -> None:
    data = papers()
    data["venue", "has", "paper"].edge_index = torch.tensor([[0], [0]])
    graph = from_pyg(data)
    assert graph.edge_names is not None
    back = graph.edge_names.index("venue at paper, the other way")
    rows = np.repeat(np.arange(6), np.diff(graph.indptr))
    heard = {(int(i), int(j)) for i, j, row in zip(rows, graph.indices, graph.edge_attr) if row[back]}  # type: ignore[arg-type]
    # Of papers 0 and 1 at the venue, which is node 5, it says it of paper 0 alone.
    assert heard == {(1, 5)}


def test_weights_of_kinds_are_named() -> None:
    data = papers()
    del data["paper", "at", "venue"].edge_index
    adjacency = torch.sparse_coo_tensor(torch.tensor([[0, 0], [0, 1]]), torch.tensor([1.0, 2.0]), (1, 3)).coalesce()
    data["paper", "at", "venue"].adj_t = adjacency
    with pytest.warns(Unread, match="its values are weights"):
        graph = from_pyg(data)
    assert graph.entries == from_pyg(papers()).entries


def test_features_of_a_relation_are_columns_of_its_edges() -> None:
    data = papers()
    data["author", "writes", "paper"].edge_attr = torch.tensor([0.5, 0.25, -1.0])
    data["paper", "cites", "paper"].edge_attr = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    graph, bare = from_pyg(data), from_pyg(papers())
    kinds_alone = bare.edge_features
    np.testing.assert_array_equal(graph.edge_attr[:, :kinds_alone], bare.edge_attr)  # type: ignore[index]
    np.testing.assert_array_equal(graph.indices, bare.indices)
    assert graph.edge_names == (
        *(bare.edge_names or ()), "author writes paper[0]", "paper cites paper[0]", "paper cites paper[1]"
    )  # fmt: skip
    assert (bare.edge_kinds, graph.edge_kinds) == (0, kinds_alone)
    writes, cites = data["author", "writes", "paper"].edge_index, data["paper", "cites", "paper"].edge_index
    expected = {}
    for (author, paper), value in zip(writes.t().tolist(), [0.5, 0.25, -1.0]):
        expected[paper, 3 + author] = expected[3 + author, paper] = [value, 0, 0]
    for (paper, other), values in zip(cites.t().tolist(), [[1, 2], [3, 4]]):
        expected[paper, other] = expected[other, paper] = [0, *values]
    rows = np.repeat(np.arange(6), np.diff(graph.indptr))
    for row, column, values in zip(rows, graph.indices, graph.edge_attr[:, kinds_alone:]):  # type: ignore[index]
        assert values.tolist() == expected.get((int(row), int(column)), [0, 0, 0])


def test_features_of_relations_survive_files_and_fit_each_other(tmp_path: Path) -> None:
    data = papers()
    # Author 0 and paper 1 are joined by two relations: each has its own columns.
    data["author", "writes", "paper"].edge_attr = torch.tensor([1.0, 2.0, 3.0])
    data["author", "reviews", "paper"].edge_attr = torch.tensor([-4.0])
    graph = from_pyg(data)
    entry = graph.indptr[1] + graph.indices[graph.indptr[1] : graph.indptr[2]].tolist().index(3)
    assert graph.edge_attr[entry].tolist() == [1, 0, 1, 0, 0, 0, 0, 2, -4]  # type: ignore[index]
    read = load(DataSource("files", path=str(save_graph(graph, tmp_path / "graph"))))
    assert (read.edge_kinds, read.edge_names) == (graph.edge_kinds, graph.edge_names)
    np.testing.assert_array_equal(read.edge_attr, graph.edge_attr)  # type: ignore[arg-type]
    np.save(tmp_path / "graph" / "edge_kinds.npy", 99)
    with refused(str(tmp_path / "graph" / "edge_kinds.npy"), says="must be a number from 0 to"):
        load(DataSource("files", path=str(tmp_path / "graph")))
    np.save(tmp_path / "graph" / "edge_kinds.npy", graph.edge_features)
    with refused(str(tmp_path / "graph" / "edge_kinds.npy"), says="must be kinds, zeros and ones"):
        load(DataSource("files", path=str(tmp_path / "graph")))
    dropped = load(DataSource("files", path=str(tmp_path / "graph"), edge_features="drop"))
    assert (dropped.edge_attr, dropped.edge_kinds) == (None, 0)


def test_features_of_relations_that_cannot_be(tmp_path: Path) -> None:
    place = "data['paper', 'cites', 'paper'].edge_attr"
    for values, says in (
        (torch.ones(5, 3), "must be numbers [2, D]"),
        (torch.tensor([[1.0], [float("nan")]]), "row 1, column 0 is nan"),
        (torch.ones(2, 0), "must be numbers [2, D]"),
    ):
        wrong = papers()
        wrong["paper", "cites", "paper"].edge_attr = values
        with refused(place, says=says):
            from_pyg(wrong)
    twice = papers()
    twice["paper", "cites", "paper"].edge_index = torch.tensor([[0, 0], [1, 1]])
    twice["paper", "cites", "paper"].edge_attr = torch.tensor([1.0, 2.0])
    with refused("data['paper', 'cites', 'paper'].edge_index", says="is given again with other numbers"):
        from_pyg(twice)
    empty = papers()
    empty["paper", "cites", "paper"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    empty["paper", "cites", "paper"].edge_attr = torch.zeros(0, 2)
    graph = from_pyg(empty)
    assert graph.edge_attr is not None
    assert graph.edge_attr[:, graph.edge_kinds :].shape[1] == 2
    assert not graph.edge_attr[:, graph.edge_kinds :].any()
    turned = papers()
    edges = turned["paper", "cites", "paper"].pop("edge_index")
    turned["paper", "cites", "paper"].adj_t = torch.sparse_coo_tensor(edges, torch.ones(2), (3, 3)).coalesce()
    turned["paper", "cites", "paper"].edge_attr = torch.ones(2)
    with refused(place, says="are features of edges in another order than adj_t"):
        from_pyg(turned)


def test_very_many_nodes_without_features_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "MOST_COLUMNS", 1)
    data = papers()
    del data["author"].x
    data["author"].num_nodes = 2
    assert from_pyg(data).vocabulary.tolist()[2:] == ["venue[0]", "kind paper", "kind author", "kind venue"]  # type: ignore[union-attr]


def test_masks_and_targets_are_those_of_the_labelled_kind() -> None:
    masks = {"train_mask": [True, False, False], "test_mask": [False, True, False]}
    data = papers()
    for name, mask in masks.items():
        data["paper"][name] = torch.tensor(mask)
    graph = from_pyg(data)
    assert graph.split.tolist() == [1, 3, 0, 0, 0, 0]  # type: ignore[union-attr]
    data["paper"].y = torch.tensor([[0.5], [2.0], [float("nan")]])
    graph = from_pyg(data, target="regression")
    assert np.isnan(graph.target[2:]).all()  # type: ignore[index]
    assert graph.target[:2, 0].tolist() == [0.5, 2]  # type: ignore[index]


def test_every_kind_says_whose_its_nodes_are() -> None:
    data = papers()
    for kind, clients in (("paper", [0, 0, 1]), ("author", [1, 0])):
        data[kind].assignment = torch.tensor(clients)
    with refused("data['venue']", says="has no assignment, and other kinds have"):
        from_pyg(data)
    data["venue"].assignment = torch.tensor([1])
    assert from_pyg(data).assignment.tolist() == [0, 0, 1, 1, 0, 1]  # type: ignore[union-attr]


def test_what_kinds_cannot_be() -> None:
    wrong = papers()
    wrong["author"].y = torch.zeros(2)
    with refused("data.y", says="one kind of nodes has labels, found paper and author"):
        from_pyg(wrong)
    wrong = papers()
    wrong["paper", "cites", "paper"].edge_index = torch.tensor([[0, 3], [1, 1]])
    with refused("data['paper', 'cites', 'paper'].edge_index", says="names node 3, but the 3 nodes of its kind"):
        from_pyg(wrong)
    wrong["paper", "cites", "paper"].edge_index = torch.tensor([[0.0], [1.0]])
    with refused("data['paper', 'cites', 'paper'].edge_index", says="must be integers of shape [2, E]"):
        from_pyg(wrong)
    wrong = papers()
    del wrong["paper", "at", "venue"].edge_index
    wrong["paper", "at", "venue"].edge_weight = torch.ones(2)
    with refused("data['paper', 'at', 'venue'].edge_weight", says="would be lost"):
        from_pyg(wrong)
    lengths = (("y", "paper", 4), ("y", "paper", 2), ("train_mask", "paper", 5), ("assignment", "venue", 2))
    for key, kind, length in lengths:
        wrong = papers()
        for each in wrong.node_types:
            wrong[each].assignment = torch.zeros(int(wrong[each].num_nodes), dtype=torch.int64)
        wrong[kind][key] = torch.zeros(length, dtype=torch.bool if key == "train_mask" else torch.int64)
        with refused(f"data[{kind!r}].{key}", says=f"shape [{length}], but there are "):
            from_pyg(wrong)
    wrong = papers()
    wrong["venue"].client = torch.zeros(1)
    with refused("data['venue'].client", says="would be lost"):
        from_pyg(wrong)
    none = HeteroData()
    none["paper"].x, none["paper"].y = PAPERS, torch.tensor([0, 1, 0])
    assert (from_pyg(none).edge_features, from_pyg(none).entries) == (0, 0)


def write_acm(root: Path, **more: np.ndarray) -> DataSource:
    """Files of ACM in their layout and sizes: few edges, features of one column."""
    folder = root / "heco/acm"
    folder.mkdir(parents=True)
    arrays = {
        "labels": np.arange(4019) % 3 * 1.0, "train_60": np.arange(180), "val_60": np.arange(200, 1200),
        "test_60": np.arange(2000, 3000), **more,
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    for letter, nodes in (("p", 4019), ("a", 7167)):
        sp.save_npz(folder / f"{letter}_feat.npz", sp.csr_matrix(np.ones((nodes, 1))))
    np.savetxt(folder / "pa.txt", [[0, 1], [4018, 7166]], fmt="%d")
    np.savetxt(folder / "ps.txt", [[0, 59]], fmt="%d")
    return DataSource("heco-acm", root=str(root))


def test_acm_in_the_files_of_heco(tmp_path: Path, offline: None) -> None:
    source = write_acm(tmp_path)
    graph = load(source)
    assert (graph.nodes, graph.entries, graph.classes, graph.features) == (11246, 6, 3, 1 + 1 + 60 + 3)
    by, about = ("paper by author", "author by paper"), ("paper about subject", "subject about paper")
    names = [name for one, other in (by, about) for name in (one, f"{other}, the other way")]
    assert list(graph.edge_names or ()) == names
    assert np.bincount(graph.split).tolist() == [11246 - 2180, 180, 1000, 1000]  # type: ignore[arg-type]
    assert (graph.y[:4019] >= 0).all()
    assert (graph.y[4019:] == -1).all()
    assert len(published_contents(source)) == 8
    dropped = DataSource("heco-acm", root=str(tmp_path), edge_features="drop")
    assert load(dropped).edge_attr is None
    assert fingerprint(source) != fingerprint(dropped)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("labels.npy", np.zeros(5), "expected 4019 labels, got [5]"),
        ("pa.txt", None, "names node 4019, but the 4019 nodes of its kind count from 0"),
        ("ps.txt", None, "cannot be read"),
    ],
)
def test_damaged_files_of_heco(file: str, content: np.ndarray | None, says: str, tmp_path: Path, offline: None) -> None:
    source = write_acm(tmp_path)
    path = tmp_path / "heco/acm" / file
    if content is not None:
        np.save(path, content)
    else:
        path.write_text("4019 0\n" if file == "pa.txt" else "0 far\n")
    with refused(path, says=says):
        load(source)


def test_published_kinds(published_root: Any) -> None:
    graph = load(DataSource("heco-dblp", root=published_root("heco/dblp/labels.npy")))
    assert (graph.nodes, graph.entries, graph.classes, graph.features) == (26128, 239566, 4, 4231 + 334 + 20 + 7723 + 4)
    assert graph.edge_attr.sum() == 2 * (19645 + 14328 + 85810)  # type: ignore[union-attr]
