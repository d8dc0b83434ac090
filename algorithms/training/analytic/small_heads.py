"""The whole local training of a small head, all its steps in one compiled call.

Axes: E steps, N rows, F features, H hidden units (0: one layer), C classes, P parameters.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor, nn

from shoal.algorithms.base import Pull
from shoal.algorithms.client import ClientModel, FlatModel
from shoal.algorithms.models.build import name_of
from shoal.algorithms.models.compiled.row_losses import cross_entropy
from shoal.algorithms.models.compiled.step_operations import FAST, adam, pull, sgd
from shoal.algorithms.models.inputs.neighbourhood import Inputs, ItemBatch, Neighbourhood
from shoal.algorithms.models.layers.dropout import fill_kept_of_steps
from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import seed_default
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.heads import HEADS

# Products of a step's forward pass up to which one call takes less time than torch's calls (`benchmarks/visits.py`).
MOST_PRODUCTS = 2**18
# Computes a pure loss of the parameters, which asks the model for its outputs.
LossOf = Callable[[Tensor], Tensor]
NO_MOMENT = torch.empty(0)


class Trained(NamedTuple):
    """The numbers of a model that a compiled call changes and reads.

    Attributes:
        w, gradient: Parameters and their gradients, `[P]`.
        mean, square: Adam's moments, `[P]`, empty for SGD, and its steps `before`.
        kept: What dropout keeps in every step, 1 or 0, or draws of which the larger are kept, `[E, kept]`.
        lr, weight_decay: Rate and decay.
        total, linear, origin, mu: A `Pull`; an empty array stands for None.
    """

    w: Tensor
    gradient: Tensor
    mean: Tensor
    square: Tensor
    kept: Tensor
    before: int
    lr: float
    weight_decay: float
    total: Tensor
    linear: Tensor
    origin: Tensor
    mu: float

    def form(self) -> tuple[Any, ...]:
        """Describes it as far as operations depend on it."""
        lengths = (len(t) for t in (self.w, self.mean, self.total, self.linear, self.origin))
        return self.lr, self.weight_decay, self.mu, *lengths

    @classmethod
    def of(
        cls, vector: nn.Parameter, moments: Tree, kept: Tensor, options: TrainOptions, pull: Pull | None = None
    ) -> "Trained":
        """Takes parameters with a gradient, and the moments, by torch's names, which are begun if there are none."""
        assert vector.grad is not None
        w, gradient = vector.detach().view(-1), vector.grad.view(-1)
        mean_P, square_P, before = NO_MOMENT, NO_MOMENT, 0
        if options.optimizer == "adam":
            if not moments:
                zeros = {name: torch.zeros_like(vector.grad) for name in ("exp_avg", "exp_avg_sq")}
                moments |= {"step": torch.zeros(()), **zeros}
            mean_P, square_P = moments["exp_avg"].view(-1), moments["exp_avg_sq"].view(-1)
            before = int(moments["step"])
        pull = pull or Pull()
        total, linear, origin = (NO_MOMENT if t is None else t for t in (pull.total, pull.linear, pull.origin))
        options_of_steps = before, options.lr, options.weight_decay
        return cls(w, gradient, mean_P, square_P, kept, *options_of_steps, total, linear, origin, pull.mu)


def count_steps(moments: Tree, options: TrainOptions) -> None:
    """Counts the steps that Adam took."""
    if options.optimizer == "adam":
        moments["step"] = moments["step"] + options.epochs


