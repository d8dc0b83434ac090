"""FedGPL where clients have tasks of their own: mixing in whole rounds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.plain_hidta import by_loops

from shoal.algorithms.methods.fedgpl.task_mixing import Trained
from shoal.engine.rounds.server import Server

Start = Callable[..., Server]
CLIENTS_OF_TASK = [2, 1, 2]
TASKS = [0, 0, 1, 2, 2]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cut = {"samples": 12, "width": 5, "smallest": 15, "largest": 25}
    return {
        "task": "graph",
        "data.path": None,
        "data.dataset": ["induced-node", "induced-edge", "induced-graph"],
        "data.options": {"base": "sbm", "nodes": 60, "classes": 2, "features": 8, **cut},
        "data.store": str(tmp_path_factory.mktemp("tasks") / "store"),
        "partition.method": "random",
        "partition.clients": CLIENTS_OF_TASK,
        "propagation.hops": 0,
        "model": {"name": "gcn", "hidden": 6, "prompt": "vpg"},
        "train.lr": 0.05,
        "train.batch_size": 4,
        "algorithm.name": "fedgpl",
    }


@pytest.mark.parametrize("form", ["paper", "recommended"])
def test_tasks_are_mixed_by_the_equations(start: Start, keys: dict[str, Any], form: str) -> None:
    """What clients trained, which a server that mixes nothing keeps, in equations (5) to (7) written out."""
    server = start({**keys, "algorithm.form": form, "run.keep_records": True})
    of_others = 0.0
    for _ in range(2):
        before = server.state
        alone = start({**keys, "algorithm.form": form, "algorithm.mixing": "none"}, state=before)
        alone.round()
        ends = alone.state.server["theta"].double()
        trained = Trained(before.server["theta"].double(), ends, torch.tensor(TASKS))
        as_written = form == "paper"
        _, weight = by_loops(trained, "delta" if as_written else "weight_norm", "norm" if as_written else "rms")
        line = server.round()
        mixed = torch.from_numpy(weight[TASKS]) @ ends
        torch.testing.assert_close(server.state.server["theta"], mixed.float(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(line["records"]["mixing"], weight[TASKS], rtol=1e-5, atol=1e-7)
        of_others = max(of_others, *(row[np.array(TASKS) != task].sum() for task, row in enumerate(weight)))
    assert of_others > 0.01
