"""Pseudo graphs whose features a generator makes, and what models read of them (FedTAD)."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.graphs.completed_graph import complete_graph
from shoal.algorithms.graphs.generated_inputs import inputs_over
from shoal.algorithms.graphs.nearest import nearest
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.head import undrawn

WIDTHS = (64, 128, 256)


class NodeGenerator(nn.Module):
    """Features `[N, F]` of noise z ~ N(0, I) and a class, whose row of a table N(0, 1) `[C, C]` is trained, too.

    Hidden layers are 64, 128 and 256 wide, with tanh, as in the authors' code.
    """

    def __init__(self, noise: int, classes: int, features: int) -> None:
        """Draws no parameters: they are loaded, or drawn by `reset_parameters`."""
        super().__init__()
        self.noise = noise
        self.table = nn.Parameter(torch.empty(classes, classes))
        widths = (noise + classes, *WIDTHS, features)
        self.layers = nn.ModuleList(undrawn(*pair) for pair in pairwise(widths))

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        nn.init.normal_(self.table)
        for layer in self.layers:
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, noise_NZ: Tensor, y_N: Tensor) -> Tensor:
        """Generates features `[N, F]` from noise and classes, int64."""
        x = torch.cat([self.table[y_N], noise_NZ], dim=1)
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.tanh(layer(x))
        result: Tensor = last(x)
        return result


def even_labels(class_Q: Tensor, nodes: int) -> Tensor:
    """Gives nodes labels, int64 `[N]`, as many of each class as can be; the last class has the rest."""
    place_N = torch.arange(nodes, device=class_Q.device) // max(nodes // len(class_Q), 1)
    return class_Q[place_N.clamp_max(len(class_Q) - 1)]


def pseudo_inputs(model: FlatModel, x_NF: Tensor, neighbours: int) -> Inputs:
    """Makes what a model reads of a graph of nodes with features x, each joined to those of the largest cosine to it.

    Edges run in both directions, and have no gradient; x may have one. A model of hops reads smoothed copies of x.
    """
    alone = np.zeros(len(x_NF) + 1, dtype=np.int32)
    graph = complete_graph(alone, np.zeros(0, dtype=np.int32), nearest(x_NF, neighbours), x_NF.device)
    return inputs_over(model, x_NF, graph.indptr.numpy(), graph.indices.numpy())
