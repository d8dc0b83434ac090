"""The section of a run's page on how its clients differ."""

from pathlib import Path

import numpy as np

from shoal.engine.config.config import load_config
from shoal.engine.config.config_text import CONFIG
from shoal.engine.preparing.identity import store_or_overlay
from shoal.engine.records.graphs import remote_of
from shoal.pages import figures as drawings
from shoal.pages.figures import Drawing
from shoal.pages.page import Section
from shoal.shifts.shifts import measure_shifts
from shoal.storage.errors import GraphGone
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, shard_path

# Larger stores take seconds to read, which `shoal read RUN shifts` spends.
MOST_CLIENTS, MOST_NODES = 60, 100_000


def shift_sections(run: Path) -> list[Section]:
    """Makes the section of a run of several clients, whose store is small and on this machine; else none."""
    if not (run / CONFIG).exists():
        return []
    config = load_config(run)
    try:
        path = store_or_overlay(config)
    except GraphGone:
        return []
    if config.algorithm.name == "global" or remote_of(config) is not None or not (path / NAME).exists():
        return []
    store = Store(path)
    if not all((path / shard_path(pack)).exists() for pack, _ in store.manifest.clients.files.files()):
        return []
    if not 2 <= store.clients <= MOST_CLIENTS or store.manifest.nodes > MOST_NODES:
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
