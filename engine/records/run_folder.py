"""The folder of a run: resolved config, metrics, checkpoints, summary. Nothing else is needed to resume or redraw."""

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from shoal.engine.config.config import Config
from shoal.engine.config.config_text import CONFIG, DUMPER, LOADER, OF_RUN, new_run, run_of, with_new_keys, with_seal
from shoal.engine.config.names import CODE, kept_name, read_all, rename_code
from shoal.engine.config.run_identity import defaults, fingerprint_of, identity_keys, name_digits
from shoal.engine.records import checkpoint
from shoal.engine.records.at_work import AtWork, ended_at
from shoal.engine.records.checkpoint import CHECKPOINTS
from shoal.engine.records.client_scores import CLIENT_SCORES, UPLOADS, ClientScores
from shoal.engine.records.inputs import contents, differences
from shoal.engine.records.metrics import RECORDS, Metrics
from shoal.engine.records.outputs import EXPORT, OF_CALLBACKS
from shoal.engine.records.summary import METRICS, SUMMARY, count_rounds, finished, read_summary
from shoal.storage.errors import BusyError, ShoalError
from shoal.storage.files.atomic import present, replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import text_digest
from shoal.storage.files.disk import LOCK, locked
from shoal.storage.files.names import place_in
from shoal.storage.files.places import COPIES, cache_folder
from shoal.storage.files.reading import read_bytes
from shoal.storage.options.types import is_address
from shoal.storage.user_code.user_code import UserCode, path_of

LOG, FAILURE = "run.log", "failure.txt"
# A fork names in this file the run that it goes on from, and the round after which it does.
FORK = "fork.json"
# `shoal influence` writes this file, which the page reads.
INFLUENCE = "influence.json"
# `shoal values` writes these: values, which the page reads, and what coalitions of clients trained.
VALUES, COALITIONS = "values.json", "coalitions.jsonl"
# `shoal unlearn` writes these: scores of removals, and a folder of exact models.
UNLEARNED, UNLEARNED_MODELS = "unlearned.jsonl", "unlearned"
# These paths below a run are written here, and by these commands.
WRITTEN = (
    r"config\.yaml|summary\.json|failure\.txt|run\.log|(fork|influence|values)\.json|(coalitions|unlearned)\.jsonl",
    rf"{UNLEARNED_MODELS}/[a-z0-9-]+\.safetensors",
    rf"{CODE}/[0-9a-f]{{8}}/.+\.py",
)
# These files below a run are written without being replaced as a whole; the folders are written into.
FIXED = (
    METRICS,
    CLIENT_SCORES,
    UPLOADS,
    COALITIONS,
    UNLEARNED,
    UNLEARNED_MODELS,
    LOG,
    CHECKPOINTS,
    checkpoint.BEST,
    RECORDS,
    CODE,
    *OF_CALLBACKS,
    EXPORT,
)


def runs_here(config: Config) -> Path:
    """Returns the local folder with the runs of a config: `run.root`, or, if that is an address, one in the cache."""
    root = config.run.root
    if not is_address(root):
        return Path(root)
    return cache_folder() / COPIES[1] / text_digest(root.partition("?")[0].rstrip("/"))


def run_place(config: Config, folder: Path) -> Path | str:
    """Returns the place of a run, given its local folder: the folder, or its address if `run.root` is one."""
    root = config.run.root
    if not is_address(root):
        return folder
    from shoal.storage.files.addresses import below

    return below(root, folder.name)


def run_path(config: Config, inputs: Mapping[str, str] | None = None) -> Path:
    """Returns `<name>-<8 hex digits>` in `runs_here`; `inputs` are those of `shoal.engine.records.inputs`, if read."""
    digits = name_digits(config.plain(), contents(config) if inputs is None else inputs)
    return runs_here(config) / f"{config.name}-{digits}"


def path_named(config: Config, named: Mapping[str, Any]) -> Path:
    """Returns the path of a run, given what names it (`shoal.engine.config.run_identity.named_keys`)."""
    return runs_here(config) / f"{config.name}-{fingerprint_of(named)}"


def started(run: Path) -> bool:
    """Returns whether a round was logged in a run folder, or a checkpoint written, readable or not."""
    return present(run / METRICS) or checkpoint.newest_round(run / CHECKPOINTS) > 0


