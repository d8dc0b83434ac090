"""Molecules in a table: atoms and bonds as OGB has them, a split by scaffolds, and one line for what is no molecule."""

import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ogb.utils import smiles2graph
from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles
from support.errors import refused
from support.small_runs import small_run

from shoal.engine.config.config import parse_config
from shoal.engine.records.summary import read_summary
from shoal.engine.runs.run import run
from shoal.storage.datasets.sources.atoms import ATOM_FEATURES
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.user.files import load_files
from shoal.storage.datasets.user.molecules import split_by_scaffold
from shoal.storage.graph.graph import Graph

# Rings, charges, radicals, both hands, salts, metals, hydrogens alone, one atom, hypervalent sulphur and phosphorus.
SMILES = (
    "CC(=O)Oc1ccccc1C(=O)O", "C[N+](C)(C)CC([O-])=O", "[CH3]", "N[C@@H](C)C(=O)O", "N[C@H](C)C(=O)O", "[Na+].[Cl-]",
    "[H][H]", "C", "O=S(=O)(O)c1ccncc1", "FS(F)(F)(F)(F)F", "OP(=O)(O)O", "C1CC2CCC1C2", "[Fe]", "C#CC=C", "[O][O]",
    "[Cu+2]", "c1ccc2[nH]ccc2c1", "C[Si](C)(C)C", "[13CH4]", "F/C=C/F",
)  # fmt: skip


def write(folder: Path, text: str, name: str = "molecules.csv") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def load(path: str, **options: Any) -> Graph:
    return load_files("files", DataSource("files", path=path, **{"target": "regression", **options}))


def numbered(texts: Any, name: str = "logS") -> str:
    return f"smiles,{name}\n" + "".join(f"{text},{0.5 * row}\n" for row, text in enumerate(texts))


def test_atoms_and_bonds_are_those_of_ogb(tmp_path: Path) -> None:
    graph = load(write(tmp_path, numbered(SMILES)))
    first = np.cumsum([0, *np.array(list(ATOM_FEATURES.values()))[:-1]])
    places, node = graph.x.indices.reshape(graph.nodes, -1), 0
    assert graph.graph_of is not None
    for number, text in enumerate(SMILES):
        expected = smiles2graph(text)
        atoms = slice(node, node + expected["num_nodes"])
        np.testing.assert_array_equal(places[atoms] - first, expected["node_feat"])
        assert set(graph.graph_of[atoms]) == {number}
        rows = [graph.indices[graph.indptr[i] : graph.indptr[i + 1]].tolist() for i in range(atoms.start, atoms.stop)]
        found = {(i, j - node) for i, row in enumerate(rows) for j in row}
        assert found == set(zip(*expected["edge_index"].tolist()))
        node = atoms.stop
    assert node == graph.nodes
    assert graph.target is not None
    np.testing.assert_array_equal(graph.target[:, 0], 0.5 * np.arange(len(SMILES)))


def test_split_is_that_of_scaffolds(tmp_path: Path) -> None:
    """Written anew: the largest sets first, each whole into the first part that it fits."""
    random.seed(0)
    rings = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "c1ccoc1", "C1CC1", "c1ccsc1", "C1CCNCC1"]
    texts = [f"{'C' * random.randint(0, 4)}{random.choice([*rings, 'C', 'O'])}" for _ in range(60)]
    sets: dict[str, list[int]] = defaultdict(list)
    for item, text in enumerate(texts):
        sets[MurckoScaffoldSmiles(text)].append(item)
    parts: list[list[int]] = [[], [], []]
    for items in sorted(sets.values(), key=lambda items: (-len(items), -items[0])):
        place = 0 if len(parts[0]) + len(items) <= 48 else 1
        place = 2 if place and sum(map(len, parts[:2])) + len(items) > 54 else place
        parts[place] += items
    graph = load(write(tmp_path, numbered(texts)))
    assert graph.split is not None
    assert [sorted(part) for part in parts] == [np.flatnonzero(graph.split == code).tolist() for code in (1, 2, 3)]
    assert all(parts[:1])
    assert split_by_scaffold(["a"] * 8 + ["b", "c"]).tolist() == [1] * 8 + [3, 2]


