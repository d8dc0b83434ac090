"""Folders at `s3://`, `gs://` and `file://` addresses through `pyarrow.fs`: what lies there, fetched and sent."""

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from shoal.storage.errors import FetchError
from shoal.storage.files.atomic import UNFINISHED, reopen, to_disk
from shoal.storage.files.names import is_inside, name_fault

# Files sent or fetched at a time: small ones take their time in waiting.
CHUNK, TRIES, AT_ONCE = 1 << 24, 3, 16
RIGHT = "has no right there; give it one, or credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role)"
REGION = "asks in the wrong region; add ?region=… with that of the bucket"
# Parts of answers' texts, and what they mean for this machine.
MEANINGS = {
    "NO_SUCH_BUCKET": "finds no such bucket; make it, or correct the address",
    "TOO_SKEWED": "has a clock that is minutes off, so that its requests are refused; set its time",
    "INVALID_ACCESS_KEY_ID": RIGHT,
    "SIGNATURE_DOES_NOT_MATCH": RIGHT,
    "ACCESS_DENIED": RIGHT,
    "Permission denied": RIGHT,
    "PermanentRedirect": REGION,
    "AuthorizationHeaderMalformed": REGION,
}
WITHOUT_REASON = "No response body"
# Ways out where a file of a store is missing, or is another one.
NO_FILE = "delete {}/manifest.json, and `shoal prepare` makes all again"
OTHER_FILE = "bring that back, or delete all of {}, run `shoal prepare` again, and the run with --fresh"
log = logging.getLogger(__name__)


def _describe_link(info: Any) -> Any:
    """Describes a link to a folder as one file, whatever it leads to."""
    from pyarrow.fs import FileInfo, FileType

    return FileInfo(info.path, FileType.File, size=0, mtime=info.mtime)


def below(address: str, name: str) -> str:
    """Joins the address of a folder, or of a file, to the one that it is in."""
    place, mark, options = address.partition("?")
    return f"{place.rstrip('/')}/{name}{mark}{options}"


