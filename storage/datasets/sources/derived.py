"""A folder of arrays that are derived from a source, and used again until the source changes."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.disk import writing

SOURCE = "source.json"


@contextmanager
def derived(folder: Path, identity: Mapping[str, Any]) -> Iterator[Path]:
    """Gives the folder, locked; it holds what an earlier call made from the same source, or nothing.

    Args:
        folder: Made if it is not there.
        identity: What defines the arrays, in types JSON has; kept in `source.json`.

    Raises:
        ShoalError: Another process uses the folder, it cannot be made, its note is damaged, or it holds files that were
            not made here.
    """
    with writing(folder):
        note = folder / SOURCE
        # the lock file is there already
        others = [path for path in folder.iterdir() if path.name not in (SOURCE, ".lock")]
        if not note.exists() and any(not path.name.endswith(".unfinished") for path in others):
            raise ShoalError(f"{folder}: holds {others[0].name}, which is not Shoal's; set data.options.scratch")
        if _read(note) != dict(identity):
            for path in others:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            with replacing(note) as unfinished:
                unfinished.write_text(sealed(identity))
        yield folder


def digest(identity: Mapping[str, Any]) -> str:
    """8 hexadecimal digits over an identity, for the name of a folder."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def _read(note: Path) -> Any:
    """The identity; None if there is none yet."""
    try:
        return unsealed(note.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ShoalError(
            f"{note}: cannot be read ({error}); delete the folder {note.parent}, and it is made again"
        ) from error
