"""The clients of a cell trained in one batch, each of which then has its turn as if it had been trained alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch

from shoal.algorithms.base import Received
from shoal.algorithms.client import Client
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.training.batched.batched_inputs import numbers_of_row, size_groups
from shoal.algorithms.training.batched.batched_training import BatchedTrainer
from shoal.storage.errors import ShoalError


class Begun(Protocol):
    """A visit that has begun; see `shoal.engine.hosts.host.Visit`."""

    client: Client
    received: Received


VisitT = TypeVar("VisitT", bound=Begun)


@dataclass(frozen=True)
class Trained(Generic[VisitT]):
    """A client that was trained in one batch with others.

    Attributes:
        visit: Its visit, which goes on when its turn comes.
        w: Its parameters now, `[P]`.
        loss: Its loss, a scalar on the device; on the processor a number.
    """

    visit: VisitT
    w: torch.Tensor
    loss: float | torch.Tensor

    def resume(self) -> VisitT:
        """The visit, its model holding the client's parameters again."""
        model = self.visit.client.model
        # The result on the processor must not hold on to the memory of the batch.
        (model.load if self.w.device.type == "cpu" else model.take)(self.w)
        return self.visit


@dataclass
class Batched(Generic[VisitT]):
    """The clients of a cell that were trained in batches.

    Attributes:
        clients: By client how it was trained, or its error, raised when its turn comes. One that is not here is to be
            trained alone.
        halved: How often a batch did not fit into the memory of the device and was halved, or its only client left out.
    """

    clients: dict[int, Trained[VisitT] | Exception] = field(default_factory=dict)
    halved: int = 0


@dataclass(frozen=True)
class _Waiting(Generic[VisitT]):
    """A client that waits for its batch: its visit, its parameters `[P]`, what its model reads to train."""

    visit: VisitT
    w: torch.Tensor
    gathered: Inputs


def train_batches(trainer: BatchedTrainer, ids: list[int], receive: Callable[[int], VisitT]) -> Batched[VisitT]:
    """Trains the clients of a cell that have training rows, those of similar size in one batch.

    A batch for which there is no memory is halved. If one fails in another way, each of its clients has failed.

    Args:
        trainer: Of their model.
        ids: Clients.
        receive: Begins the visit of a client.
    """
    found: Batched[VisitT] = Batched()
    waiting: list[_Waiting[VisitT]] = []
    for client_id in ids:
        try:
            visit = receive(client_id)
            rows = visit.client.model.gathered("train")
        except Exception as error:
            found.clients[client_id] = error
            continue
        if visit.client.info.train:
            waiting.append(_Waiting(visit, visit.client.model.snapshot(), rows))
    groups = [[waiting[i] for i in group] for group in _groups(waiting)] if waiting else []
    while groups:
        group = groups.pop(0)
        try:
            found.clients.update(_trained(trainer, group))
        except torch.OutOfMemoryError:
            found.halved += 1
            half = len(group) // 2
            groups = [part for part in (group[:half], group[half:]) if half] + groups
    return found


def _groups(waiting: Sequence[_Waiting[VisitT]]) -> list[list[int]]:
    coupled = waiting[0].visit.client.model.coupled
    rows, numbers = zip(*(numbers_of_row(client.gathered, coupled) for client in waiting))
    # Parameters, their gradients and two moments, beside the rows.
    return size_groups(rows, 4 * numbers[0], 4 * 4 * len(waiting[0].w))


def _trained(trainer: BatchedTrainer, group: Sequence[_Waiting[VisitT]]) -> dict[int, Trained[VisitT] | Exception]:
    """One batch.

    Raises:
        torch.OutOfMemoryError: Nothing has changed, and fewer clients may fit.
    """
    clients = [one.visit.client for one in group]
    w_BP = torch.stack([one.w for one in group])
    try:
        loss_B = trainer.fit(clients, w_BP, [one.gathered for one in group])
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) and not trainer.stepped:
            raise
        return dict(_all_failed(clients, error))
    # A number that is read is a wait for the device.
    losses = loss_B.tolist() if loss_B.device.type == "cpu" else loss_B
    return {
        client.info.client: Trained(one.visit, w, loss) for client, one, w, loss in zip(clients, group, w_BP, losses)
    }


def _all_failed(clients: Sequence[Client], error: Exception) -> dict[int, Exception]:
    """Marks every client of a batch as failed when the batch as a whole raised."""
    ids = [client.info.client for client in clients]
    why = f"in one batch with clients {ids}: {in_one_line(error)}; engine.trainer=autograd trains them one by one"
    failure = ShoalError(why)
    failure.__cause__ = error
    return dict.fromkeys(ids, failure)


def in_one_line(error: Exception) -> str:
    """An error as one line, with a way out where memory was short."""
    line = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    advice = "; a larger resources.gpus_per_host or a smaller engine.cell_size may help"
    return " ".join(line.split()) + (advice if isinstance(error, torch.OutOfMemoryError) else "")
