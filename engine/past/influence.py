"""The influence of clients on a run: the same run without one of them, from the round before its first visit.

Nothing is approximated. Until its first visit a client has changed nothing, so that what follows without it is the
run without it from the start, to the bit; that is also how its data is removed from the models.
"""

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from shoal.engine.cluster.open_backend import open_backend
from shoal.engine.hosts.backend import Backend
from shoal.engine.past.fork import begin, forked
from shoal.engine.past.rewind import PastRun
from shoal.engine.records.client_scores import read_client_scores
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import finished, parent_of, read_summary, started
from shoal.engine.runs.run import run
from shoal.engine.screen.progress import say
from shoal.engine.studies.text_table import TextTable
from shoal.storage.errors import ShoalError


@dataclass(frozen=True)
class Influence:
    """What a client changes of a run.

    Attributes:
        first: The round of its first visit; 0: it has none, and changes nothing.
        trained: Rounds that the run without it trained.
        run: Folder of that run; of a client without visits, of the run itself.
        items: Test items of the client.
        on_others: Test accuracy of all others in the run minus that in the run without the client, in points; NaN
            where there are no test items.
        on_itself: The same of the client.
    """

    client: int
    first: int
    trained: int
    run: Path
    items: int
    on_others: float
    on_itself: float


@dataclass(frozen=True)
class Influences:
    """Influences of clients, in a scope in the final round, and how many rounds the run has."""

    scope: str
    rounds: int
    found: Sequence[Influence]

    def table(self) -> TextTable:
        """A row a client, the most useful one for others first; numbers are points."""
        ordered = sorted(self.found, key=lambda each: (-each.on_others, each.client))
        rows = tuple(
            (
                *map(str, (each.client, each.items, each.first or "-", each.trained)),
                *(f"{points:+.2f}" for points in (each.on_others, each.on_itself)),
                each.run.name,
            )
            for each in ordered
        )
        trained, scratch = sum(each.trained for each in self.found), self.rounds * len(self.found)
        return TextTable(
            ("client", "test items", "first round", "rounds trained", "on others", "on itself", "run without it"),
            rows,
            1,
            title=f"influence on test accuracy, scope {self.scope}, final round: points with the client minus without",
            notes=(f"{trained} rounds trained, {scratch} from scratch",),
        )


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
        ShoalError: The run is not finished, a fork, or kept no scores of clients; a client or a scope is none of it;
            clients read each other's data before training; or as `shoal.engine.runs.run.run`.
    """
    if not finished(path) or parent_of(path):
        why = "is a fork of another run" if finished(path) else "is not finished"
        raise ShoalError(path, f"{why}; influence is of a finished run that began with its first round")
    past = PastRun(path)
    if past.config.data.cross_edges != "drop":
        raise ShoalError(path, "data.cross_edges", "hops of others hold sums of a client's nodes; take a run with drop")
    number, first = past.store.clients, first_visits(past)
    if wrong := [client for client in clients if client >= number]:
        raise ShoalError(path, "--clients", f"{wrong[0]} is none of its clients, 0 to {number - 1}")
    known = [name for name in ("global", "deployed", "trained") if name in read_summary(path)["scopes"]]
    scope = scope or known[0]
    if scope not in known:
        raise ShoalError(path, "--scope", f"{scope} is none of its scopes; there are {', '.join(known)}")
    before, found = _test_counts(path, scope, number), list[Influence]()
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
            after, trained = _test_counts(folder, scope, number), len(read_metrics(folder)) - shared
            gain_N, items_N = before[:, 1] - after[:, 1], before[:, 0]
            others = _points(gain_N.sum() - gain_N[client], items_N.sum() - items_N[client])
            own = int(items_N[client]), others, _points(gain_N[client], items_N[client])
            found.append(Influence(client, first.get(client, 0), trained, folder, *own))
            say(f"[{place}/{len(ordered)}] without client {client}: {trained} rounds trained, {others:+.2f} on others")
    return Influences(scope, len(past.lines), found)


def _without(past: PastRun, client: int, shared: int, backend: Backend, command: str) -> Path:
    """Runs a run without a client to its end, from its first rounds, which are shared; gives the folder."""
    left_out = sorted({*past.config.participation.without, client})
    changes = [f"participation.without={left_out}", f"name={past.path.name}-without-{client}"]
    plan = forked(past, changes, shared)
    begin(past, plan, shared)
    return run(plan, resume=started(plan.folder), backend=backend, go_on=command)


def first_visits(past: PastRun) -> dict[int, int]:
    """The round in which each client was asked for the first time; clients without one are missing."""
    found: dict[int, int] = {}
    for number in range(len(past.lines), 0, -1):
        found.update(dict.fromkeys(past.cohort(number), number))
    return found


def _points(gain: int, items: int) -> float:
    return 100 * float(gain) / float(items) if items else float("nan")


def _test_counts(run: Path, scope: str, clients: int) -> np.ndarray:
    """Test items of all clients in the final round of a run, and how many are predicted right, int64 `[N, 2]`."""
    table = read_client_scores(run)
    final = pc.max(table["round"])
    of = pc.and_(pc.equal(table["scope"].cast("string"), scope), pc.equal(table["part"].cast("string"), "test"))
    rows = table.filter(pc.and_(of, pc.equal(table["round"], final)))
    counts_N2 = np.zeros((clients, 2), dtype=np.int64)
    counts_N2[rows["client"].to_numpy()] = np.stack([rows["rows"].to_numpy(), rows["correct"].to_numpy()], axis=1)
    return counts_N2
