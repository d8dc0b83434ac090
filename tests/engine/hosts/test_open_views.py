"""A host opens every client's data once, and that of the next client while the present one is served."""

import threading
import time
from collections.abc import Callable

import pytest

from engine.hosts.open_views import OpenViews
from engine.rounds.server import Server
from storage.errors import ShoalError
from storage.store import Store, shard_path
from storage.view import Memo, View


class Opening:
    """Opens real views and remembers which, by which thread, and what was touched."""

    def __init__(self, server: Server) -> None:
        self.job, self.store = server.job, Store(server.job.store_path)
        self.opened: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.touched: list[int] = []
        self.views = OpenViews(self.open)

    def open(self, client: int) -> View:
        self.opened.append(client)
        self.threads.add(threading.current_thread())
        return self.job.view(self.store, client, Memo(0))

    def touch(self, view: View) -> None:
        self.touched.append(view.client)


@pytest.fixture
def opening(start: Callable[..., Server]) -> Opening:
    return Opening(start())


def test_the_next_one_is_opened_before_it_is_asked_for(opening: Opening) -> None:
    opening.views.plan([2, 0, 3], opening.touch)
    assert opening.views.get(2).client == 2
    # Nobody asks for client 0, and still it comes.
    deadline = time.monotonic() + 60
    while opening.touched != [0]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert opening.opened == [2, 0]
    assert [opening.views.get(client).client for client in (0, 3)] == [0, 3]
    assert opening.opened == [2, 0, 3]
    assert opening.touched == [0, 3]
    assert threading.current_thread() not in opening.threads


def test_each_is_opened_once(opening: Opening) -> None:
    for _ in range(3):
        opening.views.plan([0, 1, 2], opening.touch)
        first = [opening.views.get(client) for client in (0, 1, 2)]
    assert opening.opened == [0, 1, 2]
    assert [opening.views.get(client) for client in (0, 1, 2)] == first


def test_a_client_that_cannot_be_opened_fails_at_its_turn_and_again(opening: Opening) -> None:
    shard = opening.store.path / shard_path(1)
    hidden = shard.rename(shard.with_suffix(".hidden"))
    try:
        opening.views.plan([0, 1, 2], opening.touch)
        assert opening.views.get(0).client == 0
        with pytest.raises(ShoalError, match=r"00001\.arrow: missing"):
            opening.views.get(1)
        assert opening.views.get(2).client == 2
    finally:
        hidden.rename(shard)
    assert opening.views.get(1).client == 1
