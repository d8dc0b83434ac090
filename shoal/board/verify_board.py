"""Verifies a board: its page, its scores beside the runs' records, the stores, and the runs, which are made again."""

import json
import random
import secrets
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import isclose
from pathlib import Path

from shoal.board.board import BOARD, Board, page_is_of, read_board
from shoal.board.entries import (
    BUDGET,
    BoardRun,
    Entry,
    RunKeys,
    digest_of_inputs,
    read_entries,
    run_record,
    score_of,
    summed_up,
)
from shoal.board.remake import CLOSE, Remade, remake
from shoal.engine.config.config import load_config
from shoal.engine.config.names import read_all
from shoal.engine.preparing.identity import store_or_overlay
from shoal.engine.records import inputs
from shoal.engine.records.client_scores import read_digests_by_round
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.verify import verify_run
from shoal.engine.screen.output import put
from shoal.engine.screen.progress import progress, say
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify


@dataclass
class _Held:
    """The count of what was compared of an entry, and the faults."""

    faults: list[str] = field(default_factory=list)
    rounds: int = 0
    uploads: int = 0
    trusted: int = 0
    others: bool = False

    def take(self, made: Remade) -> None:
        self.rounds += len(made.lines)
        self.uploads += made.uploads if made.exact else 0
        self.trusted += len(made.trusted)
        self.others |= not made.exact

    def in_words(self, entry: Entry) -> str:
        """Says what was made again, and from where."""
        several = f"{len(entry.runs)} run{'s' if len(entry.runs) > 1 else ''}"
        values = f"another processor: values compared to {CLOSE:g}"
        compared = values if self.others else f"{self.uploads:,} uploads compared"
        trusted = f", from {self.trusted} kept checkpoints as they are" if self.trusted else ", from the start"
        return f"holds: {several}, {self.rounds:,} rounds made again{trusted}; {compared}"


def verify_board(folder: Path, visits: int | None = None, seed: int | None = None) -> None:
    """Makes the runs of a board again, and prints of every entry whether it holds, or what does not.

    Raises ShoalError: an entry does not hold, or `board.json` or the page was changed.

    Args:
        visits: So many visits of clients are drawn of every entry; their rounds, and the round of every score, are made
            again from the nearest kept checkpoints. None: all rounds of all runs, from their start.
        seed: Draws the visits; None: a number that nobody knows before.
    """
    board, fault = read_board(folder)
    seed = secrets.randbits(32) if seed is None else seed
    faults = [fault] if fault else []
    if visits is not None:
        say(f"{visits} visits of every entry, drawn by --seed {seed}")
    if code := _own_code(board):
        say(f"runs the code that runs keep of their makers: {code}")
    names = dict(zip(map(json.dumps, board.settings), board.names_of_settings()))
    checked: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as scratch, progress(f"verify {folder}", len(board.entries), "entries") as step:
        if not page_is_of(board, folder, Path(scratch) / "page"):
            faults.append(f"{folder}: the page is not that of {BOARD}; shoal board {folder} writes it again")
        draw = random.Random(seed)
        for entry in board.entries:
            held = _verify_entry(entry, visits, draw, Path(scratch), checked)
            label = f"{entry.label}, {names[json.dumps(entry.setting)]}"
            for line in held.faults:
                put(f"{label}: {line}")
            if not held.faults:
                put(f"{label}: {held.in_words(entry)}")
            faults += [f"{label}: {line}" for line in held.faults]
            step.advance()
        if not faults:
            faults += _compare_whole(board)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ShoalError(f"{faults[0]}{more}")
    count = len(board.entries)
    put(f"{folder}: {'1 entry holds' if count == 1 else f'{count} entries hold'}")


def _own_code(board: Board) -> str:
    """Names the code of users that runs of a board keep; runs that are gone are said later."""
    names: dict[str, None] = {}
    for entry in board.entries:
        for run in entry.runs:
            try:
                names |= {code.name: None for _, code in read_all(load_config(Path(run.run)).plain())}
            except ShoalError:
                continue
    return ", ".join(names)


def _verify_entry(
    entry: Entry, visits: int | None, draw: random.Random, scratch: Path, checked: dict[str, list[str]]
) -> _Held:
    held = _Held([*_compare_sums(entry)])
    sound = []
    for run in entry.runs:
        wrong = _compare_run(entry, run)
        held.faults += wrong
        if not wrong:
            sound.append(run)
    wanted = None if visits is None else _draw(sound, visits, draw)
    for run in sound:
        path = Path(run.run)
        try:
            held.faults += _compare_store(path, checked)
            made = remake(path, scratch / "stores", None if wanted is None else wanted[run.run])
        except ShoalError as error:
            held.faults.append(f"cannot be made again: {error.line}")
            continue
        held.take(made)
        prefix = f"{path.name}, "
        if made.stores and digest_of_inputs(made.stores) != run.store:
            held.faults.append(f"{prefix}the store that its data gives is another than the one that it trained on")
        held.faults += [f"{prefix}{fault}" for fault in made.faults]
        held.faults += [f"{prefix}{fault}" for fault in _compare_score(entry, run, made, wanted is None)]
    return held


