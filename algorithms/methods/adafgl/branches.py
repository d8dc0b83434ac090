"""The networks that a client learns by itself from what the common model knows (AdaFGL, phase 2).

Axes: N nodes, C classes, F features, K steps of propagation.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

from torch import Tensor, nn

from shoal.algorithms.methods.adafgl.knowledge import Knowledge, Rows, propagated
from shoal.algorithms.methods.adafgl.signed_messages import signed_messages
from shoal.algorithms.models.layers.dropout import fill_kept, masks
from shoal.algorithms.models.layers.head import Head
from shoal.storage.graph.sparse_matrix import Features


class Scores(NamedTuple):
    """Class scores of nodes, `[N, C]`: of the homophilous branch, and of the three of the heterophilous one."""

    homo: Tensor
    own: Tensor
    smooth: Tensor
    message: Tensor


class Branches(nn.Module):
    """Four perceptrons: of two layers for a graph whose neighbours are similar, and three of three layers for another.

    The latter read a node's features alone (`own`), propagated features (`smooth`), and signed messages (`message`),
    for which `beta` is the share of the common model in the similarity.
    """

    def __init__(
        self, features: int, classes: int, steps: int, hidden: int, dropout: float, beta: float, draws: bool
    ) -> None:
        """Draws the parameters from torch's default generator, if it `draws` any."""
        super().__init__()
        self.beta = beta
        wide = (steps + 1) * features
        options: dict[str, Any] = {"activation": "prelu", "draws": draws}
        self.homo = Head(wide, hidden, classes, 2, dropout, **options)
        self.own = Head(features, hidden, classes, 3, dropout, **options)
        self.smooth = Head(wide, hidden, classes, 3, dropout, **options)
        self.message = Head(wide, hidden, classes, 3, dropout, **options)

    def forward(self, known: Knowledge, x_NF: Features, asked: Rows | None = None) -> Scores:
        """Scores by what is known and by the features, `[N, F]`; all but `homo` of the rows that are asked for alone.

        Dropout draws for all nodes, so that the rows that are asked for have no say in what is drawn.
        """
        weights = [branch.first_weights()[0] for branch in (self.homo, self.message, self.smooth)]
        homo_NH, message_NH, smooth_RH = propagated(known, x_NF, weights, asked)

        def mask_of(x: Tensor, p: float) -> Tensor:
            return fill_kept(x.new_empty(len(x_NF), x.shape[1]), p).div_(1 - p)[asked.rows]  # type: ignore

        homo_NC = _after(self.homo, homo_NH)
        with nullcontext() if asked is None else masks(mask_of):
            own_RC = self.own(x_NF if asked is None else asked.x_RF).logits_NC
            smooth_RC = _after(self.smooth, smooth_RH)
        message_NC = _after(self.message, message_NH)
        rows = None if asked is None else asked.rows
        return Scores(homo_NC, own_RC, smooth_RC, signed_messages(message_NC, known, self.beta, rows))


def _after(branch: Head, product_NH: Tensor) -> Tensor:
    """Scores of a branch whose first weight is multiplied already."""
    return branch.after_first(product_NH + branch.linears[0].get_parameter("bias")).logits_NC
