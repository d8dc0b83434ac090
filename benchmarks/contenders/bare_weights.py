"""The parameters of the bare loops: one vector, in which each lies in the form in which it is multiplied."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

LINE = 16  # float32 of a line of the cache


class Weights:
    """All parameters and all gradients, and views of each by block.

    A block is a parameter, or several with equal inputs. Of matrices `[outputs, inputs]` it is the transpose,
    C-contiguous; several lie one beside the other, and zeros fill their rows up to lines of the cache.

    Attributes:
        flat: All parameters, float32 `[Q]`, with what fills blocks up.
        gradient: The same of their gradients.
        values: The blocks of `flat`, by number.
        gradients: The blocks of `gradient`.
    """

    def __init__(self, start: Tensor, shapes: dict[str, list[int]], blocks: Sequence[tuple[str, ...]]) -> None:
        """Takes the initial parameters, float32 `[P]`, their shapes in their order, and the names in every block."""
        self._shapes, self._blocks = shapes, blocks
        places = pairwise(accumulate((math.prod(shape) for shape in shapes.values()), initial=0))
        parts = {name: start[slice(*place)].view(shape) for (name, shape), place in zip(shapes.items(), places)}
        made = [self._block([parts[name] for name in names]) for names in blocks]
        self._made = [block.shape for block in made]
        self.flat, self.gradient = (aligned(sum(map(_room, self._made))).zero_() for _ in range(2))
        self.values, self.gradients = self.views(self.flat), self.views(self.gradient)
        for view, block in zip(self.values, made):
            view.copy_(block)

    def views(self, flat: Tensor) -> list[Tensor]:
        """The blocks of a vector `[Q]`."""
        starts = accumulate(map(_room, self._made), initial=0)
        return [flat[start : start + shape.numel()].view(shape) for start, shape in zip(starts, self._made)]

    def vector(self, flat: Tensor) -> Tensor:
        """A vector `[Q]` in the order of the initial parameters, `[P]`."""
        found: dict[str, Tensor] = {}
        for names, block in zip(self._blocks, self.views(flat)):
            shapes = [self._shapes[name] for name in names]
            if len(shapes[0]) < 2:
                found[names[0]] = block
                continue
            counts = [math.prod(shape) // len(block) for shape in shapes]
            found |= zip(names, block[:, : sum(counts)].t().split(counts))
        return torch.cat([found[name].reshape(-1) for name in self._shapes])

    def _block(self, parts: list[Tensor]) -> Tensor:
        if parts[0].dim() < 2:
            return parts[0]
        joined = torch.cat([part.reshape(-1, parts[0].shape[1]) for part in parts]).t()
        more = -joined.shape[1] % LINE if len(parts) > 1 else 0
        return torch.cat([joined, joined.new_zeros(len(joined), more)], 1)


def aligned(*shape: int) -> Tensor:
    """New memory that begins where a line of the cache does, float32."""
    count = math.prod(shape)
    room = torch.empty(count + LINE)
    first = -(room.data_ptr() // 4) % LINE
    return room[first : first + count].view(shape)


def _room(shape: torch.Size) -> int:
    """Numbers of a block, up to the next line."""
    return -(-shape.numel() // LINE) * LINE
