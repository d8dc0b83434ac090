"""Estimates a run before it starts: cohort, cells, memory, bytes, disk and time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Column

from shoal.algorithms.base import keeps_models
from shoal.algorithms.client import ClientInfo, FlatModel
from shoal.algorithms.models.names import describe_edge_features
from shoal.algorithms.protocol import MODEL
from shoal.engine.cluster.room import host_number, memory_of_host, this_machine
from shoal.engine.config.config import Config
from shoal.engine.config.sizes import size
from shoal.engine.messages.environment import bfloat16_support
from shoal.engine.messages.job import require_room_for_hops
from shoal.engine.messages.models import assign_models, built_models, require_fitting
from shoal.engine.messages.pretrained import read_pretrained, require_fitting_files
from shoal.engine.messages.trainers import Clients, trainers_of
from shoal.engine.preparing.checks import read_graph, require_fitting_data, require_whole
from shoal.engine.preparing.client_files import shards_bytes
from shoal.engine.preparing.identity import identity, require_identity, store_or_overlay
from shoal.engine.preparing.store_builder import given_codes
from shoal.engine.records.graphs import remote_of
from shoal.engine.records.untrained import (
    Untrained,
    fewest_untrained,
    untrained_of,
)
from shoal.engine.rounds.sampling import Schedule, cell_size_of, form_cells, most_cells
from shoal.engine.runs.expected_time import ExpectedTime, loading_time, message_time, preparing_time, start_time
from shoal.engine.runs.measuring import MeanClient, Measured
from shoal.engine.runs.plan import RunPlan
from shoal.engine.screen.output import Table
from shoal.engine.screen.tables import console
from shoal.engine.sections.section import load as load_place
from shoal.engine.sections.sections import SECTIONS, by_subject, describe_done, layout_of, load_crossing
from shoal.partition.domains import require_own_clients
from shoal.partition.methods.from_file import by_file
from shoal.partition.methods.workspace import scratch_bytes
from shoal.partition.partitioning import require_enough_nodes
from shoal.storage.graph.edges.kinds import Kinds
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.layout import chosen_layout, stored_bytes
from shoal.storage.graph.pairs import LABELS
from shoal.storage.graph.rows import entries_of
from shoal.storage.options.masking import masks
from shoal.storage.options.split_codes import TRAIN
from shoal.storage.shards.hops import hops_bytes, rows_to_keep
from shoal.storage.store.manifest import NAME, read_manifest
from shoal.storage.store.store import Store

# A pass over a client takes several times the memory of its data.
SHARE_TO_MEASURE = 16
# Labelled nodes and their neighbours are counted in so many clients of a store.
COUNTED_CLIENTS = 4
# bfloat16 pays on a processor from so many multiplications of a layer in a step (`benchmarks/fast_paths.py`).
PAYS_FROM = 2**24


def show_plan(config: Config) -> None:
    """Prints cohort, cells, memory, bytes, disk and time to expect of a config; writes nothing."""
    load, plan = loading_time(), RunPlan.of(config)
    table = Table("", Column(overflow="fold"), title=f"dry run of {config.name}", show_header=False)
    for name, text in expected(plan, load).rows.items():
        table.add_row(name, text)
    console.print(table)


class _Disk(NamedTuple):
    """Bytes on disk by step: temporary files at their worst moment, shards with splits, hops, and the scratch files of
    their exchange."""

    scratch: int
    shards: int
    hops: int
    exchange: int


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a dataset, from its store or, if there is none yet, from its graph.

    `items` may have labels, and `what` says what they are: nodes, graphs or pairs; `train` of them, at most, are for
    training, those masked by `data.sparsity` left out. `entries` are directed edges, `values`
    the stored values of sparse features, None of dense ones; `graphs_of_node` is as in `ClientInfo`. Of a graph
    `untrained` are the fewest clients that can be without a training item; None: that is not known.
    """

    items: int
    train: int
    what: str
    nodes: int
    features: int
    classes: int
    entries: int
    weighted: bool
    x_bytes: int
    values: int | None
    disk: "_Disk"
    graphs_of_node: int | None = None
    untrained: Untrained | None = None
    edge_features: int = 0
    kinds: Kinds | None = None

    @property
    def relations(self) -> int:
        """Number of kinds of edges, where features of edges are kinds."""
        return (0 if self.kinds is None else self.kinds.edges) or self.edge_features


