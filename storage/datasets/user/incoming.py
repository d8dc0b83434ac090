"""A clean graph from the data of other libraries: tensors, sparse adjacencies, and masks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from shoal.storage.datasets.features.features import check_finite
from shoal.storage.errors import ShoalError
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL
from shoal.storage.options.target_names import CLASSIFICATION, Target

LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
MASKS = {"train_mask": TRAIN, "val_mask": VAL, "test_mask": TEST}


def graph_of(
    name: str,
    values: Mapping[str, Any],
    where: Mapping[str, str],
    own: bool = True,
    target: Target = CLASSIFICATION,
) -> Graph:
    """Makes a clean graph from tensors or arrays, which it may share memory with; a ShoalError names a wrong value.

    `values` are those of `graph_from_arrays`, of which None is as if the key were missing, and `train_mask`, `val_mask`
    and `test_mask`; `where` is the name of each in error messages. `own`: a user's graph, and none that is published.
    `target` says what y are.
    """
    for key in ("edge_index", "x"):
        if values.get(key) is None:
            raise ShoalError(where[key], "missing; a graph needs edges and features")
    values = {**values, "y": label_values(values.get("y"))}
    arrays = {
        key: np.asarray(value) if isinstance(value, int) and key == "edge_kinds" else to_array(value, where[key])
        for key, value in values.items()
        if value is not None
    }
    for key, array in arrays.items():
        if sp.issparse(array) and key not in ("x", "y"):
            raise ShoalError(where[key], "is sparse, and only features and labels may be; give a dense tensor")
    if arrays["x"].ndim != 2:
        raise ShoalError(where["x"], f"expected [nodes, features], got {list(arrays['x'].shape)}")
    masks = {key: arrays.pop(key) for key in MASKS if key in arrays}
    if masks:
        if "split" in arrays:
            raise ShoalError(where["split"], f"there are masks, too ({', '.join(masks)}); give one of the two")
        items, what = (arrays["x"].shape[0], "node") if arrays.get("graph") is None else (len(arrays["y"]), "graph")
        arrays["split"] = _split(masks, items, what, where)
    graph = graph_from_arrays(name, arrays, {**where, "split": where["train_mask"]}, own=own, target=target)
    check_finite(graph.x, where["x"])
    return graph


def label_values(y: Any) -> Any:
    """Returns labels that `to_array` takes: names are in no tensor, but in lists, or in arrays of other libraries."""
    if isinstance(y, list | tuple) or (hasattr(y, "__array__") and not isinstance(y, np.ndarray | Tensor)):
        return np.array(y, dtype=object)
    return np.array([y]) if isinstance(y, int | float | str) else y


def to_array(value: Any, where: str) -> Any:
    """Converts a tensor to an array, NumPy, or SciPy CSR if it is sparse; keeps arrays, refuses everything else."""
    if isinstance(value, np.ndarray):
        return value
    if sp.issparse(value):
        return sp.csr_array(value)
    if not isinstance(value, Tensor):
        raise ShoalError(where, f"must be a tensor or an array, found {type(value).__name__}")
    require_values(value, where)
    value = value.detach().cpu().resolve_conj().resolve_neg()
    # NumPy has no bfloat16, and SciPy no float16.
    if value.dtype == torch.bfloat16 or (value.dtype == torch.float16 and value.layout != torch.strided):
        value = value.float()
    if value.layout == torch.strided:
        return value.numpy()
    coo = value.to_sparse_coo().coalesce()
    return sp.csr_array((coo.values().numpy(), tuple(coo.indices().numpy())), shape=tuple(coo.shape))


def require_values(value: Any, where: str) -> None:
    """Refuses a tensor that no array can hold: one without values, of several shapes, quantized, of another layout."""
    if not isinstance(value, Tensor):
        return
    kind = None
    if value.is_nested:
        kind = "is a nested tensor"
    elif value.is_meta:
        kind = "is a meta tensor, which has no values"
    elif value.is_quantized:
        kind = "is quantized"
    elif value.layout not in LAYOUTS:
        kind = f"has the layout {value.layout}"
    elif value.dtype != torch.bfloat16:
        try:
            torch.empty(0, dtype=value.dtype).numpy()
        except TypeError:
            kind = f"has numbers of type {value.dtype}"
    if kind is not None:
        raise ShoalError(where, f"{kind}; give a plain or sparse tensor of float32 or whole numbers")


def edges_of(adjacency: Any, where: str, square: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
    """Reads edges int64 `[2, E]`, and weights `[E]` or None, from a sparse tensor of torch or torch_sparse.

    It is `square`, where nodes are of one kind.
    """
    value: Tensor | None
    require_values(adjacency, where)
    if isinstance(adjacency, Tensor) and adjacency.layout != torch.strided:
        sizes = tuple(adjacency.shape)
        entries = adjacency.detach().to_sparse_coo().coalesce()
        edge_index, value = entries.indices(), entries.values()
    elif hasattr(adjacency, "coo") and hasattr(adjacency, "sparse_sizes"):
        sizes = tuple(adjacency.sparse_sizes())
        row, column, value = adjacency.coo()
        edge_index = torch.stack([row, column])
    else:
        raise ShoalError(where, f"must be a sparse tensor or a SparseTensor, found {type(adjacency).__name__}")
    if len(sizes) != 2 or (square and sizes[0] != sizes[1]):
        raise ShoalError(where, f"an adjacency is square, found {list(sizes)}")
    return edge_index.cpu().numpy(), None if value is None else to_array(value, where)


def _split(masks: Mapping[str, np.ndarray], items: int, what: str, where: Mapping[str, str]) -> np.ndarray:
    """Reads the part of every item, int8 `[items]`; `what` is an item."""
    code = np.full(items, UNASSIGNED, dtype=np.int8)
    for key, mask in masks.items():
        if mask.ndim == 2:
            raise ShoalError(where[key], f"{mask.shape[1]} splits; take one, as in mask[:, 0]")
        if mask.shape != (items,) or mask.dtype not in (np.bool_, np.uint8):
            form = f"{mask.dtype} {list(mask.shape)}"
            raise ShoalError(where[key], f"must be a truth value for each of the {items} {what}s, found {form}")
        twice = (code != UNASSIGNED) & mask.astype(bool)
        if twice.any():
            raise ShoalError(where[key], f"{what} {int(twice.argmax())} is in another mask, too; one part a {what}")
        code[mask.astype(bool)] = MASKS[key]
    return code
