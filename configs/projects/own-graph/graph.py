"""Writes a graph to the folder graph/, in the form that `data.dataset: files` reads. Put your own arrays in here."""

from pathlib import Path

import numpy as np

NODES, CLASSES = 600, 3
rng = np.random.default_rng(0)

# The class of every node, integers [N]; -1 where a node has none. Names of classes are texts instead.
y = rng.integers(0, CLASSES, NODES)

# Features of every node, floats [N, F].
x = rng.standard_normal((NODES, 16)) + np.eye(CLASSES, 16)[y]

# Ends of every edge, integers [2, E], in one direction or both: here four edges a node, three of them within its class.
source = np.repeat(np.arange(NODES), 4)
of_class = [np.flatnonzero(y == label) for label in range(CLASSES)]
target = np.where(np.arange(4 * NODES) % 4, [rng.choice(of_class[y[node]]) for node in source], rng.permutation(source))

folder = Path("graph")
folder.mkdir(exist_ok=True)
np.save(folder / "x.npy", x.astype(np.float32))
np.save(folder / "y.npy", y)
np.save(folder / "edge_index.npy", np.stack([source, target]))
# With an array assignment.npy, the client of every node, and `partition.method: file` you divide the graph yourself.
print(f"written: {folder}, {NODES} nodes, {len(source)} edges")
