"""A federation whose items are small graphs: 45 of them at six unequal clients, plainly drawn."""

from pathlib import Path

import numpy as np
from support.user_graph import write_arrays

from shoal.storage.options.split_codes import TEST, TRAIN, VAL

FEATURES, CLASSES = 5, 4
OF_CLIENT = (14, 12, 8, 1, 5, 5)
ONE_NODE, NO_EDGES = 0, 1
ONE_GRAPH, WITHOUT_TEST, WITHOUT_TRAIN = 3, 4, 5


def write_graphs(folder: Path) -> Path:
    """Writes them as a folder of arrays.

    Client 3 has a single graph, 4 no test graph, 5 no training graph. Graph 0 is one node, graph 1 has no edges. Class
    3 occurs among test graphs only, class 2 nowhere. Rings, of class 0, and graphs with chords, of class 1, also
    differ in their features.
    """
    rng = np.random.default_rng(5)
    assignment = rng.permutation(np.repeat(np.arange(len(OF_CLIENT)), OF_CLIENT))
    count = len(assignment)
    y = rng.integers(2, size=count)
    split = np.zeros(count, dtype=np.int8)
    for client, size in enumerate(OF_CLIENT):
        parts = np.resize([TRAIN, VAL, TRAIN, TEST, TRAIN], size)
        if client == WITHOUT_TEST:
            parts[parts == TEST] = VAL
        if client == WITHOUT_TRAIN:
            parts[parts == TRAIN] = 0
        split[assignment == client] = parts
    sizes = rng.integers(2, 9, size=count)
    sizes[[ONE_NODE, NO_EDGES]] = 1, 4
    first = np.concatenate([[0], np.cumsum(sizes)])
    edges = []
    for graph, size in enumerate(sizes):
        if graph not in (ONE_NODE, NO_EDGES):
            edges += [(first[graph] + i, first[graph] + (i + 1) % size) for i in range(size)]
            if y[graph]:
                edges += [(first[graph], first[graph] + i) for i in range(2, size)]
    graph_of = np.repeat(np.arange(count), sizes)
    x = np.eye(2, FEATURES)[y][graph_of] + 0.7 * rng.standard_normal((len(graph_of), FEATURES))
    y[np.flatnonzero(split == TEST)[[0, 3]]] = CLASSES - 1
    # Named, so that the class that nobody has is one.
    names = np.arange(CLASSES).astype(str)
    of_items = {"y": y, "split": split, "assignment": assignment, "label_names": names}
    return write_arrays(folder, edge_index=np.array(edges).T, x=x.astype(np.float32), graph=graph_of, **of_items)
