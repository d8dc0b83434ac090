"""Molecules of the user's own: a table with a column `smiles`, each row a graph of atoms and bonds.

RDKit reads them (extra `molecules`). Atoms are described as OGB's molecules are (Hu et al., NeurIPS 2020).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.storage.datasets.sources.atoms import BOND_FEATURES, bond_names, column_names, one_hot, one_hot_bonds
from shoal.storage.datasets.sources.source import reading
from shoal.storage.datasets.user.table_faults import CLIENT, ID, LABEL, OTHER_NAMES, SPLIT, plain_word
from shoal.storage.datasets.user.tables import SEVERAL, Rows, is_number, numbers, open_table, parts_of_split
from shoal.storage.errors import ShoalError
from shoal.storage.graph.labels import coded_labels
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.options.target_names import CLASSIFICATION, Target

SMILES = "smiles"
KNOWN = (SMILES, ID, LABEL, SPLIT, CLIENT)
# Values of an atom's features, in the order of `ATOM_FEATURES`; behind them one place stands for any other, but for the
# last two.
CHIRALITY = ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER")
HYBRIDIZATION = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
CHARGES = range(-5, 6)
BOND_KINDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
# The last one stands for any other, too.
STEREO = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")
# Shares of a split by scaffolds, as MoleculeNet has them (Wu et al., Chem. Sci. 2018).
TRAINING, BEFORE_TEST = 0.8, 0.9
# Names of ids, as mol_id; a lipid is none.
AN_ID = re.compile(r"(^|[^a-z])ids?$")


def is_molecules(path: Path) -> bool:
    """Whether a path is a table of molecules: a CSV file whose header names `smiles`."""
    if not path.is_file() or path.suffix.lower() not in (".csv", ".tsv"):
        return False
    columns, _ = open_table(path, KNOWN, (SMILES,))
    return SMILES in columns


def read_molecules(path: Path, target: Target, drops: bool = False, bonds: bool = True) -> dict[str, Any]:
    """Reads a table of molecules as arrays of `graph_from_arrays`.

    Columns are `smiles`, and what is predicted: `label`, or several `label_…`, or without these every other column of
    numbers, of which an empty value is missing. There may be `id`, `split` (train, val, test) and `assignment`, the
    client of every molecule. Without `split` the graph has one by scaffolds (Bemis and Murcko, 1996): the molecules of
    one scaffold are in one part, those of frequent ones train.

    x is what is known of an atom, one-hot feature by feature, sparse float32 `[atoms, 174]`; bonds are edges, and what
    is known of them is their features, where `bonds` are asked for, in the same way, float32 `[bonds, 13]`. Rows whose
    text is no molecule may be dropped, which a note says (`drops`).

    Raises ShoalError: RDKit is not installed, a text is no molecule, or a column is missing or wrong; names the row.
    """
    chem = _rdkit(path)
    smiles, table = _texts(path)
    every = [chem.MolFromSmiles(text) for text in smiles]
    sound = np.array([molecule is not None and molecule.GetNumAtoms() > 0 for molecule in every])
    wrong = np.flatnonzero(~sound).tolist()
    if wrong and (not drops or not sound.any()):
        says = f"row {wrong[0]} is {smiles[wrong[0]][:60]!r}, which RDKit reads as no molecule"
        more = f", as {len(wrong) - 1} others" if len(wrong) > 1 else ""
        raise ShoalError(path, f"{says}{more}; correct it, or leave such rows out by data.options.invalid=drop")
    arrays = _columns(path, table.filter(pa.array(sound)), target)
    if wrong:
        shown = ", ".join(map(str, wrong[:5])) + (", …" if len(wrong) > 5 else "")
        arrays["notes"] = [*arrays["notes"], f"{len(wrong)} rows that RDKit reads as no molecule are left out: {shown}"]
    molecules = [molecule for molecule, is_sound in zip(every, sound) if is_sound]
    sizes = np.array([molecule.GetNumAtoms() for molecule in molecules])
    first = np.cumsum(sizes) - sizes
    every_bond = [(g, bond) for g, molecule in enumerate(molecules) for bond in molecule.GetBonds()]
    ends = [(first[g] + bond.GetBeginAtomIdx(), first[g] + bond.GetEndAtomIdx()) for g, bond in every_bond]
    if bonds:
        codes = np.array([_describe_bond(bond) for _, bond in every_bond], dtype=np.int64).reshape(
            -1, len(BOND_FEATURES)
        )
        arrays |= {"edge_attr": one_hot_bonds(codes), "edge_names": bond_names()}
    return {
        "split": split_by_scaffold([_scaffold(molecule) for molecule in molecules]),
        **arrays,
        "edge_index": np.array(ends, dtype=np.int64).reshape(-1, 2).T,
        "x": one_hot(np.array([_describe(atom) for molecule in molecules for atom in molecule.GetAtoms()])),
        "graph": np.repeat(np.arange(len(molecules)), sizes),
        "vocabulary": column_names(),
    }


def split_by_scaffold(scaffolds: Sequence[str]) -> np.ndarray:
    """Divides items by the sets that share a scaffold, int8 `[items]`: 80 % train, 10 % validate, 10 % test.

    Sets come in the order of their sizes, the largest first, those of one size in the order of their first items from
    the last to the first; each goes whole to the first part that it fits.
    """
    members: dict[str, list[int]] = {}
    for item, scaffold in enumerate(scaffolds):
        members.setdefault(scaffold, []).append(item)
    code = np.full(len(scaffolds), TEST, dtype=np.int8)
    train = held = 0
    for items in sorted(members.values(), key=lambda items: (len(items), items[0]), reverse=True):
        if train + len(items) <= TRAINING * len(scaffolds):
            code[items] = TRAIN
            train += len(items)
        elif train + held + len(items) <= BEFORE_TEST * len(scaffolds):
            code[items] = VAL
            held += len(items)
    return code


def _rdkit(path: Path) -> Any:
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        raise ShoalError(path, "molecules are read by RDKit; pip install 'shoal[molecules]'") from None
    # What it says of a wrong text is said by our error.
    rdBase.DisableLog("rdApp.*")
    return Chem


def _texts(path: Path) -> tuple[list[str], pa.Table]:
    """Reads a table whole, of which all values are texts, and the texts of its molecules."""
    _, parts = open_table(path, KNOWN, (SMILES,))
    batches = [rows.batch for rows in parts]
    if not batches:
        raise ShoalError(path, "no row; there is nothing to learn")
    table = pa.Table.from_batches(batches)
    return [text.strip() for text in table.column(SMILES).fill_null("").to_pylist()], table


def _columns(path: Path, table: pa.Table, target: Target) -> dict[str, Any]:
    """Reads the arrays of labels, parts and clients."""
    arrays: dict[str, Any] = {}
    (batch,) = table.combine_chunks().to_batches()
    if SPLIT in table.column_names:
        arrays["split"] = parts_of_split(path, batch.column(SPLIT))
    if CLIENT in table.column_names:
        with reading(path, f"column {CLIENT} is the number of a client"):
            arrays["assignment"] = batch.column(CLIENT).cast(pa.int64()).to_numpy()
    names, arrays["notes"] = _target_columns(path, table)
    if not names:
        raise ShoalError(path, f"no column of numbers to predict; add {LABEL}, found {', '.join(table.column_names)}")
    if target == CLASSIFICATION and len(names) > 1:
        says = f"{len(names)} columns to predict ({', '.join(names[:3])}{', …' * (len(names) > 3)})"
        raise ShoalError(path, f"{says}; set target to multilabel or regression")
    if target == CLASSIFICATION:
        arrays["y"], arrays["label_names"] = coded_labels(batch.column(names[0]), f"{path} ({names[0]})")
    else:
        rows = Rows(path, 0, batch)
        arrays["y"] = np.concatenate([numbers(rows, name, "a target", may_miss=True) for name in names], axis=1)
        arrays["label_names"] = np.array([name.removeprefix(SEVERAL) for name in names])
    return {name: array for name, array in arrays.items() if array is not None}


def _target_columns(path: Path, table: pa.Table) -> tuple[list[str], list[str]]:
    """Chooses the columns that are predicted, and says which are left out."""
    columns = table.column_names
    several = [name for name in columns if name.startswith(SEVERAL)]
    if several and LABEL in columns:
        raise ShoalError(path, f"there are both {LABEL!r} and {several[0]!r}; keep one of the two")
    if several or LABEL in columns:
        return several or [LABEL], []
    others = [name for name in columns if name not in KNOWN]
    ids = [name for name in others if plain_word(name) in OTHER_NAMES[ID].split() or AN_ID.search(name.lower())]
    chosen = [name for name in others if name not in ids and all(map(is_number, _given(table, name)))]
    why = {name: "an id" if name in ids else "no number to predict" for name in others if name not in chosen}
    return chosen, [f"column {name!r} is {what}, and left out" for name, what in why.items()]


def _given(table: pa.Table, name: str) -> list[str]:
    return [text for text in table.column(name).to_pylist() if text is not None]


def _scaffold(molecule: Any) -> str:
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    return str(MurckoScaffoldSmiles(mol=molecule, includeChirality=False))


def _describe(atom: Any) -> list[int]:
    """Returns the places of an atom's nine features among their values."""
    number, charge = atom.GetAtomicNum(), atom.GetFormalCharge()
    return [
        number - 1 if 1 <= number <= 118 else 118,
        _place(CHIRALITY, str(atom.GetChiralTag())),
        min(atom.GetTotalDegree(), 11),
        charge + 5 if charge in CHARGES else len(CHARGES),
        min(atom.GetTotalNumHs(), 9),
        min(atom.GetNumRadicalElectrons(), 5),
        _place(HYBRIDIZATION, str(atom.GetHybridization())),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
    ]


def _describe_bond(bond: Any) -> list[int]:
    """Returns the places of a bond's three features among their values."""
    kind, stereo = _place(BOND_KINDS, str(bond.GetBondType())), str(bond.GetStereo())
    return [kind, STEREO.index(stereo) if stereo in STEREO else len(STEREO) - 1, int(bond.GetIsConjugated())]


def _place(values: Sequence[str], value: str) -> int:
    return values.index(value) if value in values else len(values)
