"""The k best rows so far of every row, and the pass that updates them, on one core."""

import numba
import numpy as np

CHUNK = 64


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def cosine(z: np.ndarray, i: int, j: int) -> float:
    """<z_i, z_j>, summed in float64 and so the same whatever block a pair is met in; symmetric to the bit."""
    total = 0.0
    for column in range(z.shape[1]):
        total += np.float64(z[i, column]) * np.float64(z[j, column])
    return total


@numba.njit(cache=True, nogil=True)
def offer(best: np.ndarray, who: np.ndarray, row: int, value: float, other: int) -> None:
    """Puts a row among the best of another if it belongs there: the larger value, or the lower number, is better."""
    place = best.shape[1]
    while place and (value > best[row, place - 1] or (value == best[row, place - 1] and other < who[row, place - 1])):
        place -= 1
        if place + 1 < best.shape[1]:
            best[row, place + 1], who[row, place + 1] = best[row, place], who[row, place]
        best[row, place], who[row, place] = value, other


@numba.njit(cache=True, nogil=True)
def update(
    near: np.ndarray,
    first_row: int,
    first_column: int,
    z: np.ndarray,
    margin: np.float32,
    best: np.ndarray,
    who: np.ndarray,
    least: np.ndarray,
) -> None:
    """Takes a tile of cosines into account, for the rows and for the columns it stands for; i < j are read only.

    The tile's own numbers depend on how a library multiplies: they only tell which pairs need `cosine`.

    Args:
        near: Cosines to within `margin`, float32 `[R, C]`.
        first_row: Number of the tile's first row.
        first_column: Of its first column; not below the row's.
        z: Rows of length one, float32 `[N, H]`.
        margin: How far a number of the tile may be from `cosine`.
        best: The k largest cosines of every row, float64 `[N, k]`, descending; changed.
        who: Whose they are, int32 `[N, k]`; changed.
        least: What a number of a tile must reach to matter, float32 `[N]`; changed.
    """
    rows, columns = near.shape
    last = best.shape[1] - 1
    for r in range(rows):
        i = first_row + r
        start = max(0, i + 1 - first_column)
        for low in range(start, columns, CHUNK):
            high = min(low + CHUNK, columns)
            own = least[i]
            found = 0
            for c in range(low, high):
                found += (near[r, c] >= own) | (near[r, c] >= least[first_column + c])
            if not found:
                continue
            for c in range(low, high):
                j = first_column + c
                if near[r, c] >= least[i] or near[r, c] >= least[j]:
                    value = cosine(z, i, j)
                    offer(best, who, i, value, j)
                    offer(best, who, j, value, i)
                    least[i] = np.float32(best[i, last]) - margin
                    least[j] = np.float32(best[j, last]) - margin


@numba.njit(cache=True, nogil=True)
def offer_all(z: np.ndarray, first: int, found: np.ndarray, best: np.ndarray, who: np.ndarray) -> None:
    """Takes what a library found into account.

    Args:
        z: Rows of length one, float32 `[N, H]`.
        first: Number of the first row that it searched for.
        found: Rows, int64 `[n, K]`; -1, and the row itself, count for nothing.
        best: As for `update`; changed.
        who: As for `update`; changed.
    """
    for r in range(len(found)):
        for j in found[r]:
            if j >= 0 and j != first + r:
                offer(best, who, first + r, cosine(z, first + r, j), j)
