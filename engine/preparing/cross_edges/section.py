"""The keys of `data` about edges between clients."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from shoal.algorithms.methods.registry.names import GENERATES_NEIGHBOURS, READ_NO_EDGES
from shoal.algorithms.models.names import READ_HOPS, READ_SUMS
from shoal.engine.sections.rules import Rule, one_of, reads_hops
from shoal.engine.sections.section import Section
from shoal.storage.options.propagation import CrossEdges, PropagationOptions, over_cross_edges
from shoal.storage.options.types import CLOSED, Flag, Number, Positive, Seed


def _cross_edges(value: Any) -> Any:
    """Refuses what is a method and no way of reading a store."""
    if value == "generate":
        raise ValueError(f"generated neighbours are a method; take algorithm {GENERATES_NEIGHBOURS}, and drop here")
    return value


def _cross_share(value: Any) -> Any:
    """Refuses a share of no edges, which is another choice."""
    if value == 0:
        raise ValueError("a share of 0 keeps no edge; take data.cross_edges: drop")
    return value


@dataclass(frozen=True, config=CLOSED)
class CrossEdgesOptions:
    """The edges between clients.

    Attributes:
        cross_edges: Edges between clients: `drop`, or `hops`: hops run over them, by one exchange of sums a hop before
            training. With `one_hop` the first layer of a GCN or GraphSAGE reads such sums, with `two_hop` the first two
            of a GCN. Other layers, and what a method computes itself, see a client's own edges alone.
        cross_share: Share of the edges between clients that hops run over.
        cross_seed: Of what that share is.
        cross_min_neighbours: Fewest neighbours at one client for whose sum it sends; fewer count as cut.
        cross_hidden: A client reads the sum over its neighbours at all other clients alone, as secure aggregation would
            give it. `cross_min_neighbours` counts these.
    """

    cross_edges: Annotated[Literal["drop", "hops", "one_hop", "two_hop"], BeforeValidator(_cross_edges)] = "drop"
    cross_share: Annotated[Number, Field(gt=0, le=1), BeforeValidator(_cross_share)] = 1.0
    cross_seed: Seed = 0
    cross_min_neighbours: Positive = 1
    cross_hidden: Flag = False


def _in_layers(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Makes a condition of edges between clients that layers read."""
    return lambda config: config.data.cross_edges not in READ_SUMS or holds(config)


def _reads_sums(config: Any) -> bool:
    names = {model.name for model in config.models()}
    return len(names) == 1 and names <= set(READ_SUMS[config.data.cross_edges])


def _kernel(config: Any) -> PropagationOptions:
    data = config.data
    edges = CrossEdges(data.cross_share, data.cross_seed, data.cross_min_neighbours, data.cross_hidden)
    if data.cross_edges == "hops":
        return over_cross_edges(config.propagation, edges.name)
    means = config.models()[0].name == "sage"
    form = "two_hop" if data.cross_edges == "two_hop" else "mean" if means else "gcn"
    hop = PropagationOptions(1, 0.0 if means else 0.5, config.propagation.dtype)
    return over_cross_edges(hop, f"{edges.name}-{form}")


CROSS = ("data.cross_edges",)
CROSS_EDGES = Section[CrossEdgesOptions](
    "data",
    None,
    switch="cross_edges",
    off="drop",
    adds={"data": CrossEdgesOptions},
    called="cross_edges",
    rules=(
        one_of(
            "data.cross_share data.cross_seed data.cross_min_neighbours", "data.cross_edges",
            "hops", "one_hop", "two_hop",
        ),
        # With two hops a client learns sums of single neighbours.
        one_of("data.cross_hidden", "data.cross_edges", "hops", "one_hop"),
        Rule(CROSS, "propagation.hops", "above 0", lambda c: c.data.cross_edges != "hops" or c.propagation.hops > 0),
        one_of(*CROSS, "propagation.keep", "all"),
        Rule(CROSS, "propagation.relations", "false", lambda c: not c.propagation.relations),
        Rule(CROSS, "propagation.max_degree", "null", lambda c: c.propagation.max_degree is None),
        Rule(
            CROSS, "model", f"that reads hops ({', '.join(READ_HOPS)})",
            lambda c: c.data.cross_edges != "hops" or reads_hops(c),
        ),
        Rule(CROSS, "model", "gcn, or sage with one_hop", _in_layers(_reads_sums)),
        Rule(
            CROSS, "model", "without fanouts",
            _in_layers(lambda c: not any(model.options.get("fanouts") for model in c.models())),
        ),
        Rule(
            CROSS, "algorithm.name", ", ".join(READ_NO_EDGES),
            _in_layers(lambda c: c.algorithm.name in READ_NO_EDGES),
        ),
        Rule(CROSS, "propagation.rows", "all", _in_layers(lambda c: c.propagation.rows == "all")),
        Rule(CROSS, "algorithm.name", "with several clients", lambda c: c.algorithm.name != "global"),
        Rule(CROSS, "data.dataset", "as one graph", lambda c: not isinstance(c.data.dataset, tuple)),
        Rule(CROSS, "partition.overlap", "1", lambda c: c.partition.overlap == 1),
        Rule(CROSS, "data.inductive", "false", lambda c: not c.data.inductive),
        Rule(CROSS, "data.sparsity", "that keeps edges", lambda c: not c.data.sparsity.edges),
        one_of(*CROSS, "task", "node"),
        Rule(("schedule.name",), "data.cross_edges", "drop or hops", lambda c: c.data.cross_edges not in READ_SUMS),
    ),
    kernel=_kernel,
    crossing="shoal.engine.preparing.cross_edges.steps",
    says="shoal.engine.preparing.cross_edges.steps:describe_run",
)  # fmt: skip
