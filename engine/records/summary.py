"""Builds and reads summary.json of a finished run."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from shoal.algorithms.methods.registry.names import beside_parameters
from shoal.engine.config.config import Config
from shoal.engine.config.config_text import OF_RUN, require_same_run
from shoal.engine.config.sections import (
    ACCURACY,
    BOTH,
    CHOSEN_BY,
    DOMAINS,
    EVALUATED,
    MACRO_F1,
    OF_FEATURES,
    OLD_MOMENTS,
    RANKINGS,
    SCORING,
    current_scopes,
)
from shoal.engine.messages.environment import environment
from shoal.engine.sections.sections import changes_cohorts
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import present
from shoal.storage.files.checksummed_json import unsealed
from shoal.storage.files.reading import read_bytes
from shoal.storage.store.client_table import SplitRecord
from shoal.storage.store.manifest import Manifest

SUMMARY, METRICS = "summary.json", "metrics.jsonl"
# A summary has by this key what features did to the run, by their names and by subject.
DONE = "done"
# The summary of a run whose clients share nodes has the counts of `count_distinct` by this key.
DISTINCT = "distinct"

PARTS = ("train", "upload", "evaluate", "aggregate", SCORING, "transfer", "wait")
# The paper of FGGP reports the mean of so many last evaluations.
LAST = 5

# A summary gives a reason for a difference of more points than this.
APART = 10

# A summary has by `CONSTANT` the test accuracy of the best constant class, by scope and mean over clients.
CONSTANT = "constant"
# A summary has by `ONE_MODEL` who took part in the rounds of a method with one model.
ONE_MODEL, ALL, SOME = "one_model", "all", "some"
# This scope comes first, since most runs are about the model that a client would deploy.
FIRST_SCOPE = "deployed"
OF_SOME = "deployed: the newest model of each client, stale ones too; global: the model of the server"

# A number of a round in which not all clients were evaluated has this mark, which a line explains.
SAMPLED, OF_SAMPLES = "~", "~: of a sample of clients (evaluation.clients); the best round is the best of samples"

# `NODES` is the mean that stands for a scope; `POOLED` is the accuracy of all scored items, without regard to clients.
NODES, POOLED = "nodes", "rows"


def weighting_of(scope: str, weighting: str = NODES) -> str:
    """Returns the number that stands for a scope: the mean over domains, or over clients by a weighting."""
    return "clients" if scope == DOMAINS else weighting


def metric_of(numbers: Mapping[str, Any]) -> str:
    """Returns the metric that chooses rounds, by its name among the numbers of a part."""
    # Older numbers, from before there were several metrics, do not name it.
    return numbers.get(CHOSEN_BY) or next((metric for metric in RANKINGS if metric in numbers), ACCURACY)


def metrics_in(numbers: Mapping[str, Any]) -> list[str]:
    """Returns names of the metrics beside accuracy among the numbers of a part."""
    return [name for name, value in numbers.items() if isinstance(value, Mapping) and "ranked" in value]


def name_metric(metric: str) -> str:
    """Returns the name of a metric in tables."""
    titles = {name: of_feature.title for name, of_feature in OF_FEATURES.items()}
    return {**RANKINGS, **titles, MACRO_F1: "macro-F1"}.get(metric, metric)


def unit_of(metric: str) -> str:
    """Returns the unit of a metric in tables: % of shares, empty of one in the units of the data."""
    return "" if metric in OF_FEATURES and OF_FEATURES[metric].in_units else "%"


def name_with_unit(metric: str) -> str:
    """Returns the name of a metric in tables, with its unit."""
    return name_metric(metric) + (" (%)" if unit_of(metric) else "")


def chosen(numbers: Mapping[str, Any], scope: str, weighting: str = NODES) -> float | None:
    """Returns the number by which rounds are chosen, that of the run's metric; None if it is not defined."""
    metric = metric_of(numbers)
    weightings = numbers if metric == ACCURACY else numbers[metric]
    value: float | None = weightings[weighting_of(scope, weighting)]
    return value


