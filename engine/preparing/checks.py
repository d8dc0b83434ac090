"""Checks of a config against its data, before a store is made."""

import warnings
from pathlib import Path

from shoal.algorithms.base import WEIGHTED
from shoal.algorithms.method_errors import code_of
from shoal.algorithms.methods.registry.load import describe, load, weighing_methods
from shoal.algorithms.models.build import backbone, needs_edges
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.names import OF_KINDS, READ_EDGES
from shoal.engine.config.config import Config
from shoal.engine.config.sections import RANKINGS
from shoal.engine.config.sizes import size
from shoal.engine.records.graphs import sources
from shoal.engine.screen.progress import say
from shoal.engine.sections.section import load as load_place
from shoal.engine.sections.sections import SECTIONS
from shoal.partition.partitioning import require_divides_graphs, require_enough_nodes
from shoal.storage.datasets.registry import (
    LargeGraph,
    classes_ahead,
    items_ahead,
    labels_ahead,
    load_all,
    load_outlines,
    options_of,
    require_target,
)
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError, Unread
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.layout import require_possible
from shoal.storage.options.dataset_names import has_user_options
from shoal.storage.options.masking import Sparsity
from shoal.storage.options.split import read_split_file
from shoal.storage.options.types import is_own
from shoal.storage.shards.hops import hops_bytes
from shoal.storage.store.manifest import Manifest


def read_graph(config: Config, outlines: LargeGraph | None = None) -> Graph:
    """Reads the graph of a config, or joins its graphs. Raises as `load_all` and `require_fitting_data`.

    With `outlines`, which several configs share, it is one to count with, see `load_outlines`.
    """
    of_config = sources(config)
    with warnings.catch_warnings(record=True) as caught:
        graph = load_all(of_config) if outlines is None else load_outlines(of_config, outlines)
    for warning in caught:
        if issubclass(warning.category, Unread):
            say(str(warning.message))
        else:
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
    require_fitting_graph(config, graph)
    return graph


def require_fitting_graph(config: Config, graph: Graph) -> None:
    """Refuses a graph that was read if it does not suit a config; raises as `require_fitting_data`."""
    of_edges = graph.edge_weight is not None, graph.edge_features
    require_fitting_data(config, graph.name, graph.item_name, graph.classes, *of_edges)


def require_fitting_data(
    config: Config, dataset: str, labels: str, classes: int, weighted: bool, edge_features: int
) -> None:
    """Refuses a task, a metric, or a model or method that edges do not suit, if a dataset is not for it; names the key.

    `labels` says what has labels in it: `node` or `graph`, or `pair` in a store of an edge task.
    """
    require_task(config, dataset, labels)
    require_metric(config, dataset, classes)
    require_weights_used(config, dataset, weighted)
    require_features_of_edges(config, dataset, edge_features)
    require_relations(config, dataset, weighted, edge_features)
    for feature in SECTIONS:
        if feature.checks_data and feature.is_on(config):
            load_place(feature.checks_data)(config, dataset, classes)


def require_task(config: Config, dataset: str, labels: str) -> None:
    """Refuses to predict labels of nodes, or edges, if labels of graphs are given, and the reverse."""
    if (config.task == "graph") != (labels == "graph"):
        raise ShoalError(
            "task", f"{config.task}, but labels of dataset '{dataset}' are those of {labels}s; set {labels}"
        )


def require_metric(config: Config, dataset: str, classes: int) -> None:
    """Refuses a metric of two classes if there is another number of them."""
    for feature in SECTIONS:
        for metric in feature.measures if not feature.is_on(config) else ():
            if metric.name in config.evaluation.metrics:
                raise ShoalError(
                    "evaluation.metrics",
                    f"{metric.name} is for another {feature.name}; set accuracy, or {feature.name}",
                )
    for name in RANKINGS.keys() & set(config.evaluation.metrics):
        # An edge task has two classes, an edge or none, whatever those of the nodes are.
        if classes < 2 and config.task != "edge":
            reason = f"{name} is for two classes or more, and dataset '{dataset}' has {classes}; set accuracy"
            raise ShoalError("evaluation.metrics", reason)


