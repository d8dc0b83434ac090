from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import CountsOf, PlainClients, Start
from torch import Tensor

near = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight", [None, "nodes", "train", "uniform"])
def test_whole_rounds(
    start: Start,
    unequal: dict[str, Any],
    recorded: Any,
    torch_clients: PlainClients,
    counts_of: CountsOf,
    weight: str | None,
) -> None:
    server = start({**unequal, **({"algorithm.weight": weight} if weight else {})}, pool=recorded.on)
    clients = torch_clients(server)
    w = server._initial.double()
    served: dict[int, Tensor] = {}
    for number in range(1, server.plan.rounds + 1):
        server.round()
        cohort, total, weights = server.cohort(number), torch.zeros_like(w), 0.0
        for i in cohort:
            clients[i].load(w)
            clients[i].train(number)
            view = clients[i].view
            n = {"nodes": view.nodes, "train": len(view.train), "uniform": 1}[weight or "nodes"]
            n *= len(view.train) > 0
            near(recorded.downloads[i]["w"].double(), w)
            sent, with_weight = recorded.weighted[i]["w"]
            assert with_weight == n
            if n:
                near(sent.double() / n, clients[i].w)
            clients[i].require_kept(server.state.clients[i])
            total, weights = total + n * clients[i].w, weights + n
        assert (weights == 0) == (cohort == [5])
        w = total / weights if weights else w
        now = server.state.server["w"]
        near(now.double(), w)
        served |= dict.fromkeys(cohort, now)
        for i, client in enumerate(clients):
            scores = {"global": now, "served": served.get(i, server._initial)}
            for scope, model in scores.items():
                expected = counts_of(server, client.view, model)
                np.testing.assert_array_equal(server.state.scores[scope][i], expected, err_msg=f"{number} {scope} {i}")
