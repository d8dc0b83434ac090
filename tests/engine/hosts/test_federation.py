"""A server behind a handle, in this process; and where it computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shoal.engine.cluster.sessions import open_session
from shoal.engine.config.config import Config
from shoal.engine.hosts.federation import LocalSession, server_device
from shoal.engine.messages.live import Live, unwatched
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import plan_of
from shoal.storage.errors import ShoalError

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_rounds_are_those_of_a_server(start: Callable[..., Server], configure: Callable[..., Config]) -> None:
    server, config = start({"rounds": 3}), configure({"rounds": 3})
    session = open_session(config)
    assert isinstance(session, LocalSession)
    federation = session.federation(server.job, plan_of(config), None)
    seen: list[Live] = []
    for number in range(1, 4):
        line, expected = federation.round(seen.append), server.round()
        assert {**line, "seconds": None} == {**expected, "seconds": None}
        assert line["round"] == number
    assert seen[-1].round == 3
    assert seen[-1].visits == seen[-1].expected
    assert torch.equal(federation.state().server["w"], server.state.server["w"])
    federation.close()
    session.close()


def test_one_after_another_from_a_state(start: Callable[..., Server], configure: Callable[..., Config]) -> None:
    """Hosts stay while servers go."""
    through, config = start({"rounds": 3}), configure({"rounds": 3})
    for _ in range(3):
        through.round()
    session = open_session(config)
    first = session.federation(through.job, plan_of(config), None)
    first.round(unwatched)
    state = first.state()
    first.close()
    second = session.federation(through.job, plan_of(config), state)
    assert [second.round(unwatched)["round"] for _ in range(2)] == [2, 3]
    assert torch.equal(second.state().server["w"], through.state.server["w"])
    session.close()


def test_the_server_computes_on_the_processor_by_default(configure: Callable[..., Config]) -> None:
    # Shares of hosts say nothing of the server.
    for keys in ({}, {"resources.gpus_per_host": 0.5}, {"resources.server_cpus": 4.0}):
        assert server_device(configure(keys)) == torch.device("cpu")


@no_gpu
@pytest.mark.parametrize("open_it", [server_device, open_session])
def test_a_server_without_the_gpu_that_it_is_to_have(
    configure: Callable[..., Config], open_it: Callable[[Config], Any]
) -> None:
    line = r"^resources\.server_gpus: .*torch .* finds no GPU on this host; .*; or set it to 0$"
    with pytest.raises(ShoalError, match=line):
        open_it(configure({"resources.server_gpus": 0.5}))
