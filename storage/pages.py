"""Pages of a map, brought into memory before they are needed."""

from torch import Tensor

from storage.sparse_matrix import Features

PAGE = 4096


def touch(hop: Features, rows: Tensor | None) -> None:
    """Reads a value of each page of a hop, or of some of its rows."""
    if isinstance(hop, Tensor):
        pages_NF = hop[:, :: max(PAGE // hop.element_size(), 1)]
        (pages_NF if rows is None else pages_NF.index_select(0, rows)).sum()
    elif rows is None:
        for part in hop.parts():
            part[:: PAGE // part.element_size()].sum()
    else:
        hop.rows(rows)
