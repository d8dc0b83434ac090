"""Numbers in the cells of a signed matrix."""

import numpy as np
import pytest

from shoal.pages.figures import Drawing, matrix


@pytest.mark.parametrize(
    ("columns", "decimals", "size"), [(3, 2, 7.0), (5, 1, 7.0), (10, 0, 7.0), (10, 1, 5.5), (14, 0, 5.5)]
)
def test_numbers_are_as_large_as_those_of_the_axes_where_cells_have_room(
    columns: int, decimals: int, size: float
) -> None:
    drawings: list[Drawing] = []
    widest_RC = np.full((4, columns), -98.76)
    matrix(
        drawings, "name", "title", {"": widest_RC}, ("row", "column"), "", scale=(-99, 99, " points"), decimals=decimals
    )
    axes = drawings[0].drawn.axes[0]
    renderer = drawings[0].drawn.canvas.get_renderer()
    assert len(axes.texts) == widest_RC.size
    assert {text.get_fontsize() for text in axes.texts} == {size}
    cell = axes.get_window_extent(renderer).width / columns
    assert max(text.get_window_extent(renderer).width for text in axes.texts) <= cell
