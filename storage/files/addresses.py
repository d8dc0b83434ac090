"""Folders at `s3://`, `gs://` and `file://` addresses through `pyarrow.fs`: what lies there, fetched and sent."""

import logging
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash

from shoal.storage.errors import FetchError
from shoal.storage.files.atomic import reopened, to_disk

CHUNK, TRIES = 1 << 24, 3
RIGHT = "has no right there; give it one, or credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role)"
REGION = "asks in the wrong region; add ?region=… with that of the bucket"
# What answers say, in a part of their text, and what that means for this machine.
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
log = logging.getLogger(__name__)


class Folder:
    """A folder at an address. What goes wrong is a FetchError that names the file, this machine and the way out."""

    def __init__(self, address: str) -> None:
        """Asks nobody yet."""
        self._address, self._name = address, address.partition("?")[0].rstrip("/")

    def __str__(self) -> str:
        return self._name

    @cached_property
    def _files(self) -> tuple[Any, str]:
        """The file system, and the path of the folder in it."""
        from pyarrow import fs  # takes a tenth of a second, for stores at addresses alone

        found: tuple[Any, str] = fs.FileSystem.from_uri(self._address)
        return found

    def sizes(self, below: str = "") -> dict[str, int | None]:
        """Bytes of what lies right in the folder, or in one below, by path relative to this one; None of a folder."""
        with self._explained(below):
            from pyarrow.fs import FileSelector

            files, root = self._files
            try:
                found = files.get_file_info(FileSelector(f"{root}/{below}".rstrip("/")))
            except FileNotFoundError:
                return {}
            return {info.path.removeprefix(f"{root}/"): info.size for info in found}

    def fetch(self, relative: str, size: int, xxh3: str | None, target: Path) -> None:
        """Copies a file to a path; again where not all of it, or something else than its XXH3-128, arrives.

        Raises:
            FetchError: It does not arrive.
            OSError: It cannot be written.
        """
        for _ in range(TRIES):
            hasher = xxhash.xxh3_128()
            with reopened(target) as sink:
                for chunk in self._chunks(relative):
                    hasher.update(chunk)
                    sink.write(chunk)
                count = sink.tell()
                sink.truncate()
                to_disk(sink)
            if count == size and xxh3 in (None, hasher.hexdigest()):
                return
            log.warning("%s/%s: %s bytes of another content arrived, fetched again", self, relative, count)
        raise FetchError(
            f"{self}/{relative}",
            f"is not what the manifest says, {size} bytes of XXH3 {xxh3}; bring that back, or delete all of {self}, "
            "run `shoal prepare` again, and the run with --fresh",
        )

    def _chunks(self, relative: str) -> Iterator[bytes]:
        with self._explained(relative):
            files, root = self._files
            with files.open_input_stream(f"{root}/{relative}") as source:
                while chunk := source.read(CHUNK):
                    yield chunk

    def send(self, relative: str, source: Path) -> None:
        """Copies a file to its place in the folder, where it appears when it is whole."""
        with self._explained(relative):
            files, root = self._files
            if self._name.startswith("file"):
                files.create_dir(f"{root}/{relative}".rpartition("/")[0], recursive=True)
            with source.open("rb") as content, files.open_output_stream(f"{root}/{relative}") as sink:
                while chunk := content.read(CHUNK):
                    sink.write(chunk)

    @contextmanager
    def _explained(self, relative: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            text = str(error)
            if relative and (isinstance(error, FileNotFoundError) or WITHOUT_REASON in text):
                # A folder that cannot be listed says why.
                self.sizes()
            meaning = next((MEANINGS[part] for part in MEANINGS if part in text), None)
            if isinstance(error, FileNotFoundError):
                meaning = f"finds no such file; delete {self}/manifest.json, and `shoal prepare` makes all again"
            if meaning is None:
                reason = text.rpartition("AWS Error ")[2][:200]
                meaning = f"was not served ({reason}); look at its network, and at the address"
            raise FetchError(
                f"{self}/{relative}".rstrip("/"), f"machine {platform.node()} {meaning}", detail=text
            ) from error
