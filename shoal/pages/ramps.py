"""A ramp of colours for signed numbers, with its bar, and the numbers in the cells of a matrix."""

from typing import Any

import numpy as np

# Orange is below zero, white is zero, blue is above: the colour-blind tell them apart, and black text is read on both.
BELOW, ABOVE = "#ee8a5a", "#58a9d8"
# Cells of more columns or rows are too small for a number.
MOST_COLUMNS, MOST_ROWS = 14, 20
# So few columns have room for letters as large as those of the axes.
FEW_COLUMNS = 5


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


def write_cells(axes: Any, matrix_RC: np.ndarray, decimals: int) -> None:
    """Writes signed numbers into cells, if they have room; nothing where a number rounds to 0, a dash where none is."""
    rows, columns = matrix_RC.shape
    if rows > MOST_ROWS or columns > MOST_COLUMNS:
        return
    letters = 7 if columns <= FEW_COLUMNS else 5.5
    for r, c in np.ndindex(rows, columns):
        number = float(matrix_RC[r, c])
        text = "–" if np.isnan(number) else f"{number:+.{decimals}f}" if round(number, decimals) else ""
        if text:
            axes.text(c, r, text, ha="center", va="center", fontsize=letters)