def _compare_sums(entry: Entry) -> Iterator[str]:
    """Yields what does not follow from the scores of the runs that an entry names."""
    scores = [run.score for run in entry.runs]
    if len({run.run for run in entry.runs}) < len(entry.runs):
        yield "a run counts twice"
    score, interval = summed_up(scores)
    if not isclose(score, entry.score, rel_tol=1e-12) or (interval is None) != (entry.interval is None):
        yield f"the score in {BOARD} is {100 * entry.score:.2f}, of its runs {100 * score:.2f}"
    elif interval is not None and not isclose(interval, entry.interval or 0.0, rel_tol=1e-9):
        yield f"the interval in {BOARD} is {100 * (entry.interval or 0):.2f}, of its runs {100 * interval:.2f}"


def _compare_run(entry: Entry, run: BoardRun) -> list[str]:
    """Lists where a board differs from a run's records; if these are damaged, lists that alone."""
    path = Path(run.run)
    try:
        if faults := verify_run(path):
            return faults
        keys = RunKeys.of(path)
        now = run_record(path, keys.seeds, entry.figure, entry.mean)
    except (ShoalError, OSError) as error:
        return [error.line if isinstance(error, ShoalError) else f"{path}: {error.strerror}"]
    return [
        f"{path.name}: its {what} in {BOARD} {difference}"
        for what, then, now_has, difference in (
            ("score", run.score, now.score, f"is {100 * run.score:.4f}, in its records {100 * now.score:.4f}"),
            ("round", run.round, now.round, f"is {run.round}, in its records {now.round}"),
            ("config", run.config, now.config, "is not the one that it has"),
            ("store", run.store, now.store, "is not the one that it recorded"),
            ("uploads", run.uploads, now.uploads, "are not those that it recorded"),
            ("seeds", run.seeds, now.seeds, "are not those of its config"),
            ("method", entry.options, keys.options, "is not that of its config"),
            ("setting", entry.setting, keys.setting, "is not that of its config"),
            ("budget", {key: entry.budget.get(key) for key in BUDGET if key in keys.budget}, keys.budget,
             "is not that of its config"),
        )
        if then != now_has
    ]  # fmt: skip


def _compare_store(run: Path, checked: dict[str, list[str]]) -> list[str]:
    """Returns what changed in the store that a run reads, where it is still there; reads every store once."""
    config = load_config(run)
    place = store_or_overlay(config)
    if not (place / NAME).exists():
        return []
    if str(place) not in checked:
        checked[str(place)] = [f"store changed: {fault}" for fault in verify(Store(place))]
    if checked[str(place)]:
        return checked[str(place)][:1]
    job = PastRun(run).job
    now = inputs.of_stores(job.content, job.graphs, job.training, config.propagation.keep)
    return [f"store changed: {place}" for _ in inputs.differences(read_summary(run)["inputs"], now)[:1]]


def _draw(runs: Collection[BoardRun], visits: int, draw: random.Random) -> Mapping[str, set[int]]:
    """Draws visits of the runs of an entry; returns the rounds to make again by run, with those of the scores."""
    wanted = {run.run: {run.round} for run in runs}
    kept = {run.run: read_digests_by_round(Path(run.run)) for run in runs}
    every = [(run, number) for run, rounds in kept.items() for number, uploads in rounds.items() for _ in uploads]
    for run, number in draw.sample(every, min(visits, len(every))):
        wanted[run].add(number)
    return wanted


def _compare_score(entry: Entry, run: BoardRun, made: Remade, whole: bool) -> Iterator[str]:
    """Yields how the score of rounds that were made again differs from the board's."""
    lines = [made.lines[number] for number in sorted(made.lines) if whole or number == run.round]
    score, number = score_of(lines, entry.figure, entry.mean)
    close = score == run.score if made.exact else isclose(score, run.score, rel_tol=CLOSE)
    if not close or number != run.round:
        again = f"{100 * score:.4f} of round {number}"
        yield f"made again its score is {again}, on the board {100 * run.score:.4f} of round {run.round}"


def _compare_whole(board: Board) -> Iterator[str]:
    """Yields entries that a board of the same runs would show otherwise: another score is taken, or another budget."""
    again = read_entries([Path(run.run) for entry in board.entries for run in entry.runs])
    by_run = {run.run: entry for entry in again for run in entry.runs}
    for entry in board.entries:
        now = by_run.get(str(Path(entry.runs[0].run).resolve()))
        if now is None or (now.figure, now.mean) != (entry.figure, entry.mean):
            yield f"{entry.label}: shoal board takes another score of these runs"
        elif {run.run for run in now.runs} != {str(Path(run.run).resolve()) for run in entry.runs}:
            yield f"{entry.label}: these runs are not repetitions of one another"
