"""The backend in this process, and its server's device."""

import pytest
import torch
from support.errors import refused
from support.fixtures import Configure, Start

from shoal.engine.cluster.open_backend import open_backend
from shoal.engine.hosts.backend import LocalBackend, server_device
from shoal.engine.rounds.costs import Live
from shoal.engine.runs.plan import plan_of


def test_local_backend_equals_a_server(start: Start, configure: Configure) -> None:
    """Also of one that is opened again from a state; hosts stay while servers go."""
    server, config = start({"rounds": 3}), configure({"rounds": 3})
    backend = open_backend(config)
    assert isinstance(backend, LocalBackend)
    backend.open(server.job, plan_of(config), None)
    seen: list[Live] = []
    for number in range(1, 4):
        line, expected = backend.round(seen.append), server.round()
        assert {**line, "seconds": None} == {**expected, "seconds": None}
        assert line["round"] == seen[-1].round == number
        state = backend.state()
        backend.end()
        backend.open(server.job, plan_of(config), state)
    assert seen[-1].visits == seen[-1].expected
    assert torch.equal(backend.state().server["w"], server.state.server["w"])
    backend.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_server_device_without_a_gpu_is_refused(configure: Configure) -> None:
    # Shares of hosts say nothing of the server.
    assert server_device(configure({"resources.gpus_per_host": 0.5})) == torch.device("cpu")
    with refused("resources.server_gpus", says="finds no GPU on this host"):
        open_backend(configure({"resources.server_gpus": 0.5}))
