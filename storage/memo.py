"""A host's bounded cache of what it can build again from shards."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from storage.sparse_matrix import SparseMatrix


class Memo:
    """A host's cache of tensors that it can build again from shards; drops the least recently used beyond a limit."""

    def __init__(self, limit: int) -> None:
        """Starts empty.

        Args:
            limit: Bytes of tensors to keep; the newest entry is kept whatever its size.
        """
        self.limit = limit
        self.bytes = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int, tuple[int, ...]]] = OrderedDict()
        self._ones = torch.ones(0)

    def ones(self, count: int) -> Tensor:
        """A view of the one buffer of ones that all adjacencies of a host share, float32 `[count]`."""
        if len(self._ones) < count:
            self._ones = torch.ones(count, device="cpu")
        return self._ones[:count]

    def get(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """Returns the entry, building it if it is not there."""
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key][0]
        value = build()
        size = self._size(value)
        self._entries[key] = (value, size, writes(value))
        self.bytes += size
        while self.bytes > self.limit and len(self._entries) > 1:
            _, (_, dropped, _) = self._entries.popitem(last=False)
            self.bytes -= dropped
        return value

    def written(self, key: Hashable) -> bool:
        """Whether an entry was written to since it was built; one that was dropped is built again."""
        if key not in self._entries:
            return False
        value, _, before = self._entries[key]
        return writes(value) != before

    def keep(self, key: Hashable, size: int, build: Callable[[], Any]) -> Any:
        """Returns the entry, building it if that needs no other entry to be dropped; else None."""
        fits = key in self._entries or self.bytes + size <= self.limit
        return self.get(key, build) if fits else None

    def _size(self, value: Any) -> int:
        if isinstance(value, SparseMatrix):
            return value.most_bytes
        if not isinstance(value, Tensor):
            return sum(map(self._size, value)) if isinstance(value, tuple | list) else 0
        if value.layout != torch.sparse_csr:
            return value.nbytes
        values = value.values()
        if values.untyped_storage().data_ptr() == self._ones.untyped_storage().data_ptr():
            return 0  # the adjacency of a view: its indices lie in the map of the shard
        return values.nbytes + value.crow_indices().nbytes + value.col_indices().nbytes


def writes(value: Any) -> tuple[int, ...]:
    """How often each tensor of an entry was written to, as torch counts it."""
    if isinstance(value, SparseMatrix):
        # The three arrays of a matrix share one count; a transpose may be made at any time.
        return writes(value.csr)
    if isinstance(value, Tensor):
        return (0 if value.is_inference() else value._version,)
    return tuple(count for part in value for count in writes(part)) if isinstance(value, tuple | list) else ()
