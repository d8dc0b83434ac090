"""Networks that the server trains round after round; between rounds they lie in the server's state."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.models.compiled.step_operations import BETA1, BETA2, EPS
from shoal.algorithms.protocol import Tree

# The server's state holds the network's parameters under this name.
STATE = "generator"


def train_kept(
    server: Tree,
    network: nn.Module | FlatModel,
    loss: Callable[[], Tensor],
    steps: int,
    lr: float,
    weight_decay: float,
    seed: int,
    entry: str = STATE,
) -> float:
    """Goes on with Adam where the last round stopped; parameters and moments lie in the server's state.

    Entries `generator` and `generator.*`, or of another `entry`, are read and replaced; the network's parameters are
    overwritten, at first by its `reset_parameters`, from the seed. The weight decay is decoupled, as in AdamW: in the
    gradient, Adam would scale it up for rows that no loss reads, and pull these to zero at the full learning rate. With
    0 it is Adam.

    Returns:
        The loss before the last step; NaN without a step.
    """
    model = network if isinstance(network, FlatModel) else FlatModel(network)
    if entry in server:
        model.load(server[entry])
    else:
        model.initial(seed)
    moments = {name.removeprefix(f"{entry}."): t for name, t in server.items() if name.startswith(f"{entry}.")}
    if steps and not moments:
        zeros = {name: torch.zeros_like(model.w.detach()) for name in ("exp_avg", "exp_avg_sq")}
        moments = {"step": torch.zeros(()), **zeros}
    value = torch.tensor(float("nan"))
    for _ in range(steps):
        assert model.w.grad is not None
        model.w.grad.zero_()
        value = loss()
        value.backward()
        _step(model.w.detach(), model.w.grad, moments, lr, weight_decay)
    server[entry] = model.w.detach().clone()
    server.update({f"{entry}.{name}": t for name, t in moments.items()})
    return float(value.detach())


def _step(w: Tensor, gradient: Tensor, moments: Tree, lr: float, weight_decay: float) -> None:
    """Takes a step of AdamW with the bits of torch's, which also looks for parameters, options and hooks."""
    moments["step"] += 1
    mean, square, step = moments["exp_avg"], moments["exp_avg_sq"], float(moments["step"])
    w.mul_(1 - lr * weight_decay)
    mean.lerp_(gradient, 1 - BETA1)
    square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    deviation = (square.sqrt() / (1 - BETA2**step) ** 0.5).add_(EPS)
    w.addcdiv_(mean, deviation, value=-lr / (1 - BETA1**step))


class PrototypeGenerator(nn.Module):
    """Anchors MLP(table_s) of S slots, the table N(0, 1) (FedTGP); `normalized` to length one for FedPG."""

    def __init__(self, slots: int, width: int, normalized: bool) -> None:
        """Draws the parameters from torch's default generator."""
        super().__init__()
        self.normalized = normalized
        self.table = nn.Parameter(torch.empty(slots, width))
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        nn.init.normal_(self.table)
        for layer in self.layers:
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self) -> Tensor:
        """Computes all anchors, `[S, H]`."""
        anchor_SH = self.layers[1](self.layers[0](self.table).relu())
        return unit(anchor_SH) if self.normalized else anchor_SH


def train_generator(
    server: Tree,
    generator: PrototypeGenerator,
    loss: Callable[[Tensor], Tensor],
    steps: int,
    lr: float,
    weight_decay: float,
    seed: int,
) -> tuple[Tensor, float]:
    """`train_kept` by a loss of the anchors; gives those after the last step, `[S, H]`, and the loss before it."""
    value = train_kept(server, generator, lambda: loss(generator()), steps, lr, weight_decay, seed)
    with torch.no_grad():
        return generator(), value
