"""Datasets whose files are missing are downloaded from the published addresses, and equal those of files by hand."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused
from support.publisher import archive_of, publishing
from support.shards import dense

from shoal.storage.datasets.readers.planetoid import PARTS
from shoal.storage.datasets.registry import load, published_contents
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
from shoal.storage.datasets.synthetic.twin import Twin
from shoal.storage.graph.graph import Graph

MUTAG = "https://www.chrsmrrs.com/graphkerneldatasets/MUTAG.zip"
CORA = "https://github.com/kimiyoung/planetoid/raw/master/data/ind.cora."
COMPUTERS = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/amazon_electronics_computers.npz"


def assert_same(graph: Graph, other: Graph) -> None:
    for name in ("indptr", "indices", "y"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(other, name), err_msg=name)
    assert np.array_equal(dense(graph.x), dense(other.x))


def write_mutag(folder: Path) -> None:
    """Writes two small graphs in the files of TU, with what else its archives have."""
    folder.mkdir(parents=True)
    texts = {"A": "1, 2\n2, 1\n3, 4\n4, 3\n", "graph_indicator": "1\n1\n2\n2\n", "graph_labels": "1\n-1\n"}
    for part, text in (texts | {"node_labels": "0\n2\n1\n0\n"}).items():
        (folder / f"MUTAG_{part}.txt").write_text(text)
    (folder / "README.txt").write_text("what the files are")


def test_tus_archive_by_the_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mutag(tmp_path / "hand/tu/MUTAG")
    files = {MUTAG: archive_of(tmp_path / "hand/tu/MUTAG", "MUTAG")}
    source = DataSource("MUTAG", root=str(tmp_path / "root"))
    with publishing(files, tmp_path, monkeypatch) as server:
        graph = load(source)
    assert server.asked == [MUTAG]
    assert_same(graph, load(DataSource("tu:MUTAG", root=str(tmp_path / "hand"))))
    assert set(published_contents(source)) == {
        f"tu/MUTAG/raw/MUTAG_{part}.txt" for part in ("A", "graph_indicator", "graph_labels", "node_labels")
    }
    # Once there, they are read without a network.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert_same(load(source), graph)


def test_a_file_to_which_the_address_redirects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub's raw files are at another host."""
    rng, path = np.random.default_rng(0), tmp_path / "hand/amazon/Computers/raw/amazon_electronics_computers.npz"
    upper = np.triu(rng.random((12, 12)) < 0.4, 1)
    parts = {"adj": sp.csr_array((upper | upper.T).astype(float)), "attr": sp.csr_array(rng.random((12, 5)) < 0.5)}
    arrays = {
        f"{of}_{name}": getattr(part, name) for of, part in parts.items() for name in ("data", "indices", "indptr")
    }
    path.parent.mkdir(parents=True)
    np.savez(path, **arrays, adj_shape=[12, 12], attr_shape=[12, 5], labels=np.arange(12) % 10)
    other = "https://raw.githubusercontent.com/shchur/gnn-benchmark/master/data/npz/amazon_electronics_computers.npz"
    with publishing({COMPUTERS: other, other: path.read_bytes()}, tmp_path, monkeypatch) as server:
        graph = load(DataSource("computers", root=str(tmp_path / "root")))
    assert server.asked == [COMPUTERS, other]
    assert_same(graph, load(DataSource("computers", root=str(tmp_path / "hand"))))


def test_ogbs_archive_is_unpacked_as_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Twin.of("products-like", DataSource("products-like", scale=0.001))
    folder = write_ogb_layout(tmp_path / "hand", made)
    # Without it they are taken for the published ones.
    (folder / "SYNTHETIC.json").unlink()
    address = "https://snap.stanford.edu/ogb/data/nodeproppred/products.zip"
    with publishing({address: archive_of(folder, "products")}, tmp_path, monkeypatch) as server:
        graph = load(DataSource("ogb:products", root=str(tmp_path / "root")))
    assert server.asked == [address]
    by_hand, rows = load(DataSource("ogbn-products", root=str(tmp_path / "hand"))), np.arange(graph.nodes)
    for name in ("indptr", "indices", "y", "split"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(by_hand, name), err_msg=name)
    assert np.array_equal(graph.x[rows], by_hand.x[rows])


def test_the_published_files_of_cora(
    published_root: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(published_root("planetoid/Cora/raw/ind.cora.allx"), "planetoid/Cora/raw")
    files: dict[str, bytes | str] = {f"{CORA}{part}": (folder / f"ind.cora.{part}").read_bytes() for part in PARTS}
    with publishing(files, tmp_path, monkeypatch) as server:
        graph = load(DataSource("cora", root=str(tmp_path / "root")))
    assert sorted(server.asked) == sorted(files)
    shutil.copytree(folder, tmp_path / "hand/planetoid/Cora/raw")
    assert_same(graph, load(DataSource("cora", root=str(tmp_path / "hand"))))


def test_another_file_than_the_published_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        publishing({f"{CORA}{part}": b"changed" for part in PARTS}, tmp_path, monkeypatch),
        refused(tmp_path / "root/planetoid/Cora/raw/ind.cora.x", says="not the published file"),
    ):
        load(DataSource("cora", root=str(tmp_path / "root")))


def test_a_host_that_nobody_vouches_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with publishing({MUTAG: b""}, tmp_path, monkeypatch):
        monkeypatch.delenv("SSL_CERT_FILE")
        with refused(tmp_path / "root/tu/MUTAG/raw/MUTAG_A.txt", says="CERTIFICATE_VERIFY_FAILED"):
            load(DataSource("tu:MUTAG", root=str(tmp_path / "root")))
    assert not list((tmp_path / "root").rglob("*.part"))
