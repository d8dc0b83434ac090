"""load and fingerprint of every dataset, and several graphs joined to one."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused

from shoal.storage.datasets.domains import domain_of_nodes, joined
from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.registry import fingerprint, load, record
from shoal.storage.datasets.sources.source import DataSource, data_root
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Domain, Graph
from shoal.storage.options.dataset_names import DATASETS


def write_graph(folder: Path, x: np.ndarray) -> DataSource:
    edge_index = [[0, 1, 2], [1, 2, 3]]
    np.savez(folder / "g.npz", edge_index=edge_index, x=x, y=[0, 1, 0, 1])
    return DataSource("files", path=str(folder / "g.npz"))


def test_unknown_name_lists_the_known() -> None:
    with refused("data.dataset", says="pyg:CLASS/NAME, or my_file.py:MyDataset; did you mean 'cora'?"):
        load(DataSource("coraa"))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", [name for name in DATASETS if record(name).files and not callable(record(name).files)])
def test_missing_file_offline_is_one_line(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (first, *_) = record(name).files  # type: ignore[misc]
    with refused(tmp_path / first, says="data.root or SHOAL_DATA to a folder that has"):
        load(DataSource(name.upper(), root=str(tmp_path)))
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_addresses_are_those_of_pyg() -> None:
    from torch_geometric.datasets import Amazon, Coauthor, Planetoid, Reddit

    from shoal.storage.datasets.readers import npz_graphs, planetoid

    assert Planetoid.url == planetoid.URL
    assert {Amazon.url, Coauthor.url} == {npz_graphs.URL + "/"}
    assert Reddit.url == npz_graphs.REDDIT_URL


def test_data_root_prefers_the_key_then_the_variable_then_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "variable"))
    assert data_root("~/key") == tmp_path / "key"
    assert data_root(None) == tmp_path / "variable"
    monkeypatch.delenv("SHOAL_DATA")
    assert data_root(None) == tmp_path / ".cache/shoal"


@pytest.mark.parametrize("row_normalize", [False, True])
def test_features_that_are_not_finite_are_refused(row_normalize: bool, tmp_path: Path) -> None:
    x = np.ones((4, 3), dtype=np.float32)
    x[2, 1] = np.nan
    options = dataclasses.replace(write_graph(tmp_path, x), row_normalize=row_normalize)
    with refused(str(tmp_path / "g.npz"), says="row 2 "):
        load(options)


def changed(options: DataSource) -> set[str]:
    """The fields whose change changes the fingerprint."""
    other = {
        "dataset": "cora", "root": "/r", "path": "/p", "scratch": "/s", "row_normalize": True, "blocks": 20,
        "homophily": 0.3, "signal": 0.3, "feature_dtype": "float16", "node_attributes": True, "degree_cap": 7,
        "base": "cora", "padding": "random", "shots": 9, "user_options": {"nodes": 9}, "title": "mine",
        "made": MadeFeatures("random"), "edge_weights": "drop",
    }  # fmt: skip
    found = set()
    for field in dataclasses.fields(options):
        value = other[field.name] if field.name in other else getattr(options, field.name) + 1
        if fingerprint(dataclasses.replace(options, **{field.name: value})) != fingerprint(options):
            found.add(field.name)
    return found


def test_fingerprint_holds_what_defines_the_content_and_nothing_else() -> None:
    assert changed(DataSource("digits")) == {"dataset", "row_normalize", "made", "neighbors"}
    assert changed(DataSource("proteins")) == {"dataset", "row_normalize", "made", "node_attributes"}
    assert changed(DataSource("collab")) == {"dataset", "row_normalize", "made", "degree_cap"}
    assert changed(DataSource("sbm-graphs")) == {
        "dataset", "row_normalize", "made", "graphs", "nodes", "classes", "features", "degree", "homophily", "signal",
        "seed",
    }  # fmt: skip
    assert changed(DataSource("induced-edge", base="digits")) == {
        "dataset", "row_normalize", "made", "neighbors", "base", "samples", "shots", "width", "smallest", "largest",
        "padding", "seed",
    }  # fmt: skip
    assert changed(DataSource("nci1")) == {"dataset", "row_normalize", "made"}
    assert changed(DataSource("pubmed")) == {"dataset", "row_normalize", "made"}
    assert changed(DataSource("sbm")) == {
        "dataset", "row_normalize", "made",
        "nodes", "classes", "features", "blocks", "degree", "homophily", "signal", "seed",
    }  # fmt: skip
    assert changed(DataSource("ogbn-arxiv")) == {"dataset", "row_normalize", "made", "feature_dtype"}
    assert changed(DataSource("products-like")) == {
        "dataset", "row_normalize", "made", "scale", "homophily", "signal", "seed"
    }  # fmt: skip


def test_fingerprint_of_files_follows_the_files(tmp_path: Path) -> None:
    options = write_graph(tmp_path, np.ones((4, 3)))
    before = fingerprint(options)
    assert json.loads(json.dumps(before)) == before
    moved = tmp_path / "elsewhere" / "graph.npz"
    moved.parent.mkdir()
    shutil.copy(tmp_path / "g.npz", moved)
    assert fingerprint(dataclasses.replace(options, path=str(moved))) == before
    stat = (tmp_path / "g.npz").stat()
    write_graph(tmp_path, np.full((4, 3), 2.0))
    os.utime(tmp_path / "g.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (tmp_path / "g.npz").stat().st_size == stat.st_size
    assert fingerprint(options) != before
    (tmp_path / "g.npz").unlink()
    with refused(tmp_path / "g.npz", says="not found"):
        fingerprint(options)


def test_import_loads_no_heavy_package() -> None:
    heavy = {"torch", "torch_geometric", "sklearn"}
    code = f"import sys, shoal.storage.datasets.registry; print({heavy} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"


def graph(name: str, edges: list[tuple[int, int]], x: Any, y: list[int], **arrays: Any) -> Graph:
    found = {"edge_index": np.array(edges).reshape(-1, 2).T, "x": x, "y": np.array(y), **arrays}
    return graph_from_arrays(name, found, {key: key for key in found})


FIRST = graph("first", [(0, 1), (1, 2)], np.array([[1.0, 0], [2, 0], [0, 3]]), [0, 1, -1])
SECOND = graph("second", [(0, 1)], np.array([[4.0, 5], [0, 6]]), [2, 0])


def test_nodes_of_the_second_follow_those_of_the_first() -> None:
    both = joined([FIRST, SECOND])
    assert both.domains == (Domain("first", 3), Domain("second", 2))
    assert both.indptr.tolist() == [0, 1, 3, 4, 5, 6]
    assert both.indices.tolist() == [1, 0, 2, 1, 4, 3]
    assert both.indices.dtype == np.int32
    assert (both.y.tolist(), both.classes, both.name) == ([0, 1, -1, 2, 0], 3, "first+second")
    np.testing.assert_array_equal(both.x, [[1, 0], [2, 0], [0, 3], [4, 5], [0, 6]])
    assert joined([FIRST, replace(SECOND, synthetic=True)]).synthetic > both.synthetic
    assert both.cleaning.entries_read == 3
    assert both.cleaning.reversed_added == 3
    assert domain_of_nodes(both).tolist() == [0, 0, 0, 1, 1]


def test_columns_are_the_union_of_the_vocabularies() -> None:
    first = replace(FIRST, vocabulary=np.array(["rain", "mud"]))
    second = replace(SECOND, x=sp.csr_array(SECOND.x), vocabulary=np.array(["sun", "rain"]))
    both = joined([first, second])
    assert both.vocabulary.tolist() == ["mud", "rain", "sun"]
    np.testing.assert_array_equal(both.x.toarray(), [[0, 1, 0], [0, 2, 0], [3, 0, 0], [0, 5, 4], [0, 6, 0]])
    # The order in which graphs are named moves rows, and no column.
    turned = joined([second, first])
    np.testing.assert_array_equal(turned.x.toarray()[[2, 3, 4, 0, 1]], both.x.toarray())


def test_one_sparse_makes_all_sparse_and_drawn_features_are_read() -> None:
    both = joined([FIRST, replace(SECOND, x=sp.csr_array(SECOND.x))])
    assert sp.issparse(both.x)
    np.testing.assert_array_equal(both.x.toarray()[3:], SECOND.x)


def test_other_features_are_refused() -> None:
    wide = graph("wide", [(0, 1)], np.ones((2, 3)), [0, 1])
    with refused("data.dataset", says="found widths first 2, wide 3"):
        joined([FIRST, wide])
    # A vocabulary of one alone joins nothing.
    assert joined([replace(FIRST, vocabulary=np.array(["a", "b"])), SECOND]).vocabulary is None


def test_a_split_is_kept_if_all_have_one() -> None:
    split = [replace(g, split=np.full(g.nodes, k, dtype=np.int8)) for k, g in enumerate((FIRST, SECOND), 1)]
    assert joined(split).split.tolist() == [1, 1, 1, 2, 2]
    assert joined([split[0], SECOND]).split is None


def test_clients_of_the_second_follow_those_of_the_first() -> None:
    own = [replace(g, assignment=np.arange(g.nodes, dtype=np.int32) % 2) for g in (FIRST, SECOND)]
    assert joined(own).assignment.tolist() == [0, 1, 0, 2, 3]
    assert joined([FIRST, own[1]]).assignment is None


def test_a_vocabulary_names_every_column_once() -> None:
    names = {"vocabulary": np.array(["a", "a"])}
    with refused("vocabulary", says="'a' is there twice"):
        graph("twice", [], np.ones((2, 2)), [0, 1], **names)
    with refused("vocabulary", says="must be texts [2]"):
        graph("numbers", [], np.ones((2, 2)), [0, 1], vocabulary=np.arange(2))


def test_a_graph_without_weights_weighs_one_beside_others() -> None:
    weighted = graph("first", [(0, 1), (1, 2)], FIRST.x, [0, 1, -1], edge_weight=np.array([0.5, 3.0]))
    both = joined([weighted, SECOND])
    assert (both.edge_weight.tolist(), both.edge_weight.dtype) == ([0.5, 0.5, 3, 3, 1, 1], np.float32)
    assert joined([FIRST, SECOND]).edge_weight is None
