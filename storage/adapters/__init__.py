"""Graphs of other libraries, in and out: PyTorch Geometric, DGL, torch_sparse; in: NetworkX."""

from shoal.storage.adapters.libraries import from_dgl, from_sparse_tensor, to_dgl, to_pyg, to_sparse_tensor
from shoal.storage.adapters.networkx_graph import from_networkx
from shoal.storage.datasets.user.pyg_data import from_pyg

__all__ = ["from_dgl", "from_networkx", "from_pyg", "from_sparse_tensor", "to_dgl", "to_pyg", "to_sparse_tensor"]
