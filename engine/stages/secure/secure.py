"""Secure aggregation, simulated: of what the clients of a phase send, the server reads the sum over all of them alone.

What clients send of an entry are the whole numbers nearest to 2^`BITS` times its values, each times its weight, and
2^`BITS` times the weights. Their sum is the same in any order, and that of m clients within m 2^-(BITS + 1) of the
exact one. `Masks` and `Homomorphic` are two ways to hide these numbers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Upload
from shoal.engine.messages.cell import PartialSum
from shoal.engine.rounds.reduction import require_one_shape, zero_unweighted
from shoal.engine.stages.secure.answers import Answers
from shoal.engine.stages.secure.section import SecureOptions
from shoal.storage.errors import ShoalError

if TYPE_CHECKING:
    pass

BITS = 24


@dataclass(frozen=True)
class Secure(ABC):
    """A way in which the clients of one phase hide what they send.

    Attributes:
        reach: Sums of whole numbers stay below 2^reach in size.
        options: Of the run.
        clients: Who was asked, whether they answer or not, ascending.
    """

    reach: ClassVar[int]
    options: SecureOptions
    clients: tuple[int, ...]

    @abstractmethod
    def hide(self, client: int, entry: str, numbers: Tensor) -> Tensor:
        """Hides int64 numbers `[n]`, flat, of a client; may write to them."""

    @abstractmethod
    def add(self, first: Tensor, second: Tensor) -> Tensor:
        """Adds two hidden tensors, so that the result reveals the sum; may write to the first."""

    @abstractmethod
    def reveal(self, entry: str, total: Tensor, answered: Sequence[int]) -> Tensor:
        """Returns the sum over all that answered, int64 `[n]`."""

    def hidden(self, client: int, upload: Upload, up: Mapping[str, Reduce]) -> Upload:
        """Hides finite means: entries get flat, and weights become their shapes and those of entries.

        Raises ShoalError: a number is too large for the sum of all, or a weight too small to count.
        """
        entries, shapes = {}, {}
        for entry in up:
            value, weight = upload.entries[entry].cpu(), torch.as_tensor(upload.weight.get(entry, 1.0)).cpu().double()
            weight = weight * 2**BITS
            exact, values = torch.cat([zero_unweighted(value, weight).reshape(-1), weight.reshape(-1)]), value.numel()
            exact[:values].view(value.shape).mul_(weight)
            numbers = self._round(entry, exact)
            if bool(((exact[values:] != 0) & (numbers[values:] == 0)).any()):
                raise ShoalError(
                    "secure.kind",
                    f"weights are rounded to 2^-{BITS}, and one of {entry!r} is less; take secure.kind=none",
                )
            entries[entry] = self.hide(client, entry, numbers)
            shapes[entry] = torch.tensor([value.dim(), *value.shape, *weight.shape])
        return Upload(entries, shapes, {entry: sent.nbytes for entry, sent in entries.items()})

    def join(self, first: PartialSum, second: PartialSum) -> PartialSum:
        """Adds two sums; raises a ShoalError if shapes differ."""
        joined = PartialSum(first.first, {}, dict(first.weight), own=True)
        for entry, total in first.total.items():
            shapes = [(part.first, torch.Size(_shapes(part, entry)[0])) for part in (first, second)]
            require_one_shape(entry, shapes)
            joined.total[entry] = self.add(total if first.own else total.clone(), second.total[entry])
        return joined

    def read(self, whole: PartialSum, answered: Sequence[int]) -> None:
        """Makes the sum over clients that answered readable: values and weights float64, in their shapes.

        Raises SkipRound: fewer answered than the threshold, or one alone.
        """
        Answers.of(self.options, len(self.clients), len(answered)).require_enough()
        for entry, total in whole.total.items():
            numbers = self.reveal(entry, total, answered).double() / 2**BITS
            shape, of_weight = _shapes(whole, entry)
            values = math.prod(shape)
            whole.total[entry] = numbers[:values].reshape(shape)
            whole.weight[entry] = numbers[values:].reshape(of_weight)

    def _round(self, entry: str, numbers: Tensor) -> Tensor:
        limit = 2.0 ** (self.reach - BITS) / len(self.clients)
        if bool((numbers.abs() >= limit * 2**BITS).any()):
            raise ShoalError(
                "secure.kind",
                f"numbers below {limit:.3g} in size are added up, found more in {entry!r} times its weight; a smaller "
                "train.lr may help",
            )
        return numbers.round().long()


def _shapes(part: PartialSum, entry: str) -> tuple[list[int], list[int]]:
    """Reads the shapes of an entry and of its weight."""
    dims, *sizes = torch.as_tensor(part.weight[entry]).tolist()
    return sizes[:dims], sizes[dims:]
