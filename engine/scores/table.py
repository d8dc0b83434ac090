"""The table of counts by client, which a run keeps for every scope."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

# So many clients change one by one before they join the columns; counts of so many are laid out at a time.
MOST_CHANGED, IN_BLOCK = 1024, 4096


# A matrix takes 12 us to be made, and every cell has counts.
NO_CLIENT, NO_ROWS = np.empty(0, np.int64), csr_array((0, 0), dtype=np.uint8)


class ScoreTable(Mapping[int, np.ndarray]):
    """The counts by client, int64 `[parts, kinds, C]`, in a sparse matrix with a row a client, clients ascending.

    A copy shares the matrix; what changes for single clients waits beside it.
    """

    def __init__(self, counts: Mapping[int, np.ndarray] | Iterable[tuple[int, np.ndarray]] = ()) -> None:
        """Takes counts of one shape, none of them negative."""
        self._changed: dict[int, np.ndarray | None] = dict(counts)
        self._shape: tuple[int, ...] = (0, 0, 0)
        self._client, self._rows = NO_CLIENT, NO_ROWS
        self._merge()

    @classmethod
    def of(cls, counts: Mapping[int, np.ndarray]) -> "ScoreTable":
        """Returns counts as a table."""
        return counts if isinstance(counts, ScoreTable) else cls(counts)

    @property
    def clients(self) -> np.ndarray:
        """Returns the clients that have counts, int64 `[B]`, ascending."""
        self._merge()
        return self._client

    @property
    def content(self) -> tuple[int, int]:
        """Identifies the counts as long as they are held: tables that share memory have the same."""
        self._merge()
        return id(self._client), id(self._rows)

    def copy(self) -> "ScoreTable":
        """Returns a table that may change while this one stays."""
        table = ScoreTable()
        vars(table).update(vars(self), _changed=dict(self._changed))
        return table

    def only(self, client_B: np.ndarray, others: bool = False) -> "ScoreTable":
        """Returns the counts of those of some clients that have any, or of all the others."""
        table = self.copy()
        keep = np.isin(table.clients, client_B, invert=others)
        if not keep.any():
            return ScoreTable()
        if not keep.all():
            table._client, table._rows = table._client[keep], table._rows[np.flatnonzero(keep)]
        return table

    def with_counts(self, *tables: "ScoreTable") -> "ScoreTable":
        """Returns these counts and those of tables of different clients, which replace those of before."""
        parts = [table for table in tables if len(table)]
        if not parts:
            return self.copy()
        kept = self.only(np.concatenate([part._client for part in parts]), others=True)
        parts = [*([kept] if len(kept) else []), *parts]
        joined = parts[-1].copy()
        if len(parts) == 1:
            return joined
        client, rows = np.concatenate([part._client for part in parts]), vstack([p._rows for p in parts], format="csr")
        order = np.argsort(client)
        joined._client, joined._rows = (
            (client, rows) if (order[1:] > order[:-1]).all() else (client[order], rows[order])
        )
        return joined

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields the counts of all clients, int64 `[B, parts, kinds, C]`, in blocks that follow each other."""
        for first in range(0, len(self), IN_BLOCK):
            yield self._rows[first : first + IN_BLOCK].toarray().astype(np.int64).reshape(-1, *self._shape)

    def to_tensors(self) -> dict[str, Tensor]:
        """Returns the columns by name, for a file."""
        self._merge()
        rows, values = self._rows, np.int32 if self._rows.dtype.itemsize < 4 else np.int64
        columns = (self._client, rows.indptr, rows.indices, rows.data.astype(values), np.array(self._shape))
        return {name: torch.from_numpy(column) for name, column in zip(COLUMNS, columns)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> "ScoreTable":
        """Makes a table of the columns that `to_tensors` gives."""
        table = cls()
        table._client, start, place, count, shape = (np.array(tensors[name]) for name in COLUMNS)
        table._shape = tuple(shape.tolist())
        table._rows = csr_array((_narrow(count), place, start), shape=(len(table._client), shape.prod()))
        return table

    def _merge(self) -> None:
        """Brings what changed for single clients into the matrix."""
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        new, client = ScoreTable(), sorted(i for i, counts in changed.items() if counts is not None)
        if client:
            every = np.stack([changed[i] for i in client])  # type: ignore[misc]
            new._client, new._shape = np.array(client), every.shape[1:]
            new._rows = csr_array(_narrow(every.reshape(len(every), -1)))
        left = self.only(np.fromiter(changed, dtype=np.int64), others=True)
        vars(self).update(vars(left.with_counts(new)))

    def change(self, counts: Mapping[int, np.ndarray | None]) -> None:
        """Takes in counts of some clients; None: it has none from now on."""
        self._changed.update(counts)
        if len(self._changed) > MOST_CHANGED:
            self._merge()

    def __getitem__(self, client: int) -> np.ndarray:
        row = int(np.searchsorted(self.clients, client))
        if row == len(self._client) or self._client[row] != client:
            raise KeyError(client)
        counts: np.ndarray = self._rows[row : row + 1].toarray().astype(np.int64).reshape(self._shape)
        return counts

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients.tolist())

    def __len__(self) -> int:
        return len(self.clients)


COLUMNS = ("client", "start", "place", "count", "shape")


def _narrow(value: np.ndarray) -> np.ndarray:
    """Returns the same numbers, none of them negative, in the smallest type that has them all."""
    return value.astype(np.min_scalar_type(int(value.max(initial=0))))
