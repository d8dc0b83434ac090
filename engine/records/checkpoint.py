"""Checkpoints: a state as safetensors and JSON with the metrics up to it, written atomically, the newest few kept."""

import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from shoal.engine.config.config_text import OF_RUN, require_same_run, run_of
from shoal.engine.records.kept_models import FILE, MODEL, files_of_models, write_models
from shoal.engine.records.logged_lines import Logged
from shoal.engine.records.summary import METRICS, SUMMARY, chosen
from shoal.engine.records.tensors import read_tensors, write_tensors
from shoal.storage.errors import FetchError, ShoalError
from shoal.storage.files.checksummed_json import require_format, sealed, unsealed
from shoal.storage.files.digest import digest
from shoal.storage.files.names import require_digest, require_name
from shoal.storage.files.places import COPIES, cache_folder
from shoal.storage.files.reading import read_bytes

if TYPE_CHECKING:
    from shoal.algorithms.protocol import Tree
    from shoal.engine.rounds.state import FederationState

log = logging.getLogger(__name__)
# The format before had the models of earlier rounds among the tensors of clients, by round.
FORMAT, BY_ROUND = 4, 3
TENSORS, PLAIN = "state.safetensors", "state.json"
SUFFIX = ".safetensors"
# Names of tensors that clients keep, or were given, begin so; a file of them has about `PART_BYTES`.
OF_CLIENTS = ("client/", "inbox/", MODEL)
PART_BYTES = 2**26
# The folders of the newest checkpoints, and of those of best rounds.
CHECKPOINTS, BEST = "checkpoints", "best"
# The copy of a run at an address has a file of this name, with the address.
ADDRESS = ".address"
# Files of a checkpoint, the first with all others but for metrics; paths below a run of what is written here.
PARTS = rf"state\.safetensors|(here-)?clients-\d{{4,}}(-\d{{4,}})?\.safetensors|{FILE.pattern}"
FILES = rf"{PARTS}|metrics\.jsonl"
WRITTEN = (
    rf"(checkpoints|best)/round-\d{{6,18}}(\.unfinished|\.unusable\d*)?/({FILES}|state\.json|models\.part)",
    r"\.address",
)
# Reading a damaged checkpoint raises one of these.
UNUSABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError)


@dataclass(frozen=True)
class Checkpoint:
    """The state that a run continues from.

    Attributes:
        environment: That of the process that wrote it; see `shoal.engine.messages.environment`.
        inputs: Digests of what the run reads; see `shoal.engine.records.inputs`.
        metrics: The lines of the rounds up to it.
        passed_over: A line for each newer checkpoint that cannot be used.
        write_states: Writes states that are in a cluster's memory; see `shoal.engine.hosts.backend.Backend`.
        folder: The folder from which it was read; a checkpoint written elsewhere shares the files of its tensors.
    """

    state: "FederationState"
    environment: dict[str, Any]
    inputs: dict[str, str]
    metrics: Logged
    passed_over: tuple[str, ...] = ()
    write_states: "Callable[[Path, FederationState], dict[str, str]] | None" = None
    folder: Path | None = None


