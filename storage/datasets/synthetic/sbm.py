"""Synthetic graphs of communities, one large or many small: features show a class weakly, edges strongly."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from shoal.storage.datasets.sources.source import DatasetSpec, DataSource
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import require_free
from shoal.storage.graph.graph import Graph, clean_edges

FIELDS = ("nodes", "classes", "features", "degree", "seed")
OPTIONS = (*FIELDS, "homophily", "signal")
HOMOPHILY, SIGNAL = 0.8, 1.0
MAX_DRAWS = 20
# The strongest signal, in standard deviations; float32 holds all features below it.
STRONGEST = 1e6
# Bytes while graphs are made, beside the features.
OF_NODE, OF_EDGE, OF_SMALL_ENTRY = 64, 100, 16
# The shape of the gamma distribution of sizes: the largest of a thousand graphs has about six times the nodes of the
# mean.
SHAPE = 2.0
Rule = tuple[str, bool, str]


def load_sbm(name: str, options: DataSource) -> Graph:
    """Draws a stochastic block model with Gaussian features, the same for the same options.

    Communities (`blocks`) have sizes around `rank ** -0.5` and the class `rank % classes`. Of
    `nodes * degree / 2` distinct edges a share of `homophily` joins two nodes of one community, the rest
    nodes of different classes; communities too small for their edges have fewer.
    `x = signal * centre[y] + N(0, 1)`, float32 `[N, F]`, with class centres of norm 1. Model: Holland, Laskey
    and Leinhardt, "Stochastic blockmodels: first steps", Social Networks 1983.
    """
    homophily, _ = strengths(options)
    _check(options)
    nodes, blocks = options.nodes, options.blocks or options.classes
    streams = np.random.SeedSequence(options.seed).spawn(3)
    for_blocks, for_edges, for_features = map(np.random.default_rng, streams)

    weights = np.arange(1, blocks + 1) ** -0.5
    sizes = 2 + for_blocks.multinomial(nodes - 2 * blocks, weights / weights.sum())
    starts = np.cumsum(sizes) - sizes
    members = for_blocks.permutation(nodes)
    block = np.empty(nodes, dtype=np.int64)
    block[members] = np.repeat(np.arange(blocks), sizes)
    y = block % options.classes

    def inside(count: int) -> tuple[np.ndarray, np.ndarray]:
        source = for_edges.integers(nodes, size=count)
        block_of_source = block[source]
        return source, members[starts[block_of_source] + for_edges.integers(sizes[block_of_source])]

    def across(count: int) -> tuple[np.ndarray, np.ndarray]:
        source, target = for_edges.integers(nodes, size=(2, count))
        return source[y[source] != y[target]], target[y[source] != y[target]]

    total = round(nodes * options.degree / 2)
    equal = round(total * homophily)
    keys = np.concatenate([_distinct(inside, equal, nodes), _distinct(across, total - equal, nodes)])
    indptr, indices, cleaning = clean_edges(np.stack(np.divmod(keys, nodes)), nodes, name)

    x = _class_features(y, options, for_features)
    return Graph(name, indptr, indices, x, y, options.classes, cleaning=cleaning, synthetic=True)


def strengths(options: DataSource) -> tuple[float, float]:
    """Returns homophily and signal, as given or by default."""
    return (
        HOMOPHILY if options.homophily is None else options.homophily,
        SIGNAL if options.signal is None else options.signal,
    )


def _distinct(draw: Callable[[int], tuple[np.ndarray, np.ndarray]], wanted: int, nodes: int) -> np.ndarray:
    """Draws up to `wanted` undirected edges without loops, int64 keys `smaller * nodes + larger`, ascending."""
    keys = np.empty(0, dtype=np.int64)
    for _ in range(MAX_DRAWS):
        if len(keys) == wanted:
            break
        source, target = draw(wanted - len(keys))
        low, high = np.minimum(source, target), np.maximum(source, target)
        keys = np.union1d(keys, (low * nodes + high)[low != high])
    return keys


def _class_features(y: np.ndarray, options: DataSource, rng: np.random.Generator) -> np.ndarray:
    """Draws `signal * centre[y] + N(0, 1)`, float32 `[N, F]`, with class centres of norm 1."""
    centres = rng.standard_normal((options.classes, options.features))
    centres *= strengths(options)[1] / np.linalg.norm(centres, axis=1, keepdims=True)
    x = rng.standard_normal((len(y), options.features), dtype=np.float32)
    x += centres.astype(np.float32)[y]
    return x


def load_sbm_graphs(name: str, options: DataSource) -> Graph:
    """Draws stochastic block models with one label each, the same for the same options.

    `nodes` are shared among `graphs` by shares of a gamma distribution of shape 2, at least one each. A graph of class
    c has c + 1 communities of equal size; an edge between two nodes is drawn independently, so that a node has
    `degree` neighbours in the mean, or all there are, and a share `homophily` of edges stays in a community. Features
    are those of `load_sbm`, with the class of the graph.
    """
    homophily, _ = strengths(options)
    _check_many(options)
    graphs, nodes = options.graphs, options.nodes
    streams = np.random.SeedSequence(options.seed).spawn(3)
    for_sizes, for_edges, for_features = map(np.random.default_rng, streams)

    shares = for_sizes.gamma(SHAPE, size=graphs)
    sizes = 1 + for_sizes.multinomial(nodes - graphs, shares / shares.sum())
    y = for_sizes.permutation(np.arange(graphs) % options.classes)
    first = np.cumsum(sizes) - sizes
    degrees = np.empty(nodes, dtype=np.int64)
    neighbours = []
    for start, size, label in zip(first.tolist(), sizes.tolist(), y.tolist()):
        joined = _draw_adjacency(size, label + 1, options.degree, homophily, for_edges)
        degrees[start : start + size] = joined.sum(1)
        neighbours.append((np.nonzero(joined)[1] + start).astype(np.int32))
    indptr, indices = np.concatenate([[0], np.cumsum(degrees)]), np.concatenate(neighbours)
    graph_of = np.repeat(np.arange(graphs), sizes)
    x = _class_features(y[graph_of], options, for_features)
    return Graph(name, indptr, indices, x, y, options.classes, synthetic=True, graph_of=graph_of)


def _draw_adjacency(
    size: int, communities: int, degree: float, homophily: float, rng: np.random.Generator
) -> np.ndarray:
    """Draws the adjacency of one graph, bool `[size, size]`, symmetric."""
    block = np.arange(size) % communities
    row, column = np.triu_indices(size, 1)
    inside = block[row] == block[column]
    wanted = size * degree / 2
    # If one kind of pair cannot have its share, the other has no more for it.
    chance = np.where(inside, homophily / max(inside.sum(), 1), (1 - homophily) / max((~inside).sum(), 1))
    if inside.all():
        chance = np.full(len(row), 1 / max(len(row), 1))
    drawn = rng.random(len(row)) < wanted * chance
    joined = np.zeros((size, size), dtype=np.bool_)
    joined[row[drawn], column[drawn]] = True
    return joined | joined.T


def _check(options: DataSource) -> None:
    blocks = options.classes if options.blocks is None else options.blocks
    require(
        options,
        "data",
        ("classes", options.classes >= 2, "at least 2"),
        ("blocks", blocks >= options.classes, f"at least data.classes ({options.classes})"),
        ("nodes", options.nodes >= 2 * blocks, f"at least two a community ({2 * blocks})"),
        ("features", options.features >= 1, "at least 1"),
        ("nodes", options.nodes < 2**31, "below 2^31"),
        ("degree", 0 <= options.degree < options.nodes, "at least 0 and less than data.nodes"),
        *rules_of_strength(options, *strengths(options)),
    )
    _require_memory(options, "data", int(options.nodes * options.degree / 2) * OF_EDGE)


def _check_many(options: DataSource) -> None:
    require(
        options,
        "data.options",
        ("classes", options.classes >= 2, "at least 2"),
        ("graphs", options.graphs >= options.classes, f"at least data.options.classes ({options.classes})"),
        ("nodes", options.nodes >= options.graphs, f"at least one a graph ({options.graphs})"),
        ("features", options.features >= 1, "at least 1"),
        ("degree", 0 <= options.degree < options.nodes, "at least 0 and less than data.options.nodes"),
        *rules_of_strength(options, *strengths(options)),
    )
    # The largest graph is drawn as a matrix of pairs.
    pairs = (12 * options.nodes / options.graphs) ** 2
    of_entries = int(options.nodes * options.degree) * OF_SMALL_ENTRY
    _require_memory(options, "data.options", of_entries + int(40 * pairs))


def require(options: DataSource, section: str, *rules: Rule) -> None:
    """Raises a ShoalError for the first key whose rule does not hold: `(key, whether it holds, the rule)`."""
    for key, holds, rule in rules:
        if not holds:
            raise ShoalError(f"{section}.{key}", f"{getattr(options, key)} must be {rule}")


def rules_of_strength(options: DataSource, homophily: float, signal: float) -> list[Rule]:
    """Rules of the options that all synthetic graphs have."""
    return [
        ("homophily", 0 <= homophily <= 1, "in 0..1"),
        ("signal", 0 <= signal <= STRONGEST, f"in 0..{STRONGEST:g}"),
        ("seed", 0 <= options.seed < 2**63, "at least 0 and below 2^63"),
    ]


def _require_memory(options: DataSource, section: str, of_edges: int) -> None:
    try:
        require_free(options.nodes * (4 * options.features + OF_NODE) + of_edges)
    except MemoryError as error:
        raise ShoalError(f"{section}.nodes", f"{options.nodes} of {options.features} features: {error}") from None


def _content(options: DataSource) -> dict[str, Any]:
    homophily, signal = strengths(options)
    counts = {"blocks": options.blocks or options.classes} if options.key == "sbm" else {"graphs": options.graphs}
    return {**{key: getattr(options, key) for key in FIELDS}, **counts, "homophily": homophily, "signal": signal}


DATASETS = (
    DatasetSpec(
        "sbm", load_sbm, (), "node", attrgetter("nodes"), attrgetter("classes"), _content, ("blocks", *OPTIONS)
    ),
    DatasetSpec(
        "sbm-graphs",
        load_sbm_graphs,
        (),
        "graph",
        attrgetter("graphs"),
        attrgetter("classes"),
        _content,
        ("graphs", *OPTIONS),
    ),
)
