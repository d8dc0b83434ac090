"""metrics.jsonl, one checksummed JSON line a round, and tensors that are recorded of rounds."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from shoal.engine.config.config_text import OF_RUN, require_same_run, run_of
from shoal.engine.config.run_identity import flatten
from shoal.engine.config.sections import current_scopes
from shoal.engine.records.checkpoint import CHECKPOINTS, newest_round
from shoal.engine.records.summary import METRICS, finished, read_summary, require_lines
from shoal.engine.records.tensors import read_tensors, write_tensors
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write, replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import digest
from shoal.storage.files.reading import read_bytes

if TYPE_CHECKING:
    from torch import Tensor

SCOPES = "scopes."
# The key of the digests of what else is kept of a round.
DIGESTS = "digests"


class Metrics:
    """The one writer of a run's lines; it also holds them, so that a changed file changes no number."""

    def __init__(self, run: Path) -> None:
        self.path = run / METRICS
        self._lines: list[str] = []
        # By `RunFolder.begin`.
        self.run = run_of(run)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines so far, without their seals and the name of the run."""
        return [_current(_plain(line)[0]) for line in self._lines]

    @property
    def text(self) -> str:
        """The lines so far as the file has them."""
        return "".join(line + "\n" for line in self._lines)

    def append(self, line: Mapping[str, Any]) -> None:
        """Logs a round. Raises ShoalError: a number is not finite, or the file cannot be written and is as before."""
        try:
            text = self._sealed(line)
        except ValueError:
            keys = ", ".join(_not_finite(line))
            raise ShoalError(self.path, f"round {line['round']}: NaN or infinity in {keys}; not written") from None
        try:
            with self.path.open("ab", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                write_whole(file.fileno(), (text + "\n").encode(), before)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._lines.append(text)

    def _sealed(self, line: Mapping[str, Any]) -> str:
        return sealed(line if self.run is None else {**line, OF_RUN: self.run})

    def restore(self, text: str) -> str | None:
        """Takes over the lines that a checkpoint holds; a warning if the file does not begin with them."""
        # A run with more rounds has another name.
        self._lines = [self._sealed(_plain(line)[0]) for line in text.splitlines()]
        text = self.text
        try:
            found = read_bytes(self.path).decode("utf-8", errors="replace")
        except FileNotFoundError:
            found = None
        except OSError as error:
            raise ShoalError(
                self.path, f"cannot be read ({error.strerror}); make it readable, or move it away and use --resume"
            ) from error
        if found != text and not text:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:
                raise ShoalError(self.path, f"cannot be removed: {error.strerror}; remove it by hand") from error
        elif found != text:
            with replacing(self.path) as unfinished:
                unfinished.write_text(text)
        if found is not None and found.startswith(text):
            return None
        fault = "was deleted" if found is None else "was changed or cut off" if found.strip() else "was emptied"
        return f"{self.path}: {fault}; rebuilt from the checkpoint" if text else None


def write_whole(file: int, data: bytes, before: int) -> None:
    """Writes all of it at the end of an open file, whose length is `before`, or nothing if that raises OSError."""
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError:
        os.ftruncate(file, before)
        raise


def _not_finite(value: Any, key: str = "") -> Iterator[str]:
    """Dotted keys of the numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        yield key
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _not_finite(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _not_finite(inner, f"{key}.{number}")


def numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line by dotted name, those of scopes without a word before them, as `deployed.test.nodes`."""
    flat = {name.removeprefix(SCOPES): value for name, value in flatten(line).items()}
    return {name: v for name, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _current(line: dict[str, Any]) -> dict[str, Any]:
    return line | {"scopes": current_scopes(line["scopes"])} if "scopes" in line else line


def _plain(line: str | bytes) -> tuple[dict[str, Any], str | None]:
    """A line as it was given, and the name of its run. Raises ValueError: it was changed."""
    plain = unsealed(line)
    return plain, plain.pop(OF_RUN, None)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Returns the lines of all rounds that a run has done, finished or at work; nothing else reads them.

    Raises ShoalError: rounds of the summary or of the newest checkpoint are missing, as where a copy was cut at the end
    of a line; a line was changed or is of another run; or the file cannot be read.
    """
    # First, for a run at work logs a round before it writes a checkpoint of it.
    done = max(newest_round(run / CHECKPOINTS), int(read_summary(run)["rounds"]) if finished(run) else 0)
    lines = _logged(run)
    require_lines(run, len(lines), done)
    return lines


def read_log(run: Path, number: int) -> str:
    """Returns the text of the first lines of a run, for a checkpoint; raises as `read_metrics`."""
    read_metrics(run)
    return b"".join(read_bytes(run / METRICS).splitlines(keepends=True)[:number]).decode()


def has_round(run: Path) -> bool:
    """Returns whether a folder has a round of a run, whose record need not be whole. Raises ShoalError: damaged."""
    return bool(_logged(run))


def _logged(run: Path) -> list[dict[str, Any]]:
    """The lines that are there, but a last one that a kill cut off. Raises ShoalError: they cannot be read."""
    path = run / METRICS
    try:
        text = read_bytes(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror}") from error
    result: list[dict[str, Any]] = []
    known: set[str | None] = set()
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), 1):
        try:
            plain, found = _plain(line)
            if found not in known:
                require_same_run(run, found)
                known.add(found)
            if plain["round"] != number:
                raise ValueError(f"written for round {plain['round']}")
            result.append(_current(plain))
        except ValueError as error:
            fault = "is damaged" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else f"was {error}"
            raise ShoalError(
                path, f"line {number} {fault}; --resume rebuilds it from a checkpoint, --fresh starts over"
            ) from None
    return result


RECORDS = "records"


def write_records(run: Path, number: int, records: "Mapping[str, Tensor]") -> str:
    """Writes the records of a round, and gives the file's digest. Raises ShoalError: the file cannot be written."""
    with replacing(run / RECORDS / f"round-{number:06d}.safetensors") as unfinished:
        write_tensors(unfinished, records)
        return digest(unfinished)


def noted_digests(run: Path, name: str) -> dict[int, str | None]:
    """Digests of the records or the client scores of all logged rounds; None where the line of a round has none.

    Raises ShoalError: as `read_metrics`.
    """
    return {line["round"]: line.get(DIGESTS, {}).get(name) for line in read_metrics(run)}


def require_noted(run: Path, number: int, found: str, noted: Mapping[int, str | None]) -> None:
    """Raises ValueError: what is kept of a round is not what its line notes; runs without a name noted nothing."""
    expected = noted.get(number)
    if found != expected and (expected is not None or run_of(run) is not None):
        raise ValueError(f"round {number} is not as this run wrote it")


def recorded_rounds(run: Path) -> list[int]:
    """Rounds with records, ascending."""
    folder = run / RECORDS
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name[6:-12]) for name in names if re.fullmatch(r"round-\d{6,18}\.safetensors", name))


def read_records(run: Path, number: int) -> "dict[str, Tensor]":
    """Records of a round: `mixing` float32 `[B, B]`, weights of the uploads of column clients for row
    clients, and `prototypes` float32 `[P, H]` with `prototype_client` and `prototype_class` int64 `[P]`, if there are.

    Raises ShoalError: the file is damaged, or of another run.
    """
    path = run / RECORDS / f"round-{number:06d}.safetensors"
    noted = noted_digests(run, RECORDS)
    try:
        require_noted(run, number, digest(path), noted)
        return read_tensors(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise ShoalError(path, f"cannot be read ({error}); remove it, and the report is without that round") from None
