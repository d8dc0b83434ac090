"""Dense rows as a sparse matrix, for tests that compare both."""

import torch

from shoal.storage.graph.sparse_matrix import SparseMatrix


def sparse(dense: torch.Tensor) -> SparseMatrix:
    """The numbers of a float32 or float16 `[N, F]` that are not zero."""
    csr = dense.float().to_sparse_csr()
    indptr, indices = csr.crow_indices().int(), csr.col_indices().int()
    return SparseMatrix.of(indptr, indices, csr.values().to(dense.dtype), dense.shape[1])
