"""A note next to generated files, by which a graph that is read from them is known to be synthetic."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.storage.datasets.sources.source import reading
from shoal.storage.files.atomic import replacing

NOTE = "SYNTHETIC.json"


def mark_synthetic(folder: Path, identity: Mapping[str, Any]) -> None:
    """Writes the note: what the graph was made from, in types JSON has, at least its name under `dataset`.

    Raises:
        ShoalError: It cannot be written.
    """
    with replacing(folder / NOTE) as unfinished:
        unfinished.write_text(json.dumps(dict(identity), indent=1) + "\n")


def synthetic_identity(folder: Path) -> dict[str, Any] | None:
    """Content of the note, or None if there is none.

    Raises:
        ShoalError: It cannot be read.
    """
    note = folder / NOTE
    if not note.exists():
        return None
    with reading(note, "delete the folder and make the synthetic graph again"):
        identity = json.loads(note.read_text())
        return {"dataset": str(identity["dataset"]), **identity}
