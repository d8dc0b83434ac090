"""The output of every backbone, and the row-wise network on top of a decoupled one."""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.models.layers.dropout import drop, transform
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features

# The gain of ReLU, for Xavier-uniform weights.
GAIN = math.sqrt(2)


class Output(NamedTuple):
    """Scores and representation of N items: nodes, graphs, or pairs of nodes.

    Attributes:
        logits_NC: Unnormalised class scores `[N, C]`.
        embedding: What `embedding_NH` gives; sparse where a single linear layer reads sparse features.
    """

    logits_NC: Tensor
    embedding: Features

    @property
    def embedding_NH(self) -> Tensor:
        """Input of the last linear layer before its dropout `[N, H]`, for methods with prototypes.

        Of a classifier that passes messages (`head: conv`) also before the normalisation and ReLU in front of it.
        """
        return self.embedding.to_dense()


def undrawn(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Makes a linear layer that draws nothing, on the default device: its parameters are set before use.

    `torch.nn.utils.skip_init` makes the same, but loads sympy, which takes a third of a second of every process.
    """
    linear = nn.Linear(inputs, outputs, bias, device="meta")
    for name, shape in linear.named_parameters():
        setattr(linear, name, nn.Parameter(torch.empty(shape.shape)))
    return linear


class Head(nn.Module):
    """Linear layers with an activation and dropout after each hidden one (FedGTA's reference configuration).

    Weights are Xavier-uniform, biases zero. One layer is a logistic regression, whose embedding is its input.

    Attributes:
        drops_embedding: There is dropout before the last layer, too (`model.head_dropout`); what gives a head of one
            layer its input sees to that.
        pooled: Embeddings of rows are pooled, or joined in pairs, before the last layer, and none is dropped before.
        messages: Further parameters of a last layer that passes messages, set and read by a coupled backbone; None:
            there are none.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        classes: int,
        layers: int,
        dropout: float,
        *,
        activation: str = "relu",
        draws: bool = True,
    ) -> None:
        """Draws the parameters from torch's default generator, if it `draws` any: others are loaded before use.

        `activation` is `relu`, or `prelu`: one slope, shared by all layers and channels, that starts at 0.25. A
        ShoalError names an option that is out of range.
        """
        super().__init__()
        if layers < 1:
            raise ShoalError("model.layers", f"must be at least 1, found {layers}")
        if hidden < 1:
            raise ShoalError("model.hidden", f"must be at least 1, found {hidden}")
        if not 0 <= dropout < 1:
            raise ShoalError("train.dropout", f"must be at least 0 and below 1, found {dropout}")
        assert activation in ("relu", "prelu"), activation
        self.dropout = dropout
        self.drops_embedding = True
        self.pooled = False
        self.messages: nn.Module | None = None
        widths = [features, *[hidden] * (layers - 1), classes]
        # A fresh head then equals one that is reset under the same seed.
        self.linears = nn.ModuleList(undrawn(*pair) for pair in pairwise(widths))
        self.prelu = nn.PReLU() if activation == "prelu" and layers > 1 else None
        if draws:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        for linear in self.linears:
            nn.init.xavier_uniform_(linear.get_parameter("weight"), gain=GAIN)
            nn.init.zeros_(linear.get_parameter("bias"))
        if self.prelu is not None:
            self.prelu.reset_parameters()
        if self.messages is not None:
            self.messages.reset_parameters()  # type: ignore[operator]

    def first_weights(self) -> list[nn.Parameter]:
        """Returns the weight, `[H, F]`, that the input is multiplied by."""
        return [self.linears[0].get_parameter("weight")]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters, which inputs are converted to."""
        return self.linears[0].weight.dtype  # type: ignore[return-value]

    def forward(self, x_NF: Features) -> Output:
        """Computes logits `[N, C]` and last hidden activation `[N, H]` of rows `[N, F]` of any floating type."""
        x = x_NF.float() if isinstance(x_NF, FeatureMatrix) else x_NF.to(self.dtype)
        return self.after_first(self.first_layer(x), x)

    def first_layer(self, x_NF: Features) -> Tensor:
        """Computes the output of the first linear layer, before its activation."""
        first: Any = self.linears[0]
        return first(x_NF) if isinstance(x_NF, Tensor) else transform(x_NF, first.weight, first.bias)

    def after_first(self, x: Tensor, embedding: Features | None = None) -> Output:
        """Computes the output from that of the first layer; its input is the embedding where no other layer follows."""
        for number, linear in enumerate(list(self.linears)[1:], start=2):
            embedding = F.relu(x) if self.prelu is None else self.prelu(x)
            drops = number < len(self.linears) or (self.drops_embedding and not self.pooled)
            x = linear(drop(embedding, self.dropout, self.training) if drops else embedding)
        assert embedding is not None
        return Output(x, embedding)
