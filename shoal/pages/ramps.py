"""A ramp of colours for signed numbers, with its bar, and the numbers in the cells of a matrix."""

from typing import Any

import numpy as np

# Orange is below zero, white is zero, blue is above: the colour-blind tell them apart, and black text is read on both.
BELOW, ABOVE = "#ee8a5a", "#58a9d8"
# Cells of more columns or rows are too small for a number.
MOST_COLUMNS, MOST_ROWS = 14, 20


def make_signed_ramp() -> Any:
    """Makes the ramp."""
    from matplotlib.colors import LinearSegmentedColormap

    # An odd number of colours has white in its middle.
    return LinearSegmentedColormap.from_list("signed", (BELOW, "#ffffff", ABOVE), N=257)


def add_bar(image: Any, unit: str) -> None:
    """Draws the bar of the colours of an image at its right, with its unit."""
    bar = image.figure.colorbar(image, ax=image.axes, fraction=0.06, pad=0.03, label=unit)
    # A picture, as the image is one, so that a dark page changes the colours of both.
    bar.solids.set_rasterized(True)
    bar.outline.set_linewidth(0.6)


def write_cells(axes: Any, matrix_RC: np.ndarray) -> None:
    """Writes signed whole numbers into cells, if they have room; nothing where a number is 0 or missing."""
    rows, columns = matrix_RC.shape
    if rows > MOST_ROWS or columns > MOST_COLUMNS:
        return
    for r, c in np.argwhere(np.abs(np.nan_to_num(matrix_RC)) >= 0.5):
        axes.text(c, r, f"{matrix_RC[r, c]:+.0f}", ha="center", va="center", fontsize=5.5)
