"""The backend in this process, and the device of its server."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shoal.engine.cluster.open_backend import open_backend
from shoal.engine.config.config import Config
from shoal.engine.hosts.backend import LocalBackend, server_device
from shoal.engine.rounds.costs import Live, unwatched
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import plan_of
from shoal.storage.errors import ShoalError

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_local_backend_rounds_equal_those_of_a_server(
    start: Callable[..., Server], configure: Callable[..., Config]
) -> None:
    server, config = start({"rounds": 3}), configure({"rounds": 3})
    backend = open_backend(config)
    assert isinstance(backend, LocalBackend)
    backend.open(server.job, plan_of(config), None)
    seen: list[Live] = []
    for number in range(1, 4):
        line, expected = backend.round(seen.append), server.round()
        assert {**line, "seconds": None} == {**expected, "seconds": None}
        assert line["round"] == number
    assert seen[-1].round == 3
    assert seen[-1].visits == seen[-1].expected
    assert torch.equal(backend.state().server["w"], server.state.server["w"])
    backend.close()


def test_local_backend_opens_again_from_a_state(start: Callable[..., Server], configure: Callable[..., Config]) -> None:
    """Hosts stay while servers go."""
    through, config = start({"rounds": 3}), configure({"rounds": 3})
    for _ in range(3):
        through.round()
    backend = open_backend(config)
    backend.open(through.job, plan_of(config), None)
    backend.round(unwatched)
    state = backend.state()
    backend.end()
    backend.open(through.job, plan_of(config), state)
    assert [backend.round(unwatched)["round"] for _ in range(2)] == [2, 3]
    assert torch.equal(backend.state().server["w"], through.state.server["w"])
    backend.close()


def test_server_device_by_default_is_the_processor(configure: Callable[..., Config]) -> None:
    # Shares of hosts say nothing of the server.
    for keys in ({}, {"resources.gpus_per_host": 0.5}, {"resources.server_cpus": 4.0}):
        assert server_device(configure(keys)) == torch.device("cpu")


@no_gpu
@pytest.mark.parametrize("open_it", [server_device, open_backend])
def test_server_device_without_a_gpu_raises(configure: Callable[..., Config], open_it: Callable[[Config], Any]) -> None:
    line = r"^resources\.server_gpus: .*torch .* finds no GPU on this host; .*; or set it to 0$"
    with pytest.raises(ShoalError, match=line):
        open_it(configure({"resources.server_gpus": 0.5}))
