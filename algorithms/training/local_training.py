"""Local training of one client: epochs over its training rows."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from algorithms.backbones.output import Output
from algorithms.client import Client
from algorithms.draws import seed_default
from algorithms.flat_model import FlatModel
from algorithms.protocol import Tree
from algorithms.training.batches import batches
from algorithms.training.options import TrainOptions

Loss = Callable[[Output, Tensor, Tensor, Tree], Tensor]
Regularizer = Callable[[Client, Tree], Callable[[], Tensor] | None]
MOMENTS = "opt."


def make_optimizer(parameters: Sequence[nn.Parameter], options: TrainOptions) -> torch.optim.Optimizer:
    """The optimizer of some parameters that are trained together or, as stacked clients are, side by side."""
    if options.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=options.lr, weight_decay=options.weight_decay, fused=True)
    return torch.optim.SGD(parameters, lr=options.lr, weight_decay=options.weight_decay, momentum=options.momentum)


class Trainer:
    """Trains the clients that visit a host, one after another, on the host's one model."""

    def __init__(
        self,
        model: FlatModel,
        options: TrainOptions,
        loss: Loss,
        regularizer: Regularizer = lambda client, down: None,
    ) -> None:
        """Makes the optimizer once.

        Args:
            model: The host's model.
            options: Epochs, optimizer, batches.
            loss: Of the method: `(output, labels, parameters, download) -> scalar`.
            regularizer: Of the method: `(client, download)` to a term that is added in every step, or to None.
        """
        self.model = model
        self.options = options
        self.loss = loss
        self.regularizer = regularizer
        self.optimizer = make_optimizer([model.w], options)

    def fit(self, client: Client, down: Tree) -> float:
        """Trains the client in place and returns the mean loss of its last epoch; NaN if it has no training row.

        The optimizer's moments are read from and written to `client.state` under `opt.*`.
        """
        if not client.info.train:
            return float("nan")
        self._restore_moments(client)
        inputs_of = batches(client)
        y = client.data.train_label
        term = self.regularizer(client, down)
        seed_default(y.device, client.random("train"))
        if not self.model.module.training:
            self.model.module.train()
        w, gradient = self.model.w, self.model.w.grad
        assert gradient is not None
        size = self.options.batch_size or len(y)
        losses: list[Tensor] = []
        for _ in range(self.options.epochs):
            order = torch.randperm(len(y), device=y.device) if size < len(y) else None
            losses.clear()
            for start in range(0, len(y), size):
                chosen = None if order is None else order[start : start + size]
                target = y if chosen is None else y[chosen]
                gradient.zero_()
                loss = self.loss(self.model(inputs_of(chosen)), target, w, down)
                if term is not None:
                    loss = loss + term()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach() * (len(target) / len(y)))
        client.trained()
        self._save_moments(client)
        return float(sum(losses))

    def _restore_moments(self, client: Client) -> None:
        kept = {name.removeprefix(MOMENTS): t for name, t in client.state.items() if name.startswith(MOMENTS)}
        self.optimizer.state.clear()
        if kept:
            self.optimizer.state[self.model.w] = kept

    def _save_moments(self, client: Client) -> None:
        if self.options.opt_state == "keep":
            moments = self.optimizer.state[self.model.w]
            client.state.update({MOMENTS + name: t for name, t in moments.items() if isinstance(t, Tensor)})
