"""Reducing uploads: means are added up in float64, along a tree over clients (`Sums`); others lie in client order.

What is mixed is multiplied by a matrix, in the same tiles of columns wherever this is done (`multiply`), so that no bit
depends on hosts.

NaN and infinity are refused before anything is added up or committed.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Replies, Tree, Upload
from shoal.engine.messages.cell import Adder, Cell, Outcome, PartialSum
from shoal.storage.errors import ShoalError


def tree_bytes(tree: Tree) -> int:
    """Counts the bytes of the tensors of a message."""
    return sum(t.nbytes for t in tree.values())


def upload_bytes(upload: Upload) -> int:
    """Counts the bytes of an upload as the protocol would send it: tensors as they are, weights as float32, or as it
    says.
    """
    given = upload.upload_bytes
    tensors = sum(t.nbytes for name, t in upload.entries.items() if name not in given)
    weights = (w for name, w in upload.weight.items() if name not in given)
    return tensors + 4 * sum(w.numel() if isinstance(w, Tensor) else 1 for w in weights) + sum(given.values())


def reduce_cell(uploads: Sequence[Upload], cell: Cell, outcome: Outcome) -> None:
    """Puts the reduced uploads of a cell into its outcome; raises a ShoalError if clients' shapes or types differ."""
    for entry, how in cell.entries.items():
        tensors = [upload.entries[entry] for upload in uploads]
        if how is not Reduce.GATHER and cell.stages.adder is None:
            require_one_shape(entry, [(i, t.shape) for i, t in zip(outcome.ids, tensors)])
        if cell.stages.rows:
            outcome.tensors[entry] = torch.stack([t.cpu() for t in tensors])
            weights = [torch.as_tensor(upload.weight.get(entry, 1.0), dtype=torch.float64) for upload in uploads]
            outcome.lists[entry] = [weight.cpu() for weight in weights]
        elif how is not Reduce.MEAN:
            require_one_type(entry, [(i, t.dtype) for i, t in zip(outcome.ids, tensors)])
            if how is Reduce.GATHER:
                outcome.lists[entry] = tensors
            else:
                outcome.tensors[entry] = torch.stack(tensors)
    means = [entry for entry, how in cell.entries.items() if how is Reduce.MEAN and not cell.stages.rows]
    sums, place = Sums(cell.stages.adder), dict(zip(cell.ids, cell.places))
    for client, upload in zip(outcome.ids, uploads) if means else ():
        weight, total = upload.weight, upload.entries
        if cell.stages.adder is None:
            weight = {entry: double_of(weight.get(entry, 1.0)) for entry in means}
            # The total of one client is sent as it is: nothing was added that would need more digits.
            total = {entry: _weighted(total[entry], weight[entry]) for entry in means}
        part = PartialSum(client, total, dict(weight), own=cell.stages.adder is not None)
        sums.take(range(place[client], place[client] + 1), part)
    sums.close(cell.places)
    for places, part in sums.parts.items():
        total = {entry: t.cpu() for entry, t in part.total.items()}
        outcome.sums[places] = replace(part, total=total, own=False)


def merge(singles: Sequence[Outcome]) -> Outcome:
    """Joins outcomes to that of a cell whose clients, ascending, ran one by one; means are still to be added up."""
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
        merged.predicted.update(single.predicted)
        merged.notes.update(single.notes)
        merged.sums.update(single.sums)
        for name, spent in single.seconds.items():
            merged.seconds[name] = merged.seconds.get(name, 0.0) + spent
    answered = [single for single in singles if single.ids]
    for entry in answered[0].tensors if answered else ():
        require_one_shape(entry, [(single.ids[0], single.tensors[entry].shape[1:]) for single in answered])
        require_one_type(entry, [(single.ids[0], single.tensors[entry].dtype) for single in answered])
        merged.tensors[entry] = torch.cat([single.tensors[entry] for single in answered])
    for entry in answered[0].blocks if answered else ():
        merged.blocks[entry] = [part for single in answered for part in single.blocks[entry]]
    for entry in answered[0].lists if answered else ():
        merged.lists[entry] = [tensor for single in answered for tensor in single.lists[entry]]
    return merged


