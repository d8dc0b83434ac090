"""Which GPU every host shares: Ray itself fills one before it takes the next, and leaves others idle."""

import math
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

# GPUs that nobody uses are there at once.
SECONDS = 10.0


def gpu_places(count: int, cpus: float, gpus: float, server_gpus: float = 0.0) -> list[Any]:
    """Where hosts go so that each GPU has as many of them as the next, or one less: scheduling strategies, one a host.

    Each GPU that they share is reserved whole, by a bundle of a placement group, for as long as the hosts live.

    Args:
        count: How many hosts.
        cpus: CPUs of each.
        gpus: Share of a GPU of each.
        server_gpus: What the server takes of the GPUs beside them.

    Returns:
        Nothing where there is nothing to choose: no shares, one host, or not several GPUs that nobody uses.
    """
    free = math.floor(ray.available_resources().get("GPU", 0.0) - math.ceil(server_gpus))
    several = min(count, free)
    if not 0 < gpus < 1 or several < 2 or several * math.floor(1 / gpus + 1e-9) < count:
        return []
    of_each = [len(range(number, count, several)) for number in range(several)]
    bundles = [{"GPU": 1.0, **({"CPU": cpus * hosts} if cpus else {})} for hosts in of_each]
    group = placement_group(bundles, strategy="SPREAD")
    if not group.wait(SECONDS):
        remove_placement_group(group)
        return []
    return [PlacementGroupSchedulingStrategy(group, host % several) for host in range(count)]
