"""Graphs that some nodes of a graph induce, and sparse rows of an array."""

import numpy as np
import scipy.sparse as sp

from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import Induced, induce, kept_entries
from shoal.storage.graph.rows import CsrRows


def part_of(graph: Graph, nodes: np.ndarray) -> Induced:
    """The graph of one client that has these nodes."""
    assignment = np.ones(graph.nodes, dtype=np.int32)
    assignment[nodes] = 0
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    return next(induce(graph.indptr, graph.indices, assignment, kept, [0]))


def csr_rows(x: np.ndarray) -> CsrRows:
    """What is not zero of float32 or float16 `[N, F]`."""
    csr = sp.csr_array(x.astype(np.float32))
    return CsrRows(csr.indptr.astype(np.int32), csr.indices.astype(np.int32), csr.data.astype(x.dtype), x.shape[1])
