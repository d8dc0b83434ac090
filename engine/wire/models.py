"""Which client trains which of a run's models."""

from collections.abc import Sequence

import numpy as np

from algorithms.backbones import build, width_of
from algorithms.backbones.choice import ModelChoice
from algorithms.base import Algorithm
from algorithms.flat_model import FlatModel
from algorithms.training.options import TrainOptions
from engine.settings.config import Config
from engine.wire.randomness import key
from storage.errors import ShoalError


def assign_models(config: Config, clients: int) -> list[int]:
    """The number of every client's model, from 0, by `heterogeneity.rule`.

    With M models, client k of N has model k mod M (`round-robin`) or floor(M k / N) (`blocks`); `random` shuffles the
    former, so that shares are equal.

    Raises:
        ShoalError: `heterogeneity.clients` does not name a model for every client.
    """
    how, models = config.heterogeneity, len(config.models())
    if how.rule == "explicit":
        return _explicit(how.clients, clients, models)
    if how.clients is not None:
        raise ShoalError(f"heterogeneity.clients: read by rule explicit only, the rule is {how.rule}")
    if how.rule == "blocks":
        return [models * k // clients for k in range(clients)]
    numbers = np.arange(clients) % models
    if how.rule == "random":
        numbers = np.random.default_rng(key(how.seed, "models")).permutation(numbers)
    return numbers.tolist()


def build_models(
    specs: Sequence[ModelChoice],
    embedding: int | None,
    features: int,
    classes: int,
    hops: int,
    dropout: float,
    bfloat16: bool = False,
) -> list[FlatModel]:
    """The models of a run; several have embeddings of one width, by adapters.

    Args:
        specs: What to build.
        embedding: Width of all embeddings; None: that of the first of several, or a single model's own.
        features: Width F of a hop.
        classes: Number of classes C.
        hops: Hops K.
        dropout: Of all backbones.
        bfloat16: Multiply in bfloat16.

    Raises:
        ShoalError: A backbone or an option is unknown or out of range, or a coupled one is to multiply in bfloat16.
    """
    models = []
    for number, spec in enumerate(specs):
        try:
            module = build(spec.name, features, classes, hops, dropout, spec.options, embedding)
        except ShoalError as error:
            if len(specs) == 1 or not error.line.startswith("model."):
                raise
            raise ShoalError(error.line.replace("model.", f"model.{number}.", 1)) from None
        if len(specs) > 1 and embedding is None:
            embedding = width_of(module)
        models.append(FlatModel(module, bfloat16))
        if bfloat16 and models[-1].coupled:
            raise ShoalError(f"engine.precision: bfloat16 is for decoupled models, {spec.name} is not; use float32")
    return models


def _explicit(numbers: Sequence[int] | None, clients: int, models: int) -> list[int]:
    if numbers is None or len(numbers) != clients:
        found = "none" if numbers is None else len(numbers)
        raise ShoalError(f"heterogeneity.clients: must give the model of each of the {clients} clients, found {found}")
    for client, number in enumerate(numbers):
        if not 0 <= number < models:
            raise ShoalError(f"heterogeneity.clients: client {client} has model {number}, there are 0 to {models - 1}")
    return list(numbers)


def needed_to_stack(algorithm: Algorithm, models: Sequence[FlatModel], train: TrainOptions) -> str | None:
    """What is missing to train several clients in one batch; None: nothing."""
    if any(model.coupled for model in models):
        return "a decoupled model (sgc, gamlp, mlp)"
    if train.batch_size is not None:
        return "whole batches (train.batch_size: null)"
    if type(algorithm).loss is not Algorithm.loss or type(algorithm).regularizer is not Algorithm.regularizer:
        return f"a method of plain cross-entropy, which {type(algorithm).__name__} is not"
    return None


def stacks(path: str, device: str, algorithm: Algorithm, models: Sequence[FlatModel], train: TrainOptions) -> bool:
    """Whether clients of a cell are trained in one batch.

    Args:
        path: `engine.path`; `auto` takes the batch on GPUs, where it can.
        device: `cpu` or `cuda`.
        algorithm: The method.
        models: Of the run.
        train: Local training.

    Raises:
        ShoalError: `stacked` cannot be: a model passes messages, batches are not whole, or the method has a loss of its
            own.
    """
    if path == "loop" or (path == "auto" and device == "cpu"):
        return False
    missing = needed_to_stack(algorithm, models, train)
    if missing and path == "stacked":
        raise ShoalError(f"engine.path: stacked needs {missing}; use loop")
    return missing is None


def require_mixable(config: Config, algorithm: Algorithm) -> None:
    """Refuses a list of models for a method whose clients must share one.

    Raises:
        ShoalError: The method needs one model, or the models' assignment is wrong.
    """
    models = config.models()
    if len(models) > 1 and not algorithm.mixed_models:
        names = ", ".join(model.name for model in models)
        raise ShoalError(
            f"model: {config.algorithm.name} needs the same model at every client, found a list of {names}; "
            "give one model, or take a method that exchanges no weights (local, fedproto, fedtgp, fedpg, class_means)"
        )
    if not algorithm.whole:
        assign_models(config, config.partition.clients)
