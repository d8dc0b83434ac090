"""Builds summary.json of a finished run."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from shoal.algorithms.methods.registry.names import beside_parameters
from shoal.engine.config.config import Config
from shoal.engine.config.sections import ACCURACY, BOTH, CHOSEN_BY, DOMAINS, EVALUATED, MACRO_F1, RANKINGS
from shoal.engine.messages.environment import environment
from shoal.storage.store.manifest import Manifest

PARTS = ("train", "upload", "evaluate", "aggregate", "transfer", "wait")
# What the paper of FGGP reports: the mean of so many last evaluations.
LAST = 5

# Points; a larger difference is given its reason.
APART = 10

# A number of a round in which not all clients were evaluated has this mark, which a line explains.
SAMPLED, OF_SAMPLES = "~", "~: of a sample of clients (evaluation.clients); the best round is the best of samples"

# The mean that stands for a scope, and the one that is the accuracy of all scored items, whoever holds them.
NODES, POOLED = "nodes", "rows"


def weighting_of(scope: str, weighting: str = NODES) -> str:
    """The number that stands for a scope: the mean over domains, or over clients by a weighting."""
    return "clients" if scope == DOMAINS else weighting


def metric_of(numbers: Mapping[str, Any]) -> str:
    """The metric that chooses rounds, by its name among the numbers of a part."""
    # Numbers of before there were several metrics do not say so.
    return numbers.get(CHOSEN_BY) or next((metric for metric in RANKINGS if metric in numbers), ACCURACY)


def metrics_in(numbers: Mapping[str, Any]) -> list[str]:
    """Names of the metrics beside accuracy among the numbers of a part."""
    return [name for name, found in numbers.items() if isinstance(found, Mapping) and "ranked" in found]


def shown(metric: str) -> str:
    """A metric as tables call it."""
    return {**RANKINGS, MACRO_F1: "macro-F1"}.get(metric, metric)


def chosen(numbers: Mapping[str, Any], scope: str, weighting: str = NODES) -> float | None:
    """The number by which rounds are chosen, that of the run's metric; None where it is not defined."""
    metric = metric_of(numbers)
    weightings = numbers if metric == ACCURACY else numbers[metric]
    value: float | None = weightings[weighting_of(scope, weighting)]
    return value


def best_round(lines: Sequence[dict[str, Any]], scope: str, weighting: str = NODES) -> dict[str, Any] | None:
    """The first logged round with the highest validation metric of a scope; None where it is defined in none."""
    numbers = [line.get("scopes", {}).get(scope, {}).get("val") for line in lines]
    values = {place: None if found is None else chosen(found, scope, weighting) for place, found in enumerate(numbers)}
    known = {place: value for place, value in values.items() if value is not None}
    return lines[max(known, key=known.__getitem__)] if known else None


def numbers_in(line: Mapping[str, Any], scope: str) -> dict[str, Any]:
    """The numbers of a scope in an evaluated round, with the round, and the clients in them where not all are."""
    sampled = {EVALUATED: line[EVALUATED]} if EVALUATED in line and scope != DOMAINS else {}
    return {"round": line["round"], **sampled, **line["scopes"][scope]}


def scopes_apart(summary: Mapping[str, Any], config: Config) -> tuple[float, str]:
    """Points between `deployed` and `global`, the more of last and best rounds, and why; no reason up to `APART`."""
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
    taking_part = config.participation
    own, of_all = (f", {text}" if text else "" for text in beside_parameters(config.algorithm.name))
    some = taking_part.ratio < 1 if taking_part.count is None else taking_part.count < summary["clients"]
    missed = some or taking_part.trace is not None or taking_part.simulates or not config.schedule.synchronous
    missed = missed or summary.get("left_out", {}).get("visits")
    return points, (
        f"deployed is the model that each client downloaded in its own last round{own}; "
        f"global is the server's model now, for all clients{of_all}"
        + ("; a client that missed rounds holds an earlier model, or the initial one" if missed else "")
    )


