"""Values that a model keeps of clients from visit to visit: inputs of its passes, and plans of their training."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor

from shoal.storage.shards.view import View

# Bytes of the data of clients for which a model keeps what it asks its passes.
MOST_BYTES = 2**26

T = TypeVar("T")


class KeptByView(Generic[T]):
    """Values by the views of clients, as long as these live, while the data that values refer to are `MOST_BYTES`."""

    def __init__(self) -> None:
        self._bytes = 0
        self._kept: WeakKeyDictionary[View, T] = WeakKeyDictionary()

    def get(self, data: View, make: Callable[[], tuple[T, Sequence[Any]]]) -> T:
        """Returns the value of a client; `make` gives one, and the matrices that it refers to."""
        if data in self._kept:
            return self._kept[data]
        value, parts = make()
        size = sum(part.nbytes if isinstance(part, Tensor) else part.most_bytes for part in parts)
        if self._bytes + size > MOST_BYTES:
            self._kept.clear()
            self._bytes = 0
        if size <= MOST_BYTES:
            self._kept[data], self._bytes = value, self._bytes + size
        return value
