"""Clients of one or two models, and what they are trained with."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import MakeClient, MakeView

from shoal.algorithms.client import Client, ClientModel, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import random_of
from shoal.storage.shards.view import View


@pytest.fixture
def view(make_view: MakeView) -> View:
    """Twenty nodes, of which every other one trains."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 4)).astype(np.float32)
    edges = np.argwhere(np.triu(rng.random((20, 20)) < 0.2, 1))
    return make_view(20, edges, rng.integers(3, size=20), range(0, 20, 2), 3, x)


@pytest.fixture
def make_pair(view: View, make_client: MakeClient) -> Callable[..., Client]:
    """Makes a client with an MLP and a second, smaller model."""

    def make_pair(second: str = "gcn", **options: Any) -> Client:
        torch.manual_seed(1)
        client = make_client(view, build("mlp", 4, 3, 0, 0.5, {"hidden": 16, "layers": 3}))
        flat = FlatModel(build(second, 4, 3, 0, 0.5, {"hidden": 5, **options}))
        copilot = ClientModel(flat, view, random_of(client.random, "copilot"))
        return Client(client.info, view, {MODEL: client.model, "copilot": copilot}, {}, {}, client.random)

    return make_pair
