"""Networks that the server trains round after round; between rounds they lie in the server's state."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.losses.prototype_losses import AnchorLoss, differentiate
from shoal.algorithms.losses.prototypes import EPS, unit
from shoal.algorithms.models.compiled import step_operations
from shoal.algorithms.models.compiled.step_operations import BETA1, BETA2
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

    def learn() -> float:
        assert model.w.grad is not None
        model.w.grad.zero_()
        value = loss()
        value.backward()
        return float(value.detach())

    return _train(server, model, learn, steps, lr, weight_decay, seed, entry)


def _train(
    server: Tree,
    model: FlatModel,
    learn: Callable[[], float],
    steps: int,
    lr: float,
    weight_decay: float,
    seed: int,
    entry: str,
) -> float:
    """See `train_kept`; `learn` writes a model's gradient and returns the loss."""
    if entry in server:
        model.load(server[entry])
    else:
        model.initial(seed)
    moments = {name.removeprefix(f"{entry}."): t for name, t in server.items() if name.startswith(f"{entry}.")}
    if steps and not moments:
        zeros = {name: torch.zeros_like(model.w.detach()) for name in ("exp_avg", "exp_avg_sq")}
        moments = {"step": torch.zeros(()), **zeros}
    value = math.nan
    for _ in range(steps):
        value = learn()
        assert model.w.grad is not None
        _step(model.w.detach(), model.w.grad, moments, lr, weight_decay)
    server[entry] = model.w.detach().clone()
    server.update({f"{entry}.{name}": t for name, t in moments.items()})
    return value


def _step(w: Tensor, gradient: Tensor, moments: Tree, lr: float, weight_decay: float) -> None:
    """Takes a step of AdamW with the bits of torch's, which also looks for parameters, options and hooks."""
    moments["step"] += 1
    mean, square, step = moments["exp_avg"], moments["exp_avg_sq"], float(moments["step"])
    w.mul_(1 - lr * weight_decay)
    mean.lerp_(gradient, 1 - BETA1)
    square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    deviation = (square.sqrt() / (1 - BETA2**step) ** 0.5).add_(step_operations.EPS)
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

    def learner(self, loss: AnchorLoss) -> Callable[[], float]:
        """Returns what writes the gradients of all parameters, which exist, without autograd, and returns the loss."""
        parameters = list(self.parameters())
        table, weight, bias, weight_2, bias_2 = (p.detach() for p in parameters)
        of_table, of_weight, of_bias, of_weight_2, of_bias_2 = (p.grad for p in parameters)

        def learn() -> float:
            hidden_SH = torch.addmm(bias, table, weight.T).relu_()
            anchor_SH = torch.addmm(bias_2, hidden_SH, weight_2.T)
            if self.normalized:
                length_S1 = torch.linalg.vector_norm(anchor_SH, dim=1, keepdim=True)
                length_S1 = length_S1.where(length_S1 > EPS, torch.inf)
                anchor_SH /= length_S1
            value, g_SH = differentiate(loss, anchor_SH)
            if self.normalized:
                g_SH = (g_SH - (g_SH * anchor_SH).sum(1, keepdim=True) * anchor_SH) / length_S1
            torch.mm(g_SH.T, hidden_SH, out=of_weight_2)
            torch.sum(g_SH, 0, out=of_bias_2)
            g_SH = (g_SH @ weight_2).mul_(hidden_SH > 0)
            torch.mm(g_SH.T, table, out=of_weight)
            torch.sum(g_SH, 0, out=of_bias)
            torch.mm(g_SH, weight, out=of_table)
            return value

        return learn


def train_generator(
    server: Tree,
    generator: PrototypeGenerator,
    loss: AnchorLoss,
    steps: int,
    lr: float,
    weight_decay: float,
    seed: int,
) -> tuple[Tensor, float]:
    """`train_kept` by a loss of the anchors; gives those after the last step, `[S, H]`, and the loss before it."""
    model = FlatModel(generator)
    value = _train(server, model, generator.learner(loss), steps, lr, weight_decay, seed, STATE)
    with torch.no_grad():
        return generator(), value
