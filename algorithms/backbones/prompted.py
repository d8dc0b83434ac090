"""A model that a prompt speaks first to: it changes graphs before the GNN reads them.

Axes: N nodes of G graphs, F features, H width of the embedding.
"""

from torch import Tensor, nn

from algorithms.backbones.graph_batch import GraphBatch
from algorithms.backbones.head import Head
from algorithms.backbones.output import Output
from algorithms.backbones.plain_graphs import PlainGraphs
from algorithms.backbones.readout import Readout


class Prompted(nn.Module):
    """Prompt, GNN with readout, and its classifier; the parameters of the prompt, `prompt.…`, come first in `w`.

    Attributes:
        prompt: Makes `PlainGraphs` of a batch.
        backbone: GNN, readout, classifier.
    """

    def __init__(self, prompt: nn.Module, backbone: Readout) -> None:
        """Of modules that have drawn their parameters."""
        super().__init__()
        self.prompt = prompt
        self.backbone = backbone
        self.inputs = backbone.inputs

    @property
    def head(self) -> Head:
        """The classifier."""
        return self.backbone.head

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        self.backbone.reset_parameters()
        self.prompt.reset_parameters()  # type: ignore[operator]

    def forward(self, batch: GraphBatch) -> Output:
        """Output for every graph of a batch, whose matrices are plain adjacencies."""
        return self.backbone(self.prompt(batch).batch(self.backbone.backbone))

    def answer(self, graphs: PlainGraphs) -> Tensor:
        """Embeddings of graphs, `[G, H]`: all but prompt and classifier."""
        return self.backbone.embed(graphs.batch(self.backbone.backbone))