def failure_of(run: Path) -> str | None:
    """Returns the line of a run that failed and is not finished, which begins with the round; None: it did not fail."""
    try:
        line = read_bytes(run / FAILURE).decode(errors="replace").strip()
    except OSError:
        return None
    where, _, why = line.partition(", ")
    if re.fullmatch(r"round \d+", where):
        return f"failed in {where}: {why}"
    return f"failed before its first round: {line}" if not started(run) else f"failed: {line}"


def state_of(run: Path) -> str:
    """Returns the state of an unfinished run: its failure, or its round and the place of a process that is at work."""
    if failure := failure_of(run):
        return failure
    place = ended_at(run)
    return ("unfinished" if started(run) else "not begun") + (f"; at work, or lost, {place}" if place else "")


class RunFolder:
    """The one writer of a run folder."""

    def __init__(self, path: Path, log_format: str = "text") -> None:
        """Makes and locks the folder.

        Raises BusyError: another run writes it; ShoalError: it cannot be made, or a link in it leads out of it.
        """
        self.path = path
        # A run at an address replaces its name in lines, and the call that sends the folder there.
        self.place: Path | str = path
        self.send: Callable[[], None] = lambda: None
        self.metrics, self.client_scores = Metrics(path), ClientScores(path)
        self.uploads = ClientScores(path, UPLOADS)
        busy = BusyError(path, "another run of this config is writing here; wait for it or change name or run.root")
        self.is_new, self._root_is_new = not present(path), not present(path.parent)
        self._lock = locked(path, "run.root", busy)
        try:
            for name in FIXED:
                place_in(path, name)
        except BaseException:
            self._lock.close()
            raise
        self.at_work = AtWork(path)
        self._log = _Log(self.log, delay=True)
        text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
        self._log.setFormatter(_JsonLines(path.name) if log_format == "json" else text)
        logging.getLogger().addHandler(self._log)

    def close(self) -> None:
        """Releases the lock."""
        logging.getLogger().removeHandler(self._log)
        # A full disk was noticed when the lines were logged.
        with suppress(OSError):
            self._log.close()
        if self.is_new:
            # A command that was refused must leave no folder.
            with suppress(OSError):
                if [path.name for path in self.path.iterdir()] == [LOCK]:
                    (self.path / LOCK).unlink()
                    self.path.rmdir()
                    if self._root_is_new:
                        self.path.parent.rmdir()
        self._lock.close()

    @property
    def log(self) -> Path:
        """The file that errors and events are logged to."""
        return self.path / LOG

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def finished(self) -> bool:
        """Returns whether the run has a summary."""
        return finished(self.path)

    @property
    def started(self) -> bool:
        """Returns whether there are rounds to continue from, or to lose."""
        return started(self.path)

    def rounds_logged(self) -> int:
        """Counts complete lines of the metrics on disk, readable or not. Raises ShoalError: the file is unreadable."""
        return count_rounds(self.path)

    def summary(self) -> dict[str, Any]:
        """Returns the summary of the run that is here; raises as `shoal.engine.records.summary.read_summary`."""
        return read_summary(self.path)

    def checkpoint_every(self) -> int | None:
        """Returns the rounds between checkpoints of the run that is here; None if its config cannot be read."""
        try:
            return int(yaml.load(read_bytes(self.path / CONFIG), LOADER)["run"]["checkpoint_every"])
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
            return None

    def fail(self, line: str) -> None:
        """Writes the line of a failure, which stays until the run begins again; if it cannot, the log has it."""
        self.at_work.close()
        with suppress(OSError, ShoalError), replacing(self.path / FAILURE) as unfinished:
            unfinished.write_text(" ".join(line.split()) + "\n")

    def begin(self, config: Config) -> None:
        """Writes the resolved config, the name of the run, which goes on or is new, and the user code.

        Raises ShoalError: a file cannot be written.
        """
        with suppress(OSError):
            (self.path / FAILURE).unlink()
        self.metrics.run = run_of(self.path) if self.started else new_run(self.path)
        plain = config.plain()
        codes = {code.name: code for _, code in read_all(plain)}
        for code in codes.values():
            self._keep(code)
        renamed = rename_code(plain, lambda name: kept_name(codes[name]))
        text = yaml.dump(renamed, Dumper=DUMPER, sort_keys=False)
        with replacing(self.path / CONFIG) as unfinished:
            unfinished.write_text(with_seal(text, self.metrics.run))

    def _keep(self, code: UserCode) -> None:
        """Writes the texts of a user's file and of its helpers, where the kept config finds them."""
        file = self.path / kept_name(code).rpartition(":")[0]
        texts = {file: code.source, **{file.parent / path_of(name): text for name, text in code.helpers.items()}}
        for path, text in texts.items():
            with replacing(place_in(self.path, path.relative_to(self.path))) as unfinished:
                unfinished.write_text(text, encoding="utf-8")

    def clear(self) -> None:
        """Deletes the files of an earlier run, readable or not. Raises ShoalError: something cannot be removed."""
        # The next line opens the log again.
        self._log.close()
        try:
            for name in (
                METRICS,
                CLIENT_SCORES,
                UPLOADS,
                SUMMARY,
                FAILURE,
                INFLUENCE,
                VALUES,
                COALITIONS,
                UNLEARNED,
                UNLEARNED_MODELS,
                LOG,
                CHECKPOINTS,
                checkpoint.BEST,
                RECORDS,
                CODE,
                *OF_CALLBACKS,
                EXPORT,
            ):
                path = self.path / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise ShoalError(error.filename, f"cannot be removed: {error.strerror}; remove it by hand") from error

    def give_up(self) -> None:
        """Deletes what a command wrote into a new folder before its first round; `close` then removes the folder."""
        self.clear()
        (self.path / CONFIG).unlink(missing_ok=True)

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Writes the summary; the run is finished. Raises ShoalError: it cannot be written, or holds NaN."""
        try:
            run = run_of(self.path)
            text = sealed(summary if run is None else {**summary, OF_RUN: run}, indent=1)
        except ValueError:
            raise ShoalError(self.path / SUMMARY, "NaN or infinity in the summary; not written") from None
        with replacing(self.path / SUMMARY) as unfinished:
            unfinished.write_text(text)


def note_parent(run: Path, parent: Mapping[str, Any]) -> None:
    """Writes that a run is a fork: the folder or address of its parent, `run`, and the last `round` of both."""
    with replacing(run / FORK) as unfinished:
        unfinished.write_text(sealed(parent))


def parent_of(run: Path) -> dict[str, Any] | None:
    """Reads the note of `note_parent`; None: the run is no fork. Raises ShoalError: the note is damaged."""
    try:
        parent = unsealed(read_bytes(run / FORK))
        if not (isinstance(parent.get("run"), str) and isinstance(parent.get("round"), int)):
            raise ValueError("names no run and no round")
        return parent
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ShoalError(run / FORK, f"damaged ({error}); remove the run, and fork again") from None


def name_of_parent(parent: Mapping[str, Any]) -> str:
    """Returns the name of the run that a fork goes on from."""
    return Path(parent["run"].partition("?")[0]).name


class _Log(logging.FileHandler):
    """A log whose disk may be full: the error is raised by the metrics."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class _JsonLines(logging.Formatter):
    """A format with a JSON object a line: time (UTC), level, run, round, host, client, message; null if unknown."""

    def __init__(self, run: str) -> None:
        super().__init__("%(message)s")
        self._run = run

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        places = {key: getattr(record, key, None) for key in ("round", "host", "client")}
        text = super().format(record)
        return json.dumps({"time": time, "level": record.levelname, "run": self._run, **places, "message": text})