def test_columns_that_are_predicted(tmp_path: Path) -> None:
    """Several numbers or labels, with empty ones; ids and texts are left out, which a note says."""
    table = "mol_id;smiles;NR-AR;SR-p53;comment\nT1;CC;0;;first\nT2;CCO;1;1;\nT3;C;;0;x\n"
    graph = load(write(tmp_path, table), target="multilabel")
    assert graph.target is not None
    np.testing.assert_array_equal(graph.target, [[0, np.nan], [1, 1], [np.nan, 0]])
    assert graph.label_names == ("NR-AR", "SR-p53")
    assert [note for note in graph.notes if "left out" in note] == [
        "column 'mol_id' is an id, and left out",
        "column 'comment' is no number to predict, and left out",
    ]
    labels = "smiles,label,weight,split,assignment\nCC,yes,3,train,0\nCCO,no,4,test,1\nO,,5,,1\n"
    graph = load(write(tmp_path, labels), target="classification")
    assert (graph.label_names, graph.y.tolist()) == (("no", "yes"), [1, 0, -1])
    assert graph.split is not None
    assert graph.assignment is not None
    assert (graph.split.tolist(), graph.assignment.tolist()) == ([1, 3, 0], [0, 1, 1])
    graph = load(write(tmp_path, "smiles,lipid,compound_id\nCC,1,2\nO,3,4\n"))
    assert (graph.classes, graph.label_names) == (1, ("lipid",))
    graph = load(write(tmp_path, "smiles,label_a,label_b,mass\nCC,1,2,30\nO,3,4,18\n"))
    assert (graph.classes, graph.label_names) == (2, ("a", "b"))


@pytest.mark.parametrize(
    ("table", "says", "options"),
    [
        ("smiles,y\nCC,1\nC1CC,2\n", "row 1 is 'C1CC', which RDKit reads as no molecule; correct it, or leave", {}),
        ("smiles,y\nCC,1\n,2\nxx,3\n", "row 1 is '', which RDKit reads as no molecule, as 1 others; correct it", {}),
        ("smiles,y\nxx,1\n", "row 0 is 'xx', which RDKit reads as no molecule", {"invalid": "drop"}),
        ("smiles,y\n", "no row; there is nothing to learn", {}),
        ("smiles,name\nCC,ethane\n", "no column of numbers to predict; add label, found smiles, name", {}),
        ("smiles,a,b\nCC,1,2\nO,1,2\n", "2 columns to predict (a, b); set target to", {"target": "classification"}),
        ("smiles,label\nCC,high\n", "column 'label' is a target and must be numbers; row 0 is 'high'", {}),
        ("smiles,a\nCC,\nO,\n", "no item has a target; there is nothing to learn", {}),
        ("smiles,label,label_a\nCC,1,1\n", "there are both 'label' and 'label_a'; keep one of the two", {}),
        ("smiles,split,a\nCC,train,1\nO,other,1\n", "split 'other'; it is train, val or test, or nothing", {}),
    ],
)
def test_one_line_for_each_fault(tmp_path: Path, table: str, says: str, options: dict[str, Any]) -> None:
    path = write(tmp_path, table)
    place = f"{path} (y)" if "nothing to learn" in says and "a\n" in table else path
    with refused(place, says=says):
        load(path, **options)


def test_rows_that_are_no_molecules_may_be_dropped(tmp_path: Path) -> None:
    graph = load(write(tmp_path, "smiles,y\nCC,1\nxx,2\nO,3\n"), invalid="drop")
    assert graph.target is not None
    assert graph.target[:, 0].tolist() == [1, 3]
    assert "1 rows that RDKit reads as no molecule are left out: 1" in graph.notes


def test_table_of_molecules_runs(tmp_path: Path) -> None:
    """The number of carbons, which a sum over atoms tells; the store is another one where rows are dropped."""
    texts = [f"{'C' * (1 + row % 12)}{'O' * (row % 3)}" for row in range(90)]
    table = "smiles,carbons\n" + "".join(f"{text},{text.count('C')}\n" for text in texts)
    data: dict[str, Any] = {"dataset": "files", "path": write(tmp_path, table)}
    plain = small_run(
        tmp_path, task="graph", target="regression", data=data, partition={"method": "random", "clients": 3}, rounds=40,
        model={"name": "mlp", "hidden": 16, "readout": "sum"}, train={"lr": 0.02, "epochs": 5, "dropout": 0.0},
    )  # fmt: skip
    del plain["data"]["options"]
    scores = read_summary(run(parse_config(plain, "molecules")))["scopes"]["global"]["final"]["test"]
    assert scores["r2"]["clients"] > 0.8


def test_rdkit_that_is_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, numbered(SMILES))
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with refused(path, says="molecules are read by RDKit; pip install 'shoal[molecules]'"):
        load(path)
