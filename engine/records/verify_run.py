"""Verifies that a run folder is as the run wrote it."""

from collections.abc import Callable
from math import nan
from pathlib import Path

import numpy as np

from shoal.engine.config.config import load_config
from shoal.engine.config.config_text import require_as_kept
from shoal.engine.records import checkpoint
from shoal.engine.records.client_scores import CLIENT_SCORES, mean_scores
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import CHECKPOINTS, CONFIG, SUMMARY, finished, read_summary, started
from shoal.engine.rounds.domains import DOMAINS
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import present


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    return started(path) or finished(path)


def verify_run(run: Path) -> list[str]:
    """Reads every file of a run that a later command reads.

    Returns:
        One line for each fault; empty if there is none.
    """
    faults: list[str] = []

    def note(check: Callable[[], object]) -> None:
        try:
            check()
        except ShoalError as error:
            faults.append(error.line)

    note(lambda: require_as_kept(run / CONFIG))
    note(lambda: require_whole_metrics(run))
    note(lambda: _require_client_scores(run))
    note(lambda: _require_summary(run))
    note(lambda: faults.extend(checkpoint.faults(run / CHECKPOINTS)))
    note(lambda: faults.extend(checkpoint.faults(run / checkpoint.BEST)))
    return faults


def _require_client_scores(run: Path) -> None:
    """Compares the scores of clients, where a run kept them, with the means over clients in its metrics.

    Raises:
        ShoalError: Those of a round are missing or others.
    """
    path = run / CLIENT_SCORES
    if not present(path):
        return
    means = mean_scores(run)
    for line in read_metrics(run):
        for scope, parts in line.get("scopes", {}).items():
            for part, numbers in parts.items() if scope != DOMAINS else ():
                found = means.get((line["round"], scope, part), (nan, nan))
                if not np.allclose(found, (numbers["clients"], numbers["f1_clients"]), rtol=1e-9, atol=0):
                    raise ShoalError(
                        f"{path}: the scores of round {line['round']} are damaged or missing; --fresh makes the run "
                        "again, or remove the file to do without them"
                    )


def _require_summary(run: Path) -> None:
    """Raises:
    ShoalError: The summary is damaged, or all rounds are done and it is missing.
    """
    if present(run / SUMMARY):
        read_summary(run)
    elif checkpoint.newest_round(run / CHECKPOINTS) == load_config(run).rounds:
        raise ShoalError(f"{run / SUMMARY}: missing, though all rounds are done; --resume writes it")


def require_whole_metrics(run: Path) -> None:
    """Compares the metrics with the rounds of the summary and of the newest checkpoint.

    Raises:
        ShoalError: Lines are damaged or missing, or the summary is damaged.
    """
    logged = len(read_metrics(run))
    done = max(checkpoint.newest_round(run / CHECKPOINTS), int(read_summary(run)["rounds"]) if finished(run) else 0)
    if logged < done:
        raise ShoalError(
            f"{run / METRICS}: {logged} of {done} rounds are there; delete {SUMMARY}, if there is one, and --resume "
            "rebuilds it from the newest checkpoint"
        )
