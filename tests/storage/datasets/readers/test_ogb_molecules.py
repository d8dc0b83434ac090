"""OGB's layout of molecules: made-up files of the published form read back, OGB's own reader, wrong files."""

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from support.errors import refused
from support.small_molecules import write_molecules
from torch import nn

from shoal.storage.datasets.readers.ogb_molecules import ARCHIVES, ATOM_FEATURES, URL, paths
from shoal.storage.datasets.registry import fingerprint, load, load_all, published_contents
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.options.dataset_names import MANY_TASKS, OF_NUMBERS
from shoal.storage.options.split_codes import TEST, TRAIN, VAL

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
    assert graph.y.tolist() == [1, 0, 0]
    assert graph.graph_of.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert graph.split.tolist() == [TEST, VAL, TRAIN]
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
    assert graph.vocabulary[[0, 118, 119, 173]].tolist() == [
        "atom atomic number 0", "atom atomic number 118", "atom chirality 0", "atom in a ring 1",
    ]  # fmt: skip
    # As pandas writes whole numbers of a column with gaps; there are two classes even where one occurs.
    both = load_all([write(tmp_path), write(tmp_path, "ogbg-molbace", graph_label="0.0\n0\n0\n")])
    assert (both.items, both.nodes, both.features, both.classes) == (6, 16, sum(WIDTHS), 2)
    assert both.x[:8].toarray().tolist() == both.x[8:].toarray().tolist()


def test_what_is_read_is_what_a_run_was_made_from(tmp_path: Path, offline: None) -> None:
    source = write(tmp_path, "ogbg-molbbbp")
    contents = published_contents(source)
    assert list(contents) == [str(path) for path in paths("ogbg-molbbbp")]
    assert fingerprint(source) == {"dataset": "ogbg-molbbbp", "row_normalize": False}
    write(tmp_path, "ogbg-molbbbp", graph_label="1\n1\n0\n")
    changed = [path for path, digest in published_contents(source).items() if digest != contents[path]]
    assert changed == ["ogbg_molbbbp/raw/graph-label.csv.gz"]
    missing = tmp_path / "ogbg_molbbbp/raw/edge.csv.gz"
    missing.unlink()
    assert published_contents(source) == {}
    with refused(missing, says=f"{URL}/bbbp.zip cannot be downloaded"):
        load(source)


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


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ogbg-molpcba", "has 128 labels a graph"),
        ("OGBG-molClinTox", "has 2 labels a graph"),
        ("ogbg-molesol", "has numbers and no classes for labels"),
    ],
)
def test_molecules_of_other_tasks_are_refused(tmp_path: Path, name: str, why: str) -> None:
    known = ", ".join(ARCHIVES)
    for look in (load, fingerprint):
        with refused("data.dataset", says=f"{name.lower()} {why}; of OGB's molecules {known} can be read"):
            look(DataSource(name, root=str(tmp_path)))


needs_ogb = pytest.mark.skipif(importlib.util.find_spec("ogb") is None, reason="ogb is not installed")


@needs_ogb
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
    assert {name: int(of_molecules[name]["num tasks"]) for name in MANY_TASKS} == MANY_TASKS
    assert set(of_molecules) == {*ARCHIVES, *MANY_TASKS, *OF_NUMBERS}
    assert set(of_molecules[list(OF_NUMBERS)].loc["task type"]) == {"regression"}
