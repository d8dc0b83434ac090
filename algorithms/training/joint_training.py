"""Joint training of a client's models that learn from each other."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.base import Output, Trainer, is_pure
from shoal.algorithms.client import Client, ClientModel
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.protocol import MODEL, moments_key
from shoal.algorithms.rng import Stream
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import bounded_loss, keep_moments, kept_moments, make_optimizer
from shoal.storage.errors import ShoalError

Outputs = Mapping[str, Output]
JointLoss = Callable[[Outputs], Tensor]


class Beside(NamedTuple):
    """A matrix that is no part of a model, with its optimizer, and a loss of detached outputs and of it."""

    w: nn.Parameter
    optimizer: torch.optim.Optimizer
    loss: Callable[[Outputs, Tensor], Tensor]


def train_jointly(
    client: Client,
    trainer: Trainer,
    losses: Mapping[str, JointLoss],
    part: str = "all",
    beside: Beside | None = None,
    anew: bool = False,
) -> dict[str, float]:
    """Trains models in place by one step each an epoch, in the order of `losses` (deep mutual learning).

    In every epoch all models first run forward in training mode, each with its own random stream. Then each takes its
    step on a loss of all outputs, those of before any step; with `anew` a model whose step changed it runs forward
    again, for those that step behind it. A loss must detach the outputs of other models. A loss without a gradient, as
    `weighted_sum` without a term is, leaves its model unchanged.

    The losses, scalars, are by the name of the model that learns; `part` is the rows of the outputs, `train` or `all`;
    what is `beside` the models steps behind all of them, on the same outputs. Gives the loss of every model in the last
    epoch. Raises ShoalError: A loss is NaN, infinite or a million times its first, or the config asks for steps that do
    not read all these rows.
    """
    require_whole_steps(trainer.options)
    _require_whole_graphs(client, losses)
    models = {name: client.models[name] for name in losses}
    inputs: dict[str, Inputs] = {name: model.gathered(part) for name, model in models.items()}
    streams = {name: Stream(client.data.device, model.random("train")) for name, model in models.items()}
    values: dict[str, Tensor] = {}
    first: dict[str, Tensor] = {}
    last = [*losses][-1]
    with ExitStack() as stack:
        optimizers = {name: stack.enter_context(trainer.optimizer(client, name)) for name in losses}
        for model in models.values():
            model.flat.set_training(True)
        if trainer.compiles and not anew and all(map(is_pure, losses.values())):
            from shoal.algorithms.training.analytic.joint_call import train_in_one_call

            moments = {name: optimizer.state[models[name].flat.w] for name, optimizer in optimizers.items()}
            further = None if beside is None else (beside.w, beside.optimizer.state[beside.w], beside.loss)
            ended = train_in_one_call(models, inputs, losses, moments, streams, trainer.options, further)
            if ended is not None:
                return {name: bounded_loss(*both) for name, both in ended.items()}
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
                        with adding(models[name]):
                            value.backward()
                        optimizers[name].step()
                        if anew and name != last:
                            with torch.no_grad():
                                outputs[name] = models[name](inputs[name])
                values[name] = value.detach()
            first = first or values.copy()
            if beside is not None:
                beside.optimizer.zero_grad()
                beside.loss(outputs, beside.w).backward()
                beside.optimizer.step()
    return {name: bounded_loss(float(value), float(first[name])) for name, value in values.items()}


def adding(model: ClientModel) -> AbstractContextManager[None]:
    """Lets compiled backward passes inside the block add to the gradient of a model themselves."""
    passes = model.pattern.passes
    return nullcontext() if passes is None else passes.adding()


def require_whole_steps(options: TrainOptions) -> None:
    """Raises a ShoalError for batches, of a method whose step has terms of all training rows together."""
    if options.batch_size is not None:
        raise ShoalError("train.batch_size", "the method takes all training rows in one step; leave it out")


def _require_whole_graphs(client: Client, names: Iterable[str]) -> None:
    for name in names:
        coupled = client.models[name].coupled
        if coupled is not None and coupled.fanouts:
            key = "model" if name == MODEL else f"algorithm.{name}"
            raise ShoalError(f"{key}.fanouts", "models that teach each other read the whole graph; leave it out")


def label_loss(client: Client, out: Output, part: str) -> Tensor:
    """Averages the cross-entropy of the training rows in an output of them (`train`) or of all rows (`all`)."""
    logits_NC = out.logits_NC if part == "train" else out.logits_NC[client.data.train]
    return F.cross_entropy(logits_NC, client.data.train_label)


def weighted_sum(*terms: tuple[float, Callable[[], Tensor]]) -> Tensor:
    """Sums weight times term; a term of weight 0 is not computed."""
    return sum((weight * term() for weight, term in terms if weight), torch.zeros(()))


@contextmanager
def own_moments(client: Client, trainer: Trainer, name: str, w: nn.Parameter) -> Iterator[torch.optim.Optimizer]:
    """Makes the optimizer of some parameters; after the block the client's state has its moments."""
    optimizer = make_optimizer([w], trainer.options)
    if kept := kept_moments(client.state, moments_key(name)):
        optimizer.state[w] = kept
    yield optimizer
    if trainer.options.opt_state == "keep":
        keep_moments(client.state, moments_key(name), optimizer.state[w])


@contextmanager
def own_optimizer(client: Client, trainer: Trainer, name: str, w: nn.Parameter) -> Iterator[torch.optim.Optimizer]:
    """Makes the optimizer of some parameters; after the block the client's state has them, too."""
    with own_moments(client, trainer, name, w) as optimizer:
        yield optimizer
        client.state[name] = w.detach().clone()