def _sizes_of_store(path: Path, config: Config, absent: Sequence[int]) -> _Sizes:
    manifest = read_manifest(path)
    require_identity(path, manifest, identity(config))
    of_edges = manifest.weighted, manifest.edge_features
    require_fitting_data(config, manifest.name, manifest.item_name, manifest.classes, *of_edges)
    if config.data.split == "file":
        given_codes(config.data, manifest.name, manifest.items, lambda: None, manifest.item_name)
    values = manifest.feature_values if manifest.layout == "sparse" else None
    split, hops = manifest.splits.get(config.data.split_name), manifest.hops.get(str(config.kernel().folder))
    shards = manifest.clients.files.total + (0 if split is None else split.files.total)
    if hops is None:
        rows = _rows_of_store(Store(path, manifest=manifest), config)
        of_hops = hops_bytes(rows, manifest.features, config.kernel(), manifest.relations)
        exchange = _exchange(config, manifest.nodes, manifest.features, manifest.dtype)
    else:
        of_hops, exchange = hops.total, 0
    disk = _Disk(0, shards, of_hops, exchange)
    if split is not None:
        train = int(split.counts[:, 0].sum())
    else:
        labelled = manifest.items if config.task == "edge" else int(manifest.clients.count("labelled").sum())
        train = _drawn(config, labelled)
    return _Sizes(
        manifest.items, train, manifest.item_name, manifest.nodes, manifest.features, manifest.classes,
        int(manifest.clients.count("entries").sum()), manifest.weighted, manifest.feature_bytes, values,
        disk, None if (copies := manifest.copies.get(config.data.split_name)) is None else copies.most,
        None if split is None else untrained_of(manifest, config.data.split_name, absent), manifest.edge_features,
        Kinds.read(manifest.kinds),
    )  # fmt: skip


def _sizes_of_graph(graph: Graph, config: Config, absent: Sequence[int]) -> _Sizes:
    data = config.data
    require_enough_nodes(config.partition.clients, graph.items, graph.name, graph.item_name)
    if config.partition.method == "file":
        require_own_clients(graph, config.partition, by_file(graph, config.partition.of_parts))
    codes = given_codes(data, graph.name, graph.items, lambda: graph.split, graph.item_name)
    layout = chosen_layout(graph.x, layout_of(config), data.dataset, data.path, data.dtype)
    items, what, classes = graph.items, graph.item_name, graph.classes
    labelled = int((graph.y >= 0).sum())
    # Drawn shares are rounded down, so that there are as many training items at most.
    train_items = int(data.fractions[0] * labelled + 1e-9) if codes is None else int((codes == TRAIN).sum())
    train = _drawn(config, labelled) if codes is None else int(train_items * (1 - data.sparsity.labels))
    untrained: Untrained | None = fewest_untrained(
        config.partition.clients - len(absent), train_items * config.partition.overlap
    )
    most = None
    if graph.copy_of is not None and graph.split is not None and data.split == "public":
        most = int(np.bincount(graph.copy_of[graph.of_nodes(graph.split) == TRAIN]).max(initial=0))
    if config.task == "edge":
        # At most all edges are items, if none joins two clients, and as many pairs without an edge.
        items, what, classes, untrained = graph.entries, "pair", LABELS, None
        train = _drawn(config, items)
    rows = rows_to_keep(graph.indptr, graph.indices, graph.of_nodes(graph.y), config.kernel())
    kinds = Kinds.of(graph.vocabulary, graph.edge_kinds) if graph.edge_features else None
    disk = _Disk(
        scratch_bytes(config.partition.method, graph.nodes, graph.entries),
        shards_bytes(graph, layout, data.dtype, config.task == "edge"),
        hops_bytes(rows, graph.features, config.kernel(), (kinds.edges if kinds else 0) or graph.edge_features),
        _exchange(config, graph.nodes, graph.features, data.dtype),
    )
    return _Sizes(
        items, train, what, graph.nodes, graph.features, classes, graph.entries, graph.edge_weight is not None,
        stored_bytes(graph.x, layout, data.dtype), None if layout == "dense" else entries_of(graph.x),
        disk, most, untrained, graph.edge_features, kinds,
    )  # fmt: skip


