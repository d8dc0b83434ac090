"""The section of a run's page on how its clients differ."""

from pathlib import Path

import numpy as np

from shoal.pages import figures as drawings
from shoal.pages.figures import Drawing
from shoal.pages.page import Section
from shoal.shifts.inspected import find_store, is_small
from shoal.shifts.shifts import measure_shifts


def shift_sections(run: Path) -> list[Section]:
    """Makes the section of a run of several clients, whose store is small and on this machine; else none."""
    store = find_store(run)
    if store is None or not is_small(store):
        return []
    shifts, figures = measure_shifts(store), list[Drawing]()
    if shifts.label_BC.shape[1]:
        divergence_BB = shifts.divergence_BB
        i, j = np.unravel_index(int(np.nanargmax(divergence_BB)), divergence_BB.shape)
        text = f"most between clients {i} and {j}, {divergence_BB[i, j]:.3f}"
        title = "Label divergence between clients: total variation of their shares of classes"
        names = [str(client) for client in range(store.clients)]
        drawings.matrix(figures, "shifts", title, {"": divergence_BB}, ("client", "client"), text, names)
    return [Section("Shifts between clients", figures, [shifts.table()], folded=True)]
