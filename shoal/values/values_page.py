"""The sections of a run's page on the values of its clients."""

from pathlib import Path

import numpy as np

from shoal.pages import figures as drawings
from shoal.pages.figures import Drawing
from shoal.pages.page import Section
from shoal.values.client_values import ClientValues, read_values


def values_sections(run: Path) -> list[Section]:
    """Makes the sections of the values in a folder; none if there are none. Raises as `read_values`."""
    if (kept := read_values(run)) is None:
        return []
    figures: list[Drawing] = []
    _draw_values(figures, kept)
    _draw_at_clients(figures, kept)
    return [
        Section("Values of clients", figures, note=kept.finding),
        Section("Values by client", tables=[kept.table()], folded=True),
    ]


def _draw_values(figures: list[Drawing], kept: ClientValues) -> None:
    """Draws values with their intervals, the largest first."""
    rows = [(f"client {kept.clients[p]}", kept.values[p], kept.halves[p], kept.text_of(p)) for p in kept.order]
    title = f"Values of clients by {kept.method}, points of accuracy"
    drawings.intervals(figures, "values", title, rows, "points")


def _draw_at_clients(figures: list[Drawing], kept: ClientValues) -> None:
    """Draws what each client adds at each, those without items left out; clients by their numbers."""
    scored = [j for j, items in enumerate(kept.items) if items]
    points_PJ = np.array(kept.at_clients)[:, scored]
    most = float(np.abs(points_PJ).max(initial=0.0)) or 1.0
    title = "What a client (row) adds to the accuracy on the items of a client (column), in points"
    ends = [(float(points_PJ[p, j]), kept.clients[p], scored[j]) for p, j in zip(*_ends(points_PJ))]
    shown = "; ".join(f"client {i} adds {points:+.1f} at client {j}" for points, i, j in ends)
    drawings.matrix(
        figures, "values-at-clients", title, {"": points_PJ}, ("adds", "at"), shown, [str(i) for i in kept.clients],
        (-most, most, " points"), [str(j) for j in scored],
    )  # fmt: skip


def _ends(points_PJ: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows and columns of the largest and the smallest number."""
    rows, columns = np.unravel_index([points_PJ.argmax(), points_PJ.argmin()], points_PJ.shape)
    return rows, columns