def require_known(config: Config) -> None:
    """Refuses what can be known to be wrong before the graph is made; names the key.

    That is more clients than nodes, a wrong file or option, and task, partition, split, features, masks and a metric
    that do not go together.
    """
    require_possible(config.data.layout, config.data.dataset, config.data.path)
    _require_options_read(config)
    if config.task == "graph":
        require_divides_graphs(config.partition.method)
    if is_own(config.partition.method):
        from shoal.partition.methods.user_partitioner import user_partitioner

        user_partitioner(config.partition)
    if config.task == "edge" and config.data.split != "stratified":
        raise ShoalError("data.split", f"{config.data.split} divides nodes; with task edge take stratified")
    if config.task == "edge" and config.data.sparsity != Sparsity(seed=config.data.sparsity.seed):
        raise ShoalError("data.sparsity", "masks what nodes and graphs have; with task edge leave all its shares at 0")
    hidden = config.task == "edge" or config.data.inductive or config.data.sparsity.edges > 0
    if hidden and config.data.features.from_edges:
        raise ShoalError(
            "data.features",
            f"{config.data.features.kind} would reveal edges that clients do not see (task edge, "
            "data.inductive, data.sparsity.edges); take one-hot or random",
        )
    for key, value, other in (
        ("rows", config.propagation.rows, "all"),
        ("keep", config.propagation.keep, "all or none"),
    ):
        if config.task != "node" and value == "labelled":
            raise ShoalError(
                f"propagation.{key}", f"{value} is for labels of nodes; with task {config.task} set {other}"
            )
    what = "graph" if config.task == "graph" else "node"
    numbers = config.partition.domains or (config.partition.clients,)
    for source, clients in zip(sources(config), numbers):
        if (labels := labels_ahead(source)) is not None:
            require_task(config, source.dataset, labels)
        require_target(source)
        classes = classes_ahead(source)
        # The classes of several graphs are joined, so that two of one graph may not be all.
        if classes is not None and (classes > 2 or isinstance(config.data.dataset, str)):
            require_metric(config, source.dataset, classes)
        items = items_ahead(source)
        if items is not None:
            require_enough_nodes(clients, items, source.dataset, what)
    if config.data.split == "file":
        read_split_file(config.data.split_file)
    train, _, test = config.data.fractions
    if not (train and test):
        raise ShoalError("data.fractions", f"{train:g} for training and {test:g} for test; give both a share above 0")


def _require_options_read(config: Config) -> None:
    """Refuses keys of `data.options` that none of the datasets reads, unless they have their defaults."""
    every = sources(config)
    ours = [source for source in every if not has_user_options(source.dataset)]
    read = list(dict.fromkeys(key for source in ours for key in options_of(source)))
    usual = DataSource(every[0].dataset)
    for key in config.data.options if not any(has_user_options(source.dataset) for source in every) else ():
        if key not in read and getattr(every[0], key) != getattr(usual, key):
            names = ", ".join(source.key for source in every)
            has = f"its options are {', '.join(read)}" if read else "which has no options"
            raise ShoalError(
                f"data.options.{key}",
                f"has no effect with data.dataset {names}, {has}; leave it at its default, {getattr(usual, key)}",
            )


def require_whole(
    nodes: int,
    features: int,
    feature_bytes: int,
    entries: int,
    config: Config,
    weighted: bool = False,
    relations: int = 0,
) -> None:
    """Refuses to hold a whole graph that is larger than `engine.memory_limit`.

    It has so many nodes and directed entries, and F features that take `feature_bytes` as they are stored.
    """
    of_hops = hops_bytes(nodes, features, config.propagation, relations)
    needed = feature_bytes + of_hops + (8 if weighted else 4) * entries
    limit = config.memory_limit()
    if needed > limit:
        raise ShoalError(
            f"algorithm.name {config.algorithm.name}: the whole graph takes {size(needed)}, "
            f"engine.memory_limit is {size(limit)}; raise the limit or take a method that trains clients"
        )


# Errors of `require_weights_used` end with this way out.
WAY_OUT = "or set data.edge_weights to drop"