class Folder:
    """A folder at an address. What goes wrong is a FetchError that names the file, this machine and the way out."""

    def __init__(self, address: str, way_out: str | None = None) -> None:
        """Sends no request yet. `way_out` is for files that are missing or damaged; None: that of a store."""
        self._address, self._name = address, address.partition("?")[0].rstrip("/")
        self._on_disk = self._name.startswith("file:")
        self._no_file, self._other_file = (way_out or text.format(self._name) for text in (NO_FILE, OTHER_FILE))

    def __str__(self) -> str:
        return self._name

    @cached_property
    def _files(self) -> tuple[Any, str]:
        """The file system, and the path of the folder in it."""
        from pyarrow import fs  # takes a tenth of a second, for stores at addresses alone

        files: tuple[Any, str] = fs.FileSystem.from_uri(self._address)
        return files

    def list_files(self, below: str = "", everything: bool = False) -> dict[str, Any]:
        """Lists the files right in the folder, or in one below, or `everything` there: `FileInfo` by relative path.

        With `everything` a link to a folder on a disk is a file of no bytes. Names that are no paths are left out.
        """
        with self._explain(below):
            from pyarrow.fs import FileSelector

            files, root = self._files
            recursive = everything and not self._on_disk
            try:
                listed = files.get_file_info(FileSelector(f"{root}/{below}".rstrip("/"), recursive=recursive))
            except FileNotFoundError:
                return {}
            infos = {info.path.removeprefix(f"{root}/"): info for info in listed}
        named = {name: info for name, info in infos.items() if name_fault(name) is None}
        for name in [name for name, info in named.items() if info.size is None] if everything and self._on_disk else ():
            if os.path.islink(f"{root}/{name}"):
                named[name] = _describe_link(named[name])
            else:
                named |= self.list_files(name, everything)
        return named

    def sizes(self, below: str = "") -> dict[str, int | None]:
        """Lists bytes of what lies right in the folder, or in one below, by relative path; None for a folder."""
        return {path: info.size for path, info in self.list_files(below).items()}

    def fetch(self, relative: str, size: int, xxh3: str | None, target: Path) -> None:
        """Copies a file to a path; again where not all of it, or something else than its XXH3-128, arrives.

        Raises:
            FetchError: It does not arrive.
            OSError: It cannot be written.
        """
        for _ in range(TRIES):
            with reopen(target) as sink:
                arrived = self._receive(relative, sink)
                sink.truncate()
                to_disk(sink)
            if arrived == (size, arrived[1] if xxh3 is None else xxh3):
                return
            log.warning("%s/%s: %s bytes of another content arrived, fetched again", self, relative, arrived[0])
        raise FetchError(
            f"{self}/{relative}", f"is not what the manifest says, {size} bytes of XXH3 {xxh3}; {self._other_file}"
        )

    def content(self, relative: str) -> bytes:
        """Reads the whole content of a small file. Raises FetchError."""
        return b"".join(self._chunks(relative))

    def is_as(self, relative: str, size: int, xxh3: str) -> bool:
        """Reads a file, and compares it. Raises FetchError: it cannot be read."""
        return any(self._receive(relative) == (size, xxh3) for _ in range(TRIES))

    def _receive(self, relative: str, sink: BinaryIO | None = None) -> tuple[int, str]:
        """Reads a file, and writes it into `sink`; returns its size and its XXH3-128."""
        hasher, size = xxhash.xxh3_128(), 0
        for chunk in self._chunks(relative):
            hasher.update(chunk)
            size += len(chunk)
            if sink is not None:
                sink.write(chunk)
        return size, hasher.hexdigest()

    def _chunks(self, relative: str) -> Iterator[bytes]:
        with self._explain(relative):
            files, root = self._files
            if fault := name_fault(relative):
                raise FetchError(f"{self}/{relative}", fault)
            with files.open_input_stream(f"{root}/{relative}") as source:
                while chunk := source.read(CHUNK):
                    yield chunk

    def send(self, relative: str, source: Path, size: int | None = None) -> None:
        """Copies a file, or its first `size` bytes, to its place in the folder, where it appears when it is whole."""
        with source.open("rb") as content, self._written(relative) as sink:
            while chunk := content.read(CHUNK if size is None else min(CHUNK, size)):
                sink.write(chunk)
                size = None if size is None else size - len(chunk)

    def put(self, relative: str, content: bytes) -> None:
        """Writes a small file, which appears when it is whole."""
        with self._written(relative) as sink:
            sink.write(content)

    def delete(self, relative: str) -> None:
        """Removes a file; one that is gone already is no fault."""
        with self._explain(relative):
            files, path = self._files[0], self._find_place(relative)
            try:
                files.delete_file(path)
            except FileNotFoundError:
                return

    def delete_if_empty(self) -> None:
        """Removes the folder, if there are only folders in it, which object stores keep as objects."""
        if any(info.size is not None for info in self.list_files(everything=True).values()):
            return
        with self._explain(""):
            files, root = self._files
            files.delete_dir(root)

    def _find_place(self, relative: str) -> str:
        """Returns the path of what is written or removed. Raises FetchError: it does not lie in the folder."""
        root = self._files[1]
        path = f"{root}/{relative}"
        fault = name_fault(relative)
        if fault is None and self._on_disk and not is_inside(Path(root), Path(path).parent):
            fault = "lies behind a link out of the folder; remove the link"
        if fault is not None:
            raise FetchError(f"{self}/{relative}", fault)
        return path

    @contextmanager
    def _written(self, relative: str) -> Iterator[BinaryIO]:
        with self._explain(relative):
            files = self._files[0]
            path = whole = self._find_place(relative)
            if self._on_disk:
                files.create_dir(path.rpartition("/")[0], recursive=True)
                path = f"{whole}.{os.getpid()}{UNFINISHED}"
                with suppress(FileNotFoundError):
                    os.unlink(path)
            with files.open_output_stream(path, compression=None) as sink:
                yield sink
            if path != whole:
                files.move(path, whole)

    @contextmanager
    def _explain(self, relative: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            text = str(error)
            if relative and (isinstance(error, FileNotFoundError) or WITHOUT_REASON in text):
                # A folder that cannot be listed says why.
                self.sizes()
            meaning = next((MEANINGS[part] for part in MEANINGS if part in text), None)
            if isinstance(error, FileNotFoundError):
                meaning = f"finds no such file; {self._no_file}"
            if meaning is None:
                reason = text.rpartition("AWS Error ")[2][:200]
                meaning = f"was not served ({reason}); look at its network, and at the address"
            raise FetchError(
                f"{self}/{relative}".rstrip("/"), f"machine {platform.node()} {meaning}", detail=text
            ) from error
