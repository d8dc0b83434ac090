"""Files of checkpoints at the address of a run: hosts that made them send them, readers of checkpoints fetch them."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from shoal.storage.errors import FetchError
from shoal.storage.files.addresses import AT_ONCE, Folder
from shoal.storage.files.places import CACHE, cache_folder

# This folder at the address has files named by their XXH3-128.
OBJECTS = "objects"
WAY_OUT = "bring it back, or start over with --fresh"


def send_part(address: str, write: Callable[[Path], str]) -> str:
    """Sends a file, which `write` writes to a path, to the address of a run; returns its digest, which `write` returns.

    Raises FetchError: the address does not take it, or this machine has no room for it.
    """
    cache = cache_folder()
    try:
        with TemporaryDirectory(dir=cache) as folder:
            path = Path(folder) / "part"
            xxh3 = write(path)
            Folder(address).send(f"{OBJECTS}/{xxh3}", path)
    except OSError as error:
        raise no_room(cache, error) from error
    return xxh3


def no_room(folder: Path, error: OSError) -> FetchError:
    """Makes the error for a copy that this machine cannot keep."""
    return FetchError(
        folder, f"cannot be written: {error.strerror or error}; free space, or set {CACHE} to a larger disk"
    )


def sizes_at(folder: Folder) -> dict[str, int | None]:
    """Returns bytes of the files at the address of a run, by digest. Raises FetchError: the address does not answer."""
    return {name.rpartition("/")[2]: size for name, size in folder.sizes(OBJECTS).items()}


def fetch_missing(address: str, folder: Path, files: Mapping[str, str]) -> None:
    """Fetches the files of a checkpoint that are at the address of its run, and not in its folder here.

    Raises:
        FetchError: The address is out of reach, or this machine has no room.
        ValueError: A file is neither here nor there, or is another one there.
    """
    missing = {name: xxh3 for name, xxh3 in files.items() if not (folder / name).exists()}
    if not missing:
        return
    there = Folder(address, WAY_OUT)
    sizes = sizes_at(there)

    def fetch(name: str, xxh3: str) -> None:
        size, part = sizes.get(xxh3), folder / f"{name}.part"
        if size is None:
            raise ValueError(f"{name} is neither here nor in {there}")
        try:
            there.fetch(f"{OBJECTS}/{xxh3}", size, xxh3, part)
            os.replace(part, folder / name)
        except FetchError as error:
            # The address answers, so that the file is at fault.
            raise ValueError(error.line) from None
        except OSError as error:
            raise no_room(folder, error) from error

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(fetch, missing, missing.values()))
