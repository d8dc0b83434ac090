"""The folder of a run: resolved config, metrics, checkpoints, summary. Nothing else is needed to resume or redraw."""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from algorithms.methods.loading import describe
from engine.settings.config import Config
from engine.settings.number_keys import changes_numbers, fingerprint_of, flatten, number_keys
from storage.errors import ShoalError

CONFIG, METRICS, SUMMARY, LOG = "config.yaml", "metrics.jsonl", "summary.json", "run.log"


def run_path(config: Config) -> Path:
    """`<run.root>/<name>-<8 hex digits of the keys that change numbers>`; a method's own file counts with its text.

    Raises:
        ShoalError: Unknown method, or its file cannot be read.
    """
    values = number_keys(config.plain())
    source = describe(config.algorithm.name, {}).source
    if source is not None:
        values["algorithm.name"] = [Path(config.algorithm.name).name, source]
    return Path(config.run.root) / f"{config.name}-{fingerprint_of(values)}"


class RunFolder:
    """The one writer of a run folder."""

    def __init__(self, config: Config) -> None:
        """Makes the folder and locks it.

        Raises:
            ShoalError: Another run is writing it, or it cannot be made.
        """
        self.path = run_path(config)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("a")
        except OSError as error:
            raise ShoalError(
                f"{self.path}: cannot be made: {error.strerror}; set run.root to a folder that can be written"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ShoalError(
                f"{self.path}: another run of this config is writing here; wait for it or change name or run.root"
            ) from None
        self._log = logging.FileHandler(self.path / LOG, delay=True)
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger().addHandler(self._log)

    def close(self) -> None:
        """Gives the folder free."""
        logging.getLogger().removeHandler(self._log)
        self._log.close()
        self._lock.close()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def finished(self) -> bool:
        return (self.path / SUMMARY).exists()

    @property
    def started(self) -> bool:
        return (self.path / METRICS).exists()

    def begin(self, config: Config) -> None:
        """Writes the resolved config."""
        _replace(self.path / CONFIG, yaml.safe_dump(config.plain(), sort_keys=False))

    def restart(self) -> None:
        """Forgets what an earlier run left."""
        for name in (METRICS, SUMMARY, LOG):
            (self.path / name).unlink(missing_ok=True)
        for name in ("checkpoints", "tensorboard", "export"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def cut_metrics(self, last: int) -> None:
        """Removes what was logged after a round, and a line that a kill cut off."""
        kept = [json.dumps(line) for line in read_metrics(self.path) if line["round"] <= last]
        _replace(self.path / METRICS, "".join(line + "\n" for line in kept))

    def append(self, line: Mapping[str, Any]) -> None:
        """Logs a round."""
        with (self.path / METRICS).open("a") as f:
            f.write(json.dumps(line) + "\n")

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Writes the summary; the run is finished."""
        _replace(self.path / SUMMARY, json.dumps(summary, indent=1))


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(unfinished, path)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The rounds logged in a run folder; a last line that a kill cut off is left out."""
    path = run / METRICS
    lines = path.read_text().splitlines() if path.exists() else []
    result = []
    for number, line in enumerate(lines):
        try:
            result.append(json.loads(line))
        except ValueError:
            if number < len(lines) - 1:
                raise ShoalError(
                    f"{path}: line {number + 1} is damaged; delete it, or run again with --fresh"
                ) from None
    return result


def read_summary(run: Path) -> dict[str, Any]:
    """The summary of a finished run.

    Raises:
        ShoalError: There is none.
    """
    try:
        return json.loads((run / SUMMARY).read_text())
    except (OSError, ValueError) as error:
        raise ShoalError(f"{run}: no readable {SUMMARY}, so no finished run ({error})") from error


def changed_keys(config: Config, run: Path) -> list[str]:
    """Keys that change numbers and differ between a config and a run folder, as `key (old -> new)`."""
    old = flatten(yaml.safe_load((run / CONFIG).read_text()))
    new = flatten(config.plain())
    keys = sorted(key for key in old.keys() | new.keys() if changes_numbers(key) and old.get(key) != new.get(key))
    return [f"{key} ({old.get(key)} -> {new.get(key)})" for key in keys]


def unfinished_relatives(config: Config) -> list[Path]:
    """Unfinished runs of another config under the same name and root, which have a round to resume from."""
    runs = set(Path(config.run.root).glob(f"{config.name}-????????")) - {run_path(config)}
    needed = (CONFIG, METRICS)
    return sorted(p for p in runs if all((p / name).exists() for name in needed) and not (p / SUMMARY).exists())
