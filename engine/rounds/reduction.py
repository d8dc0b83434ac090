"""Reducing uploads: within a cell in client order, over cells in cell order, always in float64.

NaN and infinity are refused before anything is added up or committed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Replies, Tree, Upload
from shoal.engine.messages.cell import Outcome
from shoal.storage.errors import ShoalError


def tree_bytes(tree: Tree) -> int:
    """Bytes of the tensors of a message."""
    return sum(t.nbytes for t in tree.values())


def upload_bytes(upload: Upload) -> int:
    """Bytes of an upload as the protocol would send it: tensors as they are, weights as float32, or as it says."""
    given = upload.upload_bytes
    tensors = sum(t.nbytes for name, t in upload.entries.items() if name not in given)
    weights = (w for name, w in upload.weight.items() if name not in given)
    return tensors + 4 * sum(w.numel() if isinstance(w, Tensor) else 1 for w in weights) + sum(given.values())


def reduce_cell(uploads: Sequence[Upload], up: Mapping[str, Reduce], outcome: Outcome) -> None:
    """Puts the reduced uploads of a cell into its outcome; raises a ShoalError if clients' shapes or types differ."""
    for entry, how in up.items():
        tensors = [upload.entries[entry] for upload in uploads]
        if how is not Reduce.GATHER:
            _require_one_shape(entry, [(i, t.shape) for i, t in zip(outcome.ids, tensors)])
        if how is not Reduce.MEAN:
            _require_one_type(entry, zip(outcome.ids, tensors))
            if how is Reduce.GATHER:
                outcome.lists[entry] = tensors
            else:
                outcome.tensors[entry] = torch.stack(tensors)
            continue
        weights = [upload.weight.get(entry, 1.0) for upload in uploads]
        products = (counted(tensor, weight) * _double(weight) for tensor, weight in zip(tensors, weights))
        # That of one client is sent as it is: nothing was added that would need more digits.
        outcome.sums[entry] = (_added(products) if len(uploads) > 1 else next(products)).cpu()
        outcome.weights[entry] = torch.as_tensor(sum(map(_double, weights)), dtype=torch.float64)


def merge(singles: Sequence[Outcome]) -> Outcome:
    """The outcome of a cell whose clients, ascending, ran one by one: to the bit that of the cell in one call."""
    merged = Outcome()
    for single in singles:
        merged.ids += single.ids
        merged.losses += single.losses
        merged.bytes_up += single.bytes_up
        merged.halved += single.halved
        merged.kernels += single.kernels
        merged.failures.update(single.failures)
        merged.states.update(single.states)
        merged.kept.update(single.kept)
        merged.scores.update(single.scores)
        for name, spent in single.seconds.items():
            merged.seconds[name] = merged.seconds.get(name, 0.0) + spent
    answered = [single for single in singles if single.ids]
    for entry in answered[0].sums if answered else ():
        _require_one_shape(entry, [(single.ids[0], single.sums[entry].shape) for single in answered])
        merged.sums[entry] = _added(single.sums[entry] for single in answered)
        weights = [single.weights[entry] for single in answered]
        merged.weights[entry] = sum(weights[1:], start=weights[0])
    for entry in answered[0].tensors if answered else ():
        _require_one_shape(entry, [(single.ids[0], single.tensors[entry].shape[1:]) for single in answered])
        _require_one_type(entry, [(single.ids[0], single.tensors[entry]) for single in answered])
        merged.tensors[entry] = torch.cat([single.tensors[entry] for single in answered])
    for entry in answered[0].lists if answered else ():
        merged.lists[entry] = [tensor for single in answered for tensor in single.lists[entry]]
    return merged


class Sums:
    """The cells' sums in cell order as cells come back, so that none has to be kept: `total` and `weight`, float64."""

    def __init__(self) -> None:
        """Starts with nothing."""
        self.total: Tree = {}
        self.weight: Tree = {}
        self._first: dict[str, int] = {}
        self._waiting: dict[int, Outcome] = {}
        self._next = 0

    def take(self, position: int, outcome: Outcome) -> None:
        """Takes a cell's sums, at once if all cells before it are there; raises as `reduce_cell` does."""
        self._waiting[position] = outcome
        while (ready := self._waiting.pop(self._next, None)) is not None:
            self._next += 1
            for entry in ready.sums:
                if entry not in self.total:
                    self._first[entry] = ready.ids[0]
                    self.total[entry], self.weight[entry] = _added([ready.sums[entry]]), ready.weights[entry].clone()
                    continue
                shapes = [(self._first[entry], self.total[entry].shape), (ready.ids[0], ready.sums[entry].shape)]
                _require_one_shape(entry, shapes)
                self.total[entry] += ready.sums[entry]
                self.weight[entry] += ready.weights[entry]
            ready.sums, ready.weights = {}, {}


