"""Local and Global against a plain torch loop on the same rows."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.rounds.server import Server
from storage.store import Store
from storage.view import View

Run = Callable[..., Server]
KEYS = {"train.dropout": 0.0, "train.epochs": 2}


def trained(module: nn.Module, view: View, steps: int) -> Tensor:
    """Full-batch Adam as torch documents it."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = module([view.hop(k)[view.train] for k in module.inputs]).logits_NC
        F.cross_entropy(logits, view.label[view.train]).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def test_local_is_a_long_run_of_every_client(
    run: Run,
    views: Callable[..., list[View]],
    module_of: Callable[..., nn.Module],
    counts_of: Callable[..., np.ndarray],
) -> None:
    server = run({**KEYS, "algorithm.name": "local"}, rounds=4)
    for i, view in enumerate(views(server)):
        w = server.state.clients[i]["model.w"]
        if len(view.train):
            expected = trained(module_of(server, server._initial), view, 4 * 2)
            torch.testing.assert_close(w, expected, rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(w, server._initial)
        for scope in ("trained", "served"):
            np.testing.assert_array_equal(server.state.scores[scope][i], counts_of(server, view, w))


def test_local_sends_nothing(start: Run) -> None:
    line = start({"algorithm.name": "local"}).round()
    assert (line["bytes_up"], line["bytes_down"]) == (0, 0)


def test_unsampled_clients_stand_still(start: Run) -> None:
    server = start({"algorithm.name": "local", "participation.ratio": 0.5})
    for number in range(1, 5):
        before = server.state
        server.round()
        for i in set(range(6)) - set(server.cohort(number)):
            assert server.state.clients.get(i) is before.clients.get(i)


def test_global_trains_on_all_training_rows_and_all_edges(
    run: Run, views: Callable[..., list[View]], module_of: Callable[..., nn.Module]
) -> None:
    server = run({**KEYS, "algorithm.name": "global"}, rounds=3)
    (whole,) = views(server)
    parts = Store(server.job.store_path.parent)
    nodes = np.concatenate([parts.shard(i).node[parts.split("public", i).train] for i in range(parts.clients)])
    assert set(whole.node[whole.train.numpy()]) == set(nodes)
    assert whole.entries > sum(parts.shard(i).entries for i in range(parts.clients))
    expected = trained(module_of(server, server._initial), whole, 3 * 2)
    torch.testing.assert_close(server.state.clients[0]["model.w"], expected, rtol=1e-4, atol=1e-5)


def test_own_models_start_apart_and_shared_ones_equal(start: Run) -> None:
    first: dict[str, list[Tensor]] = {}
    for init in ("shared", "own"):
        server = start({"algorithm.name": "local", "model.init": init, "train.optimizer": "sgd", "train.lr": 1e-20})
        server.round()
        first[init] = [server.state.clients[i]["model.w"] for i in range(6)]
    distances = {init: torch.pdist(torch.stack(models)) for init, models in first.items()}
    assert distances["shared"].max() < 1e-15
    assert distances["own"].min() > 1
