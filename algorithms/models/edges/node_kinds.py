"""Kinds of nodes as columns of their features say them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from shoal.storage.errors import ShoalError
from shoal.storage.graph.edges.kinds import Kinds
from shoal.storage.graph.sparse_matrix import Features


def one_hot_kinds(x_NF: Features, kinds: Kinds) -> Tensor:
    """Returns ones at the kind of every node, float32 `[N, T]`: the largest of its columns of features.

    A row whose columns are all zero is of no kind. Where there are no such columns, all nodes are of one kind.
    """
    rows, features = x_NF.shape
    if not kinds.columns:
        return torch.ones(rows, 1, device=_device(x_NF))
    if isinstance(x_NF, Tensor):
        column_NT = x_NF[:, list(kinds.columns)].float()
    else:
        chosen_FT = torch.zeros(features, len(kinds.columns))
        chosen_FT[list(kinds.columns), range(len(kinds.columns))] = 1
        column_NT = x_NF.float() @ chosen_FT.to(_device(x_NF))
    most_N, kind_N = column_NT.max(1)
    one_hot_NT = torch.zeros_like(column_NT).scatter_(1, kind_N[:, None], 1.0)
    return one_hot_NT * (most_N > 0)[:, None]


def _device(x_NF: Features) -> torch.device:
    device: torch.device = getattr(x_NF, "device", torch.device("cpu"))
    return device


def require_linear_head(name: str, options: Mapping[str, Any]) -> None:
    """Raises a ShoalError for a classifier that passes messages."""
    if options.get("head") == "conv":
        raise ShoalError("model.head", f"{name} has a linear classifier, found conv; leave it out")
