"""The clients of a cell trained in one batch, each of which then has its turn as if it had been trained alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch

from shoal.algorithms.base import Algorithm, MappedLoss, Received, RowTerm, SumTerm
from shoal.algorithms.client import Client
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.protocol import creating_on
from shoal.algorithms.training.batched.batched_inputs import numbers_of_row, size_groups
from shoal.algorithms.training.batched.batched_training import BatchedTrainer
from shoal.algorithms.training.local_training import pull_of
from shoal.storage.errors import ShoalError


class Begun(Protocol):
    """A visit that has begun; see `shoal.engine.hosts.host.Visit`."""

    client: Client
    received: Received
    algorithm: Algorithm


VisitT = TypeVar("VisitT", bound=Begun)


@dataclass(frozen=True)
class Trained(Generic[VisitT]):
    """A client that was trained in one batch with others: its visit, its parameters `[P]`, its loss.

    The loss is a scalar on the device; on the processor a number.
    """

    visit: VisitT
    w: torch.Tensor
    loss: float | torch.Tensor

    def resume(self) -> VisitT:
        """Returns the visit, its model holding the client's parameters again."""
        model = self.visit.client.model
        # The result on the processor must not hold on to the memory of the batch.
        (model.load if self.w.device.type == "cpu" else model.take)(self.w)
        return self.visit


@dataclass
class Batched(Generic[VisitT]):
    """The clients of a cell that were trained in batches.

    Attributes:
        clients: By client how it was trained, or its error, raised when its turn comes; others train alone.
        halved: How often a batch did not fit into the memory of the device and was halved, or its only client left out.
    """

    clients: dict[int, Trained[VisitT] | Exception] = field(default_factory=dict)
    halved: int = 0


def train_batches(trainer: BatchedTrainer, ids: list[int], receive: Callable[[int], VisitT]) -> Batched[VisitT]:
    """Trains the clients of a cell that have training rows, those of similar size in one batch.

    A batch for which there is no memory is halved. If one fails in another way, each of its clients has failed.
    `receive` begins the visit of a client.
    """
    trained: Batched[VisitT] = Batched()
    # These clients wait for a batch: visits, parameters `[P]`, terms of their loss, what their model reads to train.
    waiting: list[tuple[VisitT, torch.Tensor, Sequence[RowTerm | SumTerm], Inputs]] = []
    for client_id in ids:
        try:
            visit = receive(client_id)
            rows = visit.client.model.gathered("train")
            terms = _terms_of(visit)
        except Exception as error:
            trained.clients[client_id] = error
            continue
        if visit.client.info.train:
            waiting.append((visit, visit.client.model.snapshot(), terms, rows))
    groups = []
    if waiting:
        visit, w, *_ = waiting[0]
        rows_of, numbers = zip(*(numbers_of_row(inputs, visit.client.model.coupled) for *_, inputs in waiting))
        read = [rows + _further_rows(terms) for rows, (*_, terms, _) in zip(rows_of, waiting)]
        # A client takes parameters, their gradients and two moments, beside the rows.
        groups = [[waiting[i] for i in group] for group in size_groups(read, 4 * numbers[0], 4 * 4 * len(w))]
    while groups:
        group = groups.pop(0)
        try:
            trained.clients.update(_train_batch(trainer, group))
        except torch.OutOfMemoryError:
            trained.halved += 1
            half = len(group) // 2
            groups = [part for part in (group[:half], group[half:]) if half] + groups
    return trained


def _terms_of(visit: Begun) -> Sequence[RowTerm | SumTerm]:
    """Returns the terms of the loss of a client that trains, beside cross-entropy."""
    method, client = visit.algorithm, visit.client
    if not isinstance(method, MappedLoss) or not client.info.train:
        return ()
    with creating_on(client.data.device):
        return method.row_terms(client, visit.received)


def _further_rows(terms: Sequence[RowTerm | SumTerm]) -> int:
    """Counts the rows that a client reads in a step beside its training rows."""
    return sum(numbers_of_row(term.inputs, None)[0] for term in terms if isinstance(term, SumTerm))


def _train_batch(
    trainer: BatchedTrainer, group: Sequence[tuple[VisitT, torch.Tensor, Sequence[RowTerm | SumTerm], Inputs]]
) -> dict[int, Trained[VisitT] | Exception]:
    """Trains one batch; raises torch.OutOfMemoryError where nothing has changed, and fewer clients may fit."""
    visits, w_P, terms, inputs = zip(*group)
    w_BP, ids = torch.stack(w_P), [visit.client.info.client for visit in visits]
    try:
        pulls = [pull_of(visit.algorithm, visit.client, visit.received, trainer.options) for visit in visits]
        loss_B = trainer.fit([visit.client for visit in visits], w_BP, inputs, pulls, terms)
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) and not trainer.stepped:
            raise
        why = f"in one batch with clients {ids}: {in_one_line(error)}; engine.trainer=autograd trains them one by one"
        failure = ShoalError(why)
        failure.__cause__ = error
        return dict.fromkeys(ids, failure)
    # Each number that is read would be a wait for the device.
    losses = loss_B.tolist() if loss_B.device.type == "cpu" else loss_B
    return {i: Trained(visit, w, loss) for i, visit, w, loss in zip(ids, visits, w_BP, losses)}


def in_one_line(error: Exception) -> str:
    """Formats an error as one line, with a way out where memory was short."""
    line = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    advice = "; a larger resources.gpus_per_host or a smaller engine.cell_size may help"
    return " ".join(line.split()) + (advice if isinstance(error, torch.OutOfMemoryError) else "")
