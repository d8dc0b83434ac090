"""The clients of a cell trained in one batch, each of which then has its turn as if it had been trained alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from algorithms.training.stacked_training import StackedTrainer, training_rows
from engine.hosts.visit import Visit
from storage.errors import ShoalError
from storage.sparse_matrix import Features


@dataclass(frozen=True)
class Trained:
    """A client that was trained in one batch with others.

    Attributes:
        visit: Its visit, which waits for its turn.
        w: Its parameters now, `[P]`.
        loss: Its loss, a scalar on the device; on the processor a number.
    """

    visit: Visit
    w: torch.Tensor
    loss: float | torch.Tensor

    def resume(self) -> Visit:
        """The visit, the host's model holding the client's parameters again."""
        self.visit.client.model.load(self.w)
        return self.visit


def train_batch(
    trainer: StackedTrainer, ids: list[int], begin: Callable[[int], Visit]
) -> Mapping[int, Trained | Exception]:
    """Trains the clients of a cell that have training rows.

    Args:
        trainer: Of their model.
        ids: Clients.
        begin: Begins the visit of a client.

    Returns:
        By client what came of it: the error of one that cannot be visited waits for its turn. If the batch fails, whose
        fault it is cannot be told, and each of them has failed.
    """
    found: dict[int, Trained | Exception] = {}
    visits: list[Visit] = []
    parameters: list[torch.Tensor] = []
    gathered: list[Sequence[Features]] = []
    for client_id in ids:
        try:
            visit = begin(client_id)
            rows = training_rows(visit.client)
        except Exception as error:
            found[client_id] = error
            continue
        if visit.client.info.train:
            visits.append(visit)
            gathered.append(rows)
            parameters.append(visit.client.model.w.clone())
    if not visits:
        return found
    clients = [visit.client for visit in visits]
    w_BP = torch.stack(parameters)
    try:
        loss_B = trainer.fit(clients, w_BP, gathered)
    except Exception as error:
        together = [client.info.client for client in clients]
        why = f"in one batch with clients {together}: {in_one_line(error)}; engine.path=loop trains them one by one"
        failure = ShoalError(why)
        failure.__cause__ = error
        return found | dict.fromkeys(together, failure)
    # A number that is read is a wait for the device.
    trained = zip(visits, w_BP, loss_B.tolist() if loss_B.device.type == "cpu" else loss_B)
    return found | {visit.client.info.client: Trained(visit, w, loss) for visit, w, loss in trained}


def in_one_line(error: Exception) -> str:
    """An error as one line, with what may help."""
    line = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    advice = "; a larger resources.gpus_per_host or a smaller engine.cell_size may help"
    return " ".join(line.split()) + (advice if isinstance(error, torch.OutOfMemoryError) else "")
