"""FedStar's model: an encoder of features that also reads an encoder of structure, which reads no features."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.models.gnn.gin import Norm, gin_layer, gin_output
from shoal.algorithms.models.inputs.structure_codes import CODES
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.message_layers import GCNConv, GINConv
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix


class Star(Coupled):
    """Two coupled encoders (Tan et al., AAAI 2023, section 4): with x_0 = X W + b and s_0 as the structure has it,

        x_{l+1} = ReLU(GIN([x_l, s_l])) and s_{l+1} = tanh(GCN(s_l)),

    and the embedding [x_L, s_L], which is pooled, is twice as wide as a layer. GIN is that of `gin`, with its norm. The
    paper's code has two more linear layers and a ReLU around the pooling. Dropout falls on x between layers.
    """

    operator = "sum"
    first = ("lift.weight",)
    lifted = True
    embedding_parts = 2

    def __init__(self, *shape: Any, hidden: int = 64, layers: int = 2, norm: Norm = "layer") -> None:
        """Takes the arguments of `GIN`.

        Args:
            norm: As of `GIN`: `layer` or `none`.
        """
        self.norm = norm
        super().__init__(*shape, hidden=hidden, layers=layers)

    def layer(self, number: int, width: int, out: int, last: bool) -> GINConv:
        return gin_layer(width + out, out, self.norm)

    def structure_encoder(self, hidden: int, layers: int) -> nn.Module:
        return StructureEncoder(hidden, layers)

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix], codes_NQ: Tensor | None = None) -> Tensor:
        """Embeds every node, `[N, 2 H]`, by its features and codes."""
        assert self.lift is not None
        assert isinstance(self.structure, StructureEncoder)
        assert codes_NQ is not None
        x = transform(x_NF, self.lift.weight, self.lift.bias)
        *structures, last = self.structure(codes_NQ, operators)
        for number, (conv, operator, s) in enumerate(zip(self.convs, operators, structures, strict=True)):
            x = self.drop(x) if number else x
            x = F.relu(self.convolve(conv, operator, torch.cat([x, s], dim=1)))
        return torch.cat([x, last], dim=1)

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        return gin_output(conv, operator, x)


class StructureEncoder(nn.Module):
    """s_0 = C W_0 + b_0 of structure codes C, s_{l+1} = tanh(D^-1/2 (A + I) D^-1/2 s_l W_l + b_l), D with loops."""

    def __init__(self, hidden: int, layers: int) -> None:
        """Draws the parameters from torch's default generator; all s have width `hidden`."""
        super().__init__()
        self.lift = nn.Linear(CODES, hidden)
        self.convs = nn.ModuleList(GCNConv(hidden, hidden) for _ in range(layers))

    def reset_parameters(self) -> None:
        self.lift.reset_parameters()
        for conv in self.convs:
            conv.reset_parameters()  # type: ignore[operator]

    def forward(self, codes_NQ: Tensor, operators: Sequence[SparseMatrix]) -> list[Tensor]:
        """Computes s_0 to s_L, each `[N, H]`; the operators are A, one a layer."""
        starts, _, _ = operators[0].parts()
        root_N1 = (starts.diff() + 1).float().rsqrt()[:, None]
        codes = [self.lift(codes_NQ)]
        for conv, operator in zip(self.convs, operators, strict=True):
            messages = root_N1 * transform(codes[-1], conv.get_submodule("lin").get_parameter("weight"))
            codes.append(torch.tanh(root_N1 * (operator @ messages + messages) + conv.get_parameter("bias")))
        return codes
