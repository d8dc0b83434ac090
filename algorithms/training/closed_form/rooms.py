"""Memory that steps of training use again and again."""

import torch
from torch import Tensor


class Rooms:
    """Matrices by name, of as many rows as were ever needed; what they hold is left from the step before."""

    def __init__(self, like: Tensor) -> None:
        """Of a tensor's type and device."""
        self._like = like
        self._rooms: dict[str, Tensor] = {}

    def __call__(self, name: str, rows: int, width: int) -> Tensor:
        """A matrix `[rows, width]`, the same memory for the same name."""
        room = self._rooms.get(name)
        if room is None or room.shape[0] < rows:
            room = self._rooms[name] = self._like.new_empty(rows, width)
        assert room.shape[1] == width, (name, room.shape, width)
        return room[:rows]


def let_through(gradient: Tensor, output: Tensor) -> Tensor:
    """The gradient before ReLU, in place: entries stay where the output, dropped or not, is above zero."""
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)
