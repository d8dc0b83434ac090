"""All-in-One, also called ProG: a small graph of learnt tokens that send messages to the nodes of every graph.

Axes: N nodes of G graphs, F features, K tokens.
"""

import math

import torch
from torch import Tensor, nn

from shoal.algorithms.models.inputs.graph_batch import GraphBatch
from shoal.algorithms.models.items.plain_graphs import PlainGraphs, features_of, pairs_of
from shoal.algorithms.models.prompts.added_nodes import with_added
from shoal.storage.errors import ShoalError


class AllInOne(nn.Module):
    """Graph of prompt tokens (Sun et al., KDD 2023, section 3.3), added to every graph and pooled with it.

    Two tokens are joined where sigmoid(<p_i, p_j>) is at least `inner`; a token sends to a node, which does not send
    back, where sigmoid(<p_i, x_j>) is at least `cross`. What is joined is constant for the gradient.
    """

    def __init__(self, features: int, *, tokens: int = 10, inner: float = 0.3, cross: float = 0.1) -> None:
        """Draws the tokens from torch's default generator.

        Args:
            features: Width F of the features.
            tokens: Number K of tokens.
            inner: See above.
            cross: See above.

        Raises:
            ShoalError: An option is out of range.
        """
        super().__init__()
        if tokens < 1:
            raise ShoalError(f"model.prompt.tokens: must be at least 1, found {tokens}")
        for name, least in {"inner": inner, "cross": cross}.items():
            if not 0 < least < 1:
                raise ShoalError(f"model.prompt.{name}: must be above 0 and below 1, found {least}")
        self.inner, self.cross = (math.log(least / (1 - least)) for least in (inner, cross))
        self.tokens = nn.Parameter(torch.empty(tokens, features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the tokens anew, Kaiming-uniform."""
        nn.init.kaiming_uniform_(self.tokens)

    def forward(self, batch: GraphBatch) -> PlainGraphs:
        """The graphs with tokens."""
        x_NF, tokens = features_of(batch), self.tokens.detach()
        added = with_added(x_NF, batch.first, self.tokens)
        nodes, senders = added.joins(x_NF @ tokens.t() >= self.cross)
        own: Tensor = added.own_N.int()[pairs_of(batch).long()]
        left, right = (tokens @ tokens.t() >= self.inner).triu(1).nonzero(as_tuple=True)
        inner = torch.stack([added.added_GK[:, left].flatten(), added.added_GK[:, right].flatten()]).int()
        return PlainGraphs(added.x_MF, torch.cat([own, inner], dim=1), added.first, torch.stack([senders, nodes]))
