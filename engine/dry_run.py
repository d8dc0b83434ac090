"""What a run would take, before it starts."""

import time

import numpy as np
import torch
import torch.nn.functional as F
from rich.table import Table

from algorithms.backbones import build
from algorithms.client import ClientInfo
from algorithms.loading import describe, load
from engine.cell import form_cells
from engine.config import Config
from engine.prepare import source, store_path
from engine.report import console, size
from engine.run import participation_of
from engine.run_folder import run_path
from engine.sampling import draw_cohort
from storage import datasets
from storage.hops import hops_bytes
from storage.manifest import NAME, read_manifest


def show_plan(config: Config) -> None:
    """Prints cohort, cells, memory, bytes, disk and time to expect of a config; writes nothing.

    Raises:
        ShoalError: What the run itself would be refused for: method, model, dataset.
    """
    algorithm = load(describe(config.algorithm.name, config.algorithm.options))
    path = store_path(config)
    if prepared := (path / NAME).exists():
        manifest = read_manifest(path)
        nodes, features, classes = manifest.nodes, manifest.features, manifest.classes
        entries = sum(client.entries for client in manifest.clients)
    else:
        graph = datasets.load(source(config))
        nodes, features, classes, entries = graph.nodes, graph.features, graph.classes, graph.entries
    clients = 1 if algorithm.whole else config.partition.clients
    share = config.data.fractions[0]
    infos = [ClientInfo(i, nodes // clients, int(share * nodes / clients), classes) for i in range(clients)]
    cohort = draw_cohort(clients, participation_of(config, algorithm.whole), config.seed, 1)
    cells = form_cells(cohort, infos, config.engine.cell_size)
    model = build(
        config.model.name, features, classes, config.propagation.hops, config.train.dropout, config.model.options
    )
    parameters = sum(p.numel() for p in model.parameters())
    step, forward = _measure(model, features, infos[0].train, infos[0].nodes, config)
    hosts = config.engine.hosts if config.engine.backend == "ray" else 1
    evaluations = -(-config.rounds // config.evaluation.every)
    training = config.rounds * len(cohort) * (config.train.epochs * step + forward) / hosts
    evaluating = 2 * evaluations * clients * forward / hosts
    x_bytes = nodes * features * np.dtype(config.data.dtype).itemsize
    disk = x_bytes + 4 * entries + 16 * nodes + hops_bytes(nodes, features, config.kernel())
    kept = (
        4
        * parameters
        * clients
        * (1 + (2 if config.train.optimizer == "adam" and config.train.opt_state == "keep" else 0))
    )

    table = Table(title=f"dry run of {config.name}", show_header=False)
    for name, text in {
        "store": f"{path} ({'ready' if prepared else 'to be prepared'})",
        "run folder": str(run_path(config)),
        "disk": f"{size(disk)} for the store, {size(2 * kept)} or less a checkpoint, {config.run.keep} kept",
        "cohort": f"{len(cohort)} of {clients} clients a round, {config.rounds} rounds",
        "cells": f"{len(cells)} of at most {max(map(len, cells), default=0)} clients, on {hosts} hosts "
        f"({config.engine.backend})",
        "model": f"{config.model.name}, {parameters:,} parameters ({size(4 * parameters)})",
        "bytes": f"up to {size(4 * parameters * len(cohort))} each way a round where parameters are sent",
        "memory": f"{size(kept)} or less of client state, {size(disk)} of files mapped once, 0.2 GiB a host",
        "time": f"{training + evaluating:.0f} s without the method's own work; a mean client takes {1e3 * step:.1f} ms "
        f"a training step and {1e3 * forward:.1f} ms a forward pass, measured just now",
    }.items():
        table.add_row(name, text)
    console.print(table)


def _measure(model: torch.nn.Module, features: int, train: int, nodes: int, config: Config) -> tuple[float, float]:
    """Seconds of one training step and one forward pass over a mean client, on random numbers."""
    torch.set_num_threads(config.engine.threads)
    hops = [torch.randn(nodes, features) for _ in model.inputs]  # type: ignore[union-attr]
    rows = max(min(train, config.train.batch_size or train), 1)
    batches = max(-(-train // rows), 1)
    target = torch.zeros(rows, dtype=torch.long)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        F.cross_entropy(model([hop[:rows] for hop in hops]).logits_NC, target).backward()
        stepped = time.perf_counter()
        with torch.no_grad():
            model(hops)
        times.append(((stepped - began) * batches, time.perf_counter() - stepped))
    return min(t[0] for t in times), min(t[1] for t in times)
