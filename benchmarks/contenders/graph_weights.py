"""The parameters of the bare loop over graphs, each in the form in which it is multiplied."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
from task import GraphTask
from torch import Tensor


class Weights:
    """Leaves for the optimizer, and the way back to the order of the task.

    Attributes:
        shapes: Shape of every parameter by its name, in the task's order.
    """

    def __init__(self, task: GraphTask) -> None:
        """Reads the initial parameters."""
        self.shapes = task.shapes
        places = pairwise(accumulate((math.prod(shape) for shape in self.shapes.values()), initial=0))
        start = task.start()
        self._start = {n: start[slice(*place)].view(shape) for (n, shape), place in zip(self.shapes.items(), places)}
        self._taken: list[tuple[tuple[str, ...], Callable[[Tensor], Sequence[Tensor]], Tensor]] = []

    def plain(self, name: str) -> Tensor:
        """A parameter as it is."""
        return self._take((name,), self._start[name].clone(), lambda w: [w])

    def across(self, *names: str, width: int | None = None) -> Tensor:
        """Matrices of inputs of one width, concatenated as `[width, outputs]`; None is the width of the first."""
        parts = [self._start[name].reshape(-1, width or self.shapes[names[0]][1]) for name in names]
        counts = [len(part) for part in parts]
        return self._take(names, torch.cat(parts).t().contiguous(), lambda w: w.t().split(counts))

    def _take(self, names: tuple[str, ...], w: Tensor, back: Callable[[Tensor], Sequence[Tensor]]) -> Tensor:
        self._taken.append((names, back, w.requires_grad_()))
        return w

    def leaves(self) -> list[Tensor]:
        """All that were taken."""
        return [w for _, _, w in self._taken]

    def vector(self, values: Sequence[Tensor]) -> Tensor:
        """Values of the leaves as one vector `[P]`, in the task's order."""
        found = {
            name: part.reshape(-1)
            for (names, back, _), value in zip(self._taken, values)
            for name, part in zip(names, back(value))
        }
        return torch.cat([found[name] for name in self.shapes])
