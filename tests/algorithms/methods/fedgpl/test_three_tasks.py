"""FedGPL where clients have tasks of their own: mixing in whole rounds, and what is known of a node in many graphs."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import Make, Start, Views
from support.plain_hidta import by_loops

from shoal.algorithms.methods.fedgpl.fedgpl import Trained
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.storage.shards.view import View
from shoal.storage.store.store import Store

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
        "train.epochs": 1,
        "train.batch_size": 4,
        "algorithm.name": "fedgpl",
    }


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("form", ["paper", "recommended"])
def test_tasks_are_mixed_by_the_equations(start: Start, keys: dict[str, Any], form: str) -> None:
    """What clients trained, which a server that mixes nothing keeps, in equations (5) to (7) written out."""
    server = start({**keys, "algorithm.form": form, "run.keep_records": True})
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


def test_training_graphs_of_a_node_are_counted(
    start: Start, configure: Make, views: Views, keys: dict[str, Any]
) -> None:
    """Nodes are told by their features, which are all different: each is in as many graphs as have its row."""
    noisy = {**keys, "algorithm.noise": "clipped", "algorithm.epsilon": 10.0}
    before = expected(RunPlan.of(configure({**noisy, "data.store": keys["data.store"] + "-none"}))).rows["overlap"]
    server = start(noisy)
    own = [Counter(x.tobytes() for g in view.train for x in rows_of(view, int(g))) for view in views(server)]
    total = sum(own, Counter())
    copies = Store(server.job.store_path).manifest.copies[server.job.split]
    assert copies.clients == [max(count.values()) for count in own]
    assert copies.most == max(total.values()) > max(copies.clients) > 1
    assert copies.mean == pytest.approx(sum(total.values()) / len(total), abs=0.01)
    assert before == expected(RunPlan.of(configure(noisy))).rows["overlap"]
    assert f" {copies.most} " in before
    notes = server.round()["notes"]
    assert notes["epsilon of a node's rows"] == copies.most * notes["epsilon of a training graph"] == copies.most * 20
    assert notes["classifiers sent without noise"] == 1


def rows_of(view: View, graph: int) -> np.ndarray:
    first, end = view.graph_ptr[graph : graph + 2].tolist()  # type: ignore[index]
    return view.x[first:end].numpy()  # type: ignore[index]
