"""Published files: read from the data root, and first downloaded into it if missing; never half a file."""

import os
import queue
import shutil
import threading
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from shoal.storage.datasets.sources.source import DataSource, data_root
from shoal.storage.errors import ShoalError
from shoal.storage.files.names import name_fault

PATIENCE_SECONDS = 20.0
# What `zipfile` raises of archives that are damaged, or cut off.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError)


def fetch_published(
    options: DataSource,
    files: Sequence[Path],
    url: Callable[[str], str],
    tree: Path | None = None,
    looked: Sequence[Path] = (),
    archives: Sequence[str] = (),
) -> list[Path]:
    """Downloads a dataset's files that are not there, and returns the paths of all, below the data root.

    Args:
        url: Address of a file by name. A .zip is unpacked: all its files into the folder of the file, or its one folder
            as `tree`, a folder below the data root.
        looked: Folders in which files of the dataset may lie, too, and do not.
        archives: Folders below the data root, beside itself, in which that .zip may lie as published.

    Raises:
        ShoalError: A download failed or sent nothing for `PATIENCE_SECONDS`; names file, folders and address.
    """
    root = data_root(options.root)
    for file in files:
        path, address = root / file, url(file.name)
        if path.is_file():
            continue
        into = None if tree is None else root / tree
        try:
            if (archive := _archive_here(address, [root, *(root / folder for folder in archives)])) is not None:
                _unpack(archive, path.parent, into)
                _require_unpacked(path)
            else:
                _download(address, path, into)
        except (OSError, HTTPException, *DAMAGED) as error:
            reason = " ".join(str(error).split())
            others = _describe_looked(root, looked)
            raise ShoalError(
                path,
                f"not found{others}, and {address} cannot be downloaded ({reason}); put the raw "
                f"files of dataset '{options.key}' there, or set data.root or SHOAL_DATA to a folder that has them",
            ) from error
    return [root / file for file in files]


def _download(url: str, path: Path, tree: Path | None) -> None:
    archive = url.endswith(".zip")
    # Files of the archive, the one at `path` among them, are written while it is read: it has a name of its own.
    into = path.with_name(url.rpartition("/")[2]) if archive else path
    with _open(url) as answer, _copy(answer, into) as part:
        # `http.client` raises nothing where a body is cut off.
        announced = answer.headers.get("Content-Length")
        if announced is not None and part.stat().st_size != int(announced):
            raise OSError(f"ended after {part.stat().st_size} of {announced} bytes")
        if archive:
            _unpack(part, path.parent, tree)
        else:
            part.replace(path)
    _require_unpacked(path)


def _require_unpacked(path: Path) -> None:
    if not path.is_file():
        raise OSError(f"it has no {path.name}")


def _archive_here(address: str, folders: Sequence[Path]) -> Path | None:
    """Finds a published .zip that somebody put into one of some folders."""
    name = address.rpartition("/")[2]
    return next((folder / name for folder in folders if name.endswith(".zip") and (folder / name).is_file()), None)


def _describe_looked(root: Path, looked: Sequence[Path]) -> str:
    return f", nor in {', '.join(str(folder) for folder in looked)} of {root}" if looked else ""


def _unpack(archive: Path, folder: Path, tree: Path | None) -> None:
    """Puts all files into `folder`, or, where a folder for the tree is given, each at its path in that."""
    with zipfile.ZipFile(archive) as files:
        for member in files.infolist():
            inner = Path(member.filename)
            if member.is_dir() or name_fault(inner.as_posix()) is not None:
                continue
            target = folder / inner.name if tree is None else tree.joinpath(*inner.parts[1:])
            with files.open(member) as source, _copy(source, target) as part:
                part.replace(target)


@contextmanager
def _copy(source: Any, path: Path) -> Iterator[Path]:
    """Writes all that a stream holds into a file beside `path`, and removes it at the end, if it was not renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        yield part
    finally:
        part.unlink(missing_ok=True)


def _open(url: str) -> Any:
    """Calls `urlopen` with a bound on all of it: a socket's timeout leaves out the look-up of the host's name."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(urllib.request.urlopen(url, timeout=PATIENCE_SECONDS))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=PATIENCE_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no answer within {PATIENCE_SECONDS:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
