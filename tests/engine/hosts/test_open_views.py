"""A host opens every client's data once, and that of the next client while the present one is served."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused
from support.small_cells import require_same_tree, tensors_of

from shoal.engine.messages.job import Job
from shoal.engine.rounds.server import Server
from shoal.storage.shards.cache import MAPS_OF_A_VIEW, OpenViews
from shoal.storage.shards.view import Cache, View
from shoal.storage.store.store import Store, shard_path


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
def own(start: Callable[..., Server], with_own_store: Callable[[Job], Job]) -> Job:
    return with_own_store(start().job)


def test_the_next_one_is_opened_before_it_is_asked_for_and_each_once(own: Job) -> None:
    opening = Opening(own)
    opening.views.plan([2, 0, 3], opening.touch)
    assert opening.views.get(2).client == 2
    # Nobody asks for client 0, and still it comes.
    deadline = time.monotonic() + 60
    while opening.touched != [0]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert opening.opened == [2, 0]
    for _ in range(2):
        assert [opening.views.get(client).client for client in (0, 3)] == [0, 3]
        opening.views.plan([0, 3], opening.touch)
    assert opening.opened == [2, 0, 3]
    assert opening.touched[:2] == [0, 3]
    assert threading.current_thread() not in opening.threads


def test_a_client_that_cannot_be_opened_fails_at_its_turn_and_again(own: Job) -> None:
    opening = Opening(own)
    shard = own.store_path / shard_path(1)
    hidden = shard.rename(shard.with_suffix(".hidden"))
    opening.views.plan([0, 1, 2], opening.touch)
    assert opening.views.get(0).client == 0
    with refused(shard, says="missing"):
        opening.views.get(1)
    assert opening.views.get(2).client == 2
    hidden.rename(shard)
    assert opening.views.get(1).client == 1


def test_the_least_recently_visited_is_let_go_with_its_maps(own: Job) -> None:
    opening = Opening(own, most=2)
    for client in (0, 1, 0, 2, 0, 1):
        assert opening.views.get(client).adjacency.shape == (30, 30)
        lines = Path("/proc/self/maps").read_text().splitlines()
        assert sum(f"{own.store_path}/" in line and "/tables/" not in line for line in lines) <= 2 * MAPS_OF_A_VIEW
    assert opening.opened == [0, 1, 2, 1]


def test_what_is_opened_again_is_not_checked_again(own: Job) -> None:
    opening = Opening(own, most=1)
    opening.views.get(0)
    path = own.store_path / shard_path(0)
    content = path.read_bytes()
    path.write_bytes(content[:7] + b"1" + content[8:])  # of no meaning in an Arrow file
    opening.views.get(1)
    assert opening.views.get(0).nodes == 30
    assert opening.opened == [0, 1, 0]
    with refused(path, says="checksum does not match the manifest"):
        Opening(own).views.get(0)


@pytest.mark.parametrize("model", ["gcn", "sgc"])
def test_a_run_with_one_open_view_has_the_same_bits(run: Callable[..., Server], monkeypatch: Any, model: str) -> None:
    expected = run({"model.name": model}, rounds=2)
    monkeypatch.setattr("shoal.engine.hosts.opened_job.most_views", lambda: 1)
    require_same_tree(tensors_of(run({"model.name": model}, rounds=2)), tensors_of(expected))
