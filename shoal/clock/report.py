"""Tables of `shoal clock`: simulated time, energy and money of finished runs, by round and to a score."""

import math
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.algorithms.methods.registry.names import display_name
from shoal.algorithms.protocol import MODEL
from shoal.clock.intervals import format_interval
from shoal.engine.config.config import SHIPPED, load_config
from shoal.engine.config.sections import SCORING
from shoal.engine.config.sizes import size
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.identity import store_path
from shoal.engine.records.graphs import remote_of
from shoal.engine.records.metrics import read_metrics
from shoal.engine.rounds.costs import CLIENT_BYTES, MISSING, SIMULATED
from shoal.engine.runs.plan import RunPlan
from shoal.engine.sections.sections import options_of
from shoal.engine.simulation.schedule import (
    DEVICES,
    Classes,
    Clock,
    Fleet,
    Round,
    clock,
    join_clocks,
    read_classes,
    read_network,
)
from shoal.engine.simulation.work import ClientWork, work_of
from shoal.pages.looks import Looks
from shoal.past.origin import list_origins
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.storage.store.manifest import NAME
from shoal.study.figure_data import Line, curve_of, score_in
from shoal.study.groups import Row, group_runs
from shoal.study.main_score import MainScore
from shoal.study.means import by_one_mean
from shoal.study.plain_names import MODELS, PlainNames
from shoal.study.sweep_folder import rows_of
from shoal.tables.text_table import TextTable

# Without a target, runs are timed until they reach `SHARE` of the best score.
SHARE = 0.95
# Older runs did not log the seconds of scoring separately, so that they count as the server's.
OLDER_SERVER = (
    "older runs: in a round that was evaluated the server's seconds hold the simulator's own scoring; "
    "--no-server leaves them out"
)
# A row of the table to the target has these costs under these heads; those without a function have the digits that
# their intervals leave. What programs read has the names as heads, and four digits.
HEADS = {"rounds": "rounds", "seconds": "time (s)", "bytes": "traffic", "joules": "energy (J)", "money": "money"}
COSTS: dict[str, Callable[[float], str] | None] = {
    "rounds": "{:,.0f}".format, "seconds": None, "bytes": size, "joules": None, "money": None,
}  # fmt: skip
FOUR_DIGITS = "{:,.4g}".format
# These columns of files are money. Prices in our own files are in this currency.
PRICES, CURRENCY = ("per_hour", "per_gb"), "USD"


@dataclass(frozen=True)
class Asked:
    """The options of a clock: classes of devices and links, a deadline in seconds, a score, and a seed.

    `server` says whether the seconds of the method's server part count, `evaluation` whether those of clients' scoring.
    """

    devices: Classes
    networks: Classes | None
    deadline: float
    target: float | None
    seed: int
    server: bool = True
    evaluation: bool = True

    @property
    def left_out(self) -> str:
        """Returns the names of the parts that do not count, joined by `and`; empty if all count."""
        parts = {"seconds of the server": self.server, "evaluations of clients": self.evaluation}
        return " and ".join(name for name, counts in parts.items() if not counts)

    @property
    def currency(self) -> str:
        """Returns the unit of money, which files of a user do not say; empty if nothing has a price."""
        priced = [
            table.path
            for table in (self.devices, self.networks)
            if table is not None and any(table.columns[name].any() for name in PRICES if name in table.columns)
        ]
        users = [path.name for path in priced if not path.is_relative_to(SHIPPED)]
        return f"unit of {' and '.join(users)}" if users else CURRENCY if priced else ""

    @classmethod
    def of(
        cls,
        devices: str,
        network: str,
        deadline: float | None,
        target: float | None,
        seed: int,
        server: bool = True,
        evaluation: bool = True,
    ) -> "Asked":
        """Reads both files. Raises ShoalError: one is wrong, or the deadline or the score is out of its bounds."""
        if deadline is not None and not 0 < deadline < math.inf:
            raise ShoalError("--deadline", f"expected seconds above 0, found {deadline:g}")
        if target is not None and not 0 < target <= 1:
            raise ShoalError("--target", f"expected a share above 0 and at most 1, found {target:g}")
        files = read_classes(devices, "devices", DEVICES), read_network(network)
        return cls(*files, math.inf if deadline is None else deadline, target, seed, server, evaluation)


