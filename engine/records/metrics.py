"""metrics.jsonl, one checksummed JSON line a round, and tensors that are recorded of rounds."""

import json
import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from safetensors import SafetensorError

from shoal.engine.config.config_text import OF_RUN, require_same_run, run_of
from shoal.engine.config.run_identity import flatten
from shoal.engine.config.sections import current_scopes
from shoal.engine.records.checkpoint import CHECKPOINTS, newest_round
from shoal.engine.records.logged_lines import CHANGED, Logged, LoggedLines
from shoal.engine.records.summary import METRICS, finished, read_summary, require_lines
from shoal.engine.records.tensors import read_tensors, write_tensors
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write, replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import digest
from shoal.storage.files.reading import read_bytes

if TYPE_CHECKING:
    from torch import Tensor

RECORDS = "records"
# These paths below a run are written here.
WRITTEN = (r"metrics\.jsonl", r"records/round-\d{6,18}\.safetensors")
SCOPES = "scopes."
# A line has, under this key, the digests of other files with records of its round.
DIGESTS = "digests"


class Metrics:
    """The one writer of a run's lines; it knows the bytes that it wrote, and refuses a file that somebody changed."""

    def __init__(self, run: Path) -> None:
        self.path = run / METRICS
        self._begin()
        # `RunFolder.begin` sets it to the name of the run.
        self.run = run_of(run)

    def _begin(self) -> None:
        self._ends, self._hasher = array("q"), xxhash.xxh3_128()

    @property
    def lines(self) -> LoggedLines:
        """The lines so far, without their seals and the name of the run."""
        return LoggedLines(self.path, self._ends, len(self._ends), lambda line: _current(_plain(line)[0]))

    @property
    def logged(self) -> Logged:
        """The lines so far as the file has them."""
        return Logged(self.path, self._size, self._hasher.hexdigest())

    @property
    def _size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def append(self, line: Mapping[str, Any]) -> None:
        """Logs a round.

        Raises ShoalError: a number is not finite, the file cannot be written and is as before, or it was changed.
        """
        try:
            text = self._seal(line)
        except ValueError:
            keys = ", ".join(_not_finite(line))
            raise ShoalError(self.path, f"round {line['round']}: NaN or infinity in {keys}; not written") from None
        try:
            with self.path.open("ab", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                if before != self._size:
                    raise ShoalError(self.path, CHANGED)
                write_whole(file.fileno(), text, before)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._note(text)

    def _note(self, line: bytes) -> None:
        self._hasher.update(line)
        self._ends.append(self._size + len(line))

    def _seal(self, line: Mapping[str, Any]) -> bytes:
        return (sealed(line if self.run is None else {**line, OF_RUN: self.run}) + "\n").encode()

    def restore(self, logged: Logged) -> str | None:
        """Takes over the lines of a checkpoint; returns a warning if the file does not begin with them."""
        self._begin()
        size: int | None
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                begins = all(file.read(len(line)) == line for line in self._rename(logged))
                blank = (not begins and not size) or (file.seek(0) == 0 and not any(map(bytes.strip, file)))
        except FileNotFoundError:
            size, begins, blank = None, False, False
        except OSError as error:
            raise ShoalError(
                self.path, f"cannot be read ({error.strerror}); make it readable, or move it away and use --resume"
            ) from error
        for line in self._rename(logged):
            self._note(line)
        if not self._ends:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:
                raise ShoalError(self.path, f"cannot be removed: {error.strerror}; remove it by hand") from error
            return None
        if not begins or size != self._size:
            with replacing(self.path) as unfinished, unfinished.open("wb") as file:
                file.writelines(self._rename(logged))
        if begins:
            return None
        fault = "was deleted" if size is None else "was emptied" if blank else "was changed or cut off"
        return f"{self.path}: {fault}; rebuilt from the checkpoint"

    def _rename(self, logged: Logged) -> Iterator[bytes]:
        """Yields lines with the name of this run, since a run with more rounds has another name."""
        return (self._seal(_plain(line)[0]) for line in logged.lines())


def write_whole(file: int, data: bytes, before: int) -> None:
    """Writes all of it at the end of an open file, whose length is `before`, or nothing if that raises OSError."""
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError:
        os.ftruncate(file, before)
        raise


def _not_finite(value: Any, key: str = "") -> Iterator[str]:
    """Yields dotted keys of the numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        yield key
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _not_finite(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _not_finite(inner, f"{key}.{number}")


def numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Returns numbers of a line by dotted name; those of scopes omit `scopes.`, as in `deployed.test.nodes`."""
    flat = {name.removeprefix(SCOPES): value for name, value in flatten(line).items()}
    return {name: v for name, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _current(line: dict[str, Any]) -> dict[str, Any]:
    return line | {"scopes": current_scopes(line["scopes"])} if "scopes" in line else line


def _plain(line: str | bytes) -> tuple[dict[str, Any], str | None]:
    """Unseals a line: returns it as it was given, and the name of its run. Raises ValueError: it was changed."""
    plain = unsealed(line)
    return plain, plain.pop(OF_RUN, None)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Returns the lines of all rounds that a run has done, finished or at work; nothing else reads them.

    Raises ShoalError: rounds of the summary or of the newest checkpoint are missing, as where a copy was cut at the end
    of a line; a line was changed or is of another run; or the file cannot be read.
    """
    # This is read first, since a run at work logs a round before it writes a checkpoint of it.
    done = max(newest_round(run / CHECKPOINTS), int(read_summary(run)["rounds"]) if finished(run) else 0)
    lines = _logged(run)
    require_lines(run, len(lines), done)
    return lines


def read_log(run: Path, number: int) -> Logged:
    """Returns the first lines of a run, for a checkpoint; raises as `read_metrics`."""
    read_metrics(run)
    return Logged.first_lines(run / METRICS, number)


def has_round(run: Path) -> bool:
    """Returns whether a folder has a round of a run, whose record need not be whole. Raises ShoalError: damaged."""
    return bool(_logged(run))


def _logged(run: Path) -> list[dict[str, Any]]:
    """Reads the lines of a file, but for a last one that a kill cut off. Raises ShoalError: they cannot be read."""
    path = run / METRICS
    try:
        text = read_bytes(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror}") from error
    result: list[dict[str, Any]] = []
    seen: set[str | None] = set()
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), 1):
        try:
            plain, name = _plain(line)
            if name not in seen:
                require_same_run(run, name)
                seen.add(name)
            if plain["round"] != number:
                raise ValueError(f"written for round {plain['round']}")
            result.append(_current(plain))
        except ValueError as error:
            fault = "is damaged" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else f"was {error}"
            raise ShoalError(
                path, f"line {number} {fault}; --resume rebuilds it from a checkpoint, --fresh starts over"
            ) from None
    return result


def write_records(run: Path, number: int, records: "Mapping[str, Tensor]") -> str:
    """Writes the records of a round, and returns the file's digest. Raises ShoalError: the file cannot be written."""
    with replacing(run / RECORDS / f"round-{number:06d}.safetensors") as unfinished:
        write_tensors(unfinished, records)
        return digest(unfinished)


def noted_digests(run: Path, name: str) -> dict[int, str | None]:
    """Reads the digests of the records or the client scores of all logged rounds; None if the line of a round has none.

    Raises ShoalError: as `read_metrics`.
    """
    return {line["round"]: line.get(DIGESTS, {}).get(name) for line in read_metrics(run)}


def require_noted(run: Path, number: int, digest: str, noted: Mapping[int, str | None]) -> None:
    """Raises ValueError: `digest` is not the one that the line of the round notes; runs without a name noted none."""
    expected = noted.get(number)
    if digest != expected and (expected is not None or run_of(run) is not None):
        raise ValueError(f"round {number} is not as this run wrote it")


def recorded_rounds(run: Path) -> list[int]:
    """Returns the rounds with records, ascending."""
    folder = run / RECORDS
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name[6:-12]) for name in names if re.fullmatch(r"round-\d{6,18}\.safetensors", name))


def read_records(run: Path, number: int) -> "dict[str, Tensor]":
    """Reads the records of a round, those that it has.

    `mixing` float32 `[B, B]` has weights of the uploads of column clients for row clients; `prototypes` float32
    `[P, H]` come with `prototype_client` and `prototype_class` int64 `[P]`.

    Raises ShoalError: the file is damaged, or of another run.
    """
    path = run / RECORDS / f"round-{number:06d}.safetensors"
    noted = noted_digests(run, RECORDS)
    try:
        require_noted(run, number, digest(path), noted)
        return read_tensors(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise ShoalError(path, f"cannot be read ({error}); remove it, and the report is without that round") from None