def require_weights_used(config: Config, dataset: str, weighted: bool) -> None:
    """Refuses a task, a method or a model that reads edges without the weights that those of a dataset have."""
    if not weighted:
        return
    has = f"the edges of dataset '{dataset}' have weights"
    if config.task == "graph":
        raise ShoalError("task", f"{has}, which graph tasks leave out; set data.edge_weights to drop")
    name = config.algorithm.name
    algorithm = load(describe(name, config.algorithm.options))
    if WEIGHTED not in algorithm.supports:
        others = ", ".join(weighing_methods(config.task))
        raise ShoalError("algorithm.name", f"{has}, which {name} leaves out; take another method ({others}), {WAY_OUT}")
    if config.data.features.from_edges:
        raise ShoalError(
            "data.features", f"{has}, which {config.data.features.kind} leaves out; take other features, {WAY_OUT}"
        )
    for spec in config.models():
        if not _weighs_edges(spec.name, config.task):
            raise ShoalError(
                "model.name",
                f"{has}, which {spec.name} leaves out; take gcn, gcnii or a model that reads hops, {WAY_OUT}",
            )
        if spec.options.get("fanouts") is not None:
            raise ShoalError("model.fanouts", f"{has}, by which no neighbours are drawn; leave it out, {WAY_OUT}")
    with code_of(algorithm, "models"):
        described = [str(model["name"]) for model in algorithm.models().values() if model is not None]
    for model in described:
        if not _weighs_edges(model, config.task):
            raise ShoalError(
                "algorithm", f"{has}, which {model}, a model of {name}, leaves out; take another, {WAY_OUT}"
            )


def require_features_of_edges(config: Config, dataset: str, edge_features: int) -> None:
    """Refuses models that read features of edges, of which there are none, or methods that would change their edges."""
    name = config.algorithm.name
    algorithm = load(describe(name, config.algorithm.options))
    with code_of(algorithm, "models"):
        described = [str(model["name"]) for model in algorithm.models().values() if model and "name" in model]
    every = (*(spec.name for spec in config.models()), *described)
    readers = [model for model in every if needs_edges(model, backbone(model, True, config.task))]
    if readers and not edge_features:
        if config.data.edge_features == "drop":
            raise ShoalError(
                "data.edge_features", f"drop, and {readers[0]} reads them; leave it out, or take gin or gcn"
            )
        raise ShoalError(
            "model.name",
            f"{readers[0]} reads features of edges, and those of dataset '{dataset}' have none; take gin, gcn or "
            "another model",
        )
    readers += [spec.name for spec in config.models() if spec.name in READ_EDGES and edge_features]
    readers += ["propagation.relations"] if config.kernel().relations else []
    if not readers:
        return
    if WEIGHTED not in algorithm.supports:
        others = ", ".join(weighing_methods(config.task))
        raise ShoalError(
            "algorithm.name",
            f"{readers[0]} reads features of edges, which those that {name} makes have not; take another method "
            f"({others}), or set data.edge_features to drop",
        )


def require_relations(config: Config, dataset: str, weighted: bool, edge_features: int) -> None:
    """Refuses hops a relation of a graph whose edges have no kinds, or have weights, which such hops leave out."""
    if not config.kernel().relations:
        return
    key = "propagation.relations"
    if not edge_features:
        raise ShoalError(key, f"edges of dataset '{dataset}' have no kinds, which hops would be of; set false")
    if weighted:
        raise ShoalError(
            key, f"hops a relation leave out weights of edges, which '{dataset}' has; set false, {WAY_OUT}"
        )


def require_kinds_kept(config: Config, path: Path, manifest: Manifest) -> None:
    """Refuses models of kinds on a store that was made before kinds of nodes were kept."""
    readers = [spec.name for spec in config.models() if spec.name in OF_KINDS]
    if readers and manifest.edge_features and manifest.kinds is None:
        raise ShoalError(
            path,
            f"was made by an older Shoal, which did not keep the kinds of nodes that {readers[0]} reads; delete it, or "
            "set data.store to another folder",
        )


def _weighs_edges(model: str, task: str) -> bool:
    """Returns whether a model weighs messages; models that pass none read hops, which were weighed, or no edges."""
    cls = backbone(model, True, task)
    return not issubclass(cls, Coupled) or cls.weighs_edges