def combine(
    outcomes: Sequence[Outcome], ids: Sequence[int], up: Mapping[str, Reduce], sums: Sums
) -> tuple[Replies, Tree]:
    """What the server sees of all cells, and what the engine holds of `Reduce.MIX` entries, `[clients, …]`.

    Outcomes are in cell order, `ids` are all clients that answered, in that order. Raises as `reduce_cell` does.
    """
    if not outcomes:
        return Replies([], {}, {}), {}
    order = sorted(range(len(ids)), key=ids.__getitem__)
    place_of = {ids[place]: rank for rank, place in enumerate(order)}
    entries: Tree = {}
    weights: Tree = {}
    held: Tree = {}
    lists: dict[str, list[Tensor]] = {}
    for entry, how in up.items():
        if how is Reduce.GATHER:
            tensors = [tensor for outcome in outcomes for tensor in outcome.lists[entry]]
            _require_one_type(entry, zip(ids, tensors))
            lists[entry] = [tensors[place] for place in order]
        elif how is Reduce.MEAN:
            total, weight = sums.total[entry], sums.weight[entry]
            mean = torch.where(weight > 0, total / weight, torch.zeros((), dtype=torch.float64))
            entries[entry], weights[entry] = mean.float(), weight
        else:
            _require_one_shape(entry, [(o.ids[0], o.tensors[entry].shape[1:]) for o in outcomes])
            _require_one_type(entry, [(o.ids[0], o.tensors[entry]) for o in outcomes])
            first = outcomes[0].tensors[entry]
            joined = first.new_empty(len(ids), *first.shape[1:])
            for outcome in outcomes:
                # Each goes when it is there: both together would be two copies of all models.
                joined[[place_of[i] for i in outcome.ids]] = outcome.tensors.pop(entry)
            (held if how is Reduce.MIX else entries)[entry] = joined
    return Replies(sorted(ids), entries, weights, lists), held


def _added(terms: Iterable[Tensor]) -> Tensor:
    """Their sum in float64, in their order; a new tensor."""
    total: Tensor | None = None
    for term in terms:
        total = term.to(torch.float64, copy=True) if total is None else total.add_(term.to(total.device))
    assert total is not None
    return total


def _double(weight: float | Tensor) -> float | Tensor:
    return weight.double() if isinstance(weight, Tensor) else weight


def _require_one_shape(entry: str, shapes: Iterable[tuple[int, torch.Size]]) -> None:
    """Compares the shapes that clients give an entry, each with the client's number."""
    _require_same(entry, "shape", [(client, list(shape)) for client, shape in shapes])


def _require_one_type(entry: str, tensors: Iterable[tuple[int, Tensor]]) -> None:
    """Compares the types of clients' tensors: put together they would silently become the wider one."""
    _require_same(entry, "type", [(client, str(t.dtype).removeprefix("torch.")) for client, t in tensors])


def _require_same(entry: str, what: str, found: Sequence[tuple[int, object]]) -> None:
    for client, value in found[1:]:
        first, of_first = found[0]
        if value != of_first:
            raise ShoalError(
                f"upload() gives {entry!r} as {of_first} at client {first} and as {value} at client {client}; "
                f"clients must agree on its {what}"
            )


def require_sound(upload: Upload, up: Mapping[str, Reduce]) -> None:
    """Raises a ShoalError if an entry of what one client sends holds NaN or infinity where it has weight."""
    for entry, how in up.items():
        read, weight = upload.entries[entry], upload.weight.get(entry, 1.0)
        if how is Reduce.MEAN:
            read = counted(read, weight)
        require_numbers(entry, _finite(read) and _finite(weight))


def require_numbers(entry: str, finite: bool) -> None:
    """Raises a ShoalError unless what a client sends as an entry is finite."""
    if not finite:
        raise ShoalError(f"upload() gives NaN or infinity in {entry!r}; a smaller train.lr may help")


def require_finite(tree: Tree, where: str) -> None:
    """Raises a ShoalError if a tensor that the server's part of a method made holds NaN or infinity."""
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