def _of_clients(total: _Sizes, config: Config, prepared: bool) -> _Sizes:
    """Counts a node once for each client that holds it, where there may be several; a store counts some so already."""
    holders, options = config.partition.holders, config.partition
    if options.overlap == 1:
        return total
    nodes, x_bytes = int(total.nodes * holders), int(total.x_bytes * holders)
    if prepared:
        return replace(total, nodes=nodes, x_bytes=x_bytes)
    values = None if total.values is None else int(total.values * holders)
    disk = total.disk._replace(shards=int(total.disk.shards * holders), hops=int(total.disk.hops * holders))
    # A client has an edge if it draws both ends.
    entries = int(total.entries * holders * options.drawn)
    train = int(total.train * holders)
    return replace(total, train=train, nodes=nodes, entries=entries, x_bytes=x_bytes, values=values, disk=disk)


def _drawn(config: Config, labelled: int) -> int:
    """Counts the items that train of those with a label, where their parts are drawn and some are masked."""
    return int(config.data.fractions[0] * (1 - config.data.sparsity.labels) * labelled)


def _exchange(config: Config, nodes: int, features: int, dtype: str) -> int:
    """Returns bytes of the scratch files while hops run over edges between clients; 0: they do not."""
    if config.kernel().boundaries is None:
        return 0
    scratch: int = load_crossing().scratch_bytes(nodes, features, dtype, config.propagation)
    return scratch