def changed_keys(config: Config, run: Path) -> list[str]:
    """Returns keys that change numbers and differ between a config and that of a run folder, as `key (old -> new)`.

    A key that one of the two does not have is at its default there. Keys of files count by the content of these, see
    `changed_contents`. Raises ShoalError: the config of the run folder cannot be read.
    """
    path = run / CONFIG
    try:
        old = identity_keys(with_new_keys(yaml.load(read_bytes(path), LOADER)))
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise ShoalError(path, f"damaged ({' '.join(str(error).split())}); move the folder away") from error
    old, new = ({**defaults(), **values} for values in (old, identity_keys(config.plain())))
    files = contents(config)
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in files)
    return [f"{key} ({old.get(key)} -> {new.get(key)})" for key in keys]


def changed_contents(config: Config, run: Path) -> list[str]:
    """Returns the files that a config names, and that differ from those of the newest checkpoint of a run folder."""
    newest = checkpoint.load_newest(run / CHECKPOINTS)
    return [f"the content of {name}" for name in differences(newest.inputs if newest else {}, contents(config))]


def unfinished_relatives(config: Config) -> list[Path]:
    """Returns unfinished runs of another config with the same name and root that logged a round."""
    runs = set(runs_here(config).glob(f"{config.name}-????????")) - {run_path(config)}
    needed = (CONFIG, METRICS)
    return sorted(p for p in runs if all((p / name).exists() for name in needed) and not (p / SUMMARY).exists())
