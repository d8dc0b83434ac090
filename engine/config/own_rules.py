"""The rules of effect of keys of the engine's own sections, but of those about rounds (`round_sections`)."""

from typing import Any

from shoal.algorithms.methods.registry.names import READ_POWERS
from shoal.algorithms.models.names import READ_HOPS, WEIGH_HOPS
from shoal.engine.config.round_sections import RULES as ROUND_RULES
from shoal.engine.sections.rules import OWN, Rule, one_of, reads_hops
from shoal.storage.options.types import is_address, is_own

RELATIONS = "propagation.relations"


def _several_models(config: Any) -> bool:
    return isinstance(config.model, tuple)


def _several_graphs(config: Any) -> bool:
    return isinstance(config.data.dataset, tuple)


def _masks(config: Any) -> bool:
    sparsity = config.data.sparsity
    return bool(sparsity.features or sparsity.edges or sparsity.labels)


def _last_is_another(config: Any) -> bool:
    """Returns whether the end of the last round is not that of `evaluation.last: all`."""
    evaluation = config.evaluation
    return evaluation.clients != "all" or (evaluation.last == "none" and config.rounds % evaluation.every != 0)


OVERLAP = ("partition.overlap",)
SEEDED = one_of(
    "partition.seed", "partition.method",
    "metis", "kaminpar", "semi-external", "louvain", "random", "dirichlet", "features", "homophily", OWN,
)  # fmt: skip
# A key that asks for what there is none of, such as `data.edge_weights: drop` without weights, is not wrong. What
# machines hosts have, and how they are waited for, may stay in a config that is run in one process to try it.
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
    SEEDED._replace(holds=lambda c: SEEDED.holds(c) or c.partition.overlap > 1, by_words=False),
    one_of("partition.resolution partition.balance", "partition.method", "louvain"),
    one_of("partition.imbalance", "partition.method", "metis", "kaminpar", "semi-external", "features", "homophily"),
    one_of("partition.file", "partition.method", "file"),
    one_of("partition.chunks", "partition.method", "index"),
    one_of("partition.alpha", "partition.method", "dirichlet"),
    one_of("partition.skew", "partition.method", "features", "homophily"),
    one_of("partition.zipf", "partition.method", "random", "features", "homophily"),
    Rule(("partition.drawn",), *OVERLAP, "above 1", lambda c: c.partition.overlap > 1),
    # Pairs and small graphs are divided by client, and so are graphs between several ones.
    one_of(*OVERLAP, "task", "node"),
    Rule(OVERLAP, "data.dataset", "as one graph", lambda c: not _several_graphs(c)),
    # Each client lacks a share of its own training labels.
    Rule(OVERLAP, "data.sparsity.labels", "0", lambda c: not c.data.sparsity.labels),
    one_of("partition.options", "partition.method", OWN),
    Rule(
        tuple(f"propagation.{key}" for key in ("r", "dtype", "keep", "max_degree", "relations")),
        "propagation.hops", "above 0", lambda c: c.propagation.hops > 0,
    ),
    Rule(
        ("propagation.r", "propagation.max_degree"), "model", f"that reads hops ({', '.join(READ_HOPS)})", reads_hops
    ),
    Rule(("propagation.r", "propagation.max_degree"), RELATIONS, "false", lambda c: not c.propagation.relations),
    Rule(
        (RELATIONS,), "model", f"{' or '.join(WEIGH_HOPS)}, or {OWN}",
        lambda c: all(model.name in WEIGH_HOPS or is_own(model.name) for model in c.models()),
    ),
    Rule(
        (RELATIONS,), "algorithm.name", f"other than {', '.join(READ_POWERS)}",
        lambda c: c.algorithm.name not in READ_POWERS,
    ),
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
    Rule(
        ("evaluation.last",), "evaluation.clients",
        "cohort or a number, or, for none, where evaluation.every does not divide rounds", _last_is_another,
    ),
    Rule(("evaluation.domains",), "data.dataset", "as a list", _several_graphs),
    Rule(("engine.hosts",), "engine.backend", "ray", lambda c: c.engine.backend == "ray", given=1),
    one_of("ray.address", "engine.backend", "ray"),
    one_of("ray.runtime_env", "engine.backend", "ray"),
)  # fmt: skip
