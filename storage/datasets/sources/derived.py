"""Folders of arrays derived from a source: used until the source changes, and checked before each use."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.storage.datasets.sources.source import reading
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import digest as file_digest
from shoal.storage.files.disk import writing
from shoal.storage.files.reading import read_bytes
from shoal.storage.progress import step

SOURCE, NOTE = "source.json", "contents.json"
# This note stands beside generated files, and marks a graph that is read from them as synthetic.
SYNTHETIC = "SYNTHETIC.json"


@contextmanager
def open_derived(folder: Path, identity: Mapping[str, Any]) -> Iterator[Path]:
    """Makes and locks the folder; it holds what an earlier call made from the same identity, or nothing.

    A ShoalError says that it is in use, cannot be made, has a damaged note, or holds files that were not made here.
    """
    with writing(folder):
        note = folder / SOURCE
        # The lock file is there already.
        others = [path for path in folder.iterdir() if path.name not in (SOURCE, ".lock")]
        if not note.exists() and any(not path.name.endswith(".unfinished") for path in others):
            raise ShoalError(folder, f"holds {others[0].name}, which is not Shoal's; set data.options.scratch")
        if _read_note(note) != dict(identity):
            for path in others:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            with replacing(note) as unfinished:
                unfinished.write_text(sealed(identity))
        yield folder


def identity_digest(identity: Mapping[str, Any]) -> str:
    """Computes 8 hexadecimal digits over an identity, for the name of a folder."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


class DerivedChecksums:
    """Digests of the files in a folder of derived arrays, by their paths in it."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        """Reads what was noted of those that are there; a ShoalError says that the note is damaged."""
        self._folder, self._files = folder, files
        noted = _read_note(folder / NOTE) or {}
        # One that was deleted is made again, and noted anew.
        self._noted = {name: noted[name] for name in files if name in noted and (folder / name).exists()}

    def require(self) -> None:
        """Compares all files that were noted, and notes the others; raises ShoalError if one is not as it was made."""
        digests = dict(self._noted)
        with step(f"checking {self._folder.name}", len(self._files), "files") as advance:
            for name in self._files:
                path = self._folder / name
                try:
                    now = file_digest(path)
                except OSError as error:
                    raise ShoalError(path, f"cannot be read: {error.strerror}") from error
                if now != digests.setdefault(name, now):
                    raise ShoalError(
                        path, f"not as it was made; delete the folder {self._folder}, and it is made again"
                    )
                advance(1)
        if digests != self._noted:
            with replacing(self._folder / NOTE) as unfinished:
                unfinished.write_text(sealed(digests))


def mark_synthetic(folder: Path, identity: Mapping[str, Any]) -> None:
    """Writes the note: what the graph was made from, in types JSON has, at least its name under `dataset`."""
    with replacing(folder / SYNTHETIC) as unfinished:
        unfinished.write_text(json.dumps(dict(identity), indent=1) + "\n")


def synthetic_identity(folder: Path) -> dict[str, Any] | None:
    """Reads the note, or gives None if there is none; raises a ShoalError if it cannot be read."""
    note = folder / SYNTHETIC
    if not note.exists():
        return None
    with reading(note, "delete the folder and make the synthetic graph again"):
        identity = json.loads(read_bytes(note))
        return {"dataset": str(identity["dataset"]), **identity}


def _read_note(note: Path) -> Any:
    """Reads a sealed note; None if there is none yet."""
    try:
        return unsealed(read_bytes(note))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ShoalError(
            note, f"cannot be read ({error}); delete the folder {note.parent}, and it is made again"
        ) from error
