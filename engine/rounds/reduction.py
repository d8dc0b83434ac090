"""Reducing uploads: within a cell in client order, over cells in cell order, always in float64."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from algorithms.protocol import How, Replies, Tree, Upload
from engine.wire.cell import Outcome
from storage.errors import ShoalError


def tree_bytes(tree: Tree) -> int:
    """Bytes of the tensors of a message."""
    return sum(t.nbytes for t in tree.values())


def upload_bytes(upload: Upload) -> int:
    """Bytes of an upload as the protocol would send it: tensors as they are, weights as float32, or as it says."""
    told = upload.wire
    weights = {name: w for name, w in upload.weight.items() if name not in told}
    numbers = sum(w.numel() if isinstance(w, Tensor) else 1 for w in weights.values())
    return (
        tree_bytes({name: t for name, t in upload.entries.items() if name not in told})
        + 4 * numbers
        + sum(told.values())
    )


def require_sound(upload: Upload, up: Mapping[str, How]) -> None:
    """Keeps what would poison an aggregate from ever reaching it.

    Raises:
        ShoalError: The upload lacks an entry that the method asked for, or one holds NaN or infinity where it has
            weight.
    """
    for entry, how in up.items():
        if entry not in upload.entries:
            raise ShoalError(f"upload() gives no {entry!r}, which the round asks for")
        read, weight = upload.entries[entry], upload.weight.get(entry, 1.0)
        if how is How.SUM:
            read = _weighty(read, weight)
        if not (_finite(read) and _finite(weight)):
            raise ShoalError(f"upload() gives NaN or infinity in {entry!r}; a smaller train.lr may help")


def reduce_cell(uploads: Sequence[Upload], up: Mapping[str, How], outcome: Outcome) -> None:
    """Puts the reduced uploads of a cell into its outcome.

    Raises:
        ShoalError: Clients give an entry in different shapes.
    """
    for entry, how in up.items():
        tensors = [upload.entries[entry] for upload in uploads]
        _require_one_shape(entry, [t.shape for t in tensors])
        if how is not How.SUM:
            outcome.tensors[entry] = torch.stack(tensors)
            continue
        weights = [upload.weight.get(entry, 1.0) for upload in uploads]
        products = (_weighty(tensor, weight) * _double(weight) for tensor, weight in zip(tensors, weights))
        # That of one client is sent as it is: nothing was added that would need more digits.
        outcome.sums[entry] = _added(products) if len(uploads) > 1 else next(products)
        outcome.weights[entry] = torch.as_tensor(sum(map(_double, weights)), dtype=torch.float64)


def merge(parts: Sequence[Outcome]) -> Outcome:
    """The outcome of a cell whose clients were served one by one: to the bit that of the cell in one call.

    Args:
        parts: Of the clients, ascending.

    Raises:
        ShoalError: Clients give an entry in different shapes.
    """
    whole = Outcome()
    for part in parts:
        whole.ids += part.ids
        whole.losses += part.losses
        whole.bytes_up += part.bytes_up
        whole.failures.update(part.failures)
        whole.states.update(part.states)
        whole.scores.update(part.scores)
        for name, spent in part.seconds.items():
            whole.seconds[name] = whole.seconds.get(name, 0.0) + spent
    answered = [part for part in parts if part.ids]
    for entry in answered[0].sums if answered else ():
        _require_one_shape(entry, [part.sums[entry].shape for part in answered])
        whole.sums[entry] = _added(part.sums[entry] for part in answered)
        whole.weights[entry] = sum((part.weights[entry] for part in answered[1:]), start=answered[0].weights[entry])
    for entry in answered[0].tensors if answered else ():
        _require_one_shape(entry, [part.tensors[entry].shape[1:] for part in answered])
        whole.tensors[entry] = torch.cat([part.tensors[entry] for part in answered])
    return whole


class Sums:
    """The cells' sums added up in cell order as cells come back, so that none has to be kept until the last is there.

    Attributes:
        total: Sum of the cells' sums by entry, float64.
        weight: Sum of their weights.
    """

    def __init__(self) -> None:
        """Starts with nothing."""
        self.total: Tree = {}
        self.weight: Tree = {}
        self._waiting: dict[int, Outcome] = {}
        self._next = 0

    def take(self, position: int, outcome: Outcome) -> None:
        """Takes the sums out of a cell's outcome, at once if all cells before it are there.

        Raises:
            ShoalError: Clients give an entry in different shapes.
        """
        self._waiting[position] = outcome
        while (ready := self._waiting.pop(self._next, None)) is not None:
            self._next += 1
            for entry in ready.sums:
                if entry not in self.total:
                    self.total[entry], self.weight[entry] = _added([ready.sums[entry]]), ready.weights[entry].clone()
                    continue
                _require_one_shape(entry, [self.total[entry].shape, ready.sums[entry].shape])
                self.total[entry] += ready.sums[entry]
                self.weight[entry] += ready.weights[entry]
            ready.sums, ready.weights = {}, {}


def combine(outcomes: Sequence[Outcome], ids: Sequence[int], up: Mapping[str, How], sums: Sums) -> tuple[Replies, Tree]:
    """What the server sees of all cells, and what the engine holds of `How.MIX` entries, `[clients, …]`.

    Args:
        outcomes: Of the cells, in cell order.
        ids: All clients that answered, in the order of the cells.
        up: Reductions.
        sums: Of all the cells.

    Raises:
        ShoalError: Clients give an entry in different shapes.
    """
    if not outcomes:
        return Replies([], {}, {}), {}
    order = sorted(range(len(ids)), key=ids.__getitem__)
    entries: Tree = {}
    weights: Tree = {}
    held: Tree = {}
    for entry, how in up.items():
        if how is How.SUM:
            total, weight = sums.total[entry], sums.weight[entry]
            mean = torch.where(weight > 0, total / weight, torch.zeros((), dtype=torch.float64))
            entries[entry], weights[entry] = mean.float(), weight
        else:
            _require_one_shape(entry, [o.tensors[entry].shape[1:] for o in outcomes])
            stacked = torch.cat([o.tensors[entry] for o in outcomes])
            if order != list(range(len(ids))):
                stacked = stacked[order]
            (held if how is How.MIX else entries)[entry] = stacked
    return Replies(sorted(ids), entries, weights), held


def _added(terms: Iterable[Tensor]) -> Tensor:
    """Their sum in float64, in their order; a new tensor."""
    total: Tensor | None = None
    for term in terms:
        total = term.to(torch.float64, copy=True) if total is None else total.add_(term)
    assert total is not None
    return total


def _double(weight: float | Tensor) -> float | Tensor:
    return weight.double() if isinstance(weight, Tensor) else weight


def _finite(numbers: float | Tensor) -> bool:
    """Whether all numbers are finite; their sum, which takes a tenth of the time, can only raise a false alarm."""
    if not isinstance(numbers, Tensor):
        return math.isfinite(numbers)
    return math.isfinite(numbers.sum()) or bool(torch.isfinite(numbers).all())


def _weighty(tensor: Tensor, weight: float | Tensor) -> Tensor:
    """The tensor with zeros where it has no weight, and may hold anything."""
    if not isinstance(weight, Tensor):
        return tensor if weight else torch.zeros_like(tensor)
    return tensor if bool(weight.all()) else torch.where(weight != 0, tensor, 0.0)


def _require_one_shape(entry: str, shapes: Sequence[torch.Size]) -> None:
    for shape in shapes[1:]:
        if shape != shapes[0]:
            raise ShoalError(
                f"upload() gives {entry!r} as {list(shapes[0])} and as {list(shape)}; clients must agree on its shape"
            )
