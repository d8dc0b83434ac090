"""Whether a store keeps its features dense or sparse."""

from pathlib import Path
from typing import Any, Literal

from storage.errors import ShoalError
from storage.option_types import is_own
from storage.rows import dense_bytes, entries_of, is_smaller_sparse, sparse_bytes

Layout = Literal["dense", "sparse"]
# Read into memory as a whole; of other datasets features are drawn, or stay on disk.
IN_MEMORY = (
    "digits",
    "cora",
    "citeseer",
    "pubmed",
    "computers",
    "photo",
    "cs",
    "physics",
    "flickr",
    "reddit",
    "files",
    "twitch-de",
    "twitch-en",
    "twitch-es",
    "twitch-fr",
    "twitch-pt",
    "twitch-ru",
    "twitch-tw",
    "acmv9",
    "dblpv7",
    "cornell",
    "texas",
    "wisconsin",
    "actor",
    "roman-empire",
    "amazon-ratings",
    "minesweeper",
    "tolokers",
    "questions",
    "nci1",
    "proteins",
    "imdb-binary",
    "collab",
    "ogbg-molhiv",
    "ogbg-molbace",
    "ogbg-molbbbp",
)

# The synthetic twin of a published graph that is too large to be at hand everywhere.
TWINS = {
    "ogbn-arxiv": "arxiv-like",
    "ogbn-products": "products-like",
    "ogbn-papers100m": "papers100m-like",
}


def may_be_sparse(dataset: object, path: object) -> bool:
    """Whether a store of a dataset may keep its features sparse; those of an x.npy in the folder `path` stay dense.

    Several graphs are put behind one another in memory, whatever they are.
    """
    if isinstance(dataset, list | tuple):
        return True
    name = str(dataset).lower()
    mapped = name == "files" and isinstance(path, str) and (Path(path).expanduser() / "x.npy").is_file()
    return (name in IN_MEMORY and not mapped) or is_own(str(dataset))


def chosen_layout(x: Any, layout: str, dataset: object, path: object, dtype: str) -> Layout:
    """The layout of a store.

    Args:
        x: Features of the whole graph `[N, F]`: an array, a SciPy CSR, or drawn when read.
        layout: `dense`, `sparse`, or `auto`: the one in which features in memory are smaller.
        dataset: Name of the dataset, or of several.
        path: The graph of dataset `files`, or one for each.
        dtype: How features are stored.
    """
    smaller = layout == "auto" and may_be_sparse(dataset, path) and is_smaller_sparse(x, dtype)
    return "sparse" if smaller or layout == "sparse" else "dense"


def stored_bytes(x: Any, layout: Layout, dtype: str) -> int:
    """Bytes of features `[N, F]` as they are stored."""
    rows, features = x.shape
    return sparse_bytes(rows, entries_of(x), dtype) if layout == "sparse" else dense_bytes(rows, features, dtype)


def require_possible(layout: str, dataset: object, path: object) -> None:
    """Refuses a sparse store of features that are not in memory.

    Raises:
        ShoalError: It is one.
    """
    if layout == "sparse" and not may_be_sparse(dataset, path):
        raise ShoalError(
            f"data.layout: sparse needs features that are read into memory, and those of dataset '{dataset}' are not; "
            "set auto or dense"
        )
