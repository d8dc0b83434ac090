"""Local and Global against plain torch loops."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from support.fixtures import CountsOf, ModuleOf, PlainClients, Start, Views
from torch import nn

from shoal.algorithms.rng import key
from shoal.storage.options.split_codes import TRAIN


def test_whole_rounds_of_local(
    start: Start, unequal: dict[str, Any], recorded: Any, torch_clients: PlainClients, counts_of: CountsOf
) -> None:
    server = start({**unequal, "algorithm.name": "local"}, pool=recorded.on)
    clients, met = torch_clients(server), set()
    for number in range(1, server.plan.rounds + 1):
        line = server.round()
        assert (line["bytes_up"], line["bytes_down"]) == (0, 0)
        assert not any(recorded.downloads.values())
        assert not any(recorded.uploads.values())
        met |= set(server.cohort(number))
        for i in server.cohort(number):
            clients[i].train(number)
        assert server.state.clients.keys() == met
        for i, client in enumerate(clients):
            if i in met:
                kept = server.state.clients[i]
                torch.testing.assert_close(kept["model.w"].double(), client.w, rtol=1e-4, atol=1e-5)
                client.require_kept(kept)
            counts = counts_of(server, client.view, kept["model.w"] if i in met else server._initial)
            np.testing.assert_array_equal(server.state.scores["served"][i], counts)
            if i in met:
                np.testing.assert_array_equal(server.state.scores["trained"][i], counts)


def test_whole_rounds_of_global(start: Start, unequal: dict[str, Any], views: Views, module_of: ModuleOf) -> None:
    """One client on the union graph, all of it written out from the files: edges between clients, hops, rows."""
    server = start({**unequal, "algorithm.name": "global"})
    x, y, split, edges = (np.load(f"{unequal['data.path']}/{name}.npy") for name in ("x", "y", "split", "edge_index"))
    loops = np.eye(len(x))
    loops[edges[0], edges[1]] = loops[edges[1], edges[0]] = 1
    root = loops.sum(1) ** -0.5
    operator = root[:, None] * loops * root
    # What is dropped depends on the order of the rows.
    (whole,) = views(server)
    rows = whole.node[whole.train.numpy()]
    assert set(rows) == set(np.flatnonzero(split == TRAIN))
    hops = [torch.from_numpy(np.linalg.matrix_power(operator, k) @ x)[rows].float() for k in range(3)]
    module = module_of(server, server._initial)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for number in range(1, 4):
        server.round()
        torch.manual_seed(key(0, number, 0, "train"))
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(module([hops[k] for k in module.inputs]).logits_NC, torch.from_numpy(y[rows])).backward()
            optimizer.step()
        w = nn.utils.parameters_to_vector(module.parameters()).detach()
        torch.testing.assert_close(server.state.clients[0]["model.w"], w, rtol=1e-4, atol=1e-5)
