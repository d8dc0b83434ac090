"""Uploads of one round of a run, which is made again in this process: each as the server has it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.method_errors import code_of
from shoal.algorithms.protocol import Reduce, Tree
from shoal.engine.messages.cell import Cell, Outcome, one_by_one
from shoal.engine.rounds.costs import unwatched
from shoal.engine.sections.sections import options_of
from shoal.past.recording import Recorder, Recording
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError

UPLOAD, RELEASED = "upload", "released"
OF_UPLOADS = {
    "none": "as the server is sent it",
    "node": "as the server is sent it, from steps with clipped rows and noise",
    "server": "as the server is sent it, clipped, before the server adds noise",
    "client": "as the server is sent it, clipped and with noise of its own",
}


@dataclass(frozen=True)
class Sent:
    """A message of a client, or, with `client` None, what a round released.

    Attributes:
        entries: Tensors by name, clipped and noised as in the run.
        weights: Weights of the entries of `Reduce.MEAN`, a number or a vector with one for each row, float64.
        received: Tensors by name that the client had received before.
    """

    client: int | None
    entries: Tree
    weights: Tree
    received: Tree

    def change(self, parameters: int) -> tuple[Tensor, Tensor] | None:
        """Returns the parameters `[P]` received and their change, float64; None: no such model came and went."""
        before, w = (tree["w"].double() if "w" in tree else None for tree in (self.received, self.entries))
        if before is None or w is None or not before.shape == w.shape == (parameters,):
            return None
        return before, w - before


class _Uploads(Recorder):
    """A recorder of the uploads of some clients, each of which is made alone."""

    def __init__(self, clients: Collection[int]) -> None:
        self.sent: list[Sent] = []
        self._clients = clients

    def before(self, host: Recording, cell: Cell, shared: Tree) -> None:
        whole = replace(cell, again=None, score=frozenset(), stages=replace(cell.stages, rows=True))
        for alone in one_by_one(whole):
            if alone.ids[0] in self._clients:
                outcome = host.run_alone(alone, shared)
                # A client that failed sent nothing.
                self.sent += [_make_message(i, alone, outcome, shared) for i in outcome.ids]


def _make_message(client: int, cell: Cell, outcome: Outcome, shared: Tree) -> Sent:
    received = {**shared, **cell.private.get(client, {}), **cell.inboxes.get(client, {})}
    weights = {entry: outcome.lists[entry][0] for entry, how in cell.up.items() if how is Reduce.MEAN}
    entries = {entry: outcome.tensors[entry][0] for entry in cell.up}
    return Sent(client, entries, weights, {name: t.clone() for name, t in received.items()})


@dataclass(frozen=True)
class SeenRound:
    """A round of a run that was made again.

    Attributes:
        sent: Messages of clients as the server has them; none where sums are hidden.
        released: The tensors that others see, too: the server's model, and, by entry, weights of rows of all clients.
        notes: Lines that say who sees which.
        client: Gives a client with what it trained on, by which the success of attacks is measured.
    """

    sent: Sequence[Sent]
    released: Sent
    notes: tuple[str, ...]
    client: Callable[[int], Client]


def seen_round(past: PastRun, number: int, clients: Collection[int]) -> SeenRound:
    """Makes a round of a run again and keeps what some clients sent.

    `past` is the run that trained the round. Raises ShoalError: as `PastRun.after`; the run is asynchronous.
    """
    past.require_read(number)
    if not past.config.schedule.synchronous:
        raise ShoalError(past.path, "schedule.name", "only uploads of synchronous rounds are attacked; take such a run")
    before, method, uploads = past.after(number - 1), past.plan.algorithm, _Uploads(clients)
    # Masked uploads are other numbers with the same sum; the attack reads the plain ones.
    recording = Recording(past.job.without_stage("secure").on_processor(), uploads)
    server = recording.start(past.plan.rounds, before)
    with code_of(method, "global_model"):
        received = method.global_model({name: t.clone() for name, t in server.state.server.items()})
        server.round(unwatched)
        entries = method.global_model({name: t.clone() for name, t in server.state.server.items()})
    weights: Tree = {}
    for message in uploads.sent:
        for entry, weight in message.weights.items():
            if weight.dim():
                weights[entry] = weights[entry] + weight if entry in weights else weight
    hidden = "secure" in past.job.stages
    private = options_of(past.config, "privacy")
    unit = "none" if private is None else private.unit
    how = OF_UPLOADS[private.where if private is not None and unit == "client" else unit]
    of_uploads = "not seen, sums are hidden" if hidden else how
    notes = f"{UPLOAD}: {of_uploads}", f"{RELEASED}: as anyone receives it, the same of all clients"
    return SeenRound([] if hidden else uploads.sent, Sent(None, entries, weights, received), notes, recording.client)
