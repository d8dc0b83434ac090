"""OGB's layouts, of a twin and of made-up molecules, read back; OGB's own names; damaged files are named."""

import importlib.util
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.errors import refused
from support.small_molecules import write_molecules
from torch import nn

from shoal.storage.datasets.readers.ogb_molecules import ARCHIVES, LABELS_OF, OF_LABELS, OF_NUMBERS, URL, paths
from shoal.storage.datasets.registry import fingerprint, load, load_all, published_contents
from shoal.storage.datasets.sources.atoms import ATOM_FEATURES
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
from shoal.storage.datasets.synthetic.twin import Twin
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.progress import Advance, watched_by

TWINS = [("products-like", "ogbn-products", 0.002), ("papers100m-like", "ogbn-papers100m", 0.0002)]


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("twin", "original", "scale"), TWINS)
def test_layout_read_back_is_the_twin(tmp_path: Path, twin: str, original: str, scale: float, compress: bool) -> None:
    options = DataSource(twin, root=str(tmp_path / "direct"), scale=scale, seed=3)
    direct = load(options)
    write_ogb_layout(tmp_path, Twin.of(twin, options), compress)
    read = load(DataSource(original, root=str(tmp_path), feature_dtype="float32"))
    for graph in (direct, read):
        assert (graph.synthetic, graph.name) == (True, twin)
    for field in ("indptr", "indices", "y", "split"):
        assert np.array_equal(getattr(read, field), getattr(direct, field))
    rows = np.arange(direct.nodes)
    np.testing.assert_allclose(read.x[rows], direct.x[rows], rtol=1e-6, atol=1e-7)
    assert read.cleaning == direct.cleaning
    again = load(DataSource(original, root=str(tmp_path), feature_dtype="float32"))
    assert np.array_equal(again.indices, read.indices)


def small(seed: int = 0) -> Twin:
    return Twin.of("products-like", DataSource("products-like", scale=0.001, seed=seed))