class Sums:
    """The means added up along a binary tree over the places of clients, so that no bit depends on cells.

    A range of 2**n places, from a multiple of 2**n on, is the sum of its first half plus that of its second, whoever
    adds them up, in whichever order they come. Where no client of a half answered, it is the sum of the other.

    Attributes:
        parts: Sums that wait for their other half.
    """

    def __init__(self, adder: Adder | None = None) -> None:
        """Starts with nothing; without an `adder` sums are weighted sums."""
        self.parts: dict[range, PartialSum] = {}
        self._join = _join if adder is None else adder.join

    def take(self, places: range, part: PartialSum) -> None:
        """Takes a sum, and joins it with those that wait for it; raises as `reduce_cell` does."""
        while (half := _other_half(places)) in self.parts:
            other = self.parts.pop(half)
            part = self._join(part, other) if places.start < half.start else self._join(other, part)
            places = _both_halves(places)
        self.parts[places] = part

    def close(self, places: range) -> None:
        """Joins what waits in a range where nothing else will come: empty halves add nothing."""
        while inside := [
            part
            for part in self.parts
            if places.start <= _both_halves(part).start and _both_halves(part).stop <= places.stop
        ]:
            smallest = min(inside, key=len)
            self.take(_both_halves(smallest), self.parts.pop(smallest))

    @property
    def whole(self) -> PartialSum:
        """Returns the sum of all clients that answered, after which nothing comes."""
        if len(self.parts) > 1:
            end = max(places.stop for places in self.parts)
            self.close(range(1 << (end - 1).bit_length()))
        (whole,) = self.parts.values()
        return whole


def add_up(weighted_BP: Tensor, places: Sequence[int], among: range) -> dict[range, Tensor]:
    """Adds up weighted uploads of B clients by halves of a stack, float64 `[P]` by range: the bits of `Sums`.

    The places of clients lie in the range `among`, behind whose last client nothing comes.
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    if order != list(range(len(places))):
        weighted_BP = weighted_BP[torch.tensor(order, device="cpu").to(weighted_BP.device, non_blocking=True)]
    ordered, totals, start = [places[i] for i in order], dict[range, Tensor](), 0
    for block in _split_at_powers(among):
        stop = bisect_left(ordered, block.stop)
        if stop > start:
            at = [place - block.start for place in ordered[start:stop]]
            totals[block] = _add_up_halves(weighted_BP[start:stop], at)
        start = stop
    return totals


# So many numbers stay in a processor's cache until they are added up; a GPU takes all columns at once.
NUMBERS = 2**17


def _split_at_powers(places: range) -> Iterator[range]:
    """Splits a range into subtrees of the binary tree: 2**n places from a multiple of 2**n on, each as long as it can.

    Of 3 to 11 these are 3, 4 to 7, and 8 to 11.
    """
    start = places.start
    while start < places.stop:
        size = 1 << (places.stop - start).bit_length() - 1
        size = min(size, start & -start) if start else size
        yield range(start, start + size)
        start += size


def _add_up_halves(rows: Tensor, at: Sequence[int]) -> Tensor:
    """Adds up rows that lie at ascending places of a range of 2**n, float64."""
    size = 1 << at[-1].bit_length()
    if size > len(at):
        # Only of minus zero no bit of a sum depends.
        places = rows.new_full((size, rows.shape[1]), -0.0)
        rows = places.index_copy_(0, torch.tensor(at, device="cpu").to(rows.device, non_blocking=True), rows)
    total_P = rows.new_empty(rows.shape[1], dtype=torch.float64)
    columns = max(1, NUMBERS // len(rows)) if rows.device.type == "cpu" else rows.shape[1]
    for start in range(0, rows.shape[1], columns):
        some = slice(start, start + columns)
        total = _add_up_pairs(rows[:, some]) if size > 1 else rows[:, some].double()
        while len(total) > 1:
            total, other = total[::2], total[1::2]
            total.add_(other)
        total_P[some] = total[0]
    return total_P


def _add_up_pairs(rows: Tensor) -> Tensor:
    """Adds up neighbouring rows, float64 `[rows / 2, …]`."""
    if rows.device.type != "cpu":
        # Operators with three operands widen them as they read: nothing is written twice.
        return torch.addcmul(rows[1::2], rows[::2], rows.new_ones((1, 1), dtype=torch.float64))
    total = rows[::2].to(torch.float64, copy=True)
    return total.add_(rows[1::2])


def join_sums(outcomes: Sequence[Outcome], adder: Adder | None) -> None:
    """Adds up the sums of several cells of a phase as far as they are halves of a whole; the first outcome has them."""
    sums = Sums(adder)
    for outcome in outcomes:
        for places, part in outcome.sums.items():
            sums.take(places, part)
        outcome.sums = {}
    outcomes[0].sums = {places: replace(part, own=False) for places, part in sums.parts.items()}


# A product is computed for so many columns at a time.
TILE = 8192
# Up to so many rows are added up, uploads one by one, in longer tiles: memory is read in longer pieces.
ROWS, LONGER = 16, 8 * TILE


def multiply(rows: Tensor, held: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    """Writes the product of `rows` `[k, clients]` and `held`, a flat tensor a client, into the k flat tensors of `out`.

    These may be those of `held`: each tile is read before it is written. Where a client is in one row in the mean, or
    in less, uploads are added up one by one: a stack of them would take longer than the product.
    """
    width, few = held[0].numel(), int(rows.count_nonzero()) <= len(held)
    weights, factors = (rows.nonzero().tolist(), rows[rows != 0].tolist()) if few else ([], [])
    size = LONGER if few and len(rows) <= ROWS else TILE
    for start in range(0, width, size):
        tile = slice(start, min(start + size, width))
        if few:
            product = rows.new_zeros(len(rows), tile.stop - start)
            for (row, client), factor in zip(weights, factors):
                product[row].add_(held[client][tile], alpha=factor)
        else:
            product = rows @ torch.stack([t[tile] for t in held])
        for row, part in zip(out, product):
            row[tile] = part


@dataclass(frozen=True)
class Mixed:
    """A row of a product that lies in a cluster's memory, in blocks of columns.

    Attributes:
        refs: References to the blocks, or their places in a list of references; flat tensors.
        shape: Of the whole.
        nbytes: Bytes of the whole.
    """

    refs: tuple[Any, ...]
    shape: torch.Size
    nbytes: int


# A client has its results of mixing by entry: tensors, or `Mixed` on the way to where they are read.
Inbox = dict[str, Any]


class Parts(Protocol):
    """The uploads of some clients, elsewhere."""

    def whole(self, parts: "Sequence[Any]") -> "Uploads":
        """Returns the uploads of all `parts`, of which this is one."""
        ...


class Uploads(Protocol):
    """The uploads of one entry of `Reduce.MIX`, of all clients that answered, ascending, until they are mixed.

    Attributes:
        shape: Of one.
        dtype: Of all.
        clients: How many.
    """

    shape: torch.Size
    dtype: torch.dtype
    clients: int

    def product(self, rows: Tensor) -> Tensor:
        """Computes the product with `rows` `[k, clients]`, `[k, …]`."""
        ...

    def give(self, rows: Tensor) -> Sequence[Tensor | Mixed]:
        """Returns the rows of the product, for clients; uploads are lost: their memory may be that of the product."""
        ...


class UploadsHere:
    """The `Uploads` of one entry in this process."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Takes tensors of one shape and type, none of which shares memory that stays with another."""
        self.shape, self.dtype, self.clients = tensors[0].shape, tensors[0].dtype, len(tensors)
        self._flat = [t.reshape(-1) for t in tensors]

    def product(self, rows: Tensor) -> Tensor:
        out = self._flat[0].new_empty(len(rows), self.shape.numel())
        multiply(rows, self._flat, list(out))
        return out.reshape((len(rows), *self.shape))

    def give(self, rows: Tensor) -> list[Tensor]:
        more = len(rows) - self.clients
        out = [*self._flat[: len(rows)], *(torch.empty_like(self._flat[0]) for _ in range(more))]
        multiply(rows, self._flat, out)
        self._flat = []
        return [row.reshape(self.shape) for row in out]


