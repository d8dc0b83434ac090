"""Names that come from a file, a listing or an address: checked here before any of them becomes a path.

A manifest, a checkpoint or the list of a run may come from anybody, as a folder that was unpacked or from an object
store. What they name lies below the folder that they are in. Their seals say that they are whole, not who wrote them.
"""

import os
import re
from pathlib import Path

from shoal.storage.errors import ShoalError

# Names of folders that we name after options: of a split, of hops, or of edges between clients.
FOLDER = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
DIGEST = r"[0-9a-f]{32}"
# All file systems that we know take names of so many bytes.
LONGEST_NAME = 255
LONGEST_QUOTE = 200
NOT_OURS = "Shoal did not write it so; get it again from where it was made"


def name_fault(name: object, written: str | None = None) -> str | None:
    """Returns why a name that was read is not that of something below a folder; None: it is.

    Args:
        name: A path with `/` between its parts.
        written: A pattern of the names that are written there; None: any name is.
    """
    if not isinstance(name, str):
        return "is no text"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "is no path below the folder"
    try:
        longest = max(len(part.encode()) for part in parts)
    except UnicodeEncodeError:
        return "is no text that a path can have"
    if "\0" in name or longest > LONGEST_NAME:
        return "is no path that a file can have"
    if written is not None and not re.fullmatch(written, name):
        return "is none of the names there"
    return None


def require_name(where: object, name: object, written: str | None = None) -> str:
    """Returns a name that was read `where`. Raises ShoalError: as `name_fault` says."""
    if fault := name_fault(name, written):
        raise ShoalError(where, f"names {_quote(name)}, which {fault}; {NOT_OURS}")
    assert isinstance(name, str)
    return name


def require_digest(where: object, digest: object) -> str:
    """Returns a digest that was read `where`. Raises ShoalError: it is no text of 32 hexadecimal digits."""
    if not isinstance(digest, str) or not re.fullmatch(DIGEST, digest):
        raise ShoalError(where, f"expected a digest of 32 hexadecimal digits, got {_quote(digest)}; {NOT_OURS}")
    return digest


def _quote(found: object) -> str:
    text = repr(found)
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]} …"


def place_in(folder: Path, *names: str | Path) -> Path:
    """Returns the path of what a command writes or removes below a folder.

    The folder itself may be a link. Raises ShoalError: a link on the way from it leads out of it.
    """
    path = folder.joinpath(*names)
    if not is_inside(folder, path):
        raise ShoalError(path, f"a link leads from here out of {folder}, and nothing is written there; remove the link")
    return path


def is_inside(folder: Path, path: Path) -> bool:
    """Returns whether a path lies in a folder once all links are followed."""
    root, target = os.path.realpath(folder), os.path.realpath(path)
    return target == root or target.startswith(f"{root.rstrip('/')}/")
