"""The rules of effect of keys of the engine's own sections, but of those about rounds (`round_sections`)."""

from collections.abc import Callable
from typing import Any

from shoal.algorithms.methods.registry.names import READ_HOPS_THEMSELVES, READ_NO_EDGES
from shoal.algorithms.models.names import READ_HOPS, READ_SUMS
from shoal.engine.config.round_sections import RULES as ROUND_RULES
from shoal.engine.sections.rules import OWN, Rule, one_of
from shoal.storage.options.types import is_address, is_own


def _several_models(config: Any) -> bool:
    return isinstance(config.model, tuple)


def _several_graphs(config: Any) -> bool:
    return isinstance(config.data.dataset, tuple)


def _masks(config: Any) -> bool:
    sparsity = config.data.sparsity
    return bool(sparsity.features or sparsity.edges or sparsity.labels)


def _reads_hops(config: Any) -> bool:
    method = config.algorithm.name
    return (
        any(model.name in READ_HOPS or is_own(model.name) for model in config.models())
        or method in READ_HOPS_THEMSELVES
        or is_own(method)
    )


def _in_layers(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Makes a condition of edges between clients that layers read."""
    return lambda config: config.data.cross_edges not in READ_SUMS or holds(config)


def _reads_sums(config: Any) -> bool:
    names = {model.name for model in config.models()}
    return len(names) == 1 and names <= set(READ_SUMS[config.data.cross_edges])


def _last_is_another(config: Any) -> bool:
    """Returns whether the end of the last round is not that of `evaluation.last: all`."""
    evaluation = config.evaluation
    return evaluation.clients != "all" or (evaluation.last == "none" and config.rounds % evaluation.every != 0)


# A key that asks for what there is none of, such as `data.edge_weights: drop` without weights, is not wrong. What
# machines hosts have, and how they are waited for, may stay in a config that is run in one process to try it.
CROSS = ("data.cross_edges",)
OWN_RULES = (
    one_of("data.path", "data.dataset", "files"),
    Rule(("data.name",), "data.dataset", "files, one graph", lambda c: str(c.data.dataset).lower() == "files"),
    Rule(("data.overlay",), "data.store", "in a folder", lambda c: not is_address(c.data.store)),
    Rule(("data.cache", "data.cache_limit"), "data.store", "at an address", lambda c: is_address(c.data.store)),
    one_of("data.split_seed data.fractions", "data.split", "stratified", "per_client"),
    one_of("data.split_file", "data.split", "file"),
    one_of("data.features.width", "data.features.kind", "degree", "random", "spectral"),
    one_of("data.features.seed", "data.features.kind", "random"),
    Rule(("data.sparsity.seed",), "data.sparsity", "with a share above 0", _masks),
    one_of("data.inductive", "task", "node"),
    one_of(
        "partition.seed", "partition.method",
        "metis", "kaminpar", "semi-external", "louvain", "random", "dirichlet", OWN,
    ),
    one_of("partition.resolution partition.balance", "partition.method", "louvain"),
    one_of("partition.imbalance", "partition.method", "metis", "kaminpar", "semi-external"),
    one_of("partition.file", "partition.method", "file"),
    one_of("partition.chunks", "partition.method", "index"),
    one_of("partition.alpha", "partition.method", "dirichlet"),
    one_of("partition.options", "partition.method", OWN),
    Rule(
        ("propagation.r", "propagation.dtype", "propagation.keep", "propagation.max_degree"),
        "propagation.hops", "above 0", lambda c: c.propagation.hops > 0,
    ),
    Rule(
        ("propagation.r", "propagation.max_degree"), "model", f"that reads hops ({', '.join(READ_HOPS)})", _reads_hops
    ),
    one_of(
        "data.cross_share data.cross_seed data.cross_min_neighbours", "data.cross_edges", "hops", "one_hop", "two_hop"
    ),
    # With two hops a client learns sums of single neighbours.
    one_of("data.cross_hidden", "data.cross_edges", "hops", "one_hop"),
    Rule(CROSS, "propagation.hops", "above 0", lambda c: c.data.cross_edges != "hops" or c.propagation.hops > 0),
    one_of(*CROSS, "propagation.keep", "all"),
    Rule(CROSS, "propagation.max_degree", "null", lambda c: c.propagation.max_degree is None),
    Rule(
        CROSS, "model", f"that reads hops ({', '.join(READ_HOPS)})",
        lambda c: c.data.cross_edges != "hops" or _reads_hops(c),
    ),
    Rule(CROSS, "model", "gcn, or sage with one_hop", _in_layers(_reads_sums)),
    Rule(
        CROSS, "model", "without fanouts",
        _in_layers(lambda c: not any(model.options.get("fanouts") for model in c.models())),
    ),
    Rule(CROSS, "algorithm.name", ", ".join(READ_NO_EDGES), _in_layers(lambda c: c.algorithm.name in READ_NO_EDGES)),
    Rule(CROSS, "propagation.rows", "all", _in_layers(lambda c: c.propagation.rows == "all")),
    Rule(CROSS, "algorithm.name", "with several clients", lambda c: c.algorithm.name != "global"),
    Rule(CROSS, "data.dataset", "as one graph", lambda c: not _several_graphs(c)),
    Rule(CROSS, "data.inductive", "false", lambda c: not c.data.inductive),
    Rule(CROSS, "data.sparsity", "that keeps edges", lambda c: not c.data.sparsity.edges),
    one_of(*CROSS, "task", "node"),
    Rule(("heterogeneity.rule", "heterogeneity.seed", "heterogeneity.clients"), "model", "as a list", _several_models),
    one_of("heterogeneity.seed", "heterogeneity.rule", "random"),
    one_of("heterogeneity.clients", "heterogeneity.rule", "explicit"),
    one_of("train.momentum", "train.optimizer", "sgd"),
    Rule(
        ("evaluation.clients",), "algorithm.name", "with several clients",
        lambda c: c.algorithm.name != "global",
    ),
    *ROUND_RULES,
    Rule(("engine.on_client_error",), "schedule.name", "synchronous", lambda c: c.schedule.synchronous),
    Rule(("schedule.name",), "data.cross_edges", "drop or hops", lambda c: c.data.cross_edges not in READ_SUMS),
    Rule(
        ("evaluation.last",), "evaluation.clients",
        "cohort or a number, or, for none, where evaluation.every does not divide rounds", _last_is_another,
    ),
    Rule(("evaluation.domains",), "data.dataset", "as a list", _several_graphs),
    Rule(("engine.hosts",), "engine.backend", "ray", lambda c: c.engine.backend == "ray", given=1),
    one_of("ray.address", "engine.backend", "ray"),
    one_of("ray.runtime_env", "engine.backend", "ray"),
)  # fmt: skip
