"""Whole rounds: a federation of unequal clients that come, go and fail, and plain torch that does what they do."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fixtures import ModuleOf, Views
from support.plain_clients import TorchClient
from support.recorded_pool import Recorded
from support.written_rounds import cohorts_of

from shoal.engine.rounds.server import Server

# Client 3 comes late, 4 later still, 2 goes for long. Client 5, alone in round 4, has no training node.
COHORTS = [[0, 1, 2, 5], [0, 1, 3, 5], [0, 1, 3, 5], [5], [0, 1, 3, 4], [2, 5]]


@pytest.fixture(scope="session")
def unequal(graphs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Keys of a config: clients of unequal sizes, of which 5 has no training node, and `COHORTS`; half is dropped."""
    folder = tmp_path_factory.mktemp("unequal")
    arrays = {file.stem: np.load(file) for file in graphs["plain"].glob("*.npy")}
    assignment = arrays["assignment"]
    first = assignment < 5
    assignment[first] = np.random.default_rng(3).choice(5, size=first.sum(), p=[0.35, 0.3, 0.15, 0.12, 0.08])
    (folder / "graph").mkdir()
    for name, array in arrays.items():
        np.save(folder / "graph" / f"{name}.npy", array)
    return {
        "data.path": str(folder / "graph"),
        "data.store": str(folder / "store"),
        **cohorts_of(folder, COHORTS),
        "train.dropout": 0.5,
        "train.optimizer": "sgd",
        "train.lr": 0.05,
        "train.momentum": 0.9,
        "train.weight_decay": 0.01,
        "train.epochs": 2,
    }


@pytest.fixture
def recorded() -> Recorded:
    """Give `recorded.on` as the pool of a server."""
    return Recorded()


@pytest.fixture(scope="session")
def torch_clients(views: Views, module_of: ModuleOf) -> Callable[[Server], list[TorchClient]]:
    """Gives the clients of a server that is configured by `unequal`, before their first round."""

    def torch_clients(server: Server) -> list[TorchClient]:
        return [TorchClient(i, view, module_of(server, server._initial)) for i, view in enumerate(views(server))]

    return torch_clients
