"""GraphSAGE: a node's own features and the mean of its neighbours'."""

from torch_geometric.nn import SAGEConv

from algorithms.backbones.coupled import Coupled


class GraphSAGE(Coupled):
    """GraphSAGE with the mean aggregator (Hamilton et al., 2017): h'_i = W_1 mean_{j in N(i)} h_j + W_2 h_i + b.

    A node without neighbours has the mean 0.
    """

    operator = "mean"

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        *,
        hidden: int = 64,
        layers: int = 2,
        fanouts: list[int] | None = None,
    ) -> None:
        """As for `Coupled`; `hops` is not used."""
        super().__init__(features, classes, dropout, hidden, layers, fanouts, lambda _, f, h: SAGEConv(f, h))
