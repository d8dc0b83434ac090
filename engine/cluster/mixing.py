"""Mixing on hosts: large uploads stay on the machines of the visits, in blocks of columns, and hosts multiply these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ray
import torch
from ray.exceptions import ObjectLostError, RayError, RayTaskError
from torch import Tensor

from shoal.algorithms.protocol import Reduce
from shoal.engine.hosts.backend import ServerLost
from shoal.engine.messages.cell import Outcome
from shoal.engine.rounds.reduction import (
    TILE,
    Mixed,
    Uploads,
    multiply,
    not_finite,
    require_one_shape,
    require_one_type,
)

# A block of a row has at least so many bytes, and so has an upload that is mixed on hosts. Ray sends results below
# 1 MiB to the server, and sending fewer bytes takes less time than a call for each block.
LEAST_OF_A_BLOCK = 5 * 2**18
# An upload has at most so many blocks, since each becomes a result for every client.
BLOCKS = 8


@dataclass(frozen=True)
class Blocks:
    """The uploads of an entry by some clients, in a cluster's memory.

    Attributes:
        entry: The name of the entry.
        ids: The clients.
        shape: The shape of an upload.
        dtype: The dtype of an upload.
        refs: References to blocks of columns, `[clients, columns]`, or their places in a list of references.
        pool: The `RayPool` whose hosts mix them.
    """

    entry: str
    ids: Sequence[int]
    shape: torch.Size
    dtype: torch.dtype
    refs: Sequence[Any]
    pool: Any = None

    def whole(self, parts: "Sequence[Blocks]") -> Uploads:
        return UploadsOnHosts(parts)


def split(uploads: Tensor, count: int) -> list[Tensor]:
    """Splits uploads `[clients, …]` into blocks of columns, each of whole tiles; with few columns some are empty."""
    flat = uploads.reshape(len(uploads), -1)
    tiles = -(-flat.shape[1] // TILE)
    edges = [TILE * (block * tiles // count) for block in range(count)] + [flat.shape[1]]
    return [flat[:, start:stop].clone() for start, stop in pairwise(edges)]


def mixes(up: Mapping[str, Reduce]) -> list[str]:
    """Returns names of entries of uploads that the server multiplies by a matrix over clients (`Reduce.MIX`)."""
    return [entry for entry, how in up.items() if how is Reduce.MIX]


def take_blocks(outcome: Outcome, up: Mapping[str, Reduce], at: int = 0) -> list[Tensor]:
    """Takes large uploads out of an outcome, which keeps the places of their blocks in a list, from `at` on."""
    blocks: list[Tensor] = []
    for entry in mixes(up):
        uploads = outcome.tensors.get(entry)
        if uploads is not None and (size := uploads[0].nbytes) >= LEAST_OF_A_BLOCK:
            count = min(BLOCKS, size // LEAST_OF_A_BLOCK)
            places = range(at + len(blocks), at + len(blocks) + count)
            outcome.blocks[entry] = [Blocks(entry, outcome.ids, uploads.shape[1:], uploads.dtype, places)]
            blocks += split(outcome.tensors.pop(entry), count)
    return blocks


def multiply_blocks(rows: Tensor, order: Sequence[int], gives: bool, blocks: Sequence[Tensor]) -> list[Any]:
    """Multiplies `rows` with uploads; returns whether the product is finite, and the product.

    Args:
        rows: The weights of clients, `[k, clients]`.
        order: The place of every client's upload in the rows of all `blocks` together.
        gives: Rows go to clients: they are returned one by one, else as one tensor.
        blocks: Blocks of uploads, `[some clients, columns]`.
    """
    uploads = [upload for block in blocks for upload in block]
    out = [uploads[0].new_empty(len(uploads[0])) for _ in rows]
    multiply(rows, [uploads[place] for place in order], out)
    finite = all(bool(torch.isfinite(row).all()) for row in out)
    return [finite, *(out if gives else [torch.stack(out)])]


class UploadsOnHosts(Uploads):
    """See `Uploads`; in a cluster's memory."""

    def __init__(self, parts: Sequence[Blocks]) -> None:
        """Takes the parts of all cells; raises a ShoalError if shapes or types differ."""
        ids = [i for part in parts for i in part.ids]
        self._order = sorted(range(len(ids)), key=ids.__getitem__)
        self.shape, self.dtype, self.clients = parts[0].shape, parts[0].dtype, len(ids)
        first = parts[0]
        for part in parts:
            require_one_shape(first.entry, [(held.ids[0], held.shape) for held in (first, part)])
            require_one_type(first.entry, [(held.ids[0], held.dtype) for held in (first, part)])
        self._pool, self._parts, self._entry = first.pool, parts, first.entry

    def product(self, rows: Tensor) -> Tensor:
        blocks = [block for (block,) in self._multiply(rows, gives=False)]
        return torch.cat(blocks, dim=1).reshape((len(rows), *self.shape))

    def give(self, rows: Tensor) -> list[Mixed]:
        blocks = self._multiply(rows, gives=True)
        self._parts = ()
        nbytes = self.shape.numel() * self.dtype.itemsize
        return [Mixed(refs, self.shape, nbytes) for refs in zip(*blocks)]

    def _multiply(self, rows: Tensor, gives: bool) -> list[list[Any]]:
        """Multiplies by block; returns references to rows that it `gives`, else to blocks. Raises ShoalError: NaN."""
        hosts = sorted(self._pool.roster.ready)
        blocks = list(zip(*(part.refs for part in self._parts)))
        if not hosts:
            return [self._result([], rows, gives, refs) for refs in blocks]
        calls = []
        for number, refs in enumerate(blocks):
            host = self._pool.roster.hosts[hosts[number * len(hosts) // len(blocks)]]
            call = host.multiply.options(num_returns=1 + (len(rows) if gives else 1))
            calls.append(call.remote(rows, self._order, gives, *refs))
        return [self._result(call, rows, gives, refs) for call, refs in zip(calls, blocks)]

    def _result(self, call: Sequence[Any], rows: Tensor, gives: bool, refs: Sequence[Any]) -> list[Any]:
        try:
            try:
                finite = ray.get(call[0], timeout=self._pool.timeout) if call else None
            except RayTaskError:
                raise
            except RayError:
                # The host died or is silent. The uploads outlive it, so that the server multiplies.
                finite = None
            products = list(call[1:])
            if finite is None:
                finite, *here = multiply_blocks(rows, self._order, gives, ray.get(list(refs)))
                products = [ray.put(t) for t in here]
            if not gives:
                products = ray.get(products)
        except (RayTaskError, ObjectLostError) as error:
            if isinstance(getattr(error, "cause", error), ObjectLostError):
                raise ServerLost("uploads were lost with their machine") from error
            raise
        if not finite:
            raise not_finite("the result of Mix", self._entry)
        return products
