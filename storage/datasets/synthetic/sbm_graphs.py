"""Many synthetic graphs of communities: the class of a graph shows in its structure and, weakly, in its features."""

from typing import Any

import numpy as np

from shoal.storage.datasets.sources.dataset_spec import DatasetSpec
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.sbm import STRONGEST, strengths
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import require_free
from shoal.storage.graph.graph import Graph

FIELDS = ("graphs", "nodes", "classes", "features", "degree", "seed")
# Of the gamma distribution of sizes: the largest of a thousand graphs has about six times the nodes of the mean.
SHAPE = 2.0
# Bytes while graphs are made, beside the features.
OF_NODE, OF_ENTRY = 64, 16


def load_sbm_graphs(name: str, options: DataSource) -> Graph:
    """Stochastic block models with one label each, the same for the same options.

    `nodes` are shared among `graphs` by shares of a gamma distribution of shape 2, at least one each. A graph of class
    c has c + 1 communities of equal size; an edge between two nodes is drawn independently, so that a node has
    `degree` neighbours in the mean, or all there are, and a share `homophily` of edges stays in a community.
    `x = signal * centre[y] + N(0, 1)`, float32 `[N, F]`, with class centres of norm 1 and y that of the graph. Model:
    Holland, Laskey and Leinhardt, "Stochastic blockmodels: first steps", Social Networks 1983.

    Raises:
        ShoalError: An option is out of range; names its key.
    """
    homophily, signal = strengths(options)
    _check(options)
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
        joined = _drawn(size, label + 1, options.degree, homophily, for_edges)
        degrees[start : start + size] = joined.sum(1)
        neighbours.append((np.nonzero(joined)[1] + start).astype(np.int32))
    indptr = np.concatenate([[0], np.cumsum(degrees)])

    centres = for_features.standard_normal((options.classes, options.features))
    centres *= signal / np.linalg.norm(centres, axis=1, keepdims=True)
    x = for_features.standard_normal((nodes, options.features), dtype=np.float32)
    graph_of = np.repeat(np.arange(graphs), sizes)
    x += centres.astype(np.float32)[y[graph_of]]
    indices = np.concatenate(neighbours)
    return Graph(name, indptr, indices, x, y, options.classes, synthetic=True, graph_of=graph_of)


def _drawn(size: int, communities: int, degree: float, homophily: float, rng: np.random.Generator) -> np.ndarray:
    """Adjacency of one graph, bool `[size, size]`, symmetric."""
    block = np.arange(size) % communities
    row, column = np.triu_indices(size, 1)
    inside = block[row] == block[column]
    wanted = size * degree / 2
    # Where one kind of pair cannot have its share, the other has no more for it.
    chance = np.where(inside, homophily / max(inside.sum(), 1), (1 - homophily) / max((~inside).sum(), 1))
    if inside.all():
        chance = np.full(len(row), 1 / max(len(row), 1))
    drawn = rng.random(len(row)) < wanted * chance
    joined = np.zeros((size, size), dtype=np.bool_)
    joined[row[drawn], column[drawn]] = True
    return joined | joined.T


def _check(options: DataSource) -> None:
    homophily, signal = strengths(options)
    for key, holds, rule in (
        ("classes", options.classes >= 2, "at least 2"),
        ("graphs", options.graphs >= options.classes, f"at least data.options.classes ({options.classes})"),
        ("nodes", options.nodes >= options.graphs, f"at least one a graph ({options.graphs})"),
        ("features", options.features >= 1, "at least 1"),
        ("degree", 0 <= options.degree < options.nodes, "at least 0 and less than data.options.nodes"),
        ("homophily", 0 <= homophily <= 1, "in 0..1"),
        ("signal", 0 <= signal <= STRONGEST, f"in 0..{STRONGEST:g}"),
        ("seed", 0 <= options.seed < 2**63, "at least 0 and below 2^63"),
    ):
        if not holds:
            raise ShoalError(f"data.options.{key}", f"{getattr(options, key)} must be {rule}")
    # The largest graph is drawn as a matrix of pairs.
    pairs = (12 * options.nodes / options.graphs) ** 2
    try:
        entries = int(options.nodes * options.degree)
        require_free(options.nodes * (4 * options.features + OF_NODE) + entries * OF_ENTRY + int(40 * pairs))
    except MemoryError as error:
        raise ShoalError("data.options.nodes", f"{options.nodes} of {options.features} features: {error}") from None


def _content(options: DataSource) -> dict[str, Any]:
    homophily, signal = strengths(options)
    return {**{key: getattr(options, key) for key in FIELDS}, "homophily": homophily, "signal": signal}


DATASETS = (
    DatasetSpec(
        "sbm-graphs",
        load_sbm_graphs,
        task="graph",
        items=lambda options: options.graphs,
        classes=lambda options: options.classes,
        content=_content,
    ),
)
