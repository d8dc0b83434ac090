"""Graphs between a prompt, which makes them anew in every step, and the backbone that reads them.

Axes: N nodes of G graphs that lie behind one another, F features, E edges.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.models.inputs.neighbourhood import GraphBatch, operator_over
from shoal.algorithms.models.layers.coupled import Coupled


@dataclass(frozen=True)
class PlainGraphs:
    """Several graphs without matrices: what a client and a server of split learning exchange.

    Attributes:
        x_NF: Features, float32 `[N, F]`.
        pairs_2E: Every undirected edge once, rows within the batch, int32 `[2, E]`; no loops.
        first: First row of every graph and the end of the last, int64 `[G + 1]`; every graph has a node.
        arrows_2E: Edges of one way, from sender to receiver, int32; None: there are none.
    """

    x_NF: Tensor
    pairs_2E: Tensor
    first: Tensor
    arrows_2E: Tensor | None = None


def batch_of(graphs: PlainGraphs, coupled: Coupled) -> GraphBatch:
    """Builds the batch that a coupled backbone reads of graphs, with the matrix of all its layers."""
    nodes, device = len(graphs.x_NF), graphs.x_NF.device
    sender, receiver = (part.cpu().numpy() for part in graphs.pairs_2E.long())
    sender, receiver = np.concatenate([sender, receiver]), np.concatenate([receiver, sender])
    if graphs.arrows_2E is not None:
        one_way = graphs.arrows_2E.cpu().numpy()
        sender, receiver = np.concatenate([sender, one_way[0]]), np.concatenate([receiver, one_way[1]])
    entry = np.sort(receiver.astype(np.int64) * nodes + sender)
    starts = np.searchsorted(entry, nodes * np.arange(nodes + 1)).astype(np.int32)
    columns = (entry % nodes).astype(np.int32)
    matrix = operator_over(coupled.operator, starts, columns, graphs.arrows_2E is None).to(device)
    return GraphBatch([graphs.x_NF], (matrix,) * coupled.depth, graphs.first)


def features_of(batch: GraphBatch) -> Tensor:
    """Writes out the features of a batch, float32 `[N, F]`, even sparse ones: a prompt changes every number."""
    (x_NF,) = batch.hops
    return x_NF.float().to_dense()


def pairs_of(batch: GraphBatch) -> Tensor:
    """Lists every edge of a batch whose matrix is the plain adjacency, once, int32 `[2, E]`, ascending; no loops."""
    starts, columns, _ = batch.operators[0].parts()
    rows = torch.arange(len(starts) - 1, dtype=torch.int32, device=starts.device).repeat_interleave(starts.diff())
    return torch.stack([rows, columns])[:, rows < columns]


def graphs_of_rows(first: Tensor) -> Tensor:
    """Returns the graph of every row, int64 `[N]`, from the first rows of graphs."""
    return torch.arange(len(first) - 1, device=first.device).repeat_interleave(first.diff())
