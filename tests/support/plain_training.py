"""Local training written out in plain torch."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.storage.shards.view import View


def plain_steps(
    logits_of: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    view: View,
    seed: int,
    epochs: int,
    batch: int | None = None,
) -> list[float]:
    """The loss before every step on a client's training rows, in random batches or in one, seeded as a host does it."""
    torch.manual_seed(seed)
    count, losses = len(view.train), []
    for _ in range(epochs):
        order = torch.randperm(count) if batch is not None and batch < count else torch.arange(count)
        for rows in view.train[order].split(batch or count):
            optimizer.zero_grad()
            loss = F.cross_entropy(logits_of(rows), view.label[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses
