"""The conditions under which keys have an effect: one table of keys that another key's value leaves without one."""

from collections.abc import Callable, Collection, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from pydantic import BaseModel

from shoal.algorithms.methods.registry.names import AVERAGE_ONE_MODEL, READ_HOPS_THEMSELVES, READ_NO_EDGES
from shoal.algorithms.models.names import READ_HOPS, READ_SUMS
from shoal.engine.config.round_sections import FEDASYNC, TIERS, ParticipationOptions
from shoal.engine.sections.rules import OWN, Rule, one_of
from shoal.engine.sections.sections import list_dead_keys, list_rules
from shoal.storage.errors import ShoalError
from shoal.storage.options.masking import Sparsity
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
PARTICIPATION = [key.replace("ability", "ability.kind") for key in ParticipationOptions.__dataclass_fields__]
RULES = (
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
        (*(f"participation.{key}" for key in PARTICIPATION), "evaluation.clients", "data.newcomers"),
        "algorithm.name",
        "with several clients", lambda c: c.algorithm.name != "global",
    ),
    Rule(("participation.ratio",), "participation.count", "null", lambda c: c.participation.count is None),
    Rule(
        ("participation.draw",), "participation.selection", "random, without trace, availability, devices and dropout",
        lambda c: c.participation.trace is None and not c.participation.simulates,
    ),
    Rule(
        ("participation.at_least",), "participation.trace", "a file, or another availability than always",
        lambda c: c.participation.trace is not None or c.participation.availability.kind != "always",
    ),
    Rule(("participation.availability.kind",), "participation.trace", "null", lambda c: c.participation.trace is None),
    one_of(
        "participation.availability.period participation.availability.share",
        "participation.availability.kind", "periodic", "weibull",
    ),
    one_of("participation.availability.shape", "participation.availability.kind", "weibull"),
    Rule(("participation.devices",), "participation.network", "given", lambda c: c.participation.network is not None),
    Rule(
        ("participation.network", "participation.deadline", "participation.over_selection"),
        "participation.devices", "given, with participation.network", lambda c: c.participation.devices is not None,
    ),
    Rule(
        ("participation.seed",), "participation.devices", "given, or participation.availability periodic or weibull",
        lambda c: c.participation.devices or c.participation.availability.kind in ("periodic", "weibull"),
    ),
    one_of("participation.candidates", "participation.selection", "power_of_choice"),
    one_of("participation.ratio participation.count", "schedule.name", "synchronous", TIERS, OWN),
    Rule(
        (*(f"participation.{key}" for key in PARTICIPATION[2:]), "data.newcomers", "engine.on_client_error"),
        "schedule.name", "synchronous", lambda c: c.schedule.synchronous,
    ),
    Rule(
        ("schedule.name",), "algorithm.name", f"{', '.join(AVERAGE_ONE_MODEL)} or {OWN}",
        lambda c: c.algorithm.name in AVERAGE_ONE_MODEL or is_own(c.algorithm.name) or is_own(c.schedule.name),
    ),
    Rule(("schedule.name",), "data.cross_edges", "drop or hops", lambda c: c.data.cross_edges not in READ_SUMS),
    one_of("schedule.devices schedule.network schedule.seed", "schedule.name", FEDASYNC, "fedbuff", TIERS),
    one_of("schedule.concurrency schedule.staleness schedule.a schedule.b", "schedule.name", FEDASYNC, "fedbuff"),
    one_of("schedule.tiers", "schedule.name", TIERS),
    one_of("schedule.buffer", "schedule.name", "fedbuff"),
    one_of("schedule.mixing", "schedule.name", FEDASYNC),
    one_of("schedule.a", "schedule.staleness", "polynomial", "hinge"),
    one_of("schedule.b", "schedule.staleness", "hinge"),
    one_of("data.newcomers", "data.cross_edges", "drop"),
    Rule(
        ("evaluation.last",), "evaluation.clients",
        "cohort or a number, or, for none, where evaluation.every does not divide rounds", _last_is_another,
    ),
    Rule(("evaluation.newcomer_epochs",), "data.newcomers", "above 0", lambda c: c.data.newcomers > 0),
    Rule(("evaluation.domains",), "data.dataset", "as a list", _several_graphs),
    Rule(("engine.hosts",), "engine.backend", "ray", lambda c: c.engine.backend == "ray", given=1),
    one_of("ray.address", "engine.backend", "ray"),
    one_of("ray.runtime_env", "engine.backend", "ray"),
    *list_rules(),
)  # fmt: skip


