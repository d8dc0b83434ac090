"""What would poison a result is named where it was made, before anything is added up or committed."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from algorithms.faults import Malformed
from algorithms.protocol import How, Tree, Upload
from algorithms.training.local_training import finite_loss
from storage.errors import ShoalError


def require_sound(upload: Upload, up: Mapping[str, How]) -> None:
    """Checks the numbers of what one client sends, whose form `upload_form` has checked.

    Raises:
        ShoalError: An entry holds NaN or infinity where it has weight.
    """
    for entry, how in up.items():
        read, weight = upload.entries[entry], upload.weight.get(entry, 1.0)
        if how is How.SUM:
            read = counted(read, weight)
        if not (_finite(read) and _finite(weight)):
            raise ShoalError(f"upload() gives NaN or infinity in {entry!r}; a smaller train.lr may help")


def told_loss(loss: Any) -> float:
    """The loss that a method's `train` gave, NaN where it says none.

    Raises:
        Malformed: It is no number.
        ShoalError: It is infinite.
    """
    if not isinstance(loss, Real) and not (isinstance(loss, Tensor) and loss.numel() == 1):
        raise Malformed(f"gives {type(loss).__name__}, wanted the loss as a float, NaN where nothing was trained")
    number = float(loss)
    return number if math.isnan(number) else finite_loss(number)


def require_finite(tree: Tree, where: str) -> None:
    """Checks what the server's part of a method made.

    Args:
        tree: Tensors by name.
        where: What an error says of the round, the method and the place.

    Raises:
        ShoalError: A tensor holds NaN or infinity.
    """
    for name, tensor in tree.items():
        if not _finite(tensor):
            raise ShoalError(f"{where} {name!r} holds NaN or infinity; the round is not committed")


def counted(tensor: Tensor, weight: float | Tensor) -> Tensor:
    """The tensor with zeros where its weight is zero: there it may hold anything, and nothing is read."""
    if not isinstance(weight, Tensor):
        return tensor if weight else torch.zeros_like(tensor)
    return tensor if bool(weight.all()) else torch.where(weight != 0, tensor, 0.0)


def _finite(numbers: float | Tensor) -> bool:
    """Whether all numbers are finite; their sum, which takes a tenth of the time, can only raise a false alarm."""
    if not isinstance(numbers, Tensor):
        return math.isfinite(numbers)
    return math.isfinite(numbers.sum()) or bool(torch.isfinite(numbers).all())
