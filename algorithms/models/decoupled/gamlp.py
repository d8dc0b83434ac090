"""GAMLP: every node weighs the hops for itself, then an MLP.

Axes: N nodes, K hops counting hop 0 (the features), F features.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algorithms.models.layers.head import Head, Output
from shoal.algorithms.models.layers.weighted_hops import (
    DenseHops,
    SparseHops,
    evaluate_gamlp,
    weigh_sparse_hops,
    weighted_hops,
)
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import Features

ATTENTIONS = ("simple", "gate", "ori_ref", "jk", "recursive")


class GAMLP(nn.Module):
    """Graph Attention Multi-Layer Perceptron (Zhang et al., 2022), as in FedGTA's code.

    u(v) = Σ_l w_l(v) X^(l)_v with w(v) = softmax over l of sigmoid(s_l(v)), then an MLP with one shared
    PReLU. The score s_l(v) depends on `attention`:

    - `simple`: θ_l, the same for all nodes
    - `gate`: a · X^(l)_v + b
    - `ori_ref`: a · [X^(0)_v ‖ X^(l)_v] + b
    - `jk`: a · [X^(0)_v ‖ … ‖ X^(K-1)_v ‖ X^(l)_v] + b
    - `recursive`: a · [H_l ‖ X^(l)_v] + b, where H_0 = X^(0)_v and H_l is the sum of the hops before l,
      weighted by the softmax over their sigmoids

    FedGTA's paper has another input of the MLP, twice as wide: the last hop ‖ Σ_l w_l(v) X^(l)_v over the hops before
    it. Its code sums over all hops, the last one among them, and so does this class; `jk`, three layers, width 64 and
    one PReLU are its choices, too. One thing differs from the code: in `ori_ref` and `jk` it reshapes the scores, which
    lie hop by hop, as if they lay node by node, so that a node is weighed by scores of other nodes. Here every node has
    its own.

    The concatenations are never formed: with a = [a_ref ‖ a_x] a score is the sum of two matrix-vector
    products, which are several times as fast as products with a matrix of one or two columns. Where all hops are
    sparse, their weighted rows are not formed either: the first layer of the MLP is applied to every hop.
    """

    has_gradient_formulas = True
    traced = True

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        *,
        hidden: int = 64,
        layers: int = 3,
        attention: str = "jk",
    ) -> None:
        """Takes the arguments of `FixedHops`, and two more; no hops make it an MLP.

        Args:
            features, classes, hops, dropout: As for `FixedHops`.
            hidden: Width of the layers but the last.
            layers: Number of linear layers.
            attention: How the score of a hop is computed: `simple`, `gate`, `ori_ref`, `jk` or `recursive`, see above.
        """
        super().__init__()
        if attention not in ATTENTIONS:
            choices = ", ".join(ATTENTIONS)
            raise ShoalError("model.attention", f"there is no {attention!r}; choose one of {choices}")
        self.inputs = tuple(range(hops + 1))
        self.attention = attention
        self.head = Head(features, hidden, classes, layers, dropout, activation="prelu")
        if attention == "simple":
            self.theta = nn.Parameter(torch.zeros(hops + 1))
        else:
            blocks = {"gate": 1, "ori_ref": 2, "jk": hops + 2, "recursive": 2}[attention]
            self.score = nn.Linear(blocks * features, 1)

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator; `simple` starts as the plain mean."""
        self.head.reset_parameters()
        if self.attention == "simple":
            nn.init.zeros_(self.theta)
        else:
            self.score.reset_parameters()

    @property
    def one_weight(self) -> bool:
        """The same as in `FixedHops`; a single layer gives the weighted sum of hops as its embedding."""
        return len(self.head.linears) > 1

    def first_weights(self) -> list[nn.Parameter]:
        return self.head.first_weights()

    def forward(self, hops: Sequence[Features]) -> Output:
        """Computes the output for rows of all hops, hop 0 first: `[N, F]`, float32 or float16, dense or sparse."""
        weight = self.head.linears[0].weight
        # Parameters of several clients, one behind the other, are no `Parameter`.
        if not torch.is_grad_enabled() and isinstance(weight, nn.Parameter) and self._is_fused(weight):
            return evaluate_gamlp(self, hops)
        if (summed := self._summed(hops)) is not None:
            return self.head.after_first(summed)
        scored_hops = weighted_hops(hops, self.head, self.vectors_RF())
        return scored_hops.output(self.weights_NK(scored_hops), self.head)

    def _summed(self, hops: Sequence[Any]) -> Tensor | None:
        """Computes the output of the first layer for stand-ins of sparse hops; None: in another way."""
        first: Any = self.head.linears[0]
        if len(self.head.linears) == 1 or self.attention == "recursive":
            return None
        summed = weigh_sparse_hops(hops, first.weight, self.vectors_RF(), self)
        return None if summed is None else summed + first.bias

    def _is_fused(self, weight: Tensor) -> bool:
        """Whether weights and sums of hops are taken in one pass: on a processor, in float32."""
        plain = weight.is_cpu and weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        return plain and self.attention != "recursive"

    def vectors_RF(self) -> Tensor:
        """Returns the vectors that hops are multiplied by for their scores: a_x behind the parts of a_ref."""
        first: Any = self.head.linears[0]
        rows: Tensor = first.weight[:0] if self.attention == "simple" else self.score.weight
        return rows.view(-1, first.in_features)

    def weights_NK(self, hops: DenseHops | SparseHops) -> Tensor:
        """Computes the weight of every hop at every node, `[N, K]`; rows sum to one."""
        n, k, _ = hops.shape
        if self.attention == "simple":
            return self.theta.sigmoid().softmax(0).expand(n, k)
        score_NK = hops.scores_NK({"gate": 0, "jk": k}.get(self.attention, 1)) + self.score.bias
        if self.attention == "ori_ref":
            score_NK = score_NK + hops.first_N().unsqueeze(1)
        elif self.attention == "jk":
            score_NK = score_NK + hops.all_N().unsqueeze(1)
        elif self.attention == "recursive":
            return self._recursive_NK(score_NK, hops.scores_NK(0))
        return score_NK.sigmoid().softmax(1)

    @staticmethod
    def _recursive_NK(score_NK: Tensor, reference_NK: Tensor) -> Tensor:
        """Compares a hop with those before it for its weight: a_ref · H_l is a mean of the a_ref · X^(j)."""
        gate_NK = (score_NK[:, :1] + reference_NK[:, :1]).sigmoid()
        for hop in range(1, score_NK.shape[1]):
            history_N = (gate_NK.softmax(1) * reference_NK[:, :hop]).sum(1)
            gate_N = (score_NK[:, hop] + history_N).sigmoid()
            gate_NK = torch.cat((gate_NK, gate_N.unsqueeze(1)), dim=1)
        return gate_NK.softmax(1)