class Overrides(NamedTuple):
    """The dotted keys that were laid over a config, and which of them excuse others that have no effect with them.

    Attributes:
        keys: All that were laid over it, none of which is excused.
        excusing: They excuse every key that the config had.
        words: They excuse keys of their own section, for which they stand.
        varied: They vary within a sweep, and excuse every key.
    """

    keys: frozenset[str] = frozenset()
    excusing: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    varied: frozenset[str] = frozenset()

    def excuse(self, rule: Rule, key: str) -> bool:
        """Returns whether an override of another key, or some rows of a sweep, left idle what the file says."""
        if _is_among(rule.other, self.varied):
            return True
        inside = rule.other in self.words and key.startswith(f"{rule.other.rpartition('.')[0]}.")
        return (inside or _is_among(rule.other, self.excusing)) and not _is_among(key, self.keys)


NO_OVERRIDES = Overrides()


def require_effects(
    config: BaseModel,
    usual: BaseModel,
    where: str,
    among: Collection[str] | None = None,
    overrides: Overrides = NO_OVERRIDES,
) -> dict[str, str]:
    """Refuses a key that is set and has no effect; names it, and the key on which that depends.

    Args:
        usual: A config whose keys have their defaults, which are never refused.
        among: The keys, or sections of such, that were changed, and may have left others without effect; None: all.
        overrides: What excuses keys: these are given instead, with why they have no effect.
    """
    for key in list_dead_keys():
        if attrgetter(key)(config) != (default := attrgetter(key)(usual)):
            reason = f"no feature of this Shoal reads it; leave it at its default, {_show(default)}"
            raise ShoalError(where, key, reason)
    idle = [(rule, key) for rule, key in _of(among) if not rule.holds(config)]
    wrong = [(r, key) for r, key in idle if attrgetter(key)(config) not in (attrgetter(key)(usual), r.given)]
    excused = {
        key: f"is for {rule.other} {rule.values}, found {_show(attrgetter(rule.other)(config))}"
        for rule, key in wrong
        if overrides.excuse(rule, key)
    }
    wrong = [(rule, key) for rule, key in wrong if key not in excused]
    for rule, key in wrong[:1]:
        present, default = attrgetter(rule.other)(config), attrgetter(key)(usual)
        too = [name for other, name in wrong[1:] if other.other == rule.other]
        raise ShoalError(
            where,
            key,
            f"is for {rule.other} {rule.values}, found {_show(present)}; change that, or leave it at its default, "
            f"{_show(default)}" + (f", and so {', '.join(too)}" if too else ""),
        )
    return excused


def without_effect(keys: Mapping[str, str]) -> set[str]:
    """Lists, of a config's keys, options of a section that the word of its kind or name leaves without effect."""
    words = [(rule, keys.get(rule.other, ""), rule.values.split(", ")) for rule in RULES if rule.by_words]
    # A list is skipped, as its entries may have several words.
    idle = [
        rule
        for rule, word, values in words
        if word and word[0] not in "[{" and word.lower() not in values and not (OWN in values and is_own(word))
    ]
    options = {key for rule in idle for key in rule.keys if key.rpartition(".")[0] == rule.other.rpartition(".")[0]}
    return options & keys.keys()


def _of(among: Collection[str] | None) -> Iterator[tuple[Rule, str]]:
    for rule in RULES:
        for key in rule.keys:
            if among is None or _is_among(key, among) or _is_among(rule.other, among):
                yield rule, key


def _is_among(key: str, names: Collection[str]) -> bool:
    """Returns whether a key, or a section that it is in, is among some names."""
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def _show(value: Any) -> str:
    """Formats a value as a config has it, for a message."""
    if value is None:
        return "null"
    if isinstance(value, Sparsity):
        return "0 in all"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_show, value))}]"
    return str(getattr(value, "name", value))
