"""The rest of a run as an approximation sees it: its last model, rounds on the rest, recorded uploads, what goes.

Axes: P parameters of the model.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from shoal.algorithms.client import FlatModel
from shoal.algorithms.protocol import MODEL, Tree
from shoal.algorithms.rng import key
from shoal.engine.hosts.host import Host
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.storage.errors import ShoalError
from shoal.unlearning.removal import Removal
from shoal.unlearning.retraining import MODEL_ENTRY, Retraining, Sent


class Approximation(Protocol):
    """An approximation of a removal: a frozen dataclass, whose fields are its options."""

    def unlearn(self, rest: "Rest") -> Tensor:
        """Returns the parameters `[P]` that stand for those of the exact removal.

        All work on clients goes by `rest`, which counts it. Raises ShoalError: what a user can cause.
        """
        ...


@dataclass(frozen=True)
class Recorded:
    """The record that a server which keeps uploads has of a client in a round: the norm of its change, its weight."""

    norm: float
    weight: float


class History:
    """The uploads of a run, made again once for all removals.

    Attributes:
        uploads: Of each round by client.
        first, last: Uploads of the first and the last round in full.
    """

    def __init__(self, run: Retraining) -> None:
        """Makes all rounds once more."""
        self.uploads: dict[int, dict[int, Recorded]] = {}
        self.first: list[Sent] = []
        self.last: list[Sent] = []

        def keep(number: int, sent: list[Sent]) -> None:
            self.uploads[number] = {
                upload.client: Recorded(float(upload.change.norm()), upload.weight) for upload in sent
            }
            self.first = sent if number == 1 else self.first
            self.last = sent

        run.replay(keep)


class Rest:
    """The rest of a run after a removal, for one approximation.

    Attributes:
        removal: What goes.
        model: Parameters of the run's last model, float32 `[P]`.
        first_model: Those that the run began with.
        head: Place of the last layer in them.
        epochs: Epochs of local training of a visit.
        run_rounds: Rounds of the run.
        classes: Number of classes.
        rounds, visits: Work so far.
    """

    def __init__(
        self,
        run: Retraining,
        removal: Removal,
        items: Mapping[int, Tensor],
        host: Host,
        read_history: Callable[[], History],
    ) -> None:
        """Takes the forgotten training items by client, and a host with the whole data.

        Raises ShoalError: the server keeps its model otherwise than the method sends it.
        """
        self.removal, self._run, self._items, self._host = removal, run, items, host
        self._read_history = read_history
        self.run_rounds, self.epochs = run.rounds, run.past.config.train.epochs
        self.classes = run.past.store.manifest.classes
        self.rounds = self.visits = 0
        self.model = self._model_of(run.final.server)
        self.first_model = self._model_of(run.beginning.server)
        self.head = self._flat.classifier

    def _model_of(self, server: Tree) -> Tensor:
        kept, sent = server.get(MODEL_ENTRY), self._run.past.plan.algorithm.global_model(dict(server)).get(MODEL_ENTRY)
        if kept is None or sent is None or not torch.equal(kept, sent):
            name = self._run.past.config.algorithm.name
            why = f"the server of {name} keeps its model otherwise than it sends it"
            raise ShoalError(self._run.past.path, "algorithm.name", f"{why}; take --methods none, or another method")
        return kept

    @property
    def history(self) -> History:
        """The uploads of clients in the rounds of the run, which are made again once for all removals."""
        return self._read_history()

    @property
    def _flat(self) -> FlatModel:
        return self._host.visit(0, evaluation_cell(1, [0], {}, {}), {MODEL_ENTRY: self.model}).client.model.flat

    @property
    def usual_rounds(self) -> int:
        """A tenth of the run's rounds, one or more."""
        return max(1, self.run_rounds // 10)

    def train(self, w: Tensor, rounds: int, change: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Trains parameters `[P]` on the rest, in rounds behind those of the run; `change` acts behind each round."""
        job, plan = self._run.job(self.removal, self.run_rounds + rounds)
        final = self._run.final
        state = replace(final, server={**final.server, MODEL_ENTRY: w})
        of_server = None if change is None else lambda tree: {**tree, MODEL_ENTRY: change(tree[MODEL_ENTRY])}
        trained = self._run.run(job, plan, state, rounds, of_server)
        self.rounds += trained.rounds
        self.visits += trained.visits
        return trained.state.server[MODEL_ENTRY]

    def visit(self, number: int, w: Tensor, epochs: int | None = None) -> list[Sent]:
        """Returns what the rest of the clients of a round of the run send who train from `w`; counts a round."""
        job, plan = self._run.job(self.removal, self.run_rounds, "visits")
        sent = self._run.visit(job, plan, number, w, epochs)
        self.rounds += 1
        self.visits += len(sent)
        return sent

    @property
    def forgotten(self) -> tuple[int, ...]:
        """The clients with forgotten training items, ascending."""
        return tuple(client for client, items in self._items.items() if len(items))

    def gradient(self, client: int, w: Tensor) -> tuple[float, Tensor, int]:
        """Returns mean cross-entropy of a client's forgotten items, its gradient `[P]`, and how many these are.

        The model is in evaluation mode. It is work of the client's own, which `count_visit` counts.
        """
        # Rows may be others in training than in an evaluation, where a client sees training nodes alone.
        return _gradient(self._host, client, w, None if client in self.removal.clients else self._items[client])

    def gradient_of_rest(self, w: Tensor) -> Tensor:
        """Returns the gradient `[P]`, float64, of mean cross-entropy of the training items of the rest; counts a round.

        Clients are those that took part in the run. The model is in evaluation mode. Without items, it is zero.
        """
        total, items = torch.zeros_like(w, dtype=torch.float64), 0
        for client in sorted(self._run.first.keys() - {*self.removal.clients}):
            _, gradient, count = _gradient(self._host_of_rest, client, w, None)
            total += count * gradient.double()
            items += count
            self.visits += count > 0
        self.rounds += 1
        return total / max(items, 1)

    @cached_property
    def _host_of_rest(self) -> Host:
        """A host with the data of the rest alone."""
        host = Host()
        host.open(self._run.job(self.removal, self.run_rounds, "gradients")[0].on_processor())
        return host

    def count_visit(self, clients: int) -> None:
        """Counts visits of clients that took no part in a round."""
        self.visits += clients

    def draw_models(self, count: int) -> list[Tensor]:
        """Draws parameters `[P]` as those of a first model, by seeds of their own."""
        flat, seed = self._flat, self._run.past.config.seed
        return [flat.initial(key(seed, "unlearn", MODEL, number)) for number in range(count)]


def _gradient(host: Host, client: int, w: Tensor, items: Tensor | None) -> tuple[float, Tensor, int]:
    """Returns mean cross-entropy of a client's items, None: of all its training items, its gradient, their number."""
    visit = host.visit(client, evaluation_cell(1, [client], {}, {}), {MODEL_ENTRY: w})
    model, data = visit.client.model, visit.client.data
    items = data.train if items is None else items
    if not len(items):
        return 0.0, torch.zeros_like(w), 0
    model.flat.set_training(False)
    vector = model.flat.w
    assert vector.grad is not None
    vector.grad.zero_()
    loss = cross_entropy(model.forward(items)().logits_NC, data.label[items])
    passes = model.pattern.passes
    with nullcontext() if passes is None else passes.adding():
        loss.backward()
    return float(loss.detach()), vector.grad.clone(), len(items)
