"""The steps of a store with hops over edges between clients; the engine loads this module where a config has some."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from shoal.engine.config.config import Config
from shoal.engine.config.sizes import size
from shoal.engine.preparing.cross_edges.cross_edges import (
    BoundarySource,
    Exchange,
    class_pairs,
    cut_entries,
    exchange_bytes,
    rows_in_shards,
    scratch_bytes,
    write_boundaries,
    write_cross_hops,
)
from shoal.engine.preparing.cross_edges.section import CROSS_EDGES
from shoal.engine.preparing.store_builder import READERS, StoreBuilder
from shoal.engine.screen.progress import progress, say
from shoal.storage.files.names import place_in
from shoal.storage.graph.edges.cross_edges import ENTRY_BYTES
from shoal.storage.graph.gather import Memory, files_of
from shoal.storage.graph.induced import BLOCK_BYTES
from shoal.storage.options.propagation import CrossPropagation
from shoal.storage.runner import parts, runner
from shoal.storage.store.client_table import BoundaryRecord, ranges
from shoal.storage.store.store import Store, boundary_path, hops_path, scratch_path

# `shoal.engine.sections.sections.load_crossing` gives these, too.
__all__ = ["class_pairs", "exchange_bytes", "make_boundaries", "make_hops", "scratch_bytes"]


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns what runs over edges between clients, and over which of them."""
    data: Any = CROSS_EDGES.of(config)
    layers = {"one_hop": "the first layer runs", "two_hop": "the first two layers run"}
    what = layers.get(data.cross_edges, "hops run")
    share = "all" if data.cross_share == 1 else f"{100 * data.cross_share:g} % of the"
    least = f", where a client has {data.cross_min_neighbours} neighbours or more" * (data.cross_min_neighbours > 1)
    hidden = ", by hidden sums" if data.cross_hidden else ""
    return {"cross edges": f"{what} over {share} edges between clients{least}{hidden}"}


def make_boundaries(steps: StoreBuilder, shards: Store, propagation: CrossPropagation) -> BoundaryRecord:
    """Makes the edges between clients that hops run over, as far as they are missing."""
    graph, edges, pack = steps.lazy.graph, propagation.cross, shards.manifest.pack
    assignment, (row_of, label) = steps.assign(graph), rows_in_shards(shards)
    cut = cut_entries(shards, graph.indptr, assignment)
    place, packs = partial(boundary_path, edges.name), ranges(shards.clients, pack)
    missing = frozenset(steps.list_missing(place, shards.clients, pack))
    csr = graph.indptr, graph.indices, graph.edge_weight
    source = BoundarySource(shards, csr, assignment, row_of, cut, edges, missing, label)
    here = runner(int(cut.sum()) * ENTRY_BYTES, steps.path, files_of(graph))
    fixed = 3 * row_of.nbytes + BLOCK_BYTES
    memory = Memory(fixed, 2 * ENTRY_BYTES * cut, shards.manifest.clients.count("nodes"))
    room = here.room(memory.of_one(range(shards.clients)), steps.memory_limit, READERS)
    counts = np.zeros((shards.clients, 5), dtype=np.int64)
    with progress("edges between clients", shards.clients, "clients") as step:
        groups = memory.groups(packs, room.memory, room.groups)
        for clients, (record, of_each) in here.results(write_boundaries, source, groups, room.memory):
            if record is not None:
                steps.writer.add(place(clients), record)
            counts[clients] = of_each
            step.advance(len(clients))
    made = BoundaryRecord(counts, steps.list_files(place, "boundary", shards.clients, pack))
    _report_boundaries(made, int(cut.sum()), shards.manifest.features)
    return made


def make_hops(steps: StoreBuilder, shards: Store, propagation: CrossPropagation, missing: Sequence[range]) -> None:
    """Makes hops over edges between clients, for the packs that miss them."""
    folder = place_in(steps.path, scratch_path(propagation.cross.name, propagation.name))
    exchange = Exchange(shards, propagation, folder)
    counts = shards.manifest.boundaries[propagation.cross.name].counts
    memory = exchange.memory(counts)
    here = runner(exchange.bytes, steps.path, steps.list_files_to_see(missing))
    exchange.run(here, memory)
    groups = parts(missing, here.room(memory, memory).groups)
    place = partial(hops_path, propagation.name)
    steps.make_files("hops", place, shards.clients, here, write_cross_hops, exchange, groups, memory)
    exchange.remove()


def _report_boundaries(record: BoundaryRecord, cut: int, features: int) -> None:
    edges, sums, of_one, *_ = record.counts.sum(axis=0).tolist()
    say(
        f"directed edges between clients: {edges:,} of {cut:,} kept; a hop takes {sums:,} sums of other clients' "
        f"neighbours, {size(record.hop_bytes(features))}; {of_one:,} of them run over one neighbour and are its row"
    )
