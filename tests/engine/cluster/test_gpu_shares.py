"""Shares of GPUs that Ray merely counts: where hosts go, and what is refused before they are asked for."""

import os
import time
from contextlib import nullcontext
from typing import Any

import pytest
import ray
import torch
from ray import PlacementGroupID
from ray.exceptions import RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from support.errors import refused
from support.fixtures import Configure

from shoal.engine.cluster.cluster import _await_room, gpu_places
from shoal.engine.cluster.ray_backend import start_hosts
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare


def _leave(hosts: list[Any]) -> None:
    """Ends hosts, and waits until the GPUs are free."""
    for host in hosts:
        ray.kill(host)
    for number in placement_group_table():
        remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(number))))
    deadline = time.monotonic() + 30
    while ray.available_resources().get("GPU") != 2.0:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    ("count", "share", "says"),
    [
        (4, 0.5, None),
        # Three of 0.6 are less than two devices together, and no two of them fit one.
        (3, 0.6, "let 2 share a GPU, with resources.gpus_per_host=0.5"),
        (5, 0.5, "let 3 share a GPU, with resources.gpus_per_host=0.3333"),
        (3, 1.0, "let 2 share a GPU, with resources.gpus_per_host=0.5"),
        (2, 2.0, "use fewer hosts or smaller shares"),
        # Processors are for eight.
        (9, 1.0, "use fewer hosts or smaller shares"),
    ],
)
def test_shares_without_room_raise(configure: Configure, count: int, share: float, says: str | None) -> None:
    keys = {
        "engine.backend": "ray",
        "engine.hosts": count,
        "resources.cpus_per_host": 0.5,
        "resources.gpus_per_host": share,
    }
    with nullcontext() if says is None else refused(says=says):
        _await_room(configure(keys))


@pytest.mark.usefixtures("hosts")
def test_shares_are_spread_over_the_devices(configure: Configure) -> None:
    two = start_hosts(2, 0.5, 0.25)
    devices = ray.get([host.__ray_call__.remote(lambda _: os.environ["CUDA_VISIBLE_DEVICES"]) for host in two])
    assert set(devices) == {"0", "1"}
    if not torch.cuda.is_available():
        require_its_share_or_why_not(two[0], configure)
    _leave(two)
    assert [place.placement_group_bundle_index for place in gpu_places(3, 0.5, 0.25)] == [0, 1, 0]
    _leave([])
    # Where one of them is taken in part, or wanted by the server, hosts go where there is room.
    assert gpu_places(2, 0.5, 0.25, server_gpus=0.5) == []
    assert placement_group([{"GPU": 0.5}]).wait(60)
    assert gpu_places(2, 0.5, 0.25) == []
    _leave([])


def require_its_share_or_why_not(host: Any, configure: Configure) -> None:
    keys = {"engine.backend": "ray", "resources.gpus_per_host": 0.5}
    config = configure(keys)
    job = make_job(config, prepare(config), "fake")
    assert (job.compute.device, job.compute.gpu_share) == ("cuda", 0.5)
    with pytest.raises(RayTaskError, match=r"engine.device: cuda: torch .* finds no GPU on this host"):
        ray.get(host.enter.remote(job))
    config = configure({**keys, "engine.device": "cpu"})
    assert len(ray.get(host.enter.remote(make_job(config, prepare(config), "fake"))).clients) == 6
