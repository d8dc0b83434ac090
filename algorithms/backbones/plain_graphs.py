"""Small graphs by features and pairs of neighbours: what a prompt makes, and what split learning sends."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from algorithms.backbones.coupled import Coupled
from algorithms.backbones.graph_batch import GraphBatch
from algorithms.backbones.neighbourhood import operator_over


@dataclass(frozen=True)
class PlainGraphs:
    """Several graphs behind one another.

    Attributes:
        x_NF: Features of nodes, float32, through which gradients may flow.
        pairs_2E: Neighbours, rows of nodes, int32; every pair once.
        first: First node of every graph and the end of the last, int64 `[G + 1]`; every graph has a node.
    """

    x_NF: Tensor
    pairs_2E: Tensor
    first: Tensor

    def batch(self, backbone: Coupled) -> GraphBatch:
        """What a backbone reads of them."""
        nodes = len(self.x_NF)
        a, b = self.pairs_2E.cpu().numpy()
        ends = np.concatenate([a, b]), np.concatenate([b, a])
        csr = sp.csr_array((np.ones(2 * len(a), dtype=np.int8), ends), (nodes, nodes))
        csr.sort_indices()
        starts, columns = csr.indptr.astype(np.int32), csr.indices.astype(np.int32)
        matrix = operator_over(backbone.operator, starts, columns).to(self.x_NF.device)
        return GraphBatch([self.x_NF], (matrix,) * backbone.depth, self.first)
