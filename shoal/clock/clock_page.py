"""The page of `shoal clock`: what was clocked, who is first, a figure, tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pyarrow as pa
import pyarrow.csv

from shoal.clock.intervals import format_interval
from shoal.clock.report import Clocked, ClockedRun
from shoal.pages import figures as drawings
from shoal.pages.figures import Drawing
from shoal.pages.head import head_of
from shoal.pages.headline import Headline
from shoal.pages.page import Head, Section, is_alone, write_page
from shoal.storage.files.atomic import replacing
from shoal.study.constant_class import constant_of
from shoal.study.figure_data import Curve, curve_of
from shoal.study.plain_names import MODELS

# These facts of the head of runs are of the machine that ran them, and not of the simulated one.
OF_THE_MACHINE = ("Duration", "Hosts")
# A headline names so many combinations beside the first.
MOST_OTHERS = 3


def write_clock(made: Clocked, place: Path) -> Path:
    """Writes the page, and to a folder `target.csv` and `rounds.csv`, a row for every run and round; returns the page.

    The place is as `write_page` takes it.
    """
    if not is_alone(place):
        rounds = [{"run": [str(run.path)] * len(run.lines), **run.columns()} for runs in made.runs for run in runs]
        with replacing(place / "rounds.csv") as unfinished:
            pa.csv.write_csv(pa.concat_tables(map(pa.table, rounds), promote_options="permissive"), unfinished)
        with replacing(place / "target.csv") as unfinished:
            unfinished.write_text(made.tables(for_programs=True)[0].csv())
    figures: list[Drawing] = []
    curves = [(group, _curve(made, runs)) for group, runs in zip(made.looks.groups, made.runs)]
    if panels := made.looks.panels([(group, curve) for group, curve in curves if curve is not None]):
        title = f"{made.score[:1].upper()}{made.score[1:]} {MODELS[made.scope]} by simulated time"
        constant = constant_of(made.looks.groups, made.scope)
        drawings.curves(figures, "score-by-simulated-time", title, panels, "simulated", f"{made.score} (%)", constant)
    sections = [Section("", figures), Section("Costs", tables=made.tables())]
    return write_page(place, _head(made), sections)


def _head(made: Clocked) -> Head:
    """Returns the head of the runs, with devices, links and the command in place of the machine that ran them."""
    of_runs = head_of(made.paths[0], made.rows, made.looks, False, Headline())
    asked = made.asked
    files = ["none" if table is None else table.path.name for table in (asked.devices, asked.networks)]
    facts = [fact for fact in of_runs.facts if fact[0] not in OF_THE_MACHINE]
    facts += [("Devices", files[0]), ("Network", files[1]), ("Drawn by", f"seed {asked.seed}")]
    facts += [("Left out", asked.left_out)] if asked.left_out else []
    facts += [("Deadline", f"{asked.deadline:g} s")] if asked.deadline < math.inf else []
    seconds = {
        made.looks.name(group): [at["seconds"] for at in costs if at is not None]
        for group, costs in zip(made.looks.groups, made.until())
    }
    number, number_is = headline(seconds, f"{100 * made.target:.1f} % {made.score} {MODELS[made.scope]}")
    return Head(
        f"Simulated time: {of_runs.title}", number, number_is, facts, made.command, badge=of_runs.badge
    )  # fmt: skip


def headline(seconds: Mapping[str, Sequence[float]], score: str) -> tuple[str, str]:
    """Returns the mean time of the first to reach a score, and a text that says who it is and how long others take.

    Both are empty if none reaches it. `seconds` has those of the runs that do, by combination.
    """
    means = {name: fmean(values) for name, values in seconds.items() if values}
    if not means:
        return "", ""
    first = min(means, key=means.__getitem__)
    number, count = _duration(seconds[first]), len(seconds[first])
    interval = f" (95 % interval of {count} runs)" if "±" in number else ""
    text = f"simulated until {first} reaches {score}{interval}"
    others = [name for name in seconds if name != first]
    if len(others) > MOST_OTHERS:
        return number, f"{text}, the first of {len(seconds)} combinations"
    never = [name for name in others if name not in means]
    times = {name: means[name] / max(means[first], 1e-300) for name in others if name in means}
    slower = (f"{name} takes {of_first:.3g} times as long" for name, of_first in times.items())
    parts = [*slower, *([f"{' and '.join(never)} {'does' if len(never) == 1 else 'do'} not reach it"] if never else [])]
    return number, "; ".join([text, *parts])


def _duration(seconds: Sequence[float]) -> str:
    """Formats a mean with its interval, in a unit of which the mean has two or more, else in seconds."""
    units = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
    unit, length = next((unit for unit in units if fmean(seconds) >= 2 * unit[1]), units[-1])
    return f"{format_interval([value / length for value in seconds])} {unit}"


def _curve(made: Clocked, runs: Sequence[ClockedRun]) -> Curve | None:
    curve = curve_of([run.lines for run in runs], made.read)
    return None if curve is None else replace(curve, x={**curve.x, "simulated": curve.x["seconds"]})
