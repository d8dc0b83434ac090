"""Whether the clients of a cell are trained in one batch."""

from collections.abc import Sequence

from algorithms.base import Algorithm
from algorithms.flat_model import FlatModel
from algorithms.train_options import TrainOptions
from algorithms.training.stacked_training import needed_to_stack
from storage.errors import ShoalError


def stacked_models(
    path: str, device: str, algorithm: Algorithm, models: Sequence[FlatModel], train: TrainOptions
) -> list[bool]:
    """For every model of the config, whether cells of its clients are trained in one batch.

    Args:
        path: `engine.path`; `auto` takes the batch on GPUs, where it can.
        device: `cpu` or `cuda`.
        algorithm: The method.
        models: Of the config, in its order.
        train: Local training.

    Raises:
        ShoalError: `stacked` cannot be: a model passes messages, batches are not whole, or the method's training is
            not plain.
    """
    if path == "loop" or (path == "auto" and device == "cpu"):
        return [False] * len(models)
    missing = [needed_to_stack(algorithm, model, train) for model in models]
    if path == "stacked" and any(missing):
        raise ShoalError(f"engine.path: stacked needs {next(filter(None, missing))}; use loop")
    return [what is None for what in missing]
