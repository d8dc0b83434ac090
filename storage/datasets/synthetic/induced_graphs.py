"""Small graphs cut out around nodes, edges or groups of nodes of a large one, each with the class of its centre.

So node, edge and graph classification become one task (Sun et al., KDD 2023; FedGPL, arXiv 2411.02003). Axes: N nodes,
F features of the large graph, G small graphs.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.cut_kernels import entries_between, reach
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL

Level = Literal["node", "edge", "graph"]
LEVELS: dict[str, Level] = {"induced-node": "node", "induced-edge": "edge", "induced-graph": "graph"}
# The options that change the graphs, beside those of the large one.
FIELDS = ("samples", "shots", "width", "smallest", "largest", "padding", "seed")
# Hops around what a graph lies around: those taken in any case, and the most where that is too small.
HOPS = {"node": (2, 5), "edge": (1, 3), "graph": (1, 5)}
GROUP = (3, 5)
VALIDATION = 0.15
OVERSAMPLES, POWER_ITERATIONS = 10, 4
# A hop that finds so many times `largest` ends there: the neighbours of a hub are drawn from among the first ones.
BOUND = 4


def cut_graphs(base: Graph, level: Level, options: DataSource) -> Graph:
    """Cuts up to `samples` training and as many test graphs of every class; the last 15 % of the former validate.

    `node`: around a node of the class. `edge`: around an edge between two nodes of the class, each edge once. `graph`:
    around 3 to 5 nodes of it, drawn for training graphs from one half of its nodes, for test graphs from the other. Of
    a class with fewer than twice `samples` nodes or edges, those that are there, a quarter more or less for testing.
    With `shots` only so many graphs of every class may be trained on, the others are in no part.

    A graph is what the hops around reach, until it has `smallest` nodes; of more than `largest` some are drawn, the
    centres always kept. If it is still too small, `padding` adds drawn nodes: `random` ones of the large graph, or,
    as the published code does, of the `same_class`, which reveals the label, in test graphs, too. By default none.

    Features are U S of a truncated singular value decomposition of those of the large graph to `width` columns, whose
    signs make the largest entry of every singular vector positive; further columns are 0. Raises ShoalError: an option
    is out of range, the large graph has labels of graphs, or no graph would be left.
    """
    outline = outline_graphs(base, level, options)
    assert outline.split is not None
    outline = replace(outline, split=leave_shots(outline.split, outline.y, options.shots))
    return with_features(outline, reduce_features(base.x, options.width, options.seed))


def with_features(outline: Graph, reduced: np.ndarray) -> Graph:
    """Gives small graphs the reduced features of the large one, `[nodes of that, width]`."""
    return replace(outline, x=reduced[outline.copy_of])


def leave_shots(split: np.ndarray, y: np.ndarray, shots: int | None) -> np.ndarray:
    """Takes all but the first training graphs of every class out of the split, int8 `[G]`; None: all stay."""
    if shots is None:
        return split
    left = split.copy()
    for label in np.unique(y):
        left[np.flatnonzero((y == label) & (split == TRAIN))[shots:]] = UNASSIGNED
    return left


def outline_graphs(base: Graph, level: Level, options: DataSource) -> Graph:
    """Cuts small graphs as `cut_graphs`, without features, `[N, 0]`, and with all shots."""
    _require(options)
    if base.graph_of is not None:
        raise ShoalError("data.options.base", f"{base.name} has labels of graphs; name a dataset with labels of nodes")
    cutter = _Cutter(base, level, options)
    nodes, y, split = [], [], []
    degrees: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    before = 0
    for label in range(base.classes):
        centres, parts = _centres(base, level, label, options)
        for number, around in enumerate(centres):
            cut = cutter.cut(around, label, number)
            for several, of_graph in zip((degrees, columns), cutter.edges(cut, before)):
                several.append(of_graph)
            nodes.append(cut)
            before += len(cut)
        y.append(np.full(len(centres), label))
        split.append(parts)
    if not nodes:
        raise ShoalError("data.options.base", f"{base.name} has no {level} of any class to cut a graph around")
    sizes = np.array([len(cut) for cut in nodes])
    return Graph(
        name=f"induced-{level}",
        indptr=np.concatenate([[0], np.cumsum(np.concatenate(degrees))]),
        indices=np.concatenate(columns),
        x=np.empty((before, 0), dtype=np.float32),
        y=np.concatenate(y),
        classes=base.classes,
        split=np.concatenate(split),
        cleaning=base.cleaning,
        synthetic=base.synthetic,
        graph_of=np.repeat(np.arange(len(sizes)), sizes),
        label_names=base.label_names,
        copy_of=np.concatenate(nodes),
    )


def reduce_features(x: Any, width: int, seed: int) -> np.ndarray:
    """Computes U S of the `width` largest singular values (Halko et al., 2011), float32 `[N, width]`."""
    # The import takes a second of every process that has it.
    from sklearn.utils.extmath import randomized_svd

    x = x if sp.issparse(x) else np.asarray(x[:], dtype=np.float32)
    rank = min(width, *x.shape)
    u, s, vt = randomized_svd(
        x, rank, n_oversamples=OVERSAMPLES, n_iter=POWER_ITERATIONS, random_state=seed, flip_sign=False
    )
    largest = vt[np.arange(rank), np.abs(vt).argmax(axis=1)]
    scaled_u = np.zeros((x.shape[0], width), dtype=np.float32)
    scaled_u[:, :rank] = u * (s * np.where(largest < 0, -1, 1))
    return scaled_u


def _require(options: DataSource) -> None:
    for key in ("samples", "width", "smallest", "shots"):
        value = getattr(options, key)
        if value is not None and value < 1:
            raise ShoalError(f"data.options.{key}", f"must be at least 1, found {value}")
    if options.largest < max(options.smallest, GROUP[1]):
        raise ShoalError(
            "data.options.largest",
            f"must be at least data.options.smallest, {options.smallest}, and {GROUP[1]}, found {options.largest}",
        )
    if options.padding not in ("none", "random", "same_class"):
        raise ShoalError("data.options.padding", f"must be none, random or same_class, found {options.padding!r}")


def _centres(base: Graph, level: Level, label: int, options: DataSource) -> tuple[list[np.ndarray], np.ndarray]:
    """Draws the nodes that every small graph of a class is around, and its part, int8."""
    rng = np.random.default_rng([options.seed, label, list(HOPS).index(level)])
    members = rng.permutation(np.flatnonzero(base.y == label))
    samples = options.samples
    if level == "graph":
        halves = members[: -(-len(members) // 2)], members[-(-len(members) // 2) :]
        groups = [list(_groups(half, samples, rng)) for half in halves]
        return groups[0] + groups[1], _split(len(groups[0]), len(groups[1]))
    centres = members[:, None] if level == "node" else rng.permutation(_edges_within(base, label))
    centres = centres[: 2 * samples]
    train = 2 * (len(centres) // 4)
    return list(centres), _split(train, len(centres) - train)


def _groups(members: np.ndarray, count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Draws `count` groups, which may overlap; none without members."""
    for _ in range(count if len(members) else 0):
        yield rng.choice(members, min(int(rng.integers(GROUP[0], GROUP[1] + 1)), len(members)), replace=False)


