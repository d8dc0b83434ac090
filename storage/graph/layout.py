"""Layout of a store's features: dense or sparse."""

from typing import Any, Literal

from shoal.storage.errors import ShoalError
from shoal.storage.graph.rows import dense_bytes, entries_of, gains_sparse, sparse_bytes
from shoal.storage.options.dataset_names import may_be_sparse

Layout = Literal["dense", "sparse"]


def chosen_layout(x: Any, layout: str, dataset: object, path: object, dtype: str) -> Layout:
    """Chooses the layout of a store; `auto` is sparse where features `[N, F]` in memory gain (`gains_sparse`)."""
    gains = layout == "auto" and may_be_sparse(dataset, path) and gains_sparse(x.shape, entries_of(x), dtype)
    return "sparse" if gains or layout == "sparse" else "dense"


def stored_bytes(x: Any, layout: Layout, dtype: str) -> int:
    """Counts the bytes of features `[N, F]` as they are stored."""
    rows, features = x.shape
    return sparse_bytes(rows, entries_of(x), dtype) if layout == "sparse" else dense_bytes(rows, features, dtype)


def require_possible(layout: str, dataset: object, path: object) -> None:
    """Refuses a sparse store of features that are not in memory. Raises ShoalError: it is one."""
    if layout == "sparse" and not may_be_sparse(dataset, path):
        raise ShoalError(
            "data.layout",
            f"sparse needs features that are read into memory, and those of dataset '{dataset}' are not; "
            "set auto or dense",
        )
