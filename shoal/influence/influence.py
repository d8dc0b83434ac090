"""The influence of clients on a run: the same run without one of them, from the round before its first visit.

Nothing is approximated. Until its first visit a client has changed nothing, so that what follows without it is the
run without it from the start, to the bit; that is also how its data is removed from the models.
"""

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from shoal.engine.cluster.open_backend import open_backend
from shoal.engine.hosts.backend import Backend
from shoal.engine.records.checkpoint import load_last
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import CHECKPOINTS, finished, parent_of, read_summary, started
from shoal.engine.runs.run import run
from shoal.engine.scores.counts import CORRECT, PARTS, SUPPORT
from shoal.engine.screen.progress import say
from shoal.engine.sections.sections import options_of
from shoal.influence.influences import Influence, Influences
from shoal.past.fork import begin, plan_fork
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError


@dataclass(frozen=True)
class InfluenceReader:
    """The reader of the influence of clients; options are the arguments of `influence`."""

    clients: tuple[Annotated[int, Field(ge=0)], ...] = ()
    scope: str | None = None

    def read(self, past: PastRun) -> Reading:
        """Returns influences on all others and by class, and keeps them for the page of the run.

        Raises as `influence`.
        """
        result = influence(past.path, self.clients, self.scope)
        result.write(past.path)
        return Reading((result.table(), result.of_classes()), result.table(by_class=True).csv())


def influence(path: Path, clients: Sequence[int] = (), scope: str | None = None) -> Influences:
    """Runs a finished run again without each of some clients, all by default; what is finished is not run again.

    Each of these runs is kept as `<run>-without-<client>`, in which the client is drawn and does not answer
    (`participation.without`); interrupted, the same call goes on. Rounds before a first visit that no checkpoint of
    the run has are trained once more in memory, once for all clients.

    Args:
        path: Folder of the run.
        clients: Clients to do without, each alone.
        scope: The models that are scored: `global`, by default where the method has one, `deployed` or `trained`.

    Raises:
        ShoalError: The run is not finished, or a fork; a client or a scope is none of it;
            clients read each other's data before training; or as `shoal.engine.runs.run.run`.
    """
    if not finished(path) or parent_of(path):
        why = "is a fork of another run" if finished(path) else "is not finished"
        raise ShoalError(path, f"{why}; influence is of a finished run that began with its first round")
    past = PastRun(path)
    past.require_classes("influence")
    if options_of(past.config, "cross_edges") is not None:
        raise ShoalError(path, "data.cross_edges", "hops of others hold sums of a client's nodes; take a run with drop")
    number, first = past.store.clients, first_visits(past)
    if wrong := [client for client in clients if client >= number]:
        raise ShoalError(path, "--clients", f"{wrong[0]} is none of its clients, 0 to {number - 1}")
    scopes = [name for name in ("global", "deployed", "trained") if name in read_summary(path)["scopes"]]
    scope = scope or scopes[0]
    if scope not in scopes:
        raise ShoalError(path, "--scope", f"{scope} is none of its scopes; there are {', '.join(scopes)}")
    rounds, influences = len(past.lines), list[Influence]()
    before = _test_counts(path, scope, number, rounds)
    items_NC = before[:, 0]
    names = past.store.manifest.label_names or [str(c) for c in range(items_NC.shape[1])]
    ordered = sorted(set(clients) or range(number), key=lambda client: (first.get(client, 0), client))
    asked = f" --clients {','.join(map(str, clients))}" if clients else ""
    command = f"shoal influence {shlex.quote(past.place)} --scope {scope}{asked}"
    with closing(open_backend(past.config)) as backend:
        for place, client in enumerate(ordered, 1):
            shared = first[client] - 1 if client in first else len(past.lines)
            try:
                folder = _without(past, client, shared, backend, command) if client in first else path
            except KeyboardInterrupt:
                say(f"continue with: {command}")
                raise
            trained = (logged := len(read_metrics(folder))) - shared
            gain_NC = before[:, 1] - _test_counts(folder, scope, number, logged)[:, 1]
            items, gains = ([x_NC[client], x_NC.sum(0) - x_NC[client]] for x_NC in (items_NC, gain_NC))
            counts = ([x_C.tolist() for x_C in own_and_others] for own_and_others in (items, gains))
            influences.append(latest := Influence(client, first.get(client, 0), trained, folder, *counts))
            done = f"[{place}/{len(ordered)}] without client {client}"
            say(f"{done}: {trained} rounds trained, {latest.on_others:+.2f} on others")
    return Influences(scope, rounds, names, influences)


def _without(past: PastRun, client: int, shared: int, backend: Backend, command: str) -> Path:
    """Runs a run without a client to its end, from its first rounds, which are shared; gives the folder."""
    left_out = sorted({*past.config.participation.without, client})
    changes = [f"participation.without={left_out}", f"name={past.path.name}-without-{client}"]
    plan = plan_fork(past, changes, shared)
    begin(past, plan, shared)
    return run(plan, resume=started(plan.folder), backend=backend, go_on=command)


def first_visits(past: PastRun) -> dict[int, int]:
    """Returns by client the round in which it was asked for the first time; clients without one are missing."""
    first: dict[int, int] = {}
    for number in range(len(past.lines), 0, -1):
        first.update(dict.fromkeys(past.cohort(number), number))
    return first


def _test_counts(run: Path, scope: str, clients: int, rounds: int) -> np.ndarray:
    """Reads test items of all clients after the last round by class, and how many are predicted right.

    Int64 `[N, 2, C]`.
    """
    table = load_last(run / CHECKPOINTS, rounds).state.scores[scope]
    counts_BKC = np.concatenate(list(table.blocks()))[:, PARTS.index("test")]
    counts_N2C = np.zeros((clients, 2, counts_BKC.shape[2]), dtype=np.int64)
    counts_N2C[table.clients] = counts_BKC[:, [SUPPORT, CORRECT]]
    return counts_N2C
