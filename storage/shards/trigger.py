"""A client's graph with a backdoor's trigger at some of its nodes: in memory, the store stays as it is."""

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from shoal.storage.graph.rows import CsrRows, Rows
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards.computed_hops import ComputedHops
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split

# One of so many columns carries the pattern.
EVERY = 20


@dataclass(frozen=True)
class Trigger:
    """Nodes that are attached to a node, joined with it and with each other, all with one pattern of features.

    After the subgraphs of Zhang et al., Backdoor attacks to graph neural networks (SACMAT 2021), and Xu et al., More is
    better (mostly) (ACSAC 2022), on nodes in place of graphs: complete, and with features, which these graphs have.
    The pattern is the same columns everywhere, a twentieth of all, of equal values and of a client's mean l2 norm.

    Attributes:
        nodes: How many are attached to each.
        target: The class that they stand for.
        seed: Of the pattern's columns.
        share: Of a client's training nodes, rounded down to one or more, which have the trigger and the label `target`;
            None: every test node has it that is not of the target, and no label changes.
        draw: Keys which training nodes.
    """

    nodes: int
    target: int
    seed: int
    share: float | None = None
    draw: int = 0

    def rows(self, shard: Shard, split: Split) -> np.ndarray:
        """Draws the rows that get the trigger, none of the target class, ascending."""
        part = split.test if self.share is None else split.train
        others = part[shard.label[part] != self.target]
        if self.share is None or not len(others):
            return others
        # Rows of training nodes alone are others than those of the whole graph.
        others = others[np.argsort(shard.node[others])]
        count = min(max(1, int(self.share * len(part) + 1e-9)), len(others))
        return np.sort(np.random.default_rng(self.draw).permutation(others)[:count])

    def apply(
        self, shard: Shard, split: Split, propagation: PropagationOptions | None
    ) -> tuple[Shard, list[Rows] | ComputedHops]:
        """Plants triggers in a shard, and gives its hops; attached nodes lie behind its own, numbered below zero."""
        rows = self.rows(shard, split)
        count, nodes = self.nodes * len(rows), shard.nodes + self.nodes * len(rows)
        # A node and the nodes attached to it are joined pair by pair.
        group = np.column_stack([rows, np.arange(shard.nodes, nodes).reshape(-1, self.nodes)])
        first, second = np.nonzero(~np.eye(self.nodes + 1, dtype=bool))
        ends = group[:, first].ravel(), group[:, second].ravel()
        weight = np.ones(shard.entries, np.float32) if shard.edge_weight is None else shard.edge_weight
        adjacency = sp.csr_array((weight, shard.indices, shard.indptr), shape=(shard.nodes, shard.nodes))
        adjacency.resize(nodes, nodes)
        joined = sp.csr_array(adjacency + sp.coo_array((np.ones(len(ends[0]), np.float32), ends), shape=(nodes, nodes)))
        joined.sort_indices()
        label = np.concatenate([shard.label, np.full(count, -1, shard.label.dtype)])
        if self.share is not None:
            label[rows] = self.target
        with_triggers = replace(
            shard,
            node=np.concatenate([shard.node, -1 - np.arange(count)]),
            label=label,
            indptr=joined.indptr.astype(np.int32),
            indices=joined.indices.astype(np.int32),
            x=_with_pattern(shard.x, count, self.seed),
            edge_weight=None if shard.edge_weight is None else joined.data,
            edge_attr=_with_zeros(shard, nodes, ends),
        )
        nothing = np.empty(0, dtype=np.int64)
        return with_triggers, [] if propagation is None else ComputedHops(with_triggers, propagation, None, nothing, [])


def _with_zeros(shard: Shard, nodes: int, ends: tuple[np.ndarray, np.ndarray]) -> np.ndarray | None:
    """Returns features of edges with those that join attached nodes, which are zero, in the order of their entries."""
    if shard.edge_attr is None:
        return None
    place = sp.csr_array((np.arange(1, shard.entries + 1), shard.indices, shard.indptr), shape=(shard.nodes,) * 2)
    place.resize(nodes, nodes)
    behind = np.full(len(ends[0]), shard.entries + 1)
    joined = sp.csr_array(place + sp.coo_array((behind, ends), shape=(nodes, nodes)))
    joined.sort_indices()
    nothing = np.zeros((1, shard.edge_attr.shape[1]), dtype=shard.edge_attr.dtype)
    return np.concatenate([shard.edge_attr, nothing])[joined.data - 1]


def _with_pattern(x: Rows, count: int, seed: int) -> Rows:
    """Appends `count` rows of the pattern to features."""
    width = int(x.shape[1])
    chosen = np.sort(np.random.default_rng(seed).permutation(width)[: max(1, width // EVERY)])
    norms = np.linalg.norm(x.toarray() if isinstance(x, CsrRows) else x, axis=1)
    value = norms.mean(dtype=np.float64) / np.sqrt(len(chosen)) if len(x) else 0.0
    if not isinstance(x, CsrRows):
        pattern = np.zeros((count, width), dtype=x.dtype)
        pattern[:, chosen] = value
        return np.concatenate([x, pattern])
    starts = x.indptr[-1] + len(chosen) * np.arange(1, count + 1)
    return CsrRows(
        np.concatenate([x.indptr, starts]).astype(np.int32),
        np.concatenate([x.columns, np.tile(chosen, count)]).astype(np.int32),
        np.concatenate([x.values, np.full(count * len(chosen), value, x.values.dtype)]),
        width,
    )