@dataclass(frozen=True)
class ClockReader:
    """The reader of simulated time; its options are the arguments of `Asked.of`."""

    devices: str = "phones"
    network: str = "consumer"
    deadline: float | None = None
    target: float | None = None
    seed: int = 0
    server: bool = True
    evaluation: bool = True

    def read(self, past: PastRun) -> Reading:
        """Returns what it takes to reach a score, and what the whole run takes. Raises as `read_all`."""
        made = self.read_all([past.path])
        to_target, in_all = made.tables(for_programs=True)
        return Reading(tuple(made.tables()), {"target": to_target.csv(), "all": in_all.csv()})

    def read_all(self, paths: Sequence[Path]) -> "Clocked":
        """Returns the clocks of runs and sweeps. Raises as `Asked.of` and `clocked`."""
        asked = Asked.of(
            self.devices, self.network, self.deadline, self.target, self.seed, self.server, self.evaluation
        )
        return replace(clocked(paths, asked), command=self.command(paths))

    def command(self, paths: Sequence[Path]) -> str:
        """Returns the command that clocks runs and sweeps, with the options that are not the usual ones."""
        words = ["shoal", "clock", *(str(path).removeprefix(f"{Path.cwd()}{os.sep}") for path in paths)]
        for option in fields(self):
            value = getattr(self, option.name)
            if value != option.default:
                words += [f"--no-{option.name}"] if value is False else [f"--{option.name}", str(value)]
        return shlex.join(words)


@dataclass(frozen=True)
class ClockedRun:
    """The lines of a run with simulated seconds of rounds, and its clock; `note` says how work was counted."""

    path: Path
    lines: Sequence[Line]
    clock: Clock
    note: str

    @classmethod
    def of(cls, run: Path, asked: Asked) -> "ClockedRun":
        """Simulates the rounds of a run. Those that a fork shares with its parent use the parent's config.

        Raises ShoalError: the record of the run is not whole, or its work is not known.
        """
        lines = read_metrics(run)
        if len({SIMULATED in line for line in lines}) > 1:
            raise ShoalError(run, "schedule.name", "differs between its rounds, which have no clock; take its parent")
        # A schedule of the user's says in which rounds clients begin, and nothing of seconds.
        if any("staleness" in line and SIMULATED not in line for line in lines):
            raise ShoalError(
                run, "schedule.name", "has no clock, as it says no seconds; take fedbuff, fedasync or tiers"
            )
        parts = list(_parts_of(run, lines))
        works = [client_work(part) for part, _ in parts]
        fleet = Fleet.of(asked.devices, asked.networks, len(works[0].train.flops), asked.seed)
        rounds: list[Round] = []
        clocks: list[Clock] = []
        for (part, lines_of_part), work in zip(parts, works):
            timed = _is_timed(part, lines_of_part)
            if timed:
                _require_own_fleet(part, fleet, asked)
            new = [
                replace(of_run, server=of_run.server * asked.server, scored=of_run.scored and asked.evaluation)
                for of_run in _rounds(lines_of_part, timed, lines)
            ]
            clocks.append(clock(new, work, fleet, asked.deadline))
            rounds += new
        run_clock = join_clocks(clocks)
        simulated = [{**line, "seconds": {"round": s}} for line, s in zip(lines, run_clock.seconds.tolist())]
        for line, costs in zip(simulated, rounds):
            if costs.counted is not None:
                line |= {"bytes_down": float(costs.down.sum()), "bytes_up": float(costs.up.sum())}
        older = {CLIENT_BYTES: "bytes of a round are shared equally by its clients"}
        if any("participation" in line for line in lines):
            older[MISSING] = "clients that were drawn and took no part to the end are left out"
        notes = list(dict.fromkeys(work.note for work in works if work.note))
        notes += [f"older runs: {text}" for key, text in older.items() if not any(key in line for line in lines)]
        if asked.server and any("scopes" in line and SCORING not in line["seconds"] for line in lines):
            notes.append(OLDER_SERVER)
        return cls(run, simulated, run_clock, "; ".join(notes))

    def columns(self) -> dict[str, list[float]]:
        """Returns the costs of every round by name, lists `[T]`."""
        sent = {f"bytes_{way}": [line[f"bytes_{way}"] for line in self.lines] for way in ("down", "up")}
        of_clock = ("seconds", "joules", "money", "flops", "idle", "late")
        numbers = {name: getattr(self.clock, name).tolist() for name in of_clock}
        return {"round": [line["round"] for line in self.lines], **numbers, **sent}

    def until(self, read: Callable[[Line], float | None], target: float) -> dict[str, float] | None:
        """Returns the costs until the first evaluated round with a score of `target` or more; None: there is none."""
        curve = curve_of([self.lines], read)
        at = None if curve is None else curve.first_reaching(target)
        if at is None:
            return None
        rounds = int(at["round"])
        joules, money = (float(values[:rounds].sum()) for values in (self.clock.joules, self.clock.money))
        return {"rounds": rounds, "seconds": at["seconds"], "bytes": at["bytes"], "joules": joules, "money": money}