def save(root: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint below `root` as `write` does, and removes all but the newest `keep`."""
    folder = write(root, checkpoint)
    keep_newest(root, keep)
    return folder


def keep_newest(root: Path, count: int) -> None:
    """Removes all checkpoints but the newest ones."""
    keep_only(root, rounds_kept(root)[:count])


def keep_only(root: Path, rounds: Collection[int]) -> None:
    """Removes the checkpoints of all other rounds."""
    for old in rounds_kept(root):
        if old not in rounds:
            shutil.rmtree(
                folder_of(root, old),
                onerror=lambda _, path, error: log.warning("%s: cannot be removed: %s", path, error[1]),
            )


def folder_of(root: Path, number: int) -> Path:
    """Returns the folder of the checkpoint of a round."""
    return root / f"round-{number:06d}"


def write(root: Path, checkpoint: Checkpoint) -> Path:
    """Writes a checkpoint under `root`, unless that of its round is there. Raises ShoalError: the disk is full."""
    folder = folder_of(root, checkpoint.state.round)
    if folder.exists():
        return folder
    unfinished = folder.with_name(folder.name + ".unfinished")
    tensors, plain = checkpoint.state.to_tensors()
    try:
        with suppress(FileNotFoundError):
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
        files = {} if checkpoint.folder is None else _link_tensors(checkpoint.folder, unfinished)
        if checkpoint.folder is None:
            models, needed = checkpoint.state.models(), plain["downloads"].values()
            files, few = write_models(unfinished, models, needed, files_of_models(_folders(root.parent)))
            others = {name: t for name, t in tensors.items() if not name.startswith(MODEL)}
            for name, part in _parts(others | few).items():
                write_tensors(unfinished / name, part)
                files[name] = digest(unfinished / name)
        if checkpoint.state.elsewhere:
            assert checkpoint.write_states is not None
            files |= checkpoint.write_states(unfinished, checkpoint.state)
        checkpoint.metrics.copy_to(unfinished / METRICS)
        run = run_of(root.parent)
        record = {
            "format": FORMAT,
            **({} if run is None else {OF_RUN: run}),
            "files": {**files, METRICS: digest(unfinished / METRICS)},
            "environment": checkpoint.environment,
            "inputs": checkpoint.inputs,
            "state": plain,
        }
        (unfinished / PLAIN).write_text(sealed(record))
        for path in (*(unfinished / name for name in (*files, METRICS, PLAIN)), unfinished):
            # Hosts sent the other files to the address of the run, and kept none here.
            if path.exists() or address_of(root.parent) is None:
                _to_disk(path)
        os.replace(unfinished, folder)
        _to_disk(folder.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise ShoalError(folder, f"the checkpoint cannot be written ({error}); free space and use --resume") from error
    return folder


def _folders(run: Path) -> list[Path]:
    """Lists the checkpoints of a run, readable or not."""
    return [folder_of(root, number) for root in (run / CHECKPOINTS, run / BEST) for number in rounds_kept(root)]


def models_on_disk(run: Path) -> set[str]:
    """Digests of the models of earlier rounds that the next checkpoint of a run takes from those before it."""
    return {model for models in files_of_models(_folders(run)).values() for model in models}


def _link_tensors(source: Path, folder: Path) -> dict[str, str]:
    """Links the tensors of a checkpoint into another folder, or copies them to another disk; gives their digests."""
    files = {name: xxh3 for name, xxh3 in _record(source)["files"].items() if name.endswith(SUFFIX)}
    for name in files:
        try:
            os.link(source / name, folder / name)
        except OSError:
            shutil.copyfile(source / name, folder / name)
    return files


def write_clients(path: Path, tensors: "Tree") -> str:
    """Writes what clients keep as a file of a checkpoint; gives its digest. Raises OSError: it cannot be written."""
    write_tensors(path, tensors)
    _to_disk(path)
    return digest(path)


def address_of(run: Path) -> str | None:
    """Returns the address of the run of which a folder is the local copy; None: the run is in the folder alone.

    The address is read from a file in the folder, which may come from another user. So it counts in the cache alone,
    where this machine makes all copies. The owner of the file would not tell, since a user owns all that is unpacked.
    """
    path = run / ADDRESS
    if not path.exists() or not _is_copy(run):
        return None
    return path.read_text()


def _is_copy(run: Path) -> bool:
    """Returns whether a folder lies in the cache, in which copies of runs at addresses are made."""
    kept = Path(os.path.realpath(cache_folder()))
    return Path(os.path.realpath(run)).parent.parent in [kept / kind for kind in COPIES]


def _parts(tensors: "Tree") -> "dict[str, Tree]":
    """Tensors by file: all in one, or, where they are many bytes, those of clients in files of their own.

    A file is copied in memory before it is written.
    """
    if sum(t.nbytes for t in tensors.values()) <= PART_BYTES:
        return {TENSORS: tensors}
    parts: dict[str, Tree] = {TENSORS: {}}
    name, size = "", PART_BYTES
    for entry, t in tensors.items():
        if not entry.startswith(OF_CLIENTS):
            parts[TENSORS][entry] = t
            continue
        if size + t.nbytes > PART_BYTES:
            name, size = f"clients-{len(parts):04d}.safetensors", 0
        parts.setdefault(name, {})[entry] = t
        size += t.nbytes
    return parts


def _to_disk(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def rounds_kept(root: Path) -> list[int]:
    """Lists the rounds of the checkpoints, readable or not, newest first. Raises ShoalError: it cannot be read."""
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ShoalError(root, f"the checkpoints cannot be read: {error.strerror}") from error
    return sorted((int(name[6:]) for name in names if re.fullmatch(r"round-\d{6,18}", name)), reverse=True)


def newest_round(root: Path) -> int:
    """Returns the round of the newest checkpoint, readable or not; 0 if there is none. Raises as `rounds_kept`."""
    return max(rounds_kept(root), default=0)


def newest_inputs(run: Path) -> dict[str, str]:
    """Digests of what a run read, by its summary or its newest readable checkpoint; none where it has neither."""
    roots = (run / CHECKPOINTS, run / BEST)
    states = [folder_of(root, number) / PLAIN for root in roots for number in rounds_kept(root)]
    for path in (run / SUMMARY, *states):
        with suppress(*UNUSABLE):
            return dict(unsealed(read_bytes(path))["inputs"])
    return {}


def load_newest(root: Path) -> Checkpoint | None:
    """Loads the newest checkpoint that can be used; None if there is none. Raises ShoalError: all are unusable."""
    complaints: list[str] = []
    for number in rounds_kept(root):
        try:
            return replace(load_round(root, number), passed_over=tuple(complaints))
        except FetchError:
            raise
        except ShoalError as error:
            complaints.append(error.line)
    if complaints:
        raise ShoalError(
            f"no checkpoint can be used ({'; '.join(complaints)}); make one readable again, or --fresh deletes them "
            "all and starts over"
        )
    return None


def load_round(root: Path, number: int) -> Checkpoint:
    """Loads the checkpoint of a round. Raises ShoalError: it is not there, or cannot be used."""
    # The state loads torch, and commands that ask for rounds and names alone must not wait for that.
    from shoal.engine.rounds.state import FederationState

    folder = folder_of(root, number)
    try:
        record = _record(folder)
        # Old checkpoints are deleted while their values may still be in use.
        files = [folder / name for name in record["files"] if name.endswith(SUFFIX)]
        mapped = {name: t for file in files for name, t in read_tensors(file).items()}
        tensors = {name: t if name.startswith((MODEL, "download/")) else t.clone() for name, t in mapped.items()}
        state = FederationState.from_tensors(tensors, record["state"])
        path = folder / METRICS
        metrics = Logged(path, path.stat().st_size, record["files"][METRICS])
        return Checkpoint(state, record["environment"], record["inputs"], metrics, folder=folder)
    except UNUSABLE as error:
        raise ShoalError(folder, _fault(error)) from None


def sound_tensors(root: Path, number: int) -> Path:
    """Returns the file of the tensors of a round. Raises ShoalError: the checkpoint is missing, or cannot be used."""
    folder = folder_of(root, number)
    try:
        _record(folder)
    except UNUSABLE as error:
        raise ShoalError(folder, _fault(error)) from None
    return folder / TENSORS


def load_last(root: Path, rounds: int) -> Checkpoint:
    """Loads the checkpoint of a finished run's last round. Raises ShoalError: there is none, or it cannot be used."""
    newest = load_newest(root)
    if newest is None or newest.passed_over or newest.state.round != rounds:
        why = newest.passed_over[0] if newest and newest.passed_over else f"{root}: no checkpoint of round {rounds}"
        raise ShoalError(f"{why}; delete summary.json, and --resume makes the last rounds again")
    return newest


def faults(root: Path) -> list[str]:
    """Returns a line for every checkpoint that is damaged. Raises ShoalError: the folder cannot be read."""
    lines = []
    for number in rounds_kept(root):
        try:
            sound_tensors(root, number)
        except ShoalError as error:
            lines.append(error.line)
    return lines


def _record(folder: Path) -> dict[str, Any]:
    """Reads the record of a checkpoint and compares all its files. Raises what `UNUSABLE` names, or ShoalError."""
    text = read_bytes(folder / PLAIN)
    require_format(folder, text, FORMAT, BY_ROUND)
    record = unsealed(text)
    _require_names(folder, record["files"])
    run = folder.parents[1]
    if address := address_of(run):
        from shoal.engine.records.remote_parts import fetch_missing

        fetch_missing(address, folder, record["files"])
    elif (run / ADDRESS).exists() and not all((folder / name).exists() for name in record["files"]):
        raise ValueError(
            f"files are missing, and its {ADDRESS} is followed in the cache of this machine alone; name the run by the "
            "address at which it is"
        )
    for name, expected in record["files"].items():
        if digest(folder / name) != expected:
            raise ValueError(f"{name}: checksum does not match")
    try:
        require_same_run(folder.parent.parent, record.get(OF_RUN))
    except ValueError as error:
        raise ShoalError(folder, f"{error}; bring that of the folder's run back") from None
    if folder_of(folder.parent, record["state"]["round"]) != folder:
        raise ValueError(f"of round {record['state']['round']}")
    return record


def files_of(folder: Path) -> dict[str, str]:
    """Returns the digests of the files of a checkpoint by name.

    Raises what `UNUSABLE` names; ShoalError: it names what is no file of a checkpoint.
    """
    files: dict[str, str] = unsealed(read_bytes(folder / PLAIN))["files"]
    _require_names(folder, files)
    return files


def _require_names(folder: Path, files: Mapping[str, str]) -> None:
    """Raises ShoalError: a checkpoint names what is no file of one, or another digest than ours."""
    for name, expected in files.items():
        require_name(folder / PLAIN, name, FILES)
        require_digest(folder / PLAIN, expected)


def _fault(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"damaged ({Path(error.filename).name} is missing)"
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or error})"
    return f"damaged ({' '.join(str(error).split())})"