def best_round(lines: Iterable[dict[str, Any]], scope: str, weighting: str = NODES) -> dict[str, Any] | None:
    """Finds the first logged round with the highest validation metric of a scope; None if no round has one."""
    best: dict[str, Any] | None = None
    highest = -math.inf
    for line in lines:
        numbers = line.get("scopes", {}).get(scope, {}).get("val")
        value = None if numbers is None else chosen(numbers, scope, weighting)
        if value is not None and (best is None or value > highest):
            best, highest = line, value
    return best


def numbers_in(line: Mapping[str, Any], scope: str) -> dict[str, Any]:
    """Returns the numbers of a scope in an evaluated round, with the round, and the number of clients of a sample."""
    sampled = {EVALUATED: line[EVALUATED]} if EVALUATED in line and scope != DOMAINS else {}
    return {"round": line["round"], **sampled, **line["scopes"][scope]}


def some_take_part(config: Config) -> bool:
    """Returns whether rounds have some of the clients, so that others hold the model of an earlier round."""
    part = config.participation
    some = part.ratio < 1 if part.count is None else part.count < config.partition.clients
    return some or changes_cohorts(config) or not config.schedule.synchronous


def scopes_apart(summary: Mapping[str, Any], config: Config) -> tuple[float, str]:
    """Returns points between `deployed` and `global`, the more of last and best rounds, and a reason above `APART`."""
    points = 0.0
    for moment in ("final", "best"):
        tests = [
            ((summary["scopes"].get(scope) or {}).get(moment) or {}).get("test") for scope in ("deployed", "global")
        ]
        deployed, of_server = (None if test is None else chosen(test, "") for test in tests)
        if deployed is not None and of_server is not None:
            points = max(points, 100 * abs(deployed - of_server))
    if points <= APART:
        return points, ""
    of_client, of_all = (f", {text}" if text else "" for text in beside_parameters(config.algorithm.name))
    missed = some_take_part(config) or summary.get("left_out", {}).get("visits")
    return points, (
        f"deployed is the model that each client downloaded in its own last round{of_client}; "
        f"global is the server's model now, for all clients{of_all}"
        + ("; a client that missed rounds holds an earlier model, or the initial one" if missed else "")
    )


def summarize_run(
    lines: Sequence[dict[str, Any]], manifest: Manifest, peak_memory: int, device: str, shared: int = 0
) -> dict[str, Any]:
    """Makes plain values for summary.json: numbers of the last and the best-validation round, bytes, seconds, memory.

    The first `shared` rounds of a fork are its parent's, and took none of its seconds.
    """
    totals, last = _Totals(shared), lines[-1]
    for line in lines:
        totals.take(line)
    visits = max(totals.visits, 1)
    return {
        "dataset": manifest.name,
        "synthetic": manifest.synthetic,
        "clients": len(manifest.clients),
        "rounds": len(lines),
        "scopes": totals.scopes(),
        "bytes": totals.sent | {f"{way}_per_client_round": total / visits for way, total in totals.sent.items()},
        # Papers count numbers of four bytes.
        "scalars": {f"{way}_per_client_round": total / visits / 4 for way, total in totals.sent.items()},
        "seconds": {"round_median": median(totals.rounds), "rounds": sum(totals.rounds), **totals.seconds},
        # Lines of former versions do not tell.
        "hosts": last["hosts"].get("of"),
        # Seconds of work of each host, in all rounds; empty if all is one process.
        "busy_seconds": {host: totals.busy.get(host, 0.0) for host in last["hosts"].get("busy", {})},
        "retries": totals.retries,
        "left_out": {"visits": totals.failures, "clients": len(totals.failed)},
        "peak_memory_bytes": peak_memory,
        "resident_bytes": totals.resident,
        "environment": environment(device),
        **({"participation": totals.participation} if totals.participation else {}),
        **({"secure": totals.hidden} if totals.hidden else {}),
    }


