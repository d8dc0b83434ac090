"""How a host trains the clients of a model, as asked for or as fits the device."""

from collections.abc import Sequence

from algorithms.base import Algorithm
from algorithms.flat_model import FlatModel
from algorithms.train_options import TrainOptions
from algorithms.training.closed_form.choice import needed_for_closed_form
from algorithms.training.stacked_training import needed_to_stack
from storage.errors import ShoalError

LOOP, STACKED, CLOSED_FORM = "loop", "stacked", "closed_form"


def training_paths(
    path: str, device: str, algorithm: Algorithm, models: Sequence[FlatModel], train: TrainOptions
) -> list[str]:
    """For every model of the config how its clients are trained: `loop`, `stacked` or `closed_form`.

    Args:
        path: `engine.path`; `auto` takes closed forms on the processor and the batch on GPUs, where it can.
        device: `cpu` or `cuda`.
        algorithm: The method.
        models: Of the config, in its order.
        train: Local training.

    Raises:
        ShoalError: What is asked for cannot be, with a model, the batches or the method's training.
    """
    wanted = path
    if path == "auto":
        wanted = CLOSED_FORM if device == "cpu" else STACKED
    if wanted == LOOP:
        return [LOOP] * len(models)
    if wanted == STACKED:
        missing = [needed_to_stack(algorithm, model, train) for model in models]
    else:
        missing = [needed_for_closed_form(algorithm, model) for model in models]
    if path != "auto" and any(missing):
        raise ShoalError(f"engine.path: {path} needs {next(filter(None, missing))}; use loop")
    return [wanted if what is None else LOOP for what in missing]
