"""Checkpoints of the best validation round of every scope, beside those that a run goes on from."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.engine.records import checkpoint
from shoal.engine.records.checkpoint import Checkpoint
from shoal.engine.records.summary import chosen
from shoal.storage.errors import ShoalError

BEST = "best"


class BestRounds:
    """Keeps the checkpoint of the best validation round of every scope, and of no other round."""

    def __init__(self, run: Path, lines: Sequence[dict[str, Any]]) -> None:
        """Of a run that is about to go on; checkpoints of rounds that it runs again are removed.

        Args:
            run: The run folder.
            lines: Its metrics so far.

        Raises:
            ShoalError: The folder of these checkpoints is there and cannot be read.
        """
        self._folder = run / BEST
        self._best: dict[str, tuple[float, int]] = {}
        for line in lines:
            self._compare(line)
        checkpoint.keep_only(self._folder, self._rounds)

    def note(self, line: Mapping[str, Any], current: Callable[[], Checkpoint]) -> None:
        """Writes a checkpoint if a round is the best of a scope so far; then removes those that are best no more.

        Args:
            line: The metrics of the newest round.
            current: Its checkpoint; asked for only where it is to be written.

        Raises:
            ShoalError: It cannot be written; earlier ones are kept.
        """
        if self._compare(line):
            checkpoint.write(self._folder, current())
            checkpoint.keep_only(self._folder, self._rounds)

    @property
    def _rounds(self) -> set[int]:
        return {number for _, number in self._best.values()}

    def _compare(self, line: Mapping[str, Any]) -> bool:
        """Whether a round is better than all before it in any scope; of equals the first is the best."""
        better = {}
        for scope, parts in line.get("scopes", {}).items():
            value = chosen(parts["val"], scope) if "val" in parts else None
            if value is not None and (scope not in self._best or value > self._best[scope][0]):
                better[scope] = (value, line["round"])
        self._best |= better
        return bool(better)


def load_best(run: Path, summary: Mapping[str, Any], scope: str) -> Checkpoint:
    """The checkpoint of the round with the best validation of a scope.

    Raises:
        ShoalError: The run has no such scope or kept no such checkpoint, or it cannot be used.
    """
    scopes = summary["scopes"]
    if scope not in scopes or not scopes[scope]["best"]:
        known = ", ".join(name for name, found in scopes.items() if found["best"])
        raise ShoalError(f"{run}: no scope {scope} with a best validation round; there are {known or 'none'}")
    number = scopes[scope]["best"]["round"]
    if number not in checkpoint.rounds_kept(run / BEST):
        raise ShoalError(
            f"{run}: the models of round {number}, the best of {scope}, were not kept; run it again with "
            "run.keep_best=true --fresh"
        )
    return checkpoint.load_round(run / BEST, number)


def faults(run: Path) -> list[str]:
    """A line for every checkpoint of a best round that cannot be used.

    Raises:
        ShoalError: The folder is there and cannot be read.
    """
    return checkpoint.faults(run / BEST)