def describe_visits(summary: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the head of a page has of drawn clients, for a run that counts them."""
    visits = summary.get("participation")
    if not visits:
        return {}
    out = f"{visits['dropped']:,} dropped out, {visits['late']:,} late, {visits['surplus']:,} not needed"
    return {"Drawn": f"{visits['drawn']:,} times a client, of {visits['online']:,} online; {out}"}


def seconds_by_part(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the seconds of rounds by part, summed; lines of earlier versions count scoring to other parts."""
    return {part: sum(_seconds(of_round, part) for of_round in seconds) for part in PARTS}


def _seconds(of: Mapping[str, float], part: str) -> float:
    """Returns the seconds of a part of a round; lines of earlier versions lack scoring, kernels and checkpoints."""
    return of[part] if part in PARTS and part != SCORING else of.get(part, 0.0)


class _Totals:
    """The totals of a summary over all rounds, added up line by line.

    Attributes:
        rounds: Seconds of each round that the run itself trained.
        seconds: Seconds of these rounds by part; kernels and checkpoints beside rounds.
        hidden: Rounds with hidden sums, and the number of them that were skipped; empty if sums are not hidden.
        resident: The largest resident set of driver, server and any host, in bytes.
    """

    def __init__(self, shared: int) -> None:
        """Begins without a round; the `shared` first of a fork are its parent's, and took none of its seconds."""
        self._shared = shared
        self.visits = self.retries = self.failures = 0
        self.failed: set[str] = set()
        self.sent = {"up": 0, "down": 0}
        self.rounds: list[float] = []
        self.seconds: dict[str, float] = {**dict.fromkeys(PARTS, 0.0), "kernels": 0.0, "checkpoint": 0.0}
        self.busy: dict[str, float] = {}
        self.participation: dict[str, Any] = {}
        self.hidden: dict[str, int] = {}
        self.resident: dict[str, int] = {}
        # The last line with scores, the best line by scope, and the last five lines with domains.
        self._scored: dict[str, Any] = {}
        self._best: dict[str, dict[str, Any]] = {}
        self._five: deque[dict[str, Any]] = deque(maxlen=LAST)

    def take(self, line: dict[str, Any]) -> None:
        """Adds a round."""
        self.visits += len(line["cohort"])
        self.retries += line["retries"]
        self.failures += len(line.get("failures", ()))
        self.failed |= set(line.get("failures", ()))
        for way in self.sent:
            self.sent[way] += line[f"bytes_{way}"]
        for name, value in line.get("participation", {}).items():
            self.participation[name] = self.participation.get(name, 0) + value
        if "secure" in line:
            self.hidden = {
                "rounds": self.hidden.get("rounds", 0) + 1,
                "skipped": self.hidden.get("skipped", 0) + (not line["secure"]["read"]),
            }
        self._take_memory(line["memory"])
        if line["round"] > self._shared:
            self.rounds.append(line["seconds"]["round"])
            for part in self.seconds:
                self.seconds[part] += _seconds(line["seconds"], part)
            for host, share in line["hosts"].get("busy", {}).items():
                self.busy[host] = self.busy.get(host, 0.0) + share * line["seconds"]["round"]
        if "scopes" in line:
            self._take_scores(line)

    def _take_memory(self, memory: dict[str, Any]) -> None:
        hosts = {"host": max(memory["hosts"].values())} if memory.get("hosts") else {}
        for process, held in {**memory, **hosts}.items():
            if process != "hosts":
                self.resident[process] = max(held, self.resident.get(process, 0))

    def _take_scores(self, line: dict[str, Any]) -> None:
        # The rest of a line is dropped: a cohort of many clients, for one, would fill the memory.
        slim = {key: line[key] for key in ("round", EVALUATED, "scopes") if key in line}
        self._scored = slim
        for scope in line["scopes"]:
            best = best_round([*([self._best[scope]] if scope in self._best else []), slim], scope)
            if best is not None:
                self._best[scope] = best
        if BOTH in line["scopes"].get(DOMAINS, {}):
            self._five.append(slim)

    def scopes(self) -> dict[str, Any]:
        """Returns numbers of the last and of the best round by scope, for the scopes of the last evaluation."""
        numbers: dict[str, Any] = {}
        for scope in self._scored.get("scopes", ()):
            best = self._best.get(scope)
            numbers[scope] = {
                "final": numbers_in(self._scored, scope),
                "best": numbers_in(best, scope) if best else None,
            }
            if scope == DOMAINS:
                numbers[scope]["last_five"] = self._last_five()
        return numbers

    def _last_five(self) -> dict[str, Any]:
        """Returns means over the last five evaluations, or fewer, of validation and test rows; with their rounds."""
        means = _mean_of([line["scopes"][DOMAINS][BOTH] for line in self._five]) if self._five else {}
        return {"rounds": [line["round"] for line in self._five], **means}


def _mean_of(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Averages the numbers of tables, and of tables inside of them; the last table has the say on texts and classes."""
    means: dict[str, Any] = {}
    for name, newest in tables[-1].items():
        values = [table[name] for table in tables if table.get(name) is not None]
        if isinstance(newest, dict):
            means[name] = _mean_of(values)
        elif isinstance(newest, str):
            means[name] = newest
        else:
            means[name] = newest if name == "constant_class" or not values else fmean(values)
    return means


def count_rounds(run: Path) -> int:
    """Counts the complete lines of the metrics of a run, readable or not. Raises ShoalError: the file is unreadable."""
    try:
        return read_bytes(run / METRICS).count(b"\n")
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ShoalError(run / METRICS, f"cannot be read: {error.strerror}") from error


def require_lines(run: Path, logged: int, done: int) -> None:
    """Raises ShoalError: fewer rounds are in the metrics of a run than it has done."""
    if logged < done:
        raise ShoalError(
            run / METRICS,
            f"{logged} of {done} rounds are there; delete {SUMMARY}, if there is one, and --resume "
            "rebuilds it from the newest checkpoint",
        )


def finished(run: Path) -> bool:
    """Returns whether a run folder has a summary, readable or not."""
    return present(run / SUMMARY)


def read_summary(run: Path) -> dict[str, Any]:
    """Returns the summary of a finished run; nothing else reads it.

    Raises ShoalError: there is none, it is not as the run wrote it, or rounds of it are missing in the metrics.
    """
    path = run / SUMMARY
    try:
        summary = unsealed(read_bytes(path))
        require_same_run(run, summary.pop(OF_RUN, None))
        require_lines(run, count_rounds(run), int(summary["rounds"]))
        return _current(summary)
    except FileNotFoundError as error:
        raise ShoalError(run, f"no readable {SUMMARY}, so no finished run ({error.strerror})") from error
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        # The error of a seal or of another run says what is wrong; others come from the content.
        fault = str(error) if type(error) is ValueError else f"damaged ({error})"
        raise ShoalError(
            path, f"{fault}; delete it, and --resume writes it again from the newest checkpoint"
        ) from error


def _current(summary: dict[str, Any]) -> dict[str, Any]:
    """Renames scopes and moments of an older summary to today's names."""
    for scope, numbers in (scopes := current_scopes(summary.get("scopes", {}))).items():
        scopes[scope] = {OLD_MOMENTS.get(moment, moment): of_moment for moment, of_moment in numbers.items()}
    return summary | {"scopes": scopes}


def count_distinct(record: SplitRecord) -> dict[str, list[int]]:
    """Counts items that train, validate and test, by client and different ones; none if no clients share any."""
    return {} if record.distinct is None else {"counted": record.counts.sum(0).tolist(), "different": record.distinct}


def describe_distinct(counts: Mapping[str, Sequence[int]], what: str) -> str:
    """Says how many items of each part are different ones, by the counts of `count_distinct`; empty without them."""
    if not counts:
        return ""
    parts = zip(("train", "validation", "test"), counts["counted"], counts["different"])
    numbers = ", ".join(f"{of_all:,} {part} {what}s are {some:,}" for part, of_all, some in parts)
    return f"each {what} counts at every client that holds it: {numbers} different ones"