def combine(
    outcomes: Sequence[Outcome], ids: Sequence[int], up: Mapping[str, Reduce], sums: Sums
) -> tuple[Replies, dict[str, Uploads]]:
    """Combines the outcomes of all cells to what the server sees, and what the engine holds of `Reduce.MIX` entries.

    Outcomes are in cell order, `ids` are all clients that answered, in that order. Raises as `reduce_cell` does.
    """
    if not outcomes:
        return Replies([], {}, {}), {}
    order = sorted(range(len(ids)), key=ids.__getitem__)
    entries: Tree = {}
    weights: Tree = {}
    held: dict[str, Uploads] = {}
    lists: dict[str, list[Tensor]] = {}
    for entry, how in up.items():
        if how is Reduce.GATHER:
            tensors = [tensor for outcome in outcomes for tensor in outcome.lists[entry]]
            require_one_type(entry, [(i, t.dtype) for i, t in zip(ids, tensors)])
            lists[entry] = [tensors[place] for place in order]
        elif how is Reduce.MEAN:
            total = sums.whole.total[entry].double()
            weight = torch.as_tensor(sums.whole.weight[entry], dtype=torch.float64).clone()
            mean = total / weight
            if not (weight > 0).all():
                mean = torch.where(weight > 0, mean, torch.zeros((), dtype=torch.float64))
            entries[entry], weights[entry] = mean.float(), weight
        elif parts := [part for outcome in outcomes for part in outcome.blocks.get(entry, ())]:
            held[entry] = parts[0].whole(parts)
        else:
            require_one_shape(entry, [(o.ids[0], o.tensors[entry].shape[1:]) for o in outcomes])
            require_one_type(entry, [(o.ids[0], o.tensors[entry].dtype) for o in outcomes])
            # Each tensor is let go once it is copied: both together would be two copies of all models.
            if how is Reduce.MIX:
                rows: dict[int, Tensor] = {}
                for outcome in outcomes:
                    rows.update(zip(outcome.ids, (t.clone() for t in outcome.tensors.pop(entry))))
                held[entry] = UploadsHere([rows[i] for i in sorted(rows)])
            else:
                first = outcomes[0].tensors[entry]
                entries[entry] = first.new_empty(len(ids), *first.shape[1:])
                place = dict(zip(sorted(ids), range(len(ids))))
                for outcome in outcomes:
                    entries[entry][[place[i] for i in outcome.ids]] = outcome.tensors.pop(entry)
    return Replies(sorted(ids), entries, weights, lists), held


