"""Layers of message passing, then a classifier: the parts that all coupled backbones share."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, Operator
from shoal.algorithms.models.layers.dropout import drop, transform
from shoal.algorithms.models.layers.head import Head, Output
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix

# The classifier is a linear layer, or one of message passing.
HeadKind = Literal["linear", "relu", "conv"]


class Coupled(nn.Module):
    """L layers of width `hidden` with ReLU and dropout between them; a classifier on the last one's output.

    Layers are PyG's: their parameters, their initial values, and what they compute. How is our own, since theirs
    transposes the adjacency, which sorts it, in every backward pass. No backbone keeps running statistics of a batch
    normalisation: they are no parameters, so a federation would neither send nor average them.

    With `head: linear` the classifier is a linear layer on top of them, so that models of different kinds have the same
    one (FedGKC's contract of extractor and classifier); with `head: relu` it reads them after ReLU (Fed-PUB's model).
    With `head: conv` the last of the L layers is the classifier, of the model's own kind, on the output of the one
    before it after ReLU and dropout, as most papers have it; the embedding is that output as it is.

    Attributes:
        operator: What the layers multiply by, see `inputs.neighbourhood.all_nodes`.
        weighs_edges: Messages are multiplied by the weights of edges; else graphs with such weights are refused.
        papers_head: The classifier that the paper's model for nodes has.
        traced: Its `forward` may be run on stand-ins (`models.compiled`); derived classes do not inherit that.
        edge_features: Features of an edge that its layers read; 0: they read none.
        weighs_entries: A layer keeps numbers of every entry of its matrix.
        in_batches: Clients of such models may train in one batch, drawn neighbours and other norms aside.
        first: Names of the weights that the features are multiplied by.
        lifted: A linear layer takes the features to width `hidden` first.
        embedding_parts: Width of the embedding, in multiples of `hidden`.
        fanouts: Neighbours drawn of a node in a training step, the last layer's first; empty: the whole graph.
        structure: A second encoder, which reads codes of nodes (`structure_codes`); None: only features are read.
    """

    operator: ClassVar[Operator]
    weighs_edges: ClassVar[bool] = False
    edge_features: int = 0
    papers_head: ClassVar[HeadKind] = "linear"
    in_batches: ClassVar[bool] = False
    first: ClassVar[tuple[str, ...]] = ("convs.0.lin.weight",)
    lifted: ClassVar[bool] = False
    embedding_parts: ClassVar[int] = 1

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        *,
        hidden: int = 64,
        layers: int = 2,
        head: HeadKind = "linear",
        fanouts: list[int] | None = None,
    ) -> None:
        """Draws the parameters from torch's default generator; a ShoalError names an option that is out of range.

        Args:
            features: Width F of the features; `classes` is the number of classes.
            hops: Not read.
            dropout: Probability that a hidden activation is dropped.
            hidden: Width of the layers.
            layers: Number of layers that pass messages.
            head: `linear` classifier, `relu` before it, or `conv`: the last layer is the classifier. The default
                depends on the method.
            fanouts: Neighbours drawn in a training step, one number a layer, the last layer's first, -1 for all; null:
                the whole graph.
        """
        super().__init__()
        if layers < 1:
            raise ShoalError("model.layers", f"must be at least 1, found {layers}")
        self.conv_head, self.relu_head = head == "conv", head == "relu"
        if layers < 2 and self.conv_head:
            raise ShoalError(
                "model.layers", f"must be at least 2 with head: conv, the last one classifies, found {layers}"
            )
        if fanouts is not None and self.conv_head:
            raise ShoalError("model.fanouts", "head: conv reads the whole graph; leave it out")
        if fanouts is not None and (len(fanouts) != layers or any(f < 1 and f != -1 for f in fanouts)):
            raise ShoalError(
                "model.fanouts",
                f"must be {layers} numbers, one a layer, each at least 1 or -1 for all, found {fanouts}",
            )
        self.inputs = (0,)
        self.fanouts = tuple(fanouts or ())
        self.dropout = dropout
        # Layers draw when they are made, some twice: a fresh model then equals one that is reset under the same seed.
        with torch.random.fork_rng(devices=[]):
            self.head = Head(self.embedding_parts * hidden, hidden, classes, 1, dropout)
            if self.conv_head:
                self.head.messages = self.head_messages(hidden, classes)
            self.lift = nn.Linear(features, hidden) if self.lifted else None
            widths = [hidden if self.lifted else features, *[hidden] * (layers - self.conv_head)]
            self.convs = nn.ModuleList(
                self.layer(number, *pair, number == layers - 1) for number, pair in enumerate(pairwise(widths))
            )
            self.structure = self.structure_encoder(hidden, layers)
        self.reset_parameters()

    def layer(self, number: int, width: int, out: int, last: bool) -> nn.Module:
        """Makes PyG's layer of a number, from 0, for the widths of its input and output; above the last is no other."""
        raise NotImplementedError

    def head_messages(self, hidden: int, classes: int) -> nn.Module | None:
        """Makes further parameters of a classifier that passes messages (`Head.messages`)."""
        return None

    def structure_encoder(self, hidden: int, layers: int) -> nn.Module | None:
        """Makes a second encoder, see `structure`."""
        return None

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        if self.lift is not None:
            self.lift.reset_parameters()
        for conv in self.convs:
            conv.reset_parameters()  # type: ignore[operator]
        if self.structure is not None:
            self.structure.reset_parameters()  # type: ignore[operator]
        self.head.reset_parameters()

    @property
    def row_by_row(self) -> bool:
        """Whether a layer computes each row from its senders alone, so that it can leave out rows that are not read."""
        return True

    @property
    def stacks(self) -> bool:
        """Whether clients may be trained in one batch: each row is computed from itself and from sums over others."""
        return self.in_batches and self.row_by_row and not self.fanouts and self.structure is None

    @property
    def depth(self) -> int:
        """Matrices that a neighbourhood has to have: one a layer, and one for a classifier that passes messages."""
        return len(self.convs) + self.conv_head

    def forward(self, around: Neighbourhood) -> Output:
        """Computes the output for the rows that a neighbourhood asks for."""
        if self.conv_head:
            return self._by_messages(around)
        embedding_NH = _select_rows(self.embed(around.x_NF, around.operators), around.rows)
        read_NH = self.activate(embedding_NH) if self.relu_head else embedding_NH
        if self.head.drops_embedding:
            read_NH = self.drop(read_NH)
        return Output(self.head(read_NH).logits_NC, embedding_NH)

    def _by_messages(self, around: Neighbourhood) -> Output:
        *operators, last = around.operators
        embedding_NH = self.embed(around.x_NF, operators)
        read_NH = self.activate(embedding_NH)
        if self.head.drops_embedding:
            read_NH = self.drop(read_NH)
        logits_NC = self.classify(last, read_NH)
        return Output(_select_rows(logits_NC, around.rows), _select_rows(embedding_NH[: len(last)], around.rows))

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix]) -> Tensor:
        """Computes the output of the last layer, `[n_L, H]`."""
        first, *others = zip(self.convs, operators)
        x = self.convolve(*first, x_NF)
        for conv, operator in others:
            x = self.convolve(conv, operator, self.drop(self.activate(x)))
        return x

    def activate(self, x: Tensor) -> Tensor:
        """Activates a hidden layer's output, before its dropout."""
        return F.relu(x)

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        """Computes PyG's layer, `[n_l, H]`; weights come before the sums, which run over rows of width H."""
        raise NotImplementedError

    def classify(self, operator: SparseMatrix, x: Tensor) -> Tensor:
        """Computes logits of a classifier that passes messages, `[N, C]`; P x W' + b by default, P the matrix."""
        linear: Any = self.head.linears[-1]
        return operator @ transform(x, linear.weight) + linear.bias

    def first_weights(self) -> list[nn.Parameter]:
        """Returns the weights, `[H, F]`, that the features are multiplied by."""
        return [self.get_parameter(name) for name in self.first]

    def drop(self, x: Tensor) -> Tensor:
        """Applies dropout, in training."""
        return drop(x, self.dropout, self.training)


def _select_rows(x_NH: Tensor, rows: Tensor | None) -> Tensor:
    return x_NH if rows is None else x_NH.index_select(0, rows)
