"""Verifies the checksums of a store, with the stores below it, or of a run folder."""

from collections.abc import Callable
from functools import partial
from math import nan
from pathlib import Path

import numpy as np

from shoal.engine.config.config import load_config
from shoal.engine.config.config_text import run_of
from shoal.engine.config.sections import DOMAINS
from shoal.engine.records import checkpoint
from shoal.engine.records.client_scores import CLIENT_SCORES, mean_scores, read_upload_digests
from shoal.engine.records.metrics import read_metrics, read_records, recorded_rounds
from shoal.engine.records.run_folder import CHECKPOINTS, SUMMARY, finished, read_summary, started
from shoal.engine.screen.progress import progress
from shoal.engine.screen.tables import console
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import present
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, stores_below
from shoal.storage.store.verify import files_to_verify, unnamed_files, verify


def verify_folder(path: Path, place: object = None) -> None:
    """Checks every file of a store or a run, and names files of a store that belong to nothing.

    Raises ShoalError: files are damaged or missing; names the first, and the number of others. `place` names the
    folder in lines, if it is a copy.
    """
    if not (path / NAME).exists() and (started(path) or finished(path)):
        faults, advice = verify_run(path), "shoal run with --resume continues from the files that are sound"
        if not faults:
            unnamed = "" if run_of(path) else "; an earlier Shoal wrote no run into them, to tell those of another"
            console.print(f"{place or path}: all files as the run wrote them{unnamed}", soft_wrap=True)
    else:
        faults = [fault for folder in (path, *stores_below(path)) for fault in _verify(Store(folder))]
        advice = "delete the damaged files and run `shoal prepare` again"
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ShoalError(f"{faults[0]}{more}; {advice}")


def _verify(store: Store) -> list[str]:
    files = files_to_verify(store)
    with progress(f"verify {store.path}", files, "files") as step:
        faults = verify(store, step.advance)
    for path in unnamed_files(store):
        console.print(f"{path}: nothing names this file, and no run reads it", soft_wrap=True)
    for line in faults or [f"{store.path}: {files} files, all as they were written"]:
        console.print(line, soft_wrap=True)
    return faults


def verify_run(run: Path) -> list[str]:
    """Reads every file of a run that a later command reads; returns a line for each fault."""
    faults: list[str] = []
    checks: list[Callable[[], object]] = [
        partial(load_config, run),
        partial(read_metrics, run),
        partial(_require_client_scores, run),
        # After a damage no round can be read, so that the last one shows whether all can.
        lambda: read_upload_digests(run, len(read_metrics(run))),
        *(partial(read_records, run, number) for number in recorded_rounds(run)),
        partial(_require_summary, run),
        lambda: faults.extend(checkpoint.faults(run / CHECKPOINTS)),
        lambda: faults.extend(checkpoint.faults(run / checkpoint.BEST)),
    ]
    for check in checks:
        try:
            check()
        except ShoalError as error:
            faults.append(error.line)
    # Several parts of a run may name the same file.
    return list(dict.fromkeys(faults))


def _require_client_scores(run: Path) -> None:
    """Refuses scores of clients, if a run kept them, that differ from the means over clients in its metrics."""
    path = run / CLIENT_SCORES
    if not present(path):
        return
    means = mean_scores(run)
    for line in read_metrics(run):
        for scope, parts in line.get("scopes", {}).items():
            for part, numbers in parts.items() if scope != DOMAINS else ():
                scores = means.get((line["round"], scope, part), (nan, nan))
                if not np.allclose(scores, (numbers["clients"], numbers["f1_clients"]), rtol=1e-9, atol=0):
                    raise ShoalError(
                        path,
                        f"the scores of round {line['round']} are damaged or missing; --fresh makes the run "
                        "again, or remove the file to do without them",
                    )


def _require_summary(run: Path) -> None:
    """Refuses a damaged summary, or a missing one where all rounds are done."""
    if present(run / SUMMARY):
        read_summary(run)
    elif checkpoint.newest_round(run / CHECKPOINTS) == load_config(run).rounds:
        raise ShoalError(run / SUMMARY, "missing, though all rounds are done; --resume writes it")
