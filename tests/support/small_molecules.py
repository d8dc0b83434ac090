"""Molecules in the files in which OGB publishes them: made up, but of the published form."""

import gzip
from pathlib import Path

import numpy as np

from shoal.storage.datasets.readers.ogb_molecules import ATOM_FEATURES


def write_molecules(root: Path, name: str, parts: dict[str, str]) -> Path:
    """Writes files by their path below the dataset's folder, without the ending, and gives that folder."""
    folder = root / name.replace("-", "_")
    for inside, text in parts.items():
        path = folder / f"{inside}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    return folder


def drawn_molecules(seed: int, graphs: int) -> dict[str, str]:
    """Chains of two to seven atoms; the first feature tells the label, and is sometimes wrong.

    A third of them has label 1. Of ten graphs six are for training, two for validation, two for testing.
    """
    rng = np.random.default_rng(seed)
    sizes, y = rng.integers(2, 8, size=graphs), (rng.random(graphs) < 1 / 3).astype(int)
    bonds = [(i, i + 1) for size in sizes for i in range(size - 1)]
    atoms = np.stack([rng.integers(width, size=sizes.sum()) for width in ATOM_FEATURES.values()], axis=1)
    atoms[:, 0] = np.where(rng.random(len(atoms)) < 0.7, 6 + np.repeat(y, sizes), 8)
    tenth = np.arange(graphs) % 10
    columns = {
        "raw/edge": bonds,
        "raw/node-feat": atoms,
        "raw/edge-feat": [(0, 0, 1)] * len(bonds),
        "raw/graph-label": y[:, None],
        "raw/num-node-list": sizes[:, None],
        "raw/num-edge-list": sizes[:, None] - 1,
        "split/scaffold/train": np.flatnonzero(tenth < 6)[:, None],
        "split/scaffold/valid": np.flatnonzero((tenth == 6) | (tenth == 7))[:, None],
        "split/scaffold/test": np.flatnonzero(tenth > 7)[:, None],
    }
    return {part: "".join(",".join(map(str, row)) + "\n" for row in rows) for part, rows in columns.items()}
