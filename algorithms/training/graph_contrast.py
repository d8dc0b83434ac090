"""GraphCL: a GNN learns without labels, from what two altered copies of a graph have in common."""

import math
from collections.abc import Callable, Iterator
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from shoal.algorithms.graphs.graph_augmentation import SmallGraphs, with_other_edges, without_nodes
from shoal.algorithms.losses.prototype_losses import nt_xent
from shoal.algorithms.models.layers.readout import Readout
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import CLOSED, Number, Positive, Whole
from shoal.storage.shards.view import View


@dataclass(frozen=True, config=CLOSED)
class ContrastOptions:
    """Options of a GNN's pre-training.

    Attributes:
        epochs: Passes over all graphs.
        batch: Graphs a step, at most.
        lr: Learning rate of Adam.
        temperature: Temperature of the loss, tau.
        drop_nodes: Share of its nodes that a graph's first view is without.
        perturb_edges: Share of its edges that other pairs take the place of in a graph's second view.

    Raises:
        ValueError: A value is out of its bounds.
    """

    epochs: Positive = 100
    batch: Annotated[Whole, Field(ge=2)] = 16
    lr: Annotated[Number, Field(gt=0, le=1e30)] = 1e-3
    temperature: Annotated[Number, Field(gt=0)] = 0.5
    drop_nodes: Annotated[Number, Field(ge=0, lt=1)] = 0.2
    perturb_edges: Annotated[Number, Field(ge=0, lt=1)] = 0.2


class GraphContrast:
    """GraphCL (You et al., NeurIPS 2020): Adam on NT-Xent between two views of every graph.

    One view of a graph has fewer nodes, the other one other edges. The backbone embeds the nodes of both, a readout
    makes one embedding of those of a graph, and a projection of two layers and ReLU, which is not kept, precedes the
    loss. There is no dropout, so that views differ by what was altered alone, and no label is read. An epoch has
    `steps` steps.
    """

    def __init__(
        self,
        model: Readout,
        data: View,
        graphs: SmallGraphs,
        options: ContrastOptions,
        random: Callable[[str, int], int],
    ) -> None:
        """Draws the parameters of the model, which is on the device of the data, and of the projection.

        `random` gives the seed of a purpose and a number. Raises ShoalError: there are fewer than two graphs.
        """
        if len(graphs) < 2:
            raise ShoalError(f"pre-training contrasts graphs with one another and needs two, found {len(graphs)}")
        self._model, self._data, self._graphs = model, data, graphs
        self._options, self._random = options, random
        width: int = model.head.linears[-1].in_features  # type: ignore[assignment]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random("initial", 0))
            # The processor draws them, so that they are the same on any device.
            model.cpu().reset_parameters()
            projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self._model.to(data.device)
        self._projection = projection.to(data.device)
        self._optimizer = torch.optim.Adam([*model.parameters(), *projection.parameters()], lr=options.lr)
        # A step never has a single graph.
        self.steps = min(math.ceil(len(graphs) / options.batch), len(graphs) // 2)

    def epoch(self, number: int) -> Iterator[float]:
        """Trains on all graphs once, in a new order; gives each step's loss. Raises ShoalError if one is not finite."""
        rng = np.random.default_rng(self._random("epoch", number))
        self._model.train()
        for chosen in np.array_split(rng.permutation(len(self._graphs)), self.steps):
            loss = self.loss(self._graphs.some(chosen), rng)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            value = float(loss.detach())
            if not math.isfinite(value):
                raise ShoalError(f"the loss of epoch {number} is {value}; take a smaller learning rate")
            yield value

    def loss(self, graphs: SmallGraphs, rng: np.random.Generator) -> Tensor:
        """Computes the loss on new views of some graphs."""
        fewer = without_nodes(graphs, self._options.drop_nodes, rng)
        other = with_other_edges(graphs, self._options.perturb_edges, rng)
        batches = (view.batch(self._data, self._model.backbone) for view in (fewer, other))
        z = [self._projection(self._model.embed_graphs(batch)) for batch in batches]
        return nt_xent(z[0], z[1], self._options.temperature)