def client_work(run: Path) -> ClientWork:
    """Returns the work of every client of a run, from its config and its store.

    Raises ShoalError: the store is not there or cannot be opened, or the work of a model is not known.
    """
    config = load_config(run)
    if remote_of(config) is None and not (store_path(config) / NAME).exists():
        raise ShoalError(
            run,
            f"its clients' sizes are read from its store, and there is none at {store_path(config)}; make it by shoal "
            f"prepare {run}, or set SHOAL_DATA to where it is",
        )
    plan = RunPlan.of(config, trains=False)
    job = make_job(config, plan.prepare(), run.name)
    store = job.open_store()
    return work_of(job, store, plan.algorithm, job.sketch_models(store, plan.algorithm)[MODEL], run)


def _is_timed(run: Path, lines: Sequence[Line]) -> bool:
    """Returns whether simulated time changed the run: it is not synchronous, or some of its clients came too late."""
    config = load_config(run)
    ends = options_of(config, "availability")
    waits = (
        ends is not None and config.devices.kind is not None and (ends.deadline is not None or ends.over_selection > 1)
    )
    return SIMULATED in lines[0] or (waits and any(MISSING in line for line in lines))


def _require_own_fleet(run: Path, fleet: Fleet, asked: Asked) -> None:
    """Raises ShoalError: a run that simulated time decided is of other devices, or a deadline is asked for."""
    config = load_config(run)
    in_steps = not config.schedule.synchronous
    section = config.devices.in_steps if in_steps else config.devices
    if asked.deadline < math.inf:
        kind = config.schedule.name if in_steps else "its participation"
        raise ShoalError(run, "--deadline", f"the run's own times, of {kind}, decided its steps; leave it out")
    assert section.kind is not None
    assert section.network is not None
    classes = read_classes(section.kind, "devices", DEVICES), read_network(section.network)
    its = Fleet.of(*classes, len(fleet.device), section.seed)
    if any(not np.array_equal(getattr(its, column.name), getattr(fleet, column.name)) for column in fields(Fleet)):
        given = f"--devices {section.kind} --network {section.network} --seed {section.seed}"
        raise ShoalError(run, f"its steps depend on its devices and links; give {given}")


def _parts_of(run: Path, lines: Sequence[Line]) -> Iterator[tuple[Path, Sequence[Line]]]:
    """Yields the runs that trained the rounds of a run, with these rounds' lines: of a fork its parents, and itself."""
    done = 0
    for origin, count in list_origins(run, len(lines)):
        yield origin, lines[done : done + count]
        done += count


