"""The most similar rows of every row: exact in tiles up to a size, approximate above."""

import torch
from torch import Tensor

EXACT_UP_TO = 50_000


def nearest(z_NH: Tensor, k: int, exact_up_to: int = EXACT_UP_TO) -> Tensor:
    """The k other rows of the largest cosine for every row, int32 `[N, k]`, the most similar first, on the processor.

    Of equally similar ones the lowest number comes first. -1 stands where there are not enough. A row of zeros has no
    neighbours, and is nobody's. The same rows give the same bits for any number of threads.

    Args:
        z_NH: Rows, float32, on any device; no gradient is made.
        k: How many.
        exact_up_to: Up to so many rows all are compared, N^2 H operations; above, a graph of neighbours is searched,
            which misses some.
    """
    raise NotImplementedError
