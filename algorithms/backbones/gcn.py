"""GCN: sums over neighbours, normalised by both degrees."""

from collections.abc import Sequence
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, JumpingKnowledge

from algorithms.backbones.coupled import Coupled
from algorithms.backbones.neighbourhood import Neighbourhood
from algorithms.backbones.output import Output
from algorithms.backbones.transform import transform
from storage.errors import ShoalError
from storage.sparse_matrix import Features, SparseMatrix


class GCN(Coupled):
    """Graph Convolutional Network (Kipf and Welling, 2017): H' = D^-1/2 (A + I) D^-1/2 H W + b.

    With `jumping: max` (Xu et al., ICML 2018, section 4) ReLU follows every layer, the last included, and the
    embedding is the largest of all layers' outputs, entry by entry, before their dropout.

    With `norm: batch` every column is normalised before each ReLU, by mean and variance over the nodes of the graph at
    hand, in evaluation, too: it has no parameters and keeps no statistics. With `head: conv` the classifier is a graph
    convolution, too: of the last layer's output after normalisation, ReLU and dropout. The embedding stays what that
    layer gives. Both read the whole graph.

    Attributes:
        norm: As above.
        conv_head: The classifier is a convolution.
    """

    operator = "symmetric"

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        *,
        hidden: int = 64,
        layers: int = 2,
        jumping: Literal["none", "max"] = "none",
        norm: Literal["none", "batch"] = "none",
        head: Literal["linear", "conv"] = "linear",
        fanouts: list[int] | None = None,
    ) -> None:
        """As for `Coupled`; `hops` is not used.

        Args:
            features: See there.
            classes: See there.
            hops: Not used.
            dropout: See there.
            hidden: See there.
            layers: See there.
            jumping: `max`, or `none` for the last layer's output alone.
            norm: `batch`, or `none`.
            head: `conv`, or `linear`.
            fanouts: See there.

        Raises:
            ShoalError: As there, or neighbours are drawn for options that read the whole graph.
        """
        super().__init__(features, classes, dropout, hidden, layers, fanouts, lambda _, f, h: GCNConv(f, h))
        if fanouts is not None and (norm != "none" or head != "linear"):
            raise ShoalError("model.fanouts: norm: batch and head: conv read the whole graph; leave it out")
        self.norm, self.conv_head = norm, head == "conv"
        self.jump = JumpingKnowledge(jumping) if jumping != "none" else None

    @property
    def depth(self) -> int:
        return len(self.convs) + self.conv_head

    def forward(self, around: Neighbourhood) -> Output:
        if not self.conv_head:
            return super().forward(around)
        linear: Any = self.head.linears[-1]
        *operators, last = around.operators
        embedding_NH = self.embed(around.x_NF, operators)
        read_NH = self.activate(embedding_NH)
        if self.head.drops_embedding:
            read_NH = self.drop(read_NH)
        logits_NC = last @ transform(read_NH, linear.weight) + linear.bias
        if around.rows is not None:
            logits_NC, embedding_NH = (x.index_select(0, around.rows) for x in (logits_NC, embedding_NH))
        return Output(logits_NC, embedding_NH)

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix]) -> Tensor:
        if self.jump is None:
            return super().embed(x_NF, operators)
        first, *others = zip(self.convs, operators)
        x = self.activate(self.convolve(*first, x_NF))
        outputs = [x]
        for conv, operator in others:
            x = self.activate(self.convolve(conv, operator, self.drop(x)))
            outputs.append(x)
        # With fanouts every layer hears for fewer nodes than the one before.
        return self.jump([x[: len(operators[-1])] for x in outputs])

    def convolve(self, conv: GCNConv, operator: SparseMatrix, x: Features) -> Tensor:
        return operator @ transform(x, conv.lin.weight) + conv.bias

    def activate(self, x: Tensor) -> Tensor:
        # One row is its own mean, and nothing would be left of it.
        if self.norm == "batch" and len(x) > 1:
            x = F.batch_norm(x, None, None, training=True)
        return F.relu(x)

    def first_weights(self) -> list[nn.Parameter]:
        return [self.convs[0].get_parameter("lin.weight")]
