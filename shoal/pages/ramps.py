"""Ramps of colours for numbers, with their bar, and the numbers in the cells of a matrix or a grid."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# Orange is below zero, white is zero, blue is above: the colour-blind tell them apart, and black text is read on both.
BELOW, ABOVE = "#ee8a5a", "#58a9d8"
# Cells of more columns or rows are too small for a number.
MOST_COLUMNS, MOST_ROWS = 14, 20
# So many letters side by side have room in the size of those of the axes.
MOST_LETTERS = 40
# Cells of so many rows and columns have room for an interval below the number.
MOST_WITH_INTERVALS = 6


def make_signed_ramp() -> Any:
    """Makes the ramp."""
    from matplotlib.colors import LinearSegmentedColormap

    # An odd number of colours has white in its middle.
    return LinearSegmentedColormap.from_list("signed", (BELOW, "#ffffff", ABOVE), N=257)


def make_rising_ramp() -> Any:
    """Makes the ramp of scores, the lowest white."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("rising", ("#ffffff", ABOVE), N=257)


def add_bar(image: Any, unit: str, panels: Sequence[Any] = ()) -> None:
    """Draws the bar of the colours of an image at its right, or that of several panels, with its unit."""
    bar = image.figure.colorbar(image, ax=panels or image.axes, fraction=0.06, pad=0.03, label=unit)
    # A picture, as the image is one, so that a dark page changes the colours of both.
    bar.solids.set_rasterized(True)
    bar.outline.set_linewidth(0.6)


def write_cells(axes: Any, matrix_RC: np.ndarray, decimals: int) -> None:
    """Writes signed numbers into cells, if they have room; nothing where a number rounds to 0, a dash where none is."""
    rows, columns = matrix_RC.shape
    if rows > MOST_ROWS or columns > MOST_COLUMNS:
        return
    texts = {
        at: "–" if np.isnan(number) else f"{number:+.{decimals}f}" if round(float(number), decimals) else ""
        for at, number in np.ndenumerate(matrix_RC)
    }
    size = 7 if columns * max(map(len, texts.values())) <= MOST_LETTERS else 5.5
    for (r, c), text in texts.items():
        if text:
            axes.text(c, r, text, ha="center", va="center", fontsize=size)


def write_grid(axes: Any, middle_RC: np.ndarray, half_RC: np.ndarray, signed: bool) -> None:
    """Writes numbers into the cells of a grid, below them ± half of their intervals where there is room.

    NaN is a number, or an interval, that is missing.
    """
    rows, columns = middle_RC.shape
    if rows > MOST_ROWS or columns > MOST_COLUMNS:
        return
    roomy = max(rows, columns) <= MOST_WITH_INTERVALS
    for r, c in np.ndindex(rows, columns):
        number, half = float(middle_RC[r, c]), float(half_RC[r, c])
        text = "–" if np.isnan(number) else f"{number:{'+' if signed else ''}.1f}" if abs(number) >= 0.05 else "0"
        text += f"\n±{half:.1f}" if roomy and not np.isnan(half) else ""
        axes.text(c, r, text, ha="center", va="center", fontsize=5.5, linespacing=1)
