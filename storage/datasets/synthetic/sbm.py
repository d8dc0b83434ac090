"""A synthetic graph of communities; a node's features show its class weakly, their mean over neighbours strongly."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.storage.datasets.sources.dataset_spec import DatasetSpec
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import require_free
from shoal.storage.graph.graph import Graph, clean_edges

FIELDS = ("nodes", "classes", "features", "blocks", "degree", "homophily", "signal", "seed")
HOMOPHILY, SIGNAL = 0.8, 1.0
MAX_DRAWS = 20
# In standard deviations; float32 holds all features below it.
STRONGEST = 1e6
# Bytes while the graph is made, beside the features.
OF_NODE, OF_EDGE = 64, 100


def load_sbm(name: str, options: DataSource) -> Graph:
    """A stochastic block model with Gaussian features, the same for the same options.

    Communities (`blocks`) have sizes around `rank ** -0.5` and the class `rank % classes`. Of
    `nodes * degree / 2` distinct edges a share of `homophily` joins two nodes of one community, the rest
    nodes of different classes; communities too small for their edges have fewer.
    `x = signal * centre[y] + N(0, 1)`, float32 `[N, F]`, with class centres of norm 1. Model: Holland, Laskey
    and Leinhardt, "Stochastic blockmodels: first steps", Social Networks 1983.

    Raises:
        ShoalError: An option is out of range; names its key.
    """
    homophily, signal = strengths(options)
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
        own = block[source]
        return source, members[starts[own] + for_edges.integers(sizes[own])]

    def across(count: int) -> tuple[np.ndarray, np.ndarray]:
        source, target = for_edges.integers(nodes, size=(2, count))
        return source[y[source] != y[target]], target[y[source] != y[target]]

    total = round(nodes * options.degree / 2)
    equal = round(total * homophily)
    keys = np.concatenate([_distinct(inside, equal, nodes), _distinct(across, total - equal, nodes)])
    indptr, indices, cleaning = clean_edges(np.stack(np.divmod(keys, nodes)), nodes, name)

    centres = for_features.standard_normal((options.classes, options.features))
    centres *= signal / np.linalg.norm(centres, axis=1, keepdims=True)
    x = for_features.standard_normal((nodes, options.features), dtype=np.float32)
    x += centres.astype(np.float32)[y]
    return Graph(name, indptr, indices, x, y, options.classes, cleaning=cleaning, synthetic=True)


def strengths(options: DataSource) -> tuple[float, float]:
    """Homophily and signal, as given or by default."""
    return (
        HOMOPHILY if options.homophily is None else options.homophily,
        SIGNAL if options.signal is None else options.signal,
    )


def _distinct(draw: Callable[[int], tuple[np.ndarray, np.ndarray]], wanted: int, nodes: int) -> np.ndarray:
    """Up to `wanted` undirected edges without loops, int64 keys `smaller * nodes + larger`, ascending."""
    keys = np.empty(0, dtype=np.int64)
    for _ in range(MAX_DRAWS):
        if len(keys) == wanted:
            break
        source, target = draw(wanted - len(keys))
        low, high = np.minimum(source, target), np.maximum(source, target)
        keys = np.union1d(keys, (low * nodes + high)[low != high])
    return keys


def _check(options: DataSource) -> None:
    blocks = options.classes if options.blocks is None else options.blocks
    homophily, signal = strengths(options)
    for key, holds, rule in (
        ("classes", options.classes >= 2, "at least 2"),
        ("blocks", blocks >= options.classes, f"at least data.classes ({options.classes})"),
        ("nodes", options.nodes >= 2 * blocks, f"at least two a community ({2 * blocks})"),
        ("features", options.features >= 1, "at least 1"),
        ("nodes", options.nodes < 2**31, "below 2^31"),
        ("degree", 0 <= options.degree < options.nodes, "at least 0 and less than data.nodes"),
        ("homophily", 0 <= homophily <= 1, "in 0..1"),
        ("signal", 0 <= signal <= STRONGEST, f"in 0..{STRONGEST:g}"),
        ("seed", 0 <= options.seed < 2**63, "at least 0 and below 2^63"),
    ):
        if not holds:
            raise ShoalError(f"data.{key}", f"{getattr(options, key)} must be {rule}")
    try:
        edges = options.nodes * options.degree / 2
        require_free(options.nodes * (4 * options.features + OF_NODE) + int(edges) * OF_EDGE)
    except MemoryError as error:
        raise ShoalError("data.nodes", f"{options.nodes} of {options.features} features: {error}") from None


def _content(options: DataSource) -> dict[str, Any]:
    homophily, signal = strengths(options)
    chosen = {key: getattr(options, key) for key in FIELDS}
    return {**chosen, "blocks": options.blocks or options.classes, "homophily": homophily, "signal": signal}


DATASETS = (
    DatasetSpec(
        "sbm",
        load_sbm,
        items=lambda options: options.nodes,
        classes=lambda options: options.classes,
        content=_content,
    ),
)
