"""Local training of several of a client's models that learn from each other."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.backbones.neighbourhood import Inputs
from algorithms.base import Output, Trainer
from algorithms.client import Client
from algorithms.draws import Stream
from algorithms.protocol import MODEL
from algorithms.training.local_training import finite_loss
from storage.errors import ShoalError

Outputs = Mapping[str, Output]
JointLoss = Callable[[Outputs], Tensor]


def train_together(
    client: Client,
    trainer: Trainer,
    losses: Mapping[str, JointLoss],
    part: str = "all",
    after_epoch: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Trains models in place by one step each an epoch, in the order of `losses` (deep mutual learning).

    In every epoch all models first answer in training mode, each by its own random stream; then each takes its step on
    a loss that sees the answers of all: what another model said before its step. A loss must detach what other models
    said. One without a gradient, as `weighted_sum` without a term is, leaves its model as it is.

    Args:
        client: The client.
        trainer: Whose options and optimizers are used.
        losses: By the name of the model that learns; a scalar each.
        part: Rows that the models answer for: `train`, or `all`.
        after_epoch: Called when all models took their step.

    Returns:
        The loss of every model in the last epoch.

    Raises:
        ShoalError: A loss is NaN or infinite, or the config asks for steps that do not read all these rows.
    """
    require_whole_steps(client, trainer, list(losses))
    device = client.data.device
    models = {name: client.models[name] for name in losses}
    inputs: dict[str, Inputs] = {name: model.gathered(part) for name, model in models.items()}
    streams = {name: Stream(device, model.random("train")) for name, model in models.items()}
    values: dict[str, Tensor] = {}
    with ExitStack() as stack:
        optimizers = {name: stack.enter_context(trainer.optimizer(client, name)) for name in losses}
        for model in models.values():
            model.module.train()
        for _ in range(trainer.options.epochs):
            outputs = {}
            for name, model in models.items():
                with streams[name]:
                    outputs[name] = model(inputs[name])
            for name, loss in losses.items():
                optimizers[name].zero_grad(set_to_none=False)
                with streams[name]:
                    value = loss(outputs)
                    if value.requires_grad:
                        value.backward()
                        optimizers[name].step()
                values[name] = value.detach()
            if after_epoch is not None:
                after_epoch()
    return {name: finite_loss(float(value)) for name, value in values.items()}


def require_whole_steps(client: Client, trainer: Trainer, names: list[str]) -> None:
    """Refuses batches and drawn neighbours: models teach each other on the same rows, all in one step.

    Raises:
        ShoalError: The config asks for such.
    """
    if trainer.options.batch_size is not None:
        raise ShoalError("train.batch_size: models that teach each other take all rows in one step; leave it out")
    for name in names:
        coupled = client.models[name].coupled
        if coupled is not None and coupled.fanouts:
            key = "model" if name == MODEL else f"algorithm.{name}"
            raise ShoalError(f"{key}.fanouts: models that teach each other read the whole graph; leave it out")


def label_loss(client: Client, out: Output, part: str) -> Tensor:
    """Mean cross-entropy of the training rows, in an answer for them (`train`) or for all rows (`all`)."""
    logits_NC = out.logits_NC if part == "train" else out.logits_NC[client.data.train]
    return F.cross_entropy(logits_NC, client.data.train_label)


def weighted_sum(*terms: tuple[float, Callable[[], Tensor]]) -> Tensor:
    """The sum of weight times term; a term of weight 0 is not computed."""
    total = torch.zeros(())
    for weight, term in terms:
        if weight:
            total = total + weight * term()
    return total
