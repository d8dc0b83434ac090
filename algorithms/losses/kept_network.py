"""A network that the server trains round after round; between rounds it lies in the server's state."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.protocol import Tree

STATE = "generator"


def train_kept(
    server: Tree,
    network: nn.Module,
    loss: Callable[[], Tensor],
    steps: int,
    lr: float,
    weight_decay: float,
    seed: int,
) -> float:
    """Goes on with Adam where the last round stopped; parameters and moments lie in the server's state.

    Args:
        server: The server's state; entries `generator` and `generator.*` are read and replaced.
        network: Of any parameters; they are overwritten, at first by its `reset_parameters`.
        loss: Of the network in a step, a scalar.
        steps: How many.
        lr: Learning rate.
        weight_decay: Of AdamW, decoupled; with 0 it is Adam.
        seed: Of the first parameters.

    Returns:
        The loss before the last step; NaN without a step.
    """
    model = FlatModel(network)
    if STATE in server:
        model.load(server[STATE])
    else:
        model.initial(seed)
    optimizer = torch.optim.AdamW([model.w], lr=lr, weight_decay=weight_decay)
    prefix = f"{STATE}."
    if kept := {name.removeprefix(prefix): t for name, t in server.items() if name.startswith(prefix)}:
        optimizer.state[model.w] = kept
    value = torch.tensor(float("nan"))
    for _ in range(steps):
        assert model.w.grad is not None
        model.w.grad.zero_()
        value = loss()
        value.backward()
        optimizer.step()
    server[STATE] = model.w.detach().clone()
    server.update({prefix + name: t for name, t in optimizer.state[model.w].items()})
    return float(value.detach())