class SmallModel(ABC):
    """Trains a small model on all training rows of a client at once, as `LocalTrainer` does, to rounding.

    Whether it does depends on sizes and options alone, so that the numbers are the same on any hosts.

    Attributes:
        draws: Type of what `draw` writes.
    """

    draws = torch.float32

    @abstractmethod
    def takes(self, inputs: Inputs, options: TrainOptions) -> bool:
        """Whether it trains a client that reads these inputs for its training rows, in training mode."""

    @abstractmethod
    def plan(self, inputs: Inputs, label_N: Tensor, loss_of: LossOf | None = None, steps: int = 1) -> Any:
        """Makes what `train` needs to know of inputs that it takes, and of a loss, by default cross-entropy.

        A loss may read other inputs in each of the steps.

        None: the loss is not one of those that are computed here.
        """

    def plan_plainly(self, own: ClientModel, options: TrainOptions) -> Any | None:
        """Makes the plan of cross-entropy on a client's training rows; None: it does not train this client.

        Clients, in training mode, are visited with the same options each time.
        """
        inputs = own.gathered("train")
        return self.plan(inputs, own.data.train_label) if self.takes(inputs, options) else None

    @abstractmethod
    def kept(self, plan: Any) -> int:
        """Counts the numbers that dropout draws in a step."""

    @abstractmethod
    def draw(self, plan: Any, out: Tensor) -> None:
        """Draws what dropout keeps in steps, as many numbers each, `[E, kept]`, see `Trained`."""

    @abstractmethod
    def train(self, plan: Any, trained: Trained, epochs: int) -> tuple[float, float]:
        """Makes the compiled call, see `fit`."""

    def fit(
        self, own: ClientModel, plan: Any, moments: Tree, options: TrainOptions, pull: Pull | None = None
    ) -> tuple[float, float]:
        """Changes a client's parameters and Adam's moments in place; gives the loss before the last step and the first.

        The plan is one of its training rows, in training mode. The last gradient, pulled, stays in the model. Dropout
        draws what the formulas of single steps draw.
        """
        kept = torch.empty(options.epochs, self.kept(plan), dtype=self.draws)
        if kept.numel():
            seed_default(own.flat.w.device, own.random("train"))
            self.draw(plan, kept)
        losses = self.train(plan, Trained.of(own.flat.w, moments, kept, options, pull), options.epochs)
        count_steps(moments, options)
        return losses


class SmallHead(SmallModel):
    """A head of one or two layers."""

    def __init__(self, model: FlatModel) -> None:
        """Takes a model for which `is_small_head` holds."""
        head: Any = model.module.head
        first, *others = head.linears
        self._dropout = head.dropout if others else 0.0
        self._features, self.hidden = first.in_features, first.out_features if others else 0
        self.classes = head.linears[-1].out_features

    def takes(self, inputs: Inputs, options: TrainOptions) -> bool:
        return self.takes_rows(_rows(inputs), options)

    def takes_rows(self, rows: int, options: TrainOptions) -> bool:
        """Whether it trains a client of so many rows."""
        width = self.hidden * (self._features + self.classes) if self.hidden else self._features * self.classes
        return in_one_batch(rows, options) and rows * width <= MOST_PRODUCTS

    def plan(
        self, inputs: Inputs, label_N: Tensor, loss_of: LossOf | None = None, steps: int = 1
    ) -> tuple[np.ndarray, ...] | None:
        assert not isinstance(inputs, Neighbourhood | ItemBatch)
        (x_NF,) = inputs
        assert isinstance(x_NF, Tensor)
        return None if loss_of else (x_NF.float().contiguous().numpy(), label_N.numpy())

    def kept(self, plan: tuple[np.ndarray, ...]) -> int:
        return len(plan[0]) * self.hidden if self._dropout else 0

    def draw(self, plan: tuple[np.ndarray, ...], out: Tensor) -> None:
        fill_kept_of_steps(out, [(out.shape[1], self._dropout)])

    def train(self, plan: tuple[np.ndarray, ...], trained: Trained, epochs: int) -> tuple[float, float]:
        arrays = (part.numpy() if isinstance(part, Tensor) else part for part in trained)
        losses: tuple[float, float] = _train(*plan, self.hidden, self.classes, self._dropout, epochs, *arrays)
        return losses


