"""Embeddings of the nodes of a batch of items."""

from typing import Any

from torch import Tensor

from shoal.algorithms.models.inputs.graph_batch import ItemBatch
from shoal.algorithms.models.layers.coupled import Coupled


def embedded_nodes(backbone: Any, batch: ItemBatch) -> Tensor:
    """Embeddings of all nodes of a batch by a backbone, float32 `[N, H]`."""
    if isinstance(backbone, Coupled):
        (x_NF,) = batch.hops
        return backbone.embed(x_NF, batch.operators, *batch.beside)
    return backbone(batch.hops).embedding_NH.float()
