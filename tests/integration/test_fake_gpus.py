"""Shares of GPUs that Ray merely counts: where hosts go, and what is refused before they are asked for."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
import torch
from ray import PlacementGroupID
from ray.exceptions import RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from shoal.engine.cluster.cluster import _require_resources, gpu_places
from shoal.engine.cluster.ray_backend import start_hosts
from shoal.engine.config.config import Config, parse_config
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.storage.errors import ShoalError


@pytest.fixture(scope="module")
def _two_gpus() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


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


@pytest.mark.usefixtures("_two_gpus")
def test_shares_of_two_devices() -> None:
    def require(hosts: int, gpus: float) -> None:
        resources = {"cpus_per_host": 0.5, "gpus_per_host": gpus}
        _require_resources(
            parse_config(
                {
                    "name": "fake",
                    "data": {"dataset": "sbm"},
                    "algorithm": "fedavg",
                    "engine": {"hosts": hosts},
                    "resources": resources,
                },
                "test",
            )
        )

    require(4, 0.5)
    hosts = start_hosts(4, 0.5, 0.5)
    devices = ray.get([host.__ray_call__.remote(lambda _: os.environ["CUDA_VISIBLE_DEVICES"]) for host in hosts])
    assert Counter(devices) == {"0": 2, "1": 2}
    _leave(hosts)
    # Three of 0.6 are less than two devices together, and no two of them fit one.
    for hosts_wanted, share in ((3, 0.6), (5, 0.5), (3, 1.0), (2, 2.0)):
        with pytest.raises(ShoalError, match="room for"):
            require(hosts_wanted, share)


@pytest.mark.usefixtures("_two_gpus")
def test_shares_are_spread_over_the_devices() -> None:
    def devices(hosts: list[Any]) -> list[str]:
        return ray.get([host.__ray_call__.remote(lambda _: os.environ["CUDA_VISIBLE_DEVICES"]) for host in hosts])

    def end(hosts: list[Any]) -> None:
        for host in hosts:
            ray.kill(host)

    three = start_hosts(3, 0.5, 0.25)
    first, second, third = devices(three)
    assert {first, second} == {"0", "1"}
    assert third == first
    _leave(three)
    # Where one of them is taken in part, or wanted by the server, hosts go where there is room.
    assert gpu_places(2, 0.5, 0.25, server_gpus=0.5) == []
    (other,) = start_hosts(1, 0.5, 0.5)
    devices([other])
    two = start_hosts(2, 0.5, 0.25)
    assert len(devices(two)) == 2
    _leave([other, *two])


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_host_computes_on_its_share_or_says_why_not(configure: Callable[..., Config]) -> None:
    (host,) = start_hosts(1, 0.5, 0.5)
    keys = {"engine.backend": "ray", "resources.gpus_per_host": 0.5}
    config = configure(keys)
    job = make_job(config, prepare(config), "fake")
    assert (job.device, job.gpu_share) == ("cuda", 0.5)
    with pytest.raises(RayTaskError, match=r"engine.device: cuda: torch .* finds no GPU on this host"):
        ray.get(host.enter.remote(job))
    config = configure({**keys, "engine.device": "cpu"})
    assert len(ray.get(host.enter.remote(make_job(config, prepare(config), "fake"))).clients) == 6