def _other_half(places: range) -> range:
    """Returns the sibling of an aligned range of 2**n places in the binary tree by which sums are added up."""
    start = places.start ^ len(places)
    return range(start, start + len(places))


def _both_halves(places: range) -> range:
    """Returns the parent of an aligned range of 2**n places: 2**(n + 1) of them, with its sibling's."""
    start = places.start & ~len(places)
    return range(start, start + 2 * len(places))


def _join(first: PartialSum, second: PartialSum) -> PartialSum:
    joined = PartialSum(first.first, {}, {}, own=True)
    for entry, total in first.total.items():
        term = second.total[entry]
        if total.shape != term.shape:
            require_one_shape(entry, [(first.first, total.shape), (second.first, term.shape)])
        total = total if first.own else total.to(torch.float64 if total.is_floating_point() else total.dtype, copy=True)
        joined.total[entry] = total.add_(term.to(total.device))
        joined.weight[entry] = first.weight[entry] + second.weight[entry]
    return joined


def _weighted(tensor: Tensor, weight: float | Tensor) -> Tensor:
    """Multiplies a tensor by its weight; a weight of one, the tensor itself, takes no memory."""
    alone = not isinstance(weight, Tensor) and weight == 1
    return tensor if alone else zero_unweighted(tensor, weight) * weight


def double_of(weight: float | Tensor) -> float | Tensor:
    return weight.double() if isinstance(weight, Tensor) else weight


def require_one_shape(entry: str, shapes: Iterable[tuple[int, torch.Size]]) -> None:
    """Compares the shapes that clients give an entry, each with the client's number."""
    _require_same(entry, "shape", [(client, list(shape)) for client, shape in shapes])


def require_one_type(entry: str, types: Iterable[tuple[int, torch.dtype]]) -> None:
    """Compares the types of clients' tensors: put together they would silently become the wider one."""
    _require_same(entry, "type", [(client, str(dtype).removeprefix("torch.")) for client, dtype in types])


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
            read = zero_unweighted(read, weight)
        require_numbers(entry, _finite(read) and _finite(weight))


def require_numbers(entry: str, finite: bool) -> None:
    """Raises a ShoalError unless what a client sends as an entry is finite."""
    if not finite:
        raise ShoalError(f"upload() gives NaN or infinity in {entry!r}; a smaller train.lr may help")


def require_finite(tree: Tree, where: str) -> None:
    """Raises a ShoalError if a tensor that the server's part of a method made holds NaN or infinity."""
    for name, tensor in tree.items():
        if not _finite(tensor):
            raise not_finite(where, name)


def not_finite(where: str, name: str) -> ShoalError:
    """Makes the error of `require_finite`."""
    return ShoalError(f"{where} {name!r} holds NaN or infinity; the round is not committed")


def zero_unweighted(tensor: Tensor, weight: float | Tensor) -> Tensor:
    """Zeros a tensor where its weight is zero: there it may hold anything, and nothing is read."""
    if not isinstance(weight, Tensor):
        return tensor if weight else torch.zeros_like(tensor)
    return tensor if bool(weight.all()) else torch.where(weight != 0, tensor, 0.0)


def _finite(numbers: float | Tensor) -> bool:
    """Returns whether all numbers are finite."""
    if not isinstance(numbers, Tensor):
        return math.isfinite(numbers)
    # A finite sum, which takes a tenth of the time, has finite parts; one that overflows says nothing.
    return math.isfinite(numbers.sum()) or bool(torch.isfinite(numbers).all())
