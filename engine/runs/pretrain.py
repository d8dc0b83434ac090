"""Pre-trains a GNN on graphs without labels, all on one device, for `model.pretrained`."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ValidationError

from shoal.algorithms.graphs.graph_augmentation import SmallGraphs, cut_up
from shoal.algorithms.models.build import READOUT, backbone, build
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.readout import Readout
from shoal.algorithms.models.names import BACKBONES, NEED_EDGES, ModelSpec
from shoal.algorithms.rng import key
from shoal.algorithms.training.graph_contrast import ContrastOptions, GraphContrast
from shoal.engine.config.config import Config, device_choice, require_one_thread
from shoal.engine.hosts.device import cache_bytes, take_device
from shoal.engine.messages.pretrained import write_pretrained
from shoal.engine.preparing.prepare import prepare
from shoal.engine.screen.progress import progress, say
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write, output
from shoal.storage.graph.graph import Graph
from shoal.storage.options.types import message_of, quoted
from shoal.storage.shards.view import Cache, View
from shoal.storage.store.manifest import Manifest
from shoal.storage.store.store import TRAINING

Graphs = Literal["train", "all"]


def options_of(values: Mapping[str, Any]) -> ContrastOptions:
    """Makes options from the command line. Raises ShoalError: one is out of its bounds, by name."""
    try:
        return ContrastOptions(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise ShoalError(f"--{name}", f"{message_of(error)}, found {quoted(first['input'])}") from None


def pretrain(config: Config, out: Path, options: ContrastOptions, parts: int, graphs: Graphs) -> Path:
    """Pre-trains the config's GNN on the config's graphs and writes its parameters, without those of the classifier.

    Reads the config's `data`, `partition`, `model`, `task`, `seed`, and where `engine` says to compute. The file is
    replaced when all epochs are done. A single graph is cut into `parts`; of many, `graphs` are those of training
    items, or all. Raises ShoalError: the model passes no messages, there are too few graphs, bad input, or the file
    cannot be written.
    """
    spec = _model(config)
    _require_place(out)
    if parts < 2:
        raise ShoalError("--parts", f"must be at least 2, found {parts}")
    require_one_thread(config)
    torch.set_num_threads(1)
    share = config.resources.gpus_per_host or 1.0
    device = take_device(device_choice(config), share, config.engine.precision)
    data, manifest = _data(config, Cache(cache_bytes(device, share, config.memory_limit() // 2)), device)
    small, seen = _graphs(data, manifest, parts, graphs, config.seed)
    say(f"pretrain: {spec.name} on {seen}, in this process, whatever client has them; no label is read")
    module: Any = build(spec.name, data.features, data.classes, 0, 0.0, spec.options, task=config.task)
    while hasattr(module, "backbone"):
        module = module.backbone
    model = Readout(module, spec.options.get(READOUT, "mean"), 0.0)
    random = partial(key, config.seed, "pretrain")
    training = GraphContrast(model, data, small, options, random)
    losses = []
    with progress("pretrain", options.epochs * training.steps, "steps") as step:
        for epoch in range(1, options.epochs + 1):
            of_epoch = []
            for loss in training.epoch(epoch):
                of_epoch.append(loss)
                step.advance()
            losses.append(mean(of_epoch))
    say(f"pretrain: mean loss {losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in the last")
    described = {
        "method": "graphcl",
        "centralised": f"trained in one place on {seen}, without labels",
        "dataset": manifest.name,
        "synthetic": manifest.synthetic,
        "backbone": spec.name,
        "options": spec.options,
        "features": data.features,
        "seed": config.seed,
        **asdict(options),
    }
    write_pretrained(out, module, described)
    return out


def _model(config: Config) -> ModelSpec:
    """Returns the only model of a config. Raises ShoalError: it cannot be pre-trained."""
    several = config.models()
    if len(several) > 1:
        raise ShoalError(
            "model", f"a file is for one model, found a list of {len(several)}; give them one after another"
        )
    name = several[0].name
    if name in NEED_EDGES:
        raise ShoalError("model.name", f"{name} reads features of edges, and those of views have none; take gin")
    if not issubclass(backbone(name, task=config.task), Coupled):
        coupled = ", ".join(gnn for gnn in sorted(BACKBONES) if issubclass(backbone(gnn), Coupled))
        raise ShoalError("model.name", f"{name} trains no layer that passes messages; take one of {coupled}")
    return several[0]


def _require_place(out: Path) -> None:
    """Refuses, before the training, a path that nothing could be written to after it."""
    try:
        if out.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        target = output(out)
        target.parent.mkdir(parents=True, exist_ok=True)
        probe = target.with_name(target.name + ".unfinished")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(out, error) from error


def _data(config: Config, cache: Cache, device: torch.device) -> tuple[View, Manifest]:
    """Opens the whole dataset as that of one client, with the clients' split, and its manifest."""
    plain = {
        # `model.pretrained` may name the file that is to be made, so that the model is a plain one. Neither hops nor
        # whole domains are needed.
        "model": ModelSpec(),
        "propagation": replace(config.propagation, hops=0),
        "evaluation": replace(config.evaluation, domains=False),
    }
    store = prepare(config.model_copy(update=plain), centralized=True)
    if store.manifest.weighted:
        raise ShoalError(
            "data.dataset",
            f"the edges of '{store.manifest.name}' have weights, which views of altered edges leave out; "
            "set data.edge_weights to drop",
        )
    if config.data.inductive:
        store = store.training(config.data.split_name)
    shard, split, _ = store.data(config.data.split_name, None, 0)
    return View("pretrain", shard, split, [], store.manifest.classes, cache, device), store.manifest


def _graphs(data: View, manifest: Manifest, parts: int, graphs: Graphs, seed: int) -> tuple[SmallGraphs, str]:
    """Returns the graphs to learn from, and a text that names them."""
    indptr, indices = data.csr
    if data.graph_ptr is not None:
        every = SmallGraphs(data.graph_ptr.cpu().numpy(), indptr, indices, np.arange(data.nodes))
        if graphs == "all":
            return every, f"all {len(every):,} graphs"
        return every.some(data.train.cpu().numpy()), f"the {len(data.train):,} training graphs"
    parts = min(parts, data.nodes)
    unlabelled = np.full(data.nodes, -1)
    graph = Graph(manifest.name, indptr.astype(np.int64), indices, np.empty((data.nodes, 0)), unlabelled, data.classes)
    chosen = PartitionOptions(method="metis", clients=parts, seed=key(seed, "parts") % 2**31)
    nodes = f"the {data.nodes:,} training nodes" if TRAINING in manifest.identity else f"all {data.nodes:,} nodes"
    return cut_up(indptr, indices, partition(graph, chosen)), f"{nodes} in {parts} parts"
