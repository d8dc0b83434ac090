"""Modules over a backbone of nodes: readouts of graphs, embeddings of pairs, and adapters to another width.

Axes: N nodes of G graphs that lie behind one another, or of M pairs; H width of the embedding.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shoal.algorithms.models.inputs.neighbourhood import GraphBatch, Inputs, ItemBatch, PairBatch
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import drop
from shoal.algorithms.models.layers.head import Head, Output

Pooling = Literal["mean", "sum", "max", "attention"]


class Adapted(nn.Module):
    """A linear adapter to a common width D instead of the backbone's classifier, and a classifier on its output."""

    def __init__(self, backbone: nn.Module, embedding: int, classes: int, dropout: float) -> None:
        """Draws the classifier from torch's default generator; the backbone was made for `embedding` classes."""
        super().__init__()
        self.backbone: Any = backbone
        self.inputs = backbone.inputs
        self.dropout = dropout
        self.head = Head(embedding, embedding, classes, 1, dropout)

    def reset_parameters(self) -> None:
        self.backbone.reset_parameters()
        self.head.reset_parameters()

    def forward(self, inputs: Inputs) -> Output:
        """Computes the output for the backbone's inputs; the embedding is the adapter's, `[N, D]`."""
        embedding_ND = self.backbone(inputs).logits_NC
        read_ND = drop(embedding_ND, self.dropout, self.training) if self.head.drops_embedding else embedding_ND
        return Output(self.head(read_ND).logits_NC, embedding_ND)


class OverNodes(nn.Module):
    """A backbone of nodes whose last linear layer reads something else: embeddings of items, made of those of nodes.

    Dropout before the classifier falls on the embeddings of items.
    """

    def __init__(self, backbone: nn.Module, dropout: float) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.inputs = backbone.inputs
        self.dropout = dropout
        self.head.pooled = True

    @property
    def head(self) -> Head:
        """The backbone's own, whose last layer reads embeddings of items."""
        return self.backbone.head

    def reset_parameters(self) -> None:
        self.backbone.reset_parameters()

    def classify_items(self, embedding: Tensor) -> Output:
        """Classifies items by their embeddings, a row each."""
        drops = self.head.drops_embedding
        read = drop(embedding, self.dropout, self.training) if drops else embedding
        return Output(self.head.linears[-1](read), embedding)


def embedded_nodes(backbone: Any, batch: ItemBatch) -> Tensor:
    """Embeds all nodes of a batch by a backbone, float32 `[N, H]`."""
    if isinstance(backbone, Coupled):
        (x_NF,) = batch.hops
        return backbone.embed(x_NF, batch.operators, *batch.beside)
    return backbone(batch.hops).embedding_NH.float()


class PairEmbedding(OverNodes):
    """The product z_u * z_v of the embeddings of both ends, entry by entry (node2vec, KDD 2016, table 1: Hadamard)."""

    def forward(self, batch: PairBatch) -> Output:
        """Computes the output for every pair of a batch; the embedding is the product, `[M, H]`."""
        return self.classify_items(self.join(embedded_nodes(self.backbone, batch), batch.ends))

    def join(self, z_NH: Tensor, ends_M2: Tensor) -> Tensor:
        """Embeds pairs, `[M, H]`, by the embeddings of nodes and the numbers of both ends, int64."""
        first_M, second_M = ends_M2.unbind(1)
        return z_NH.index_select(0, first_M) * z_NH.index_select(0, second_M)