@pytest.mark.parametrize("file", ["raw/edge.csv.gz", "raw/node-feat.csv.gz", "raw/node-label.csv.gz"])
def test_truncated_file_is_named(tmp_path: Path, file: str) -> None:
    folder = write_ogb_layout(tmp_path, small())
    os.truncate(folder / file, (folder / file).stat().st_size // 2)
    with refused(says=Path(file).name):
        load(DataSource("ogbn-products", root=str(tmp_path)))
    for note in ("{", "[]", "{}", "5"):
        (folder / "SYNTHETIC.json").write_text(note)
        with refused(folder / "SYNTHETIC.json"):
            load(DataSource("ogbn-products", root=str(tmp_path)))


def test_files_without_the_note_are_taken_for_published(tmp_path: Path) -> None:
    """The store of the one is not that of the other, though all files are the same."""
    folder = write_ogb_layout(tmp_path, small())
    options = DataSource("ogbn-products", root=str(tmp_path))
    assert fingerprint(options)["synthetic"] == small().identity
    (folder / "SYNTHETIC.json").unlink()
    assert "synthetic" not in fingerprint(options)
    graph = load(options)
    assert (graph.synthetic, graph.name) == (False, "ogbn-products")


def test_published_files_are_not_written_over(tmp_path: Path) -> None:
    raw = tmp_path / "ogbn_products" / "raw"
    raw.mkdir(parents=True)
    (raw / "node-feat.csv.gz").write_bytes(b"as published")
    with refused(raw / "node-feat.csv.gz", says="not synthetic"):
        write_ogb_layout(tmp_path, small())
    assert [path.name for path in raw.iterdir()] == ["node-feat.csv.gz"]
    assert (raw / "node-feat.csv.gz").read_bytes() == b"as published"


def test_a_twin_takes_the_place_of_another(tmp_path: Path) -> None:
    options = DataSource("ogbn-products", root=str(tmp_path))
    graphs = []
    for seed in (0, 1):
        write_ogb_layout(tmp_path, small(seed))
        assert fingerprint(options)["synthetic"]["seed"] == seed
        graphs.append(np.array(load(options).y))
    assert not np.array_equal(*graphs)


def test_a_half_written_twin_is_not_filled_up_from_the_network(tmp_path: Path, offline: None) -> None:
    @contextmanager
    def stop_at_labels(what: str, total: int, unit: str, done: int) -> Iterator[Advance]:
        if what == "labels":
            raise KeyboardInterrupt
        yield lambda count: None

    write_ogb_layout(tmp_path, small())
    with pytest.raises(KeyboardInterrupt), watched_by(stop_at_labels):
        write_ogb_layout(tmp_path, small(1))
    with refused(says="`shoal synthesize` again"):
        load(DataSource("ogbn-products", root=str(tmp_path)))


def test_a_twin_larger_than_the_disk_is_refused_at_once(tmp_path: Path) -> None:
    twin = Twin.of("papers100m-like", DataSource("papers100m-like", scale=15.0))
    with refused(tmp_path / "ogbn_papers100M", says="the raw files need"):
        write_ogb_layout(tmp_path, twin)


WIDTHS = [119, 5, 12, 12, 10, 6, 6, 2, 2]
# Molecules of three atoms, one, and four in a ring; every bond is there once, some from the higher atom, one twice.
ATOMS = [
    [5, 0, 4, 5, 3, 0, 2, 0, 0],
    [5, 1, 4, 5, 2, 0, 2, 0, 1],
    [118, 4, 11, 11, 9, 5, 5, 1, 1],
    [0, 0, 0, 0, 0, 0, 0, 0, 0],
    [6, 0, 3, 5, 0, 0, 1, 1, 1],
    [7, 2, 2, 6, 1, 1, 1, 0, 1],
    [5, 0, 4, 4, 2, 0, 2, 1, 1],
    [15, 3, 1, 5, 0, 0, 3, 0, 1],
]
RAW = {
    "raw/edge": "0,1\n2,1\n0,1\n1,2\n3,2\n3,0\n0,1\n",
    "raw/node-feat": "".join(",".join(map(str, row)) + "\n" for row in ATOMS),
    "raw/edge-feat": "0,0,1\n" * 7,
    "raw/graph-label": "1\n0\n0\n",
    "raw/num-node-list": "3\n1\n4\n",
    "raw/num-edge-list": "2\n0\n5\n",
    "split/scaffold/train": "2\n",
    "split/scaffold/valid": "1\n",
    "split/scaffold/test": "0\n",
}
PAIRS = {0: [(0, 1), (1, 2)], 1: [], 2: [(0, 1), (1, 2), (2, 3), (0, 3)]}
FIRST = [0, 3, 4, 8]


def write(root: Path, name: str = "ogbg-molhiv", **changed: str) -> DataSource:
    """The files; those that change are named by the last part of their path, `_` for `-`."""
    write_molecules(root, name, {part: changed.get(Path(part).name.replace("-", "_"), RAW[part]) for part in RAW})
    return DataSource(name, root=str(root))


def test_molecules_as_published(tmp_path: Path) -> None:
    graph = load(write(tmp_path))
    assert (graph.name, graph.items, graph.nodes, graph.classes) == ("ogbg-molhiv", 3, 8, 2)
    assert (graph.y.tolist(), graph.split.tolist()) == ([1, 0, 0], [TEST, VAL, TRAIN])
    assert graph.graph_of.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    found = {(v, int(u)) for v in range(8) for u in graph.indices[slice(*graph.indptr[v : v + 2])]}
    expected = {(FIRST[g] + a, FIRST[g] + b) for g, pairs in PAIRS.items() for a, b in pairs}
    assert found == expected | {(b, a) for a, b in expected}
    assert (graph.cleaning.entries_read, graph.cleaning.duplicates, graph.cleaning.reversed_added) == (7, 1, 6)


def test_atoms_are_one_hot_feature_by_feature(tmp_path: Path) -> None:
    """A linear map of x is the sum of one embedding a feature, as OGB's AtomEncoder has it."""
    x = load(write(tmp_path)).x
    assert list(ATOM_FEATURES.values()) == WIDTHS
    assert (x.dtype, x.shape, x.nnz) == (np.float32, (8, sum(WIDTHS)), 8 * 9)
    assert x.has_sorted_indices
    torch.manual_seed(0)
    embeddings = [nn.Embedding(width, 4) for width in WIDTHS]
    atoms = torch.tensor(ATOMS)
    expected = torch.stack([table(atoms[:, k]) for k, table in enumerate(embeddings)]).sum(0)
    weight = torch.cat([table.weight for table in embeddings])
    torch.testing.assert_close(torch.from_numpy(x.toarray()) @ weight, expected)


def test_columns_have_names_by_which_datasets_are_joined(tmp_path: Path) -> None:
    graph = load(write(tmp_path))
    assert len(graph.vocabulary) == sum(WIDTHS)
    named = {0: "atomic number 0", 118: "atomic number 118", 119: "chirality 0", 173: "in a ring 1"}
    assert graph.vocabulary[[*named]].tolist() == [f"atom {name}" for name in named.values()]
    # As pandas writes whole numbers of a column with gaps; there are two classes even where one occurs.
    both = load_all([write(tmp_path), write(tmp_path, "ogbg-molbace", graph_label="0.0\n0\n0\n")])
    assert (both.items, both.nodes, both.features, both.classes) == (6, 16, sum(WIDTHS), 2)
    assert both.x[:8].toarray().tolist() == both.x[8:].toarray().tolist()


def test_what_is_read_is_what_a_run_was_made_from(tmp_path: Path, offline: None) -> None:
    source = write(tmp_path, "ogbg-molbbbp")
    contents = published_contents(source)
    assert list(contents) == [str(path) for path in paths(DataSource("ogbg-molbbbp", root="/nowhere"))]
    made = {"dataset": "ogbg-molbbbp", "row_normalize": False}
    assert fingerprint(source) == {**made, "bonds": "kept"}
    # Stores from before bonds had features are those without.
    assert fingerprint(replace(source, edge_features="drop")) == made
    write(tmp_path, "ogbg-molbbbp", graph_label="1\n1\n0\n")
    changed = [path for path, digest in published_contents(source).items() if digest != contents[path]]
    assert changed == ["ogbg_molbbbp/raw/graph-label.csv.gz"]
    missing = tmp_path / "ogbg_molbbbp/raw/edge.csv.gz"
    missing.unlink()
    assert published_contents(source) == {}
    with refused(missing, says=f"{URL}/bbbp.zip cannot be downloaded"):
        load(source)


def test_files_are_found_in_the_folder_of_the_collection(tmp_path: Path) -> None:
    graph = load(write(tmp_path))
    (tmp_path / "ogb").mkdir()
    (tmp_path / "ogbg_molhiv").rename(tmp_path / "ogb/ogbg_molhiv")
    for name in ("ogb:molhiv", "OGB:ogbg-molhiv"):
        assert np.array_equal(load(DataSource(name, root=str(tmp_path))).indices, graph.indices)
    assert DataSource("ogb:molhiv").key == "ogbg-molhiv"
    for name, says in (("ogbn-mag", "several kinds"), ("molhivv", "did you mean 'molhiv'?")):
        with refused("data.dataset", says=says):
            load(DataSource(f"ogb:{name}", root=str(tmp_path)))


def test_the_archive_is_unpacked_where_files_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its one folder is called otherwise."""
    write(tmp_path / "published")
    with zipfile.ZipFile(tmp_path / "hiv.zip", "w") as archive:
        for path in sorted((tmp_path / "published/ogbg_molhiv").rglob("*.gz")):
            archive.write(path, f"hiv/{path.relative_to(tmp_path / 'published/ogbg_molhiv')}")
    monkeypatch.setattr("shoal.storage.datasets.readers.ogb_molecules.URL", tmp_path.as_uri())
    assert load(DataSource("ogbg-molhiv", root=str(tmp_path / "root"))).items == 3
    assert (tmp_path / "root/ogbg_molhiv/raw/edge-feat.csv.gz").is_file()


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("edge", "0,1\n3,1\n" + "0,1\n" * 5, "row 1 joins 3 and 1, graph 0 has 3 atoms"),
        ("edge", "0,1\n0,2\n" + "0,-1\n" * 5, "row 2 joins 0 and -1, graph 2 has 4 atoms"),
        ("edge", "0,1,0\n" * 7, "a line must have 2 fields, the ends of a bond, found 3"),
        ("edge", "0,1\n" * 6 + "0\n", "cannot be read"),
        ("edge", "0,1\n" * 6 + "0,\n", "a field is empty"),
        ("edge", "", "it is empty"),
        ("node-feat", RAW["raw/node-feat"].replace("118,4", "119,4"), "row 2, column 0 (atomic number) is 119, not in"),
        ("node-feat", RAW["raw/node-feat"].replace("7,2,2", "7,5,2"), "row 5, column 1 (chirality) is 5, not in 0..4;"),
        ("node-feat", RAW["raw/node-feat"].replace("3,0,1\n", "3,0,2\n"), "column 8 (in a ring) is 2, not in 0..1"),
        ("node-feat", RAW["raw/node-feat"].replace("7,2,2", "-1,2,2"), "row 5, column 0 (atomic number) is -1, not in"),
        ("node-feat", "5,0,4\n" * 8, "a line must have 9 fields, the features of an atom, found 3"),
        ("node-feat", RAW["raw/node-feat"].replace("118", "1.5"), "cannot be read"),
        ("graph-label", "1\nnan\n0\n", "graph 1 has no label, every graph has 0 or 1"),
        ("graph-label", "1\n0\n2\n", "graph 2 has label 2, every graph has 0 or 1"),
        ("graph-label", "1\n0.5\n0\n", "graph 1 has label 0.5, every graph has 0 or 1"),
        ("graph-label", "1,0\n0,1\n0,0\n", "a line must have 1 fields, the label of a graph, found 2"),
        ("num-node-list", "3\n1\n", "2 rows, and graph-label.csv.gz has 3"),
        ("num-node-list", "3\n1\n5\n", "counts 9 rows of node-feat.csv.gz, which has 8"),
        ("num-node-list", "4\n0\n4\n", "graph 1 has 0, at least 1 was expected"),
        ("num-edge-list", "3\n-1\n5\n", "graph 1 has -1, at least 0 was expected"),
        ("num-edge-list", "2\n0\n4294967301\n", "graph 2 has 4294967301"),
        ("num-edge-list", "2\n0\n4\n", "counts 6 rows of edge.csv.gz, which has 7"),
        ("train", "3\n", "names graph 3, there are 0 to 2"),
        ("test", "-1\n", "names graph -1, there are 0 to 2"),
        ("test", "0\n2\n", "graph 2 is in another part of the split, too"),
    ],
)
def test_a_file_of_something_else_is_named(tmp_path: Path, file: str, text: str, says: str) -> None:
    source = write(tmp_path, **{file.replace("-", "_"): text})
    folder = "split/scaffold" if file in ("train", "valid", "test") else "raw"
    path = tmp_path / f"ogbg_molhiv/{folder}/{file}.csv.gz"
    with refused(path, says=says):
        load(source)
    path.write_bytes(path.read_bytes()[:-12])
    with refused(path):
        load(source)


def test_molecules_have_numbers_or_several_labels(tmp_path: Path) -> None:
    """Labels that are missing are nothing between commas; another target than the dataset's is refused."""
    solubility = write(tmp_path, "ogbg-molesol", graph_label="-0.77\n-3.3\n1.5\n")
    graph = load(replace(solubility, target="regression"))
    assert graph.target is not None
    assert (graph.target[:, 0].tolist(), graph.classes) == ([np.float32(-0.77), np.float32(-3.3), 1.5], 1)
    assert fingerprint(replace(solubility, target="regression")) != fingerprint(solubility)
    toxic = write(tmp_path, "ogbg-molclintox", graph_label="1,0\n0,nan\n0,1\n")
    graph = load(replace(toxic, target="multilabel"))
    assert graph.target is not None
    np.testing.assert_array_equal(graph.target, [[1, 0], [0, np.nan], [0, 1]])
    with refused("target", says="dataset 'ogbg-molesol' is for regression, found classification"):
        load(solubility)
    with refused("target", says="dataset 'ogbg-molhiv' is for classification, found regression"):
        load(replace(write(tmp_path), target="regression"))


@pytest.mark.skipif(importlib.util.find_spec("ogb") is None, reason="ogb is not installed")
def test_names_and_widths_are_those_of_ogb() -> None:
    import ogb.graphproppred
    import pandas as pd
    from ogb.utils.features import get_atom_feature_dims

    assert get_atom_feature_dims() == WIDTHS
    table = pd.read_csv(Path(ogb.graphproppred.__file__).parent / "master.csv", index_col=0)
    of_molecules = table.loc[:, table.loc["data type"] == "mol"]
    one = of_molecules.loc[:, (of_molecules.loc["num tasks"] == "1") & (of_molecules.loc["num classes"] == "2")]
    assert {name: Path(one[name]["url"]).stem for name in one} == ARCHIVES
    assert set(one.loc["split"]) == {"scaffold"}
    assert {one[name]["url"].rpartition("/")[0].replace("http:", "https:") for name in one} == {URL}
    others = {**OF_NUMBERS, **OF_LABELS}
    assert {name: Path(of_molecules[name]["url"]).stem for name in others} == others
    assert [int(of_molecules[name]["num tasks"]) for name in OF_LABELS] == list(LABELS_OF.values())
    assert set(of_molecules) == {*ARCHIVES, *others}
    assert set(of_molecules[list(OF_NUMBERS)].loc["task type"]) == {"regression"}
    assert set(of_molecules.loc["split"]) == {"scaffold"}
