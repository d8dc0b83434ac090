"""clients.arrows: the scores of every client at every evaluation, one record batch each, in Arrow's stream format.

uploads.arrows has the digests of uploads in the same way, a batch for each round. A stream is appended to and cut off
between its messages, which Arrow's file format with its footer is not.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from shoal.engine.config.sections import OLD_SCOPES
from shoal.engine.records.metrics import noted_digests, require_noted, write_whole
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write
from shoal.storage.files.digest import digest_of
from shoal.storage.files.reading import read_bytes

CLIENT_SCORES, UPLOADS = "clients.arrows", "uploads.arrows"
# These paths below a run are written here.
WRITTEN = (r"(clients|uploads)\.arrows",)
# Reading a batch that a kill cut off, or that was damaged, may raise one of these.
UNREADABLE = (
    *(pa.lib.ArrowException, EOFError, StopIteration),
    *(OSError, ValueError, KeyError, IndexError, MemoryError),
)
# Arrow ends a stream with these bytes. Ours has none, so that it can be appended to.
END = bytes.fromhex("ffffffff00000000")


class ClientScores:
    """The one writer of a run's file, of scores or of digests."""

    def __init__(self, run: Path, name: str = CLIENT_SCORES) -> None:
        self.path = run / name
        # The schema of the file; None before its first batch.
        self._schema: pa.Schema | None = None

    def append(self, number: int, columns: Mapping[str, np.ndarray | pa.Array]) -> str | None:
        """Adds the scores of a round and returns their digest; None without scores.

        Raises ShoalError: the file cannot be written; it then is as before.
        """
        if not columns:
            return None
        rows = len(next(iter(columns.values())))
        arrays = {"round": pa.array(np.full(rows, number, dtype=np.int32))}
        for name, values in columns.items():
            arrays[name] = values if isinstance(values, pa.Array) else pa.array(values, from_pandas=True)
        try:
            with self.path.open("ab", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                if before and self._schema is None:
                    with pa.OSFile(str(self.path)) as begun, pa.ipc.open_stream(begun) as stream:
                        self._schema = stream.schema
                schema, head, message = _messages(arrays, self._schema if before else None)
                write_whole(file.fileno(), message if before else head + message, before)
                self._schema = schema
        except OSError as error:
            raise cannot_write(self.path, error) from error
        return digest_of(message)

    def restore(self, noted: Mapping[int, str | None]) -> str | None:
        """Cuts off batches after a checkpoint, or of another run; returns a warning if rounds are missing.

        `noted` has the rounds that were kept, ascending, with the digests in their lines, if these have any.
        """
        kept: list[int] = []
        end = 0
        for batch in _batches(self.path):
            if batch.number not in noted or (kept and batch.number <= kept[-1]):
                break
            try:
                require_noted(self.path.parent, batch.number, batch.digest, noted)
            except ValueError:
                break
            kept.append(batch.number)
            end = batch.end
        try:
            if end:
                os.truncate(self.path, end)
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        missing = sorted(set(noted) - set(kept))
        if not missing:
            return None
        return f"{self.path}: is without {len(missing)} rounds that were kept, of which {missing[0]} is the first"


def _messages(arrays: Mapping[str, pa.Array], begun: pa.Schema | None) -> tuple[pa.Schema, bytes, bytes]:
    """Encodes a batch: its schema, the schema as a stream has it, and its messages; by the types of a begun file."""
    if begun is not None:
        # A file that an older version began keeps its types, such as plain text instead of dictionaries.
        arrays = {field.name: arrays[field.name].cast(field.type) for field in begun}
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    written, head = sink.getvalue().to_pybytes(), batch.schema.serialize().to_pybytes()
    return batch.schema, head, written[len(head) : -len(END)]


@dataclass(frozen=True)
class _Batch:
    """The scores of a round, the digest of their bytes, and their end in the file."""

    number: int
    rows: pa.RecordBatch
    digest: str
    end: int


def _batches(path: Path) -> Iterator[_Batch]:
    """Yields whole batches; skips one that a kill cut off, and all after a damage. Raises OSError: it is unreadable."""
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        return
    # The file is not mapped, since a table of a program may outlive the bytes that a resume cuts off.
    with pa.BufferReader(content) as file, suppress(*UNREADABLE):
        stream = pa.ipc.open_stream(file)
        while True:
            start = file.tell()
            rows = stream.read_next_batch()
            rows.validate(full=True)
            end = file.tell()
            yield _Batch(rows["round"][0].as_py(), rows, digest_of(content[start:end]), end)


def read_client_scores(run: Path) -> pa.Table:
    """Reads the scores of all evaluated rounds of a run, a row for every round, scope, part and client.

    Raises ShoalError: the run kept none, or the file cannot be read or is of another run.

    Returns:
        `round` int32, `scope` and `part` (dictionaries of text: `deployed`, `test`), `client`, `rows` and `correct`
        int32, `f1` float64 (macro-F1), and other metrics of the run under their names, float64.
    """
    path = run / CLIENT_SCORES
    batches = _read_batches(run, CLIENT_SCORES)
    if not batches:
        raise ShoalError(path, "no scores of clients; the run was made with run.client_scores=false, or before them")
    table = pa.Table.from_batches(batches).unify_dictionaries()
    place = table.schema.get_field_index("scope")
    scopes = table["scope"].dictionary_encode().chunks
    return table.set_column(place, "scope", pa.chunked_array([_current(chunk) for chunk in scopes]))


def _read_batches(run: Path, name: str) -> list[pa.RecordBatch]:
    """Reads the batches of a run's file. Raises ShoalError: it cannot be read or is of another run."""
    path, noted = run / name, noted_digests(run, name)
    batches = []
    try:
        for batch in _batches(path):
            # A batch after the noted rounds is one for which a kill prevented the line.
            if batch.number <= max(noted, default=batch.number):
                require_noted(run, batch.number, batch.digest, noted)
                batches.append(batch.rows)
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ShoalError(path, f"{error}; bring the file back, or remove it and do without it") from None
    return batches


def columns_of(uploads: Sequence[tuple[str, int, str]]) -> dict[str, pa.Array]:
    """Makes columns of phases, clients and digests of uploads."""
    phases, clients, digests = zip(*uploads)
    binary = pa.array(map(bytes.fromhex, digests), pa.binary(16))
    return {"phase": pa.array(phases), "client": pa.array(clients, pa.int32()), "digest": binary}


def read_upload_digests(run: Path, number: int) -> list[tuple[str, int, str]]:
    """Reads phase, client and digest of the uploads of a round, in their order; empty if none were kept.

    Raises ShoalError: the file cannot be read, is of another run, or is without the round.
    """
    return read_digests_by_round(run, [number]).get(number, [])


def read_digests_by_round(run: Path, numbers: Collection[int] | None = None) -> dict[int, list[tuple[str, int, str]]]:
    """Reads by round what `read_upload_digests` does, of some rounds or of all; one without any kept is missing.

    Raises ShoalError: as `read_upload_digests`.
    """
    uploads: dict[int, list[tuple[str, int, str]]] = {}
    for rows in _read_batches(run, UPLOADS):
        number = rows["round"][0].as_py()
        if numbers is None or number in numbers:
            read = ((row["phase"], row["client"], row["digest"].hex()) for row in rows.to_pylist())
            uploads.setdefault(number, []).extend(read)
    for number, noted in noted_digests(run, UPLOADS).items():
        if noted is not None and (numbers is None or number in numbers) and number not in uploads:
            raise ShoalError(
                run / UPLOADS, f"the digests of round {number} are damaged or missing; bring the file back"
            )
    return uploads


def _current(scopes: pa.DictionaryArray) -> pa.DictionaryArray:
    """Renames scopes of older files to today's names."""
    before = scopes.dictionary.to_pylist()
    names = [OLD_SCOPES.get(name, name) for name in before]
    if names == before:
        # Arrow looks for pandas, and loads it, to make an array of a list.
        return scopes
    return pa.DictionaryArray.from_arrays(scopes.indices, pa.array(names, scopes.dictionary.type))


def mean_scores(run: Path) -> dict[tuple[int, str, str], tuple[float, float]]:
    """Computes means over clients of accuracy and macro-F1, by round, scope and part; none of what are no classes.

    Raises as `read_client_scores`.
    """
    # This module takes a while to load, which a list of runs need not wait for.
    import pyarrow.compute as pc

    table = read_client_scores(run).unify_dictionaries()
    if "correct" not in table.column_names:
        return {}
    accuracy = pc.divide(table["correct"].cast(pa.float64()), table["rows"])
    keys = ["round", "scope", "part"]
    means = table.append_column("accuracy", accuracy).group_by(keys).aggregate([("accuracy", "mean"), ("f1", "mean")])
    columns = means.to_pydict()
    return dict(zip(zip(*(columns[key] for key in keys)), zip(columns["accuracy_mean"], columns["f1_mean"])))