def _rounds(lines: Sequence[Line], timed: bool, of_run: Sequence[Line]) -> list[Round]:
    """Returns the rounds of a run; with the times that it simulated, where these changed what it did (`timed`).

    `of_run` are all of its lines: a client may have trained from the model of an earlier step than `lines` has.
    """
    if SIMULATED not in lines[0]:
        visits = max(sum(len(line["cohort"]) for line in lines), 1)
        down, up = (sum(line[f"bytes_{way}"] for line in lines) / visits for way in ("down", "up"))
        return [_with_missing(_round(line), line, (down, up), timed) for line in lines]
    time = np.array([0.0, *(line[SIMULATED] for line in of_run)])
    begun = [line["round"] - 1 - np.array(line["staleness"]["of_clients"]) for line in lines]
    places = [line["round"] for line in lines]
    timed_rounds = zip(map(_round, lines), time[places], np.diff(time, prepend=0.0)[places], begun)
    return [replace(r, scored=False, took=took, spent=end - time[start]) for r, end, took, start in timed_rounds]


def _with_missing(those: Round, line: Line, message: tuple[float, float], timed: bool) -> Round:
    """Adds to a round the clients that were drawn and took no part to its end.

    Each receives and sends the mean of all visits of the run (`message`, bytes); a client that drops out sends nothing.
    """
    if MISSING not in line:
        return those
    (down, up), missing = message, line[MISSING]
    others = np.array([client for absent in missing.values() for client in absent], dtype=np.int64)
    everyone = np.concatenate([those.cohort, others])
    order = np.argsort(everyone)
    sizes = np.full(len(others), down), np.where(np.isin(others, missing.get("dropped", ())), 0.0, up)
    down_C, up_C = (np.concatenate(both)[order] for both in zip((those.down, those.up), sizes))
    end = line["participation"]["seconds"] if timed else None
    return replace(those, cohort=everyone[order], down=down_C, up=up_C, counted=order < len(those.cohort), end=end)


def _round(line: Line) -> Round:
    cohort = np.array(line["cohort"], dtype=np.int64)

    def column(way: str) -> np.ndarray:
        traffic = line.get(CLIENT_BYTES, {}).get(way, [line[f"bytes_{way}"] / max(len(cohort), 1)][: len(cohort)])
        return np.broadcast_to(np.array(traffic, dtype=np.float64), len(cohort))

    return Round(cohort, column("down"), column("up"), line["seconds"]["aggregate"], "scopes" in line)


def clocked(paths: Sequence[Path], asked: Asked) -> "Clocked":
    """Simulates the finished runs among runs and sweeps. Raises ShoalError: there is none, or as `ClockedRun.of`."""
    rows, _ = by_one_mean([row for row in rows_of(paths) if row.state != "not chosen"])
    groups = [group for group in group_runs(rows) if group.finished]
    if not groups:
        raise ShoalError("no run is finished; continue them with shoal run or shoal sweep")
    runs = [[ClockedRun.of(row.path, asked) for row in group.rows if row.figures] for group in groups]
    alone = display_name(load_config(runs[0][0].path).algorithm.name)
    names = PlainNames(groups, MainScore(groups).figures, ())
    return Clocked(asked, Looks(groups, names, alone), runs, paths, rows)