def _rows_of_store(store: Store, config: Config) -> int:
    """Counts rows of a store that need hops; neighbours of labelled ones are estimated from some clients."""
    manifest, options = store.manifest, config.kernel()
    if options.folder is None:
        return 0
    if (options.rows == "all" and not options.computed) or remote_of(config) is not None:
        return int(manifest.clients.count("nodes").sum())
    shards = [store.shard(client) for client in range(0, store.clients, -(-store.clients // COUNTED_CLIENTS))]
    rows = sum(rows_to_keep(shard.indptr, shard.indices, shard.label, options) for shard in shards)
    return rows * int(manifest.clients.count("nodes").sum()) // max(1, sum(shard.nodes for shard in shards))


class Expected(NamedTuple):
    """The estimate of a run: texts by subject, and its time."""

    rows: dict[str, str]
    time: ExpectedTime


def expected(
    plan: RunPlan, load: float = 0.0, read: Callable[[Config], Graph] = read_graph, known: Measured | None = None
) -> Expected:
    """Estimates a run, by measuring a mean client; writes nothing; refuses what the run would refuse.

    A process of the run takes `load` seconds until it is ready. A graph that is not prepared is taken from `read`.
    Steps that are `known` from estimates of other runs are not measured again.
    """
    config, algorithm, on_ray = plan.config, plan.algorithm, plan.config.engine.backend == "ray"
    train, limit = config.train, config.memory_limit()
    path = store_or_overlay(config)
    prepared = (path / NAME).exists()
    absent = plan.rounds.never_train
    began = time.perf_counter()
    total = _sizes_of_store(path, config, absent) if prepared else _sizes_of_graph(read(config), config, absent)
    reading, hops = time.perf_counter() - began, config.kernel().stored(total.relations)
    untrained = ""
    if algorithm.centralized:
        sizes_of_all = total.nodes, total.features, total.x_bytes, total.entries
        require_whole(*sizes_of_all, config, total.weighted, total.relations)
    elif total.untrained is not None:
        untrained = plan.require_trainable(total.untrained, total.what)
    if not algorithm.centralized:
        total = _of_clients(total, config, prepared)

    clients = 1 if algorithm.centralized else config.partition.clients
    model_of = assign_models(config, clients)
    graphs, pairs = (total.items // clients if total.what == kind else None for kind in ("graph", "pair"))
    train_items = total.train // clients
    infos = [
        ClientInfo(i, total.nodes // clients, train_items, total.classes, model_of[i], graphs, pairs)
        for i in range(clients)
    ]
    features = [feature for feature in SECTIONS if feature.is_on(config)]
    for feature in features:
        if feature.checks_sizes:
            load_place(feature.checks_sizes)(config, [info.nodes for info in infos])
    cohort = Schedule(plan.rounds, clients, config.seed).cohort(1)
    shape: dict[str, Any] = {
        "features": total.features,
        "classes": total.classes,
        "hops": hops,
        "dropout": train.dropout,
        "bfloat16": config.engine.precision == "bfloat16",
        "sparse": total.values is not None,
        "task": config.task,
        "edge_features": total.edge_features,
        "kinds": total.kinds,
    }
    models_of = algorithm, config.models(), config.heterogeneity.embedding
    require_fitting(*models_of, limit, **shape)
    built = built_models(*models_of, **shape)
    starts = [(model.spec, model.flat) for model in built[MODEL]]
    require_fitting_files(starts, read_pretrained(config.models(), limit))
    models = [flat for _, flat in starts]
    sizes = Clients(infos, total.features, len(cohort))
    trainers = trainers_of(config.engine.trainer, plan.device, algorithm, models, train, sizes)
    parameters_of = [len(model.w) for model in models]
    computed = hops if config.kernel().computed else 0
    of_client = ((1 + computed) * total.x_bytes + 4 * total.entries) // clients
    number = host_number(
        config, [this_machine(config)], most_cells(plan.rounds, infos, trainers),
        memory_of_host(max(parameters_of), of_client),
    )  # fmt: skip
    hosts = number.hosts
    cells = [cell.ids for cell in form_cells(cohort, infos, cell_size_of(plan.rounds.cell_size, trainers), hosts)]

    # A part of a client is measured where memory would not hold the client and the models' work on it.
    mean, edges = infos[0], total.entries // clients
    part = min(1.0, limit / SHARE_TO_MEASURE / (4 * (mean.nodes * total.features * (hops + 1) + edges) + 1))
    a_row = None if total.values is None else total.values // total.nodes
    per_edge = edges, total.edge_features, total.relations
    client = MeanClient(mean, total.features, per_edge, config.kernel(), a_row)
    torch.set_num_threads(1)
    epoch, forward = (known or Measured()).seconds(built[MODEL], trainers, client, train, part).T

    every, last = config.evaluation.every, config.evaluation.last
    evaluations: float = config.rounds // every if last == "none" else -(-config.rounds // every)
    if (sample := config.evaluation.clients) != "all":
        whole = int(last == "all")
        evaluations = whole + (evaluations - whole) * (len(cohort) if sample == "cohort" else int(sample)) / clients
    busy = max(1, min(hosts, len(cells)))
    lower = "cell_size" if len(cells) < len(cohort) else "hosts"
    seconds = ExpectedTime(
        start=start_time(hosts if on_ray else 0, load),
        preparing=0.0 if prepared else preparing_time(total.entries, reading),
        training=float(config.rounds * len(cohort) * (train.epochs * epoch + forward)[model_of].mean() / busy),
        evaluation=float(2 * evaluations * forward[model_of].sum() / hosts),
        messages=message_time(config, len(cohort)),
    )
    beside = sum(several[0].info.parameters for name, several in built.items() if name != MODEL)
    parameters = np.array(parameters_of) + beside
    moments = 2 if train.optimizer == "adam" and train.opt_state == "keep" else 0
    # Memory counts in copies of the models: those that clients keep, and those that a round makes before it replaces
    # these.
    personal, mixes = keeps_models(algorithm), "MIX" in type(algorithm).round.__code__.co_names
    of_features, held_of = ([feature.copies(feature.of(config))[place] for feature in features] for place in (0, 1))
    held = mixes or any(held_of)
    states, share = moments + personal + sum(of_features), len(cohort) / clients
    copy = 4 * int(parameters[model_of].sum())
    kept = copy * (states + mixes)
    peak = kept + int(copy * share * (states + (1 + on_ray) * held))
    if on_ray:
        # Results of the clients of a cell are in its host's memory as well as in Ray's.
        peak += int(copy * busy * max(map(len, cells), default=0) / clients * (states + 2 * held))
    # Training nodes alone have at most as much as all nodes.
    scratch, *made, exchange = (step * (1 + config.data.inductive) for step in total.disk)
    disk = sum(made)
    of_edges = describe_edge_features(
        total.edge_features, [spec.name for spec in config.models()], config.kernel().relations
    )
    at_most = " at most" if total.what == "pair" and not prepared else ""
    rows = {
        "store": f"{remote_of(config) or path} ({'ready' if prepared else 'to be prepared'})",
        "dataset": "" if total.what == "node" else f"{total.items:,} {total.what}s{at_most}, {total.nodes:,} nodes",
        "overlap": ""
        if total.graphs_of_node is None
        else f"a node lies in up to {total.graphs_of_node:,} training graphs",
        "edges": ", ".join(filter(None, ("weighted" if total.weighted else "", of_edges))),
        "masked": masks(asdict(config.data.sparsity)),
        "inductive": "training sees training nodes alone; the estimates are for all nodes, or more"
        if config.data.inductive
        else "",
        "run folder": str(plan.place),
        "disk": f"{size(disk)} for the store ({size(made[0])} of shards, {size(made[1])} of hops)"
        + (f", {size(scratch)} or less before it while nodes are divided" if scratch else "")
        + (f", {size(exchange)} beside it while hops run over edges between clients" if exchange else "")
        + f", {size(kept)} a checkpoint, {config.run.keep} kept",
        "hops": _computed_hops(config, mean.nodes, total, limit // 2 // hosts) if config.kernel().computed else "",
        "cohort": f"{len(cohort)} of {clients} clients a round, {config.rounds} rounds",
        "train": untrained and ("" if prepared else "at least ") + untrained,
        **by_subject(describe_done(config, parameters_of, config.rounds)),
        "cells": f"{len(cells)} of at most {max(map(len, cells), default=0)} clients",
        "hosts": number.in_words()
        + ("" if busy == hosts else f", {hosts - busy} without work: lower engine.{lower}")
        + (", if the cluster is as this machine" if config.ray.address and config.engine.hosts == "auto" else ""),
        "model": "; ".join(
            f"{model.name}, {p:,} parameters ({size(4 * p)})" for model, p in zip(config.models(), parameters.tolist())
        ),
        "bytes": f"up to {size(4 * int(parameters.max()) * len(cohort))} each way a round where parameters are sent",
        "memory": f"{size(kept)} of client state in the end, {size(peak)} in a round beside what the method adds, "
        f"{size(disk)} of files mapped once, 0.3 GiB a process",
        "precision": _bfloat16(models, min(mean.train, train.batch_size or mean.train), total.values is not None)
        if shape["bfloat16"] and plan.device == "cpu"
        else "",
        "time": f"{seconds.in_words()}; a mean client takes {_span(epoch)} "
        f"an epoch and {_span(forward)} a forward pass, measured just now on this processor",
    }
    return Expected({name: text for name, text in rows.items() if text}, seconds)


def _bfloat16(models: Sequence[FlatModel], rows: int, sparse: bool) -> str:
    """Says how this processor multiplies in bfloat16 in steps of so many rows, and whether float32 is faster."""
    text = f"bfloat16, this processor has {bfloat16_support()}"
    if sparse:
        return f"{text}; sparse rows are multiplied in float32"
    largest = max(rows * p.numel() for model in models for p in model.module.parameters() if p.dim() == 2)
    if largest < PAYS_FROM:
        text += f"; float32 is faster: a layer has {largest:,} multiplications a step, fewer than {PAYS_FROM:,}"
    return text


def _computed_hops(config: Config, nodes: int, of: _Sizes, cached: int) -> str:
    """Says what a visit computes; refuses, as a host does, a cache that is too small for a client of so many nodes."""
    if of.values is None:
        require_room_for_hops(config.kernel(), nodes, of.features, cached, of.relations)
    most = hops_bytes(nodes, of.features, replace(config.kernel(), rows="all"), of.relations)
    others = "" if config.kernel().keep == "none" else "of unlabelled nodes "
    return f"{others}computed at visits that read them: {size(most)} of a mean client, {size(cached)} of a host's cache"


def _span(seconds: np.ndarray) -> str:
    low, high = f"{1e3 * seconds.min():.1f}", f"{1e3 * seconds.max():.1f}"
    return f"{low} ms" if low == high else f"{low} to {high} ms"
