"""Molecules in the files in which OGB publishes them: made up, but of the published form."""

import gzip
from pathlib import Path


def write_molecules(root: Path, name: str, parts: dict[str, str]) -> Path:
    """Writes files by their path below the dataset's folder, without the ending, and gives that folder."""
    folder = root / name.replace("-", "_")
    for inside, text in parts.items():
        path = folder / f"{inside}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    return folder
