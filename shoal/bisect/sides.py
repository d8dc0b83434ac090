"""One of two runs that are compared: its records, the program that trained each of its rounds, and what it read."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from shoal.bisect.tracing import Program, Sender
from shoal.engine.config.run_identity import defaults, identity_keys, option_defaults
from shoal.engine.records import checkpoint, inputs
from shoal.engine.records.checkpoint import BEST, CHECKPOINTS, newest_inputs
from shoal.engine.records.client_scores import read_digests_by_round
from shoal.engine.rounds.state import FederationState
from shoal.engine.screen.progress import say
from shoal.past.origin import list_origins
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError

# Lines of equal rounds may differ in these keys: durations, places, and digests of the rest of a line.
NOT_NUMBERS = ("seconds", "memory", "hosts", "retries", "digests")
# What a round made again has in its line, and a log has elsewhere.
ELSEWHERE = ("uploads", "records", "client_scores", "predicted", "printed", "events", "halved_batches")
# So many states of checkpoints stay in memory.
MOST_STATES = 6
# Keys that decide which data clients have, and inputs of a run by such keys begin so.
OF_DATA = ("data.", "partition.", "propagation.", "task", "target")


class Side:
    """A run that is compared with another one; its folder stays as it is.

    Attributes:
        label: `A` or `B`.
        past: The run.
        lost: What of its records cannot be read, a line each.
    """

    def __init__(self, label: str, path: Path) -> None:
        """Opens a run. Raises ShoalError: there is none, it has no round, or its record is damaged."""
        self.label, self.past, self.lost = label, PastRun(path), list[str]()
        if not self.past.lines:
            raise ShoalError(path, "no round of this run is logged; run it before it is compared")
        self._origins = list_origins(path, len(self.past.lines))
        self._states: dict[int, FederationState | None] = {}
        self._programs: dict[Path, Program | None] = {}
        self._pasts = {path: self.past}

    @property
    def rounds(self) -> int:
        """The number of rounds that it logged."""
        return len(self.past.lines)

    @property
    def name(self) -> str:
        """Its letter, and the name of its folder."""
        return f"{self.label} ({self.past.path.name})"

    def numbers(self, number: int) -> dict[str, Any]:
        """Returns what the line of a round has, without times and places."""
        return numbers_of_line(self.past.lines[number - 1])

    @cached_property
    def digests(self) -> dict[int, dict[Sender, str]]:
        """Digests of uploads by round, and by phase and client; of rounds that kept none there is nothing."""
        rows = dict[int, list[tuple[str, int, str]]]()
        end = 0
        for path, count in self._origins:
            first, end = end + 1, end + count
            try:
                rows |= read_digests_by_round(path, range(first, end + 1))
            except ShoalError as error:
                self._lose(error)
        return {number: {(phase, i): digest for phase, i, digest in uploads} for number, uploads in rows.items()}

    @cached_property
    def kept(self) -> dict[int, Path]:
        """The folders of checkpoints by round, readable or not, those of the parents of a fork among them."""
        kept: dict[int, Path] = {}
        first = 0
        for path, count in self._origins:
            for root in (path / BEST, path / CHECKPOINTS):
                rounds = checkpoint.rounds_kept(root)
                last = self.rounds if path == self.past.path else first + count
                kept |= {number: root for number in rounds if first < number <= last}
            first += count
        newest = self.past.path / CHECKPOINTS
        return kept | {number: newest for number in checkpoint.rounds_kept(newest) if number <= self.rounds}

    def recorded(self, number: int) -> FederationState | None:
        """Returns the state after a round as its checkpoint has it; None: there is none that can be read."""
        if number not in self._states:
            if len(self._states) >= MOST_STATES:
                self._states.pop(next(iter(self._states)))
            self._states[number] = None
            if number in self.kept:
                try:
                    self._states[number] = checkpoint.load_round(self.kept[number], number).state
                except ShoalError as error:
                    self._lose(error)
        return self._states[number]

    def _lose(self, error: ShoalError) -> None:
        self.lost.append(error.line)
        say(f"{self.label}: {error.line}; it is compared without that")

    def trained_by(self, number: int) -> PastRun:
        """Returns the run that trained a round: of a fork maybe its parent."""
        end = 0
        for path, count in self._origins:
            end += count
            if number <= end:
                return self._pasts.setdefault(path, PastRun(path))
        return self.past

    @cached_property
    def read(self) -> dict[str, str]:
        """Digests of what the run read: user code, files, stores."""
        recorded = newest_inputs(self.past.path)
        if recorded:
            return recorded
        try:
            return inputs.contents(self.past.config)
        except ShoalError:
            return {}

    def keys(self, number: int) -> dict[str, Any]:
        """Returns keys of the config that trained a round, that change numbers, with defaults; no names of files."""
        plain = self.trained_by(number).config.plain()
        usual = {**defaults(), **option_defaults(plain["algorithm"]["name"], plain["model"])}
        values = {**usual, **identity_keys(plain)}
        # Files count by their content.
        return {key: value for key, value in values.items() if key not in self.read}

    def program(self, number: int) -> Program | None:
        """Returns what trains a round, by the code that is here; None: it cannot be made again, `lost` says why."""
        past = self.trained_by(number)
        if past.path not in self._programs:
            self._programs[past.path] = None
            try:
                self._programs[past.path] = self._open(past)
            except ShoalError as error:
                self.lost.append(error.line)
                say(f"{self.label}: its rounds cannot be made again: {error.line}; its records are compared")
        return self._programs[past.path]

    def _open(self, past: PastRun) -> Program:
        job, propagation = past.job, past.config.propagation
        now = past.plan.inputs | inputs.of_stores(job.content, job.graphs, job.training, propagation.keep)
        if changed := inputs.differences(newest_inputs(past.path), now):
            raise ShoalError(past.path, f"{', '.join(changed)} changed since this run started; restore the content")
        return Program(job, past.plan.rounds, past.config)


def numbers_of_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a line of a round says of its numbers, as a file would have it."""
    stated = {key: value for key, value in line.items() if key not in (*NOT_NUMBERS, *ELSEWHERE)}
    plain: dict[str, Any] = json.loads(json.dumps(stated))
    return plain


def differing_keys(a: Mapping[str, Any], b: Mapping[str, Any], tolerance: float = 0.0) -> list[str]:
    """Lists keys that two lines have both, with other values; relative differences up to a tolerance are none."""
    return [key for key in a if key in b and not same(a[key], b[key], tolerance)]


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Returns whether two plain values are equal; scores that one line lacks are not compared."""
    if isinstance(a, dict) and isinstance(b, dict):
        return all(same(a[key], b[key], tolerance) for key in a.keys() & b.keys())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= tolerance * max(abs(a), abs(b))
    return bool(a == b)
