"""How the clients of a run are trained: by autograd, in batches, or by formulas of gradients."""

from collections.abc import Sequence

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import FlatModel
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import needed_for_analytic
from shoal.algorithms.training.batched.batched_training import needed_to_batch
from shoal.storage.errors import ShoalError

AUTOGRAD, BATCHED, ANALYTIC = "autograd", "batched", "analytic"


def trainers_of(
    path: str, device: str, algorithm: Algorithm, models: Sequence[FlatModel], train: TrainOptions
) -> list[str]:
    """For every model of the config how its clients are trained: `autograd`, `batched` or `analytic`.

    Args:
        path: `engine.trainer`; `auto` takes closed forms on the processor and the batch on GPUs, where it can.
        device: `cpu` or `cuda`.
        algorithm: The method.
        models: Of the config, in its order.
        train: Local training.

    Raises:
        ShoalError: What is asked for cannot be, with a model, the batches or the method's training.
    """
    wanted = path
    if path == "auto":
        wanted = ANALYTIC if device == "cpu" else BATCHED
    if wanted == AUTOGRAD:
        return [AUTOGRAD] * len(models)
    if wanted == BATCHED:
        missing = [needed_to_batch(algorithm, model, train) for model in models]
    else:
        missing = [needed_for_analytic(algorithm, model) for model in models]
    if path != "auto" and any(missing):
        raise ShoalError(f"engine.trainer: {path} needs {next(filter(None, missing))}; use autograd")
    return [wanted if what is None else AUTOGRAD for what in missing]
