"""The feature-structure encoder of FedSpray, which classifies a node by its features and a structure proxy.

Axes: N nodes, F features, H width, C classes.
"""

from torch import Tensor, nn

from shoal.algorithms.models.layers.head import Head, Output, undrawn
from shoal.storage.graph.sparse_matrix import StoredFeatures


class StructureEncoder(nn.Module):
    """h = ReLU(W x + b), one classifier of h, and one of h plus what stands for a node's neighbours, its proxy."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        """Draws no parameters: they are loaded, or drawn by `reset_parameters`."""
        super().__init__()
        self.alone = Head(features, hidden, classes, 2, 0.0, draws=False)
        self.with_proxy = undrawn(hidden, classes)

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        self.alone.reset_parameters()
        self.with_proxy.reset_parameters()

    def forward(self, x_NF: StoredFeatures) -> Output:
        """Computes h, `[N, H]`, and the scores by features alone, `[N, C]`."""
        out: Output = self.alone(x_NF)
        return out

    def classify(self, h_NH: Tensor, proxy_NH: Tensor) -> Tensor:
        """Scores nodes by h and by proxies, `[N, C]`."""
        logits_NC: Tensor = self.with_proxy(h_NH + proxy_NH)
        return logits_NC
