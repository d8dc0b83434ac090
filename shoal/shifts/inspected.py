"""The rows of `shoal inspect` on how clients differ, of stores that are read in a moment."""

from pathlib import Path

from shoal.engine.config.config import load_config
from shoal.engine.config.config_text import CONFIG
from shoal.shifts.shifts import MOST_NODES as MOST_OF_CLIENT
from shoal.shifts.shifts import measure_shifts
from shoal.storage.errors import GraphGone, ShoalError
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, shard_path
from shoal.tables.text_table import TextTable

# Larger stores take seconds to read, which `shoal read RUN shifts` spends.
MOST_CLIENTS, MOST_NODES = 60, 100_000
LEFT_OUT = "shifts between clients are left out"
# Eigenvalues of a client take the third power of its nodes, and so much of it a second or two.
MOST_WORK = 4e9


def summarize(folder: Path) -> TextTable | str | None:
    """Makes the table of a store or a run of several clients, or says in a line why there is none; None: it has one
    client, or its store is elsewhere.
    """
    try:
        store = Store(folder) if (folder / NAME).exists() else find_store(folder)
        if store is None or store.clients < 2:
            return None
        if store.clients > MOST_CLIENTS or store.manifest.nodes > MOST_NODES:
            return (
                f"{LEFT_OUT}: of at most {MOST_CLIENTS} clients and {MOST_NODES:,} nodes they are measured here; "
                "of a run `shoal read RUN shifts` measures them"
            )
        if not is_small(store):
            return f"{LEFT_OUT}: shards are missing; `shoal verify {folder}` names them"
        nodes = store.manifest.clients.count("nodes")
        work = float((nodes[nodes <= MOST_OF_CLIENT].astype(float) ** 3).sum())
        return measure_shifts(store, spectra_too=work <= MOST_WORK).summary()
    except ShoalError as error:
        return f"{LEFT_OUT}: {error.line}"


def find_store(run: Path) -> Store | None:
    """Finds the store of a run of several clients on this machine; None: there is none."""
    if not (run / CONFIG).exists():
        return None
    # A folder of a store needs none of what reads datasets.
    from shoal.engine.preparing.identity import store_or_overlay
    from shoal.engine.records.graphs import remote_of

    config = load_config(run)
    try:
        path = store_or_overlay(config)
    except GraphGone:
        return None
    if config.algorithm.name == "global" or remote_of(config) is not None or not (path / NAME).exists():
        return None
    return Store(path)


def is_small(store: Store) -> bool:
    """Returns whether a store has several clients, few enough, and all their shards."""
    there = all((store.path / shard_path(pack)).exists() for pack, _ in store.manifest.clients.files.files())
    return there and 2 <= store.clients <= MOST_CLIENTS and store.manifest.nodes <= MOST_NODES