def _split(train: int, test: int) -> np.ndarray:
    validation = round(VALIDATION * train)
    return np.repeat(np.array([TRAIN, VAL, TEST], dtype=np.int8), [train - validation, validation, test])


def _edges_within(base: Graph, label: int) -> np.ndarray:
    """Lists edges between nodes of a class, each once, `[E, 2]`."""
    of_class = base.y == label
    starts = np.flatnonzero(of_class)
    degree = np.diff(base.indptr)[starts]
    rows = np.repeat(starts, degree)
    before = np.cumsum(degree) - degree
    places = np.repeat(base.indptr[starts] - before, degree) + np.arange(len(rows))
    columns = base.indices[places]
    once = of_class[columns] & (rows < columns)
    return np.stack([rows[once], columns[once]], axis=1)


class _Cutter:
    """Cuts small graphs out of one large one."""

    def __init__(self, base: Graph, level: Level, options: DataSource) -> None:
        self._base, self._level, self._options = base, level, options
        self._by_class = [np.flatnonzero(base.y == label) for label in range(base.classes)]
        self._met, self._row_of = np.zeros(base.nodes, dtype=np.bool_), np.full(base.nodes, -1, dtype=np.int32)
        most = options.largest
        self._found = np.empty(min(BOUND * most + GROUP[1], base.nodes), dtype=np.int64)
        self._columns = np.empty(min(most * (most - 1), base.entries), dtype=np.int32)

    def cut(self, centres: np.ndarray, label: int, number: int) -> np.ndarray:
        """Cuts out the nodes of a graph, ascending, int64."""
        options, base = self._options, self._base
        of_base, place = (base.indptr, base.indices), (self._met, self._found)
        count = reach(*of_base, centres, HOPS[self._level], options.smallest, *place)
        nodes = self._found[:count].copy()
        seed = [options.seed, list(HOPS).index(self._level), label, number, 1]
        if count > options.largest:
            rng = np.random.default_rng(seed)
            others = rng.choice(nodes[len(centres) :], options.largest - len(centres), replace=False)
            nodes = np.concatenate([centres, others])
        elif count < options.smallest and options.padding != "none":
            rng = np.random.default_rng(seed)
            pool = np.arange(base.nodes) if options.padding == "random" else self._by_class[label]
            pool = np.setdiff1d(pool, nodes)
            nodes = np.concatenate([nodes, rng.choice(pool, min(options.smallest - count, len(pool)), replace=False)])
        return np.sort(nodes)

    def edges(self, nodes: np.ndarray, before: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the degree of every node in its graph, int64, and the neighbours of all, int32, numbered on."""
        degree = np.empty(len(nodes), dtype=np.int64)
        of_base = self._base.indptr, self._base.indices
        count = entries_between(*of_base, nodes, before, self._row_of, degree, self._columns)
        return degree, self._columns[:count].copy()