def summarize_run(
    lines: Sequence[dict[str, Any]], manifest: Manifest, peak_memory: int, device: str, shared: int = 0
) -> dict[str, Any]:
    """Plain values for summary.json: numbers of the last and the best-validation round, bytes, seconds, memory.

    Of a fork the first `shared` rounds are its parent's, and took none of its seconds.
    """
    own = lines[shared:]
    scored = [line for line in lines if "scopes" in line]
    scopes: dict[str, Any] = {}
    for scope in scored[-1]["scopes"] if scored else ():
        best = best_round(scored, scope)
        scopes[scope] = {
            "final": numbers_in(scored[-1], scope),
            "best": numbers_in(best, scope) if best else None,
        }
        if scope == DOMAINS:
            scopes[scope]["last_five"] = _last_five(scored)
    visits = max(sum(len(line["cohort"]) for line in lines), 1)
    parts = [line["participation"] for line in lines if "participation" in line]
    taking_part = {"participation": {name: sum(part[name] for part in parts) for name in parts[0]}} if parts else {}
    sums = [line["secure"] for line in lines if "secure" in line]
    hidden = {"secure": {"rounds": len(sums), "skipped": sum(not of["read"] for of in sums)}} if sums else {}
    sent = {way: sum(line[f"bytes_{way}"] for line in lines) for way in ("up", "down")}
    return {
        "dataset": manifest.name,
        "synthetic": manifest.synthetic,
        "clients": len(manifest.clients),
        "rounds": len(lines),
        "scopes": scopes,
        "bytes": sent | {f"{way}_per_client_round": total / visits for way, total in sent.items()},
        # As papers count: four bytes each.
        "scalars": {f"{way}_per_client_round": total / visits / 4 for way, total in sent.items()},
        "seconds": {
            "round_median": median(line["seconds"]["round"] for line in own),
            "rounds": sum(line["seconds"]["round"] for line in own),
            **{part: sum(line["seconds"][part] for line in own) for part in PARTS},
            # Beside those of rounds; runs of earlier versions have no such numbers.
            **{part: sum(line["seconds"].get(part, 0.0) for line in own) for part in ("kernels", "checkpoint")},
        },
        # Of each host, in all rounds; empty where all is one process.
        "busy_seconds": {
            host: sum(line["hosts"].get("busy", {}).get(host, 0.0) * line["seconds"]["round"] for line in own)
            for host in lines[-1]["hosts"].get("busy", {})
        },
        "retries": sum(line["retries"] for line in lines),
        "left_out": {
            "visits": sum(len(line.get("failures", ())) for line in lines),
            "clients": len({client for line in lines for client in line.get("failures", ())}),
        },
        "peak_memory_bytes": peak_memory,
        "resident_bytes": _largest(lines),
        "environment": environment(device),
        **taking_part,
        **hidden,
    }


def _last_five(scored: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the last five evaluations, or fewer, of validation and test rows; with their rounds."""
    last = [line for line in scored if BOTH in line["scopes"].get(DOMAINS, {})][-LAST:]
    means = _mean_of([line["scopes"][DOMAINS][BOTH] for line in last]) if last else {}
    return {"rounds": [line["round"] for line in last], **means}


def _mean_of(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means of the numbers of tables, and of tables inside of them; a class and what is in few tables is the last's."""
    means: dict[str, Any] = {}
    for name, newest in tables[-1].items():
        found = [table[name] for table in tables if table.get(name) is not None]
        if isinstance(newest, dict):
            means[name] = _mean_of(found)
        elif isinstance(newest, str):
            means[name] = newest
        else:
            means[name] = newest if name == "constant_class" or not found else fmean(found)
    return means


def _largest(lines: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The largest resident set of driver, server and any host, in bytes."""
    largest: dict[str, int] = {}
    for line in lines:
        memory = line["memory"]
        hosts = {"host": max(memory["hosts"].values())} if memory.get("hosts") else {}
        for process, held in {**memory, **hosts}.items():
            if process != "hosts":
                largest[process] = max(held, largest.get(process, 0))
    return largest
