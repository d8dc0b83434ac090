"""The choice of how the clients of a run are trained: by autograd, in batches, or by formulas of gradients."""

from collections.abc import Sequence
from typing import NamedTuple

from shoal.algorithms.base import Algorithm, fits_cross_entropy
from shoal.algorithms.client import ClientInfo, FlatModel
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import needed_for_analytic
from shoal.algorithms.training.analytic.small_heads import SmallHead, is_small_head
from shoal.storage.errors import ShoalError

AUTOGRAD, BATCHED, ANALYTIC = "autograd", "batched", "analytic"
# On a processor batches pay for so many clients in a round, whose features are so narrow, and of which a step reads so
# many numbers at most (`benchmarks/small_clients.py`).
MANY_CLIENTS, NARROW, SMALL = 64, 128, 2**14


class Clients(NamedTuple):
    """The facts on clients by which a trainer is chosen: sizes, width of features, number in a round."""

    infos: Sequence[ClientInfo]
    features: int
    in_round: int


def trainers_of(
    path: str,
    device: str,
    algorithm: Algorithm,
    models: Sequence[FlatModel],
    train: TrainOptions,
    clients: Clients | None = None,
) -> list[str]:
    """Chooses for every model of the config how its clients are trained: `autograd`, `batched` or `analytic`.

    `auto` takes batches on GPUs; on a processor batches for many small clients, and formulas for others and for heads
    that one call trains (`SmallHead`). It depends on the run alone, so that the numbers are the same on any hosts.
    Without `clients` there are few.

    Raises:
        ShoalError: What is asked for cannot be, with a model, the batches or the method's training.
    """
    if path != "auto":
        missing = [_find_missing(path, algorithm, model, train) for model in models]
        if any(missing):
            raise ShoalError("engine.trainer", f"{path} needs {next(filter(None, missing))}; use autograd")
        return [path] * len(models)
    paths = []
    for number, model in enumerate(models):
        # On processors compiled calls train on a method's own loss.
        batches = device != "cpu" or (
            fits_cross_entropy(algorithm)
            and clients is not None
            and _many_and_small(clients, number, len(models), model, train)
        )
        wanted = [BATCHED] if device != "cpu" else [*([BATCHED] if batches else []), ANALYTIC]
        possible = (way for way in wanted if _find_missing(way, algorithm, model, train) is None)
        paths.append(next(possible, AUTOGRAD))
    return paths


def _find_missing(path: str, algorithm: Algorithm, model: FlatModel, train: TrainOptions) -> str | None:
    """Returns what is missing to train the clients of a model in a way; None: nothing."""
    if path == BATCHED:
        from shoal.algorithms.training.batched.batched_training import needed_to_batch

        return needed_to_batch(algorithm, model, train)
    return needed_for_analytic(algorithm, model) if path == ANALYTIC else None


def _many_and_small(clients: Clients, number: int, models: int, model: FlatModel, train: TrainOptions) -> bool:
    """Returns whether batches pay on a processor for the clients of a model."""
    mine = [info for info in clients.infos if info.model == number]
    if not mine or clients.in_round // models < MANY_CLIENTS or clients.features > NARROW:
        return False
    if is_small_head(model) and SmallHead(model).takes_rows(sum(info.train for info in mine) // len(mine), train):
        # All steps of such a client are one call.
        return False
    # A step reads training rows of some hops, or the whole graph.
    rows = sum(info.train * len(model.inputs) if model.coupled is None else info.nodes for info in mine) / len(mine)
    return rows * clients.features <= SMALL
