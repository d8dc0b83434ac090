"""Local training of one client: epochs over its training rows."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Loss, Received, Term
from shoal.algorithms.client import Client
from shoal.algorithms.client_model import ClientModel
from shoal.algorithms.flat_model import FlatModel
from shoal.algorithms.method_errors import fault
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.protocol import MODEL, Tree, moments_key
from shoal.algorithms.rng import seed_default
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import AnalyticGradient
from shoal.algorithms.training.batches import batches
from shoal.algorithms.training.flat_step import flat_step
from shoal.storage.errors import ShoalError

# Leaves the gradient of a batch in the model; gives its loss, a scalar.
Gradient = Callable[[Inputs, Tensor], Tensor]


def make_optimizer(parameters: Sequence[nn.Parameter], options: TrainOptions) -> torch.optim.Optimizer:
    """The optimizer of some parameters that are trained together or, as stacked clients are, side by side."""
    if options.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=options.lr, weight_decay=options.weight_decay, fused=True)
    return torch.optim.SGD(parameters, lr=options.lr, weight_decay=options.weight_decay, momentum=options.momentum)


class LocalTrainer:
    """Trains the clients that visit a host, one after another, on the host's models.

    Attributes:
        options: Epochs, optimizer, batches.
    """

    def __init__(
        self,
        models: Mapping[str, FlatModel],
        options: TrainOptions,
        method: Algorithm,
        analytic: AnalyticGradient | None = None,
    ) -> None:
        """Makes the optimizers once.

        Args:
            models: The host's models that these clients train, by name.
            options: Epochs, optimizer, batches.
            method: Its `loss` is used where `fit` is given none.
            analytic: Gradients of the model that the config names, for plain training; None: by autograd.
        """
        self.options = options
        self._method, self._analytic = method, analytic
        self._optimizers = {name: make_optimizer([flat.w], options) for name, flat in models.items()}

    def use(self, options: TrainOptions) -> None:
        """Trains with other options from now on, of which the learning rate is another one."""
        self.options = options
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = options.lr

    def fit(
        self, client: Client, received: Received, model: str = MODEL, loss: Loss | None = None, term: Term | None = None
    ) -> float:
        """Trains one of a client's models in place; see `shoal.algorithms.base.Trainer`.

        Raises:
            ShoalError: The loss is NaN or infinite, or the method's loss or term is no scalar to differentiate.
        """
        if not client.info.train:
            return float("nan")
        own = client.models[model]
        with self.optimizer(client, model) as optimizer:
            inputs_of = batches(client, model)
            y = client.data.train_label
            if loss is None and term is None and model == MODEL and self._analytic is not None:
                gradient_of: Gradient = self._analytic.gradient
            else:
                gradient_of = self._by_autograd(own, received, loss, term)
            seed_default(y.device, own.random("train"))
            if not own.module.training:
                own.module.train()
            step, count = flat_step(optimizer, own.flat.w), len(y)
            size = self.options.batch_size or count
            losses: list[Tensor] = []
            for _ in range(self.options.epochs):
                order = torch.randperm(count, device=y.device) if size < count else None
                losses.clear()
                for start in range(0, count, size):
                    chosen = None if order is None else order[start : start + size]
                    target = y if chosen is None else y[chosen]
                    value = gradient_of(inputs_of(chosen), target)
                    step()
                    losses.append(value if chosen is None else value * (len(target) / count))
        return finite_loss(float(sum(losses)))

    def _by_autograd(self, own: ClientModel, received: Received, loss: Loss | None, term: Term | None) -> Gradient:
        """Gradients of a loss, the method's by default, and of a term.

        Raises:
            ShoalError: The term is not a function.
        """
        loss = loss or self._method.loss
        if term is not None and not callable(term):
            what = f"term=: expected a function that gives the term, or None, got a {type(term).__name__}"
            raise fault(self._method, "train", what)
        w, gradient = own.flat.w, own.flat.w.grad
        assert gradient is not None

        def gradient_of(inputs: Inputs, target: Tensor) -> Tensor:
            gradient.zero_()
            value = loss(own(inputs), target, w, received)
            self._require_scalar(value, loss)
            if not value.requires_grad:
                raise fault(self._method, loss, "gives a loss without a gradient; it must come from the model")
            if term is not None:
                more = term()
                self._require_scalar(more, term)
                value = value + more
            value.backward()
            return value.detach()

        return gradient_of

    def _require_scalar(self, value: Any, function: Callable[..., Any]) -> None:
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise fault(self._method, function, f"gives {found}, wanted a scalar tensor")

    @contextmanager
    def optimizer(self, client: Client, model: str = MODEL) -> Iterator[torch.optim.Optimizer]:
        """The optimizer of one of a client's models, for a training loop of a method's own.

        The optimizer's moments are read from `client.state`, and written there after the block.
        """
        own, optimizer = client.models[model], self._optimizers[model]
        w = own.flat.w
        optimizer.state.clear()
        if kept := kept_moments(client.state, model):
            optimizer.state[w] = kept
        yield optimizer
        own.changed()
        if self.options.opt_state == "keep":
            keep_moments(client.state, model, optimizer.state[w])


def finite_loss(loss: float) -> float:
    """The loss of a client that was trained.

    Raises:
        ShoalError: It is NaN or infinite.
    """
    if not math.isfinite(loss):
        raise ShoalError(
            f"the training loss is {'NaN' if math.isnan(loss) else 'infinite'}; a smaller train.lr may help"
        )
    return loss


def kept_moments(state: Tree, model: str) -> Tree:
    """The moments of a model's optimizer in a client's state, by torch's names."""
    prefix = moments_key(model)
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


def keep_moments(state: Tree, model: str, moments: Mapping[str, object]) -> None:
    """Writes the moments of a model's optimizer into a client's state."""
    state.update({moments_key(model, name): t for name, t in moments.items() if isinstance(t, Tensor)})
