"""A model of graphs with a prompt: parameters that change a graph before a GNN reads it.

Axes: G graphs, H width of the embedding.
"""

from typing import Any

from torch import Tensor, nn

from shoal.algorithms.models.inputs.graph_batch import GraphBatch
from shoal.algorithms.models.items.plain_graphs import PlainGraphs, batch_of
from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.models.layers.output import Output
from shoal.algorithms.models.layers.readout import Readout


class Prompted(nn.Module):
    """A prompt before a coupled backbone with a readout: logits = classifier(dropout(GNN(prompt(graphs)))).

    Names of parameters tell its three parts: those of the prompt begin with `prompt.`, those of the classifier with
    `backbone.backbone.head.`, all others are the GNN's and its readout's. The prompt's come first.

    Attributes:
        prompt: Makes `PlainGraphs` of a `GraphBatch` whose matrix is the plain adjacency.
        backbone: The readout over the GNN.
    """

    def __init__(self, prompt: nn.Module, backbone: Readout) -> None:
        """Joins the parts, whose parameters are drawn already."""
        super().__init__()
        self.prompt: Any = prompt
        self.backbone: Any = backbone
        self.inputs = backbone.inputs

    @property
    def head(self) -> Head:
        """The backbone's own."""
        return self.backbone.head

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator, the GNN's as without a prompt."""
        self.backbone.reset_parameters()
        self.prompt.reset_parameters()

    def forward(self, batch: GraphBatch) -> Output:
        """Output for every graph of a batch; the embedding is the pooled one, `[G, H]`."""
        return self.backbone.classified(self.answer(self.prompt(batch)))

    def answer(self, graphs: PlainGraphs) -> Tensor:
        """Embeddings of graphs by the GNN and its readout, `[G, H]`: what a server computes in split learning."""
        return self.backbone.pooled(batch_of(graphs, self.backbone.backbone))
