"""Features of atoms and bonds, as OGB's molecules have them (Hu et al., NeurIPS 2020)."""

import numpy as np
import scipy.sparse as sp

# The nine whole numbers that are known of an atom, and how many values each has:
# `ogb.utils.features.get_atom_feature_dims` of ogb 1.3.6; the last value of the first seven stands for any other.
ATOM_FEATURES = {
    "atomic number": 119,
    "chirality": 5,
    "degree": 12,
    "formal charge": 12,
    "hydrogens": 10,
    "radical electrons": 6,
    "hybridization": 6,
    "aromatic": 2,
    "in a ring": 2,
}

# The same of a bond: `ogb.utils.features.get_bond_feature_dims`.
BOND_FEATURES = {"type": 5, "stereo": 6, "conjugated": 2}


def one_hot(atoms: np.ndarray) -> sp.csr_array:
    """Makes a one for every feature of every atom, float32 `[N, 174]`, of whole numbers `[N, 9]` in their bounds."""
    widths = np.array(list(ATOM_FEATURES.values()))
    rows, features = atoms.shape
    places = (atoms + np.cumsum(widths) - widths).ravel()
    starts = np.arange(0, rows * features + 1, features)
    return sp.csr_array((np.ones(len(places), np.float32), places, starts), shape=(rows, int(widths.sum())))


def column_names() -> np.ndarray:
    """Lists what every column of `one_hot` stands for, texts `[174]`."""
    return np.array([f"atom {key} {k}" for key, width in ATOM_FEATURES.items() for k in range(width)])


def one_hot_bonds(bonds: np.ndarray) -> np.ndarray:
    """Makes a one for every feature of every bond, float32 `[E, 13]`, of whole numbers `[E, 3]` in their bounds."""
    widths = np.array(list(BOND_FEATURES.values()))
    one_hot_ED = np.zeros((len(bonds), int(widths.sum())), dtype=np.float32)
    np.put_along_axis(one_hot_ED, bonds + np.cumsum(widths) - widths, 1, axis=1)
    return one_hot_ED


def bond_names() -> np.ndarray:
    """Lists what every column of `one_hot_bonds` stands for, texts `[13]`."""
    return np.array([f"bond {key} {k}" for key, width in BOND_FEATURES.items() for k in range(width)])
