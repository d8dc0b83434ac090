"""A user's readout: `model.readout: examples/readout.py:MeanAndMax` of a graph task.

Called as PyG's aggregations are, which are readouts, too: `from torch_geometric.nn import SoftmaxAggregation`.
"""

import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter


class MeanAndMax(nn.Module):
    """What the nodes of a graph have on average, and at most."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.join = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, index: Tensor, dim_size: int) -> Tensor:
        mean = scatter(x, index, dim_size=dim_size, reduce="mean")
        most = scatter(x, index, dim_size=dim_size, reduce="max")
        return self.join(torch.cat([mean, most], dim=1))
