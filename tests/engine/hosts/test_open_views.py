"""A host opens every client's data once, and that of the next client while the present one is served."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from shoal.engine.hosts.host import MAPS_OF_A_VIEW, OpenViews, most_views
from shoal.engine.messages.job import Job
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store, shard_path
from shoal.storage.store.view import Cache, View


class Opening:
    """Opens real views and remembers which, by which thread, and what was touched."""

    def __init__(self, job: Job, most: int = 100) -> None:
        self.job, self.store = job, Store(job.store_path)
        self.opened: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.touched: list[int] = []
        self.views = OpenViews(self.open, most)

    def open(self, client: int) -> View:
        self.opened.append(client)
        self.threads.add(threading.current_thread())
        return self.job.view(self.store, client, Cache(0))

    def touch(self, view: View) -> None:
        self.touched.append(view.client)


@pytest.fixture
def opening(start: Callable[..., Server]) -> Opening:
    return Opening(start().job)


def maps_below(folder: Path) -> int:
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


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


def test_the_least_recently_visited_is_let_go(opening: Opening) -> None:
    views = Opening(opening.job, most=2)
    for client in (0, 1, 0, 2, 0, 1):
        views.views.get(client)
    assert views.opened == [0, 1, 2, 1]


def test_maps_of_what_is_let_go_end_even_if_its_adjacency_was_used(
    opening: Opening, with_own_store: Callable[[Job], Job]
) -> None:
    own = with_own_store(opening.job)
    views = Opening(own, most=2)
    for client in 2 * [0, 1, 2, 3, 4, 5]:
        assert views.views.get(client).adjacency.shape == (30, 30)
        assert maps_below(own.store_path) <= 2 * MAPS_OF_A_VIEW
    assert maps_below(own.store_path) == 2 * MAPS_OF_A_VIEW


def test_what_is_opened_again_is_not_checked_again(opening: Opening, with_own_store: Callable[[Job], Job]) -> None:
    own = with_own_store(opening.job)
    views = Opening(own, most=1)
    views.views.get(0)
    path = own.store_path / shard_path(0)
    content = bytearray(path.read_bytes())
    content[7] ^= 1  # of no meaning in an Arrow file
    path.write_bytes(content)
    views.views.get(1)
    assert views.views.get(0).nodes == 30
    assert views.opened == [0, 1, 0]
    with pytest.raises(ShoalError, match=rf"^{path}: checksum does not match the manifest"):
        Opening(own).views.get(0)


def test_a_quarter_as_many_as_a_process_may_have_maps() -> None:
    assert most_views() == int(Path("/proc/sys/vm/max_map_count").read_text()) // 4


@pytest.mark.parametrize("model", ["gcn", "sgc"])
def test_a_run_with_one_open_view_has_the_same_bits(
    run: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    keys = {"model.name": model, "algorithm.name": "fedavg"}
    expected = run(keys, rounds=2).state.server
    monkeypatch.setattr("shoal.engine.hosts.host.most_views", lambda: 1)
    found = run(keys, rounds=2).state.server
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
