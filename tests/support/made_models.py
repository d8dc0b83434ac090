"""Models none of whose parameters is where it starts, and the graphs of a client as a model reads them."""

from typing import Any

import torch
from torch import nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.items.client_graphs import ClientGraphs
from shoal.storage.shards.view import View


def make_moved(*args: Any, seed: int = 0, **more: Any) -> Any:
    """Builds a model from a seed, and moves every parameter: some start at zero."""
    torch.manual_seed(seed)
    model = build(*args, **more)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def graphs_of(view: View, model: nn.Module | FlatModel) -> ClientGraphs:
    """Gives the graphs of a client's data."""
    flat = model if isinstance(model, FlatModel) else FlatModel(model)
    assert view.graph_ptr is not None
    return ClientGraphs(view, view.graph_ptr, flat.inputs, flat.coupled, flat.prompted)
