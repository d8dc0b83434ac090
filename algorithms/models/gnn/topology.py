"""FGGP's network for edges: the similarity of two rows of its output tells whether the nodes are joined."""

import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.head import GAIN, Output, undrawn
from shoal.storage.errors import ShoalError


class Topology(nn.Module):
    """F = ReLU(P (P X W_1) W_2), P = D^-1/2 (A' + I) D^-1/2: two graph convolutions without biases (FGGP's GKIC).

    The only activation is the last one. It has F H + H H parameters, Xavier-uniform at first, and no classifier
    (`head`), so that only a method names it, in `models()`. `width` is H.
    """

    traced = True

    def __init__(self, features: int, classes: int, hops: int, dropout: float, *, hidden: int = 128) -> None:
        """Draws the parameters from torch's default generator; `classes`, `hops` and `dropout` are not used."""
        super().__init__()
        if hidden < 1:
            raise ShoalError("model.hidden", f"must be at least 1, found {hidden}")
        self.inputs = (0,)
        self.width = hidden
        self.head = None
        widths = (features, hidden), (hidden, hidden)
        self.linears = nn.ModuleList(undrawn(*pair, bias=False) for pair in widths)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight_HF in self._weights():
            nn.init.xavier_uniform_(weight_HF, gain=GAIN)

    def first_weights(self) -> list[nn.Parameter]:
        """Returns the weight, `[H, F]`, that the features are multiplied by."""
        return self._weights()[:1]

    def forward(self, around: Neighbourhood) -> Output:
        """Computes F, `[N, H]`, as the embedding, and in the place of class scores, as there are no classes."""
        x_NH: Tensor | None = None
        for weight, operator in zip(self._weights(), around.operators, strict=True):
            x_NH = operator @ transform(around.x_NF if x_NH is None else x_NH, weight)
        assert x_NH is not None
        found_NH = F.relu(x_NH if around.rows is None else x_NH.index_select(0, around.rows))
        return Output(found_NH, found_NH)

    def _weights(self) -> list[nn.Parameter]:
        return [linear.get_parameter("weight") for linear in self.linears]