def set_aside(root: Path, newest: int) -> None:
    """Renames the checkpoints of rounds after `newest`, which cannot be used, so that these may be written again."""
    for folder in (folder_of(root, number) for number in rounds_kept(root) if number > newest):
        numbers = (f".unusable{number or ''}" for number in range(10**6))
        aside = next(path for end in numbers if not (path := folder.with_name(folder.name + end)).exists())
        try:
            folder.rename(aside)
        except OSError as error:
            raise ShoalError(folder, f"cannot be set aside: {error.strerror}; move it away by hand") from error


class BestRounds:
    """Keeps the checkpoint of the best validation round of every scope, and of no other round."""

    def __init__(self, run: Path, lines: Sequence[dict[str, Any]]) -> None:
        """Starts with the metrics of a run; removes the checkpoints of rounds that will run again."""
        self._folder = run / BEST
        self._best: dict[str, tuple[float, int]] = {}
        for line in lines:
            self._compare(line)
        keep_only(self._folder, self._rounds)

    def note(self, line: Mapping[str, Any], current: Callable[[], Checkpoint]) -> None:
        """Keeps a round that is the best of a scope so far. Raises ShoalError: it cannot be written."""
        if self._compare(line):
            write(self._folder, current())
            keep_only(self._folder, self._rounds)

    @property
    def _rounds(self) -> set[int]:
        return {number for _, number in self._best.values()}

    def _compare(self, line: Mapping[str, Any]) -> bool:
        """Returns whether a round is better than all before it in any scope; of equals the first is the best."""
        better = {}
        for scope, parts in line.get("scopes", {}).items():
            value = chosen(parts["val"], scope) if "val" in parts else None
            if value is not None and (scope not in self._best or value > self._best[scope][0]):
                better[scope] = (value, line["round"])
        self._best |= better
        return bool(better)


def load_best(run: Path, summary: Mapping[str, Any], scope: str) -> Checkpoint:
    """Loads the checkpoint of a scope's best validation round. Raises ShoalError: there is none, or it is unusable."""
    scopes = summary["scopes"]
    if scope not in scopes or not scopes[scope]["best"]:
        names = ", ".join(name for name, numbers in scopes.items() if numbers["best"])
        raise ShoalError(run, f"no scope {scope} with a best validation round; there are {names or 'none'}")
    number = scopes[scope]["best"]["round"]
    if number not in rounds_kept(run / BEST):
        raise ShoalError(
            run,
            f"the models of round {number}, the best of {scope}, were not kept; run it again with "
            "run.keep_best=true --fresh",
        )
    return load_round(run / BEST, number)
