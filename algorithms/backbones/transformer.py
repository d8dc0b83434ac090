"""GraphTransformer: attention over neighbours by products of queries and keys."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from algorithms.backbones.coupled import Coupled
from algorithms.backbones.transform import transform
from storage.errors import ShoalError
from storage.sparse_matrix import Features, SparseMatrix


class GraphTransformer(Coupled):
    """Layers of TransformerConv (Shi et al., IJCAI 2021, eqs. 3 and 4), without edge features and gate:

    o_i = W_s x_i + b_s + sum_j a_ij (W_v x_j + b_v), where a_i is the softmax over the neighbours j of i of
    (W_q x_i + b_q) . (W_k x_j + b_k) / sqrt(d), by head; heads of width d = hidden / heads are concatenated. A node
    without neighbours has the first two terms alone. Between layers there is LeakyReLU with slope 0.01, as in FedGPL's
    code. A step keeps 3 hidden floats for every edge.
    """

    operator = "sum"

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        *,
        hidden: int = 64,
        layers: int = 2,
        heads: int = 1,
        fanouts: list[int] | None = None,
    ) -> None:
        """As for `Coupled`; `hops` is not used.

        Raises:
            ShoalError: `model.hidden` is no multiple of `model.heads`.
        """
        if heads < 1 or hidden % heads:
            raise ShoalError(f"model.heads: must divide model.hidden, found {heads} and {hidden}")
        super().__init__(
            features, classes, dropout, hidden, layers, fanouts, lambda _, f, h: TransformerConv(f, h // heads, heads)
        )

    def activate(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, 0.01)

    def convolve(self, conv: TransformerConv, operator: SparseMatrix, x: Features) -> Tensor:
        heads, width, hears = conv.heads, conv.out_channels, len(operator)

        def said(linear: nn.Module) -> Tensor:
            return transform(x, linear.get_parameter("weight"), linear.get_parameter("bias"))

        query_NHD = said(conv.lin_query)[:hears].view(-1, heads, width)
        key_MHD, value_MHD = (said(linear).view(-1, heads, width) for linear in (conv.lin_key, conv.lin_value))
        starts, columns, _ = operator.parts()
        rows = torch.arange(hears, device=starts.device).repeat_interleave(starts.diff())
        score_EH = (query_NHD[rows] * key_MHD[columns]).sum(-1) / math.sqrt(width)
        # Alike for all of a row, so that no gradient is lost; exponentials then do not overflow.
        highest_NH = torch.segment_reduce(score_EH.detach(), "max", offsets=starts.long(), axis=0)
        weight_EH = (score_EH - highest_NH[rows]).exp()
        total_NH = weight_EH.new_zeros(hears, heads).index_add(0, rows, weight_EH)
        message_EHD = (weight_EH / total_NH[rows])[..., None] * value_MHD[columns]
        heard_NHD = message_EHD.new_zeros(hears, heads, width).index_add(0, rows, message_EHD)
        return said(conv.lin_skip)[:hears] + heard_NHD.flatten(1)

    def first_weights(self) -> list[nn.Parameter]:
        names: Sequence[str] = ("lin_key", "lin_query", "lin_value", "lin_skip")
        return [self.convs[0].get_parameter(f"{name}.weight") for name in names]