@dataclass(frozen=True)
class Clocked:
    """The clocks of the runs of every combination; the folders that were read, their rows, and the command."""

    asked: Asked
    looks: Looks
    runs: Sequence[Sequence[ClockedRun]]
    paths: Sequence[Path]
    rows: Sequence[Row]
    command: str = ""

    @property
    def scope(self) -> str:
        """The scope of the score."""
        return MainScore(self.looks.groups).figures[0].partition(".")[0]

    @property
    def score(self) -> str:
        """The name of the score, as `test accuracy`."""
        return self.looks.names.figure(MainScore(self.looks.groups).figures[0], short=True).replace(" (%)", "")

    @property
    def target(self) -> float:
        """The score to reach, a share."""
        if self.asked.target is not None:
            return self.asked.target
        scores = [self.read(line) for runs in self.runs for run in runs for line in run.lines]
        return SHARE * max((score for score in scores if score is not None), default=0.0)

    def read(self, line: Line) -> float | None:
        """Returns the score of a round; None: it was not evaluated."""
        return score_in(self.scope, "test")(line)

    def until(self) -> list[list[dict[str, float] | None]]:
        """Returns by combination and run the costs to reach the score; None: the run does not."""
        return [[run.until(self.read, self.target) for run in runs] for runs in self.runs]

    def tables(self, for_programs: bool = False) -> list[TextTable]:
        """Returns a table of the costs to reach the score, and one of the costs of whole runs.

        `for_programs`: with plain names as heads, all columns, and four digits.
        """
        return [self._to_target(for_programs), self._in_all(for_programs)]

    def _heads(self, for_programs: bool) -> dict[str, str]:
        """Returns the heads of costs by their names; money is left out where nothing has a price."""
        if for_programs:
            return {name: name for name in HEADS}
        money = {"money": f"money ({self.asked.currency})"} if self.asked.currency else {}
        return {name: head for name, head in HEADS.items() if name != "money"} | money

    def _to_target(self, for_programs: bool) -> TextTable:
        rows, heads = [], self._heads(for_programs)
        texts = {name: COSTS[name] or (FOUR_DIGITS if for_programs else None) for name in heads}
        for group, costs in zip(self.looks.groups, self.until()):
            reached = [at for at in costs if at is not None]
            cells = [format_interval([at[name] for at in reached], text) for name, text in texts.items()]
            rows.append((self.looks.name(group), f"{len(reached)} of {len(costs)}", *cells))
        title = f"To reach {100 * self.target:.1f} % {self.score} {MODELS[self.scope]}"
        several = any(len(runs) > 1 for runs in self.runs)
        notes = ["± 95 % interval of the mean over seeds, by Student's t"] if several else []
        notes += [f"without {self.asked.left_out}"] if self.asked.left_out else []
        return TextTable(("method", "reached", *heads.values()), tuple(rows), 1, title=title, notes=tuple(notes))

    def _in_all(self, for_programs: bool) -> TextTable:
        costs = {name: head for name, head in self._heads(for_programs).items() if name not in ("rounds", "bytes")}
        rows = []
        for group, runs in zip(self.looks.groups, self.runs):
            clocks = [run.clock for run in runs]
            visits = [max(sum(len(line["cohort"]) for line in run.lines), 1) for run in runs]
            columns = [
                *([getattr(c, name).sum() for c in clocks] for name in costs),
                [c.flops.sum() / 1e12 for c in clocks],
                [100 * c.idle.sum() / max(c.of_clients.sum(), 1e-300) for c in clocks],
                [100 * c.late.sum() / count for c, count in zip(clocks, visits)],
            ]
            text = FOUR_DIGITS if for_programs else None
            rows.append((self.looks.name(group), *(format_interval(values, text) for values in columns)))
        heads = ("method", *costs.values(), "TFLOP", "waiting (%)", "late (%)")
        notes = [*dict.fromkeys(run.note for runs in self.runs for run in runs if run.note), *self._late()]
        return TextTable(heads, tuple(rows), 1, title="In all rounds", notes=tuple(notes))

    def _late(self) -> list[str]:
        """Returns a note with the share of late visits by class of devices; none without a deadline."""
        if self.asked.deadline == math.inf:
            return []
        late, visits = (
            sum(np.pad(values, (0, len(self.asked.devices.names) - len(values))) for values in of_runs)
            for of_runs in zip(*((run.clock.late_of, run.clock.visits_of) for runs in self.runs for run in runs))
        )
        shares = (f"{n} {100 * a / b:.1f} %" for n, a, b in zip(self.asked.devices.names, late, visits) if b)  # type: ignore
        return [
            f"late after {self.asked.deadline:g} s: {', '.join(shares)}; scores are those of the run, with all uploads"
        ]

    def plain(self) -> dict[str, Any]:
        """Returns plain values for other programs: the score, and of every run the rounds and its costs to reach it."""
        methods = [
            {
                "name": self.looks.name(group), "keys": group.columns,
                "runs": [
                    {"run": str(run.path), "reached": at, "rounds": run.columns(), "note": run.note}
                    for run, at in zip(runs, costs)
                ],
            }
            for group, runs, costs in zip(self.looks.groups, self.runs, self.until())
        ]  # fmt: skip
        return {"scope": self.scope, "target": self.target, "left_out": self.asked.left_out, "methods": methods}
