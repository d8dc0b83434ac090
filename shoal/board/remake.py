"""The rounds of a run, made again in this process and compared with what the run recorded of them."""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.engine.config.config import Config, load_config
from shoal.engine.config.run_identity import flatten
from shoal.engine.hosts.backend import LocalBackend, server_device
from shoal.engine.messages.environment import environment
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.identity import store_path
from shoal.engine.records import inputs
from shoal.engine.records.client_scores import CLIENT_SCORES, read_client_scores, read_digests_by_round
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.rounds import server
from shoal.engine.rounds.costs import unwatched
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import usable
from shoal.storage.files.atomic import present

# The last bits of numbers depend on these parts of the environment; elsewhere values are compared to `CLOSE`.
OF_BITS = ("cpu", "device", "torch", "numpy")
CLOSE = 1e-5


@dataclass
class Remade:
    """A run that was made again, and how it differs from its records.

    Attributes:
        faults: A line for each thing that differs from the records.
        lines: The lines of the rounds that were made, by round.
        uploads: How many uploads were compared.
        trusted: Rounds of the kept checkpoints from which rounds went on, and that were taken as they are.
        stores: The contents of the prepared stores, by name.
        exact: Whether bits were compared, and not values.
    """

    faults: list[str] = field(default_factory=list)
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    uploads: int = 0
    trusted: list[int] = field(default_factory=list)
    stores: dict[str, str] = field(default_factory=dict)
    exact: bool = True


def remake(run: Path, stores: Path, wanted: Collection[int] | None = None) -> Remade:
    """Makes rounds of a run again, on stores that are prepared anew, and compares all that is recorded of them.

    A round is compared by cohort, failures, loss, digests of uploads, scores and scores of clients. On another kind of
    processor losses and scores are compared to `CLOSE`, and digests are not.

    Args:
        stores: A folder for stores, which are prepared from the data anew; runs of equal data share them.
        wanted: Some rounds, each from the nearest kept checkpoint before it; None: all, from the start.

    Raises ShoalError: the records are damaged, the data is gone, or the method fails.
    """
    config = _config(run, stores)
    plan = RunPlan.of(config)
    store = plan.prepare()
    job = make_job(config, store, run.name)
    job = replace(job, stages={**job.stages, "digests": True})
    summary = read_summary(run)
    here, there = environment(job.compute.device), summary["environment"]
    made = Remade(exact=all(here[key] == there.get(key) for key in OF_BITS))
    made.stores = inputs.of_stores(job.content, job.graphs, job.training, config.propagation.keep)
    records = _Records(run)
    for number in sorted(set(records.lines) if wanted is None else set(wanted)):
        if number in made.lines:
            continue
        last = max(made.lines, default=0)
        checkpoint = usable(run, number - 1) if wanted is not None else None
        if not made.lines or (checkpoint is not None and checkpoint.state.round > last):
            backend = LocalBackend(server_device(config))
            backend.open(job, plan.rounds, checkpoint.state if checkpoint else None)
            last = checkpoint.state.round if checkpoint else 0
            made.trusted += [last] if checkpoint else []
        for at in range(last + 1, number + 1):
            (line,) = backend.rounds(unwatched, at)
            made.lines[at] = line
            made.uploads += len(line.get("uploads", ()))
            made.faults += records.compare(line, made.exact)
    return made


def _config(run: Path, stores: Path) -> Config:
    """Reads a run's config, with its store in a folder where it is prepared anew, for this process."""
    kept = load_config(run)
    place = stores / store_path(kept).name
    return load_config(run, [f"data.store={place}", "data.overlay=null", "engine.backend=local", "callbacks=[]"])


class _Records:
    """The records of the rounds of a run."""

    def __init__(self, run: Path) -> None:
        self.lines = {line["round"]: line for line in read_metrics(run)}
        self._uploads = read_digests_by_round(run)
        self._scores = _scores_by_round(run)

    def compare(self, line: dict[str, Any], exact: bool) -> Iterator[str]:
        """Yields a text for each thing in which a line that was made again differs from the records."""
        number = line["round"]
        logged, where = self.lines[number], f"round {number}"
        for key in ("cohort", "failures"):
            if _clients(line.get(key)) != _clients(logged.get(key)):
                yield f"{where}: another {key}"
        for name, (now, then) in _both({"loss": line["loss"]}, {"loss": logged["loss"]}).items():
            if not _equal(now, then, exact):
                yield f"{where}: {name} is {now}, recorded {then}"
        if exact:
            yield from self._compare_uploads(number, line.get("uploads", ()))
        scopes = json.loads(json.dumps(line.get("scopes", {})))
        differ = [
            (name, now, then)
            for name, (now, then) in _both(flatten(scopes), flatten(logged.get("scopes", {}))).items()
            if not _equal(now, then, exact)
        ]
        if differ:
            name, now, then = differ[0]
            more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
            yield f"{where}: {name} is {now}, recorded {then}{more}"
        of_clients = line.get(server.CLIENT_SCORES) if self._scores else None
        if of_clients is not None and not _same_scores(of_clients, self._scores.get(number, {}), exact):
            yield f"{where}: {CLIENT_SCORES} has other scores of clients"

    def _compare_uploads(self, number: int, uploads: Collection[tuple[str, int, str]]) -> Iterator[str]:
        now = {(phase, client): digest for phase, client, digest in uploads}
        then = {(phase, client): digest for phase, client, digest in self._uploads.get(number, ())}
        differ = sorted(key for key in now.keys() | then.keys() if now.get(key) != then.get(key))
        if differ:
            phase, client = differ[0]
            more = f", and {len(differ) - 1} more" if len(differ) > 1 else ""
            yield f"round {number}: the upload of client {client}, phase {phase}, differs from its digest{more}"


def _clients(value: Any) -> list[int]:
    return sorted(map(int, value or ()))


def _both(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (now.get(name), then.get(name)) for name in {**now, **then}}


def _equal(now: Any, then: Any, exact: bool) -> bool:
    if now == then:
        return True
    numbers = isinstance(now, float | int) and isinstance(then, float | int)
    return not exact and numbers and math.isclose(now, then, rel_tol=CLOSE, abs_tol=CLOSE)


def _scores_by_round(run: Path) -> dict[int, dict[str, list[Any]]]:
    """Returns the columns of the scores of clients by round; empty if the run keeps none."""
    if not present(run / CLIENT_SCORES):
        return {}
    table = read_client_scores(run)
    rounds = table["round"].to_numpy()
    others = table.drop_columns(["round"])
    return {int(number): others.filter(rounds == number).to_pydict() for number in np.unique(rounds)}


def _same_scores(now: Mapping[str, Any], then: Mapping[str, list[Any]], exact: bool) -> bool:
    """Compares columns of scores of clients; what is not defined is NaN or null."""
    columns = {name: pa.array(values, from_pandas=True).to_pylist() for name, values in now.items()}
    return columns.keys() == then.keys() and all(
        len(columns[name]) == len(then[name]) and all(_equal(a, b, exact) for a, b in zip(columns[name], then[name]))
        for name in columns
    )
