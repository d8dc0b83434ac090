"""A graph or a shard as named tensors, for other libraries."""

import importlib
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from shoal.storage.datasets.user.incoming import MASKS
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.rows import CsrRows, csr_of
from shoal.storage.store.shard import Shard
from shoal.storage.store.split import Split, to_codes


def tensors_of(graph: Graph | Shard, split: Split | None = None, sparse: bool = False) -> dict[str, Tensor]:
    """A whole graph, which has its own split, or a client's, as tensors by PyG's names.

    Returns:
        `edge_index` int64 `[2, E]`, both directions; `edge_weight` float32 `[E]`, where edges have weights; `x` of the
        stored type `[N, F]`, CSR if `sparse`, else dense, however it is stored; `y` int64 `[N]`, -1 is unlabelled; with
        a split `train_mask`, `val_mask`, `test_mask` bool `[N]`; of a shard `n_id` int64 `[N]`, the numbers of its
        nodes in the whole graph; of many graphs `batch` int64 `[N]`, the graph of every node, and `y` and masks are
        those of graphs; of pairs `edge_label_index` int64 `[2, M]` and instead of `y` `edge_label` int64 `[M]`, and
        masks are those of pairs; of a graph with clients of its own `assignment` int32 `[N]`. `x` may share memory with
        the graph; writing to it never changes a file.
    """
    source = np.repeat(np.arange(graph.nodes, dtype=np.int64), np.diff(graph.indptr))
    x: Any = graph.x
    found = {
        "edge_index": torch.from_numpy(np.stack([source, graph.indices.astype(np.int64)])),
        **({} if graph.edge_weight is None else {"edge_weight": torch.from_numpy(graph.edge_weight.copy())}),
        "x": _csr(x) if sparse else _tensor(x.toarray() if sp.issparse(x) or isinstance(x, CsrRows) else x[:]),
    }
    if isinstance(graph, Shard):
        y, code = graph.item_label, None if split is None else to_codes(split, graph.items)
        batch = None if graph.graph is None else np.repeat(np.arange(graph.items), np.diff(graph.graph_ptr))
        found["n_id"] = torch.from_numpy(graph.node.astype(np.int64))
        if graph.pairs is not None:
            found["edge_label_index"] = torch.from_numpy(graph.pairs.ends.astype(np.int64).T.copy())
    else:
        y, code, batch = graph.y, graph.split, graph.graph_of
        if graph.assignment is not None:
            found["assignment"] = _tensor(graph.assignment)
    found["edge_label" if "edge_label_index" in found else "y"] = torch.from_numpy(y.astype(np.int64))
    if batch is not None:
        found["batch"] = torch.from_numpy(batch.astype(np.int64))
    if code is not None:
        found |= {name: torch.from_numpy(code == part) for name, part in MASKS.items()}
    return found


def to_pyg(graph: Graph | Shard, split: Split | None = None, sparse: bool = False) -> Data:
    """A PyG `Data` with the tensors of `tensors_of`."""
    return Data(**tensors_of(graph, split, sparse))


def library(name: str, what: str) -> Any:
    """The module of an optional library; a ShoalError says that it is missing, or does not work with this torch."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ShoalError(name, f"{what} needs it, and it cannot be imported ({reason}); see `shoal doctor`") from error


def _csr(x: Any) -> Tensor:
    """Features as torch CSR with int64 indices, which all of its operators take."""
    if isinstance(x, CsrRows):
        indptr, columns, values = x.indptr, x.columns, x.values
    else:
        csr = csr_of(x[:])
        indptr, columns, values = csr.indptr, csr.indices, csr.data.astype(x.dtype)
    crow, col = (torch.from_numpy(array.astype(np.int64)) for array in (indptr, columns))
    return torch.sparse_csr_tensor(crow, col, torch.from_numpy(values.copy()), size=x.shape, check_invariants=False)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