def _rows(inputs: Inputs) -> int:
    assert not isinstance(inputs, Neighbourhood | ItemBatch)
    return len(inputs[0])


def in_one_batch(rows: int, options: TrainOptions) -> bool:
    """Whether a step reads all rows, and is one that the compiled calls have."""
    return not options.momentum and (options.batch_size is None or options.batch_size >= rows)


def is_small_head(model: FlatModel) -> bool:
    """Whether a model is a float32 head of one or two layers on dense rows of one hop, on a processor."""
    if name_of(model.module) not in HEADS or model.sparse or model.bfloat16 or model.w.device.type != "cpu":
        return False
    return len(model.module.head.linears) <= 2  # type: ignore


@numba.njit(cache=True, nogil=True)
def _train(
    x: np.ndarray, label: np.ndarray, hidden: int, classes: int, dropout: float, epochs: int, w: np.ndarray,
    gradient: np.ndarray, mean: np.ndarray, square: np.ndarray, kept: np.ndarray, before: int, lr: float,
    weight_decay: float, total: np.ndarray, linear: np.ndarray, origin: np.ndarray, mu: float,
) -> tuple[float, float]:  # fmt: skip
    """See `SmallModel.train`."""
    rows, features = x.shape
    below, of_below = np.empty((rows, hidden), np.float32), np.empty((rows, hidden), np.float32)
    logits = np.empty((rows, classes), np.float32)
    split = hidden * (features + 1)
    read = below if hidden else x
    last, of_last = w[split:], gradient[split:]
    loss = first = math.nan
    factor = np.float32(1 / (1 - dropout))
    for epoch in range(epochs):
        if hidden:
            _linear(x, w[:split], below)
            for n in range(rows):
                for h in range(hidden):
                    below[n, h] = max(below[n, h], np.float32(0))
                    if dropout:
                        below[n, h] *= kept[epoch, n * hidden + h] * factor
        _linear(read, last, logits)
        loss = cross_entropy(logits, label)
        if not epoch:
            first = loss
        _of_parameters(logits, read, of_last)
        if hidden:
            _of_input(logits, last, below, of_below, factor)
            _of_parameters(of_below, x, gradient[:split])
        pull(w, gradient, total, linear, origin, mu)
        if len(mean):
            adam(w, gradient, mean, square, before + epoch + 1, lr, weight_decay)
        else:
            sgd(w, gradient, np.float32(lr), np.float32(weight_decay))
    return loss, first


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _linear(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
    """Computes out = x W' + b; `w` has W row by row and then b."""
    width, (rows, outputs) = x.shape[1], out.shape
    for n in range(rows):
        for c in range(outputs):
            total = np.float32(0)
            for f in range(width):
                total += x[n, f] * w[c * width + f]
            out[n, c] = total + w[outputs * width + c]


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _of_parameters(out: np.ndarray, x: np.ndarray, gradient: np.ndarray) -> None:
    """Writes G' x / N and the column sums of G / N, where `out` is G, N times the gradient at the output."""
    width, (rows, outputs) = x.shape[1], out.shape
    gradient[:] = 0
    scale = np.float32(1) / np.float32(rows)
    for c in range(outputs):
        for n in range(rows):
            of_row = out[n, c] * scale
            gradient[outputs * width + c] += of_row
            for f in range(width):
                gradient[c * width + f] += of_row * x[n, f]


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _of_input(out: np.ndarray, w: np.ndarray, x: np.ndarray, gradient: np.ndarray, factor: np.float32) -> None:
    """Writes G W, times dropout's factor, where the input x, a hidden layer's output, is above zero; else 0."""
    width, (rows, outputs) = x.shape[1], out.shape
    gradient[:] = 0
    for n in range(rows):
        for c in range(outputs):
            for h in range(width):
                gradient[n, h] += out[n, c] * w[c * width + h]
        for h in range(width):
            gradient[n, h] = gradient[n, h] * factor if x[n, h] > 0 else np.float32(0)