class Readout(OverNodes):
    """Pooling of the embeddings of a graph's nodes.

    `mean`, `sum` and `max` are PyG's aggregations of these names, `attention` is its `AttentionalAggregation` with a
    linear gate (Li et al., ICLR 2016, eq. 7 without a transform of the nodes): sum_v softmax_v(a z_v) z_v, the softmax
    over the nodes of a graph, which would not see a bias.
    """

    def __init__(
        self, backbone: nn.Module, readout: Pooling, dropout: float, own: Callable[[int], nn.Module] | None = None
    ) -> None:
        """Draws the gate of `attention` from torch's default generator; `own` makes a user's pooling instead."""
        super().__init__(backbone, dropout)
        self.readout = readout
        width: Any = self.head.linears[-1].in_features
        self.gate = nn.Linear(width, 1, bias=False) if readout == "attention" else None
        self.own = None if own is None else own(width)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.gate is not None:
            self.gate.reset_parameters()
        if self.own is not None:
            self.own.reset_parameters()  # type: ignore[operator]

    def forward(self, batch: GraphBatch) -> Output:
        """Computes the output for every graph of a batch; the embedding is the pooled one, `[G, H]`."""
        return self.classify_items(self.embed_graphs(batch))

    def embed_graphs(self, batch: GraphBatch) -> Tensor:
        """Embeds the graphs of a batch, `[G, H]`."""
        return self.pool(embedded_nodes(self.backbone, batch), batch.first)

    def pool(self, z_NH: Tensor, first: Tensor) -> Tensor:
        """Pools embeddings of nodes to those of graphs, `[G, H]`, by `GraphBatch.first`; every graph has a node."""
        if self.own is not None:
            return self.own(z_NH, first)
        if self.readout == "max":
            return _Highest.apply(z_NH, first)
        if self.gate is None:
            return _reduce(z_NH, first, self.readout)
        score_N1 = self.gate(z_NH)
        highest_G1 = _reduce(score_N1.detach(), first, "max")
        weight_N1 = (score_N1 - _spread(highest_G1, first)).exp()
        return _reduce(weight_N1 * z_NH, first, "sum") / _reduce(weight_N1, first, "sum")


def _reduce(rows_NH: Tensor, first: Tensor, how: str) -> Tensor:
    return torch.segment_reduce(rows_NH, how, offsets=first, axis=0)


def _spread(z_GH: Tensor, first: Tensor) -> Tensor:
    """Gives every node the row of its graph, `[N, H]`."""
    return z_GH.repeat_interleave(first.diff(), dim=0)


class _Highest(torch.autograd.Function):
    """The largest entries of a graph; nodes that share one, as zeros after ReLU do, share its gradient.

    torch's own gradient gives each of them all of it, and PyG's less than all where the largest is 0.
    """

    @staticmethod
    def forward(ctx: Any, z_NH: Tensor, first: Tensor) -> Tensor:
        highest_GH = _reduce(z_NH, first, "max")
        ctx.save_for_backward(z_NH, first, highest_GH)
        return highest_GH

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        z_NH, first, highest_GH = ctx.saved_tensors
        largest_NH = (z_NH == _spread(highest_GH, first)).to(z_NH.dtype)
        return largest_NH * _spread(gradients[0] / _reduce(largest_NH, first, "sum"), first), None


# A share of a count that is a whole number but for rounding, as 0.07 of 100, is that number.
ROUNDING = 1e-9
# The largest number of 32 bits.
LARGEST = 2**31 - 1


def ceil_of(share: float, counts: Tensor) -> Tensor:
    """Computes the smallest whole numbers that are at least a share of counts, int64."""
    return (share * counts.double() - ROUNDING).ceil().long()


def floor_of(share: float, counts: Tensor) -> Tensor:
    """Computes the largest whole numbers that are at most a share of counts, int64."""
    return (share * counts.double() + ROUNDING).floor().long()


def highest(score_N: Tensor, group_N: Tensor, wanted_G: Tensor) -> Tensor:
    """Selects the `wanted_G` highest scores of every group, or all: rows int64, ascending; of equal ones the first."""
    # One sort of whole numbers: the group above, below it the bits of the score, which are in the order of floats once
    # those of negative ones are turned around. Adding zero makes one zero of two.
    bits_N = (score_N + 0.0).view(torch.int32)
    bits_N = torch.where(bits_N < 0, bits_N ^ LARGEST, bits_N).long()
    order = ((group_N << 32) - bits_N).argsort(stable=True)
    group = group_N[order]
    sizes_G = torch.bincount(group, minlength=len(wanted_G))
    rank = torch.arange(len(order), device=order.device) - (sizes_G.cumsum(0) - sizes_G)[group]
    taken_N = torch.zeros(len(order), dtype=torch.bool, device=order.device)
    taken_N[order] = rank < wanted_G[group]
    return taken_N.nonzero()[:, 0]
