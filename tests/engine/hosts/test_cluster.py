"""How many hosts a machine has room for, by hand."""

import math

import pytest

from engine.hosts.cluster import places


@pytest.mark.parametrize(
    ("machine", "cpus", "gpus", "room"),
    [
        ({"CPU": 4.0}, 1, 0, 4),
        ({"CPU": 6.0}, 4, 0, 1),
        ({"CPU": 3.0}, 0.3, 0, 10),
        ({"CPU": 1.0}, 0.1, 0, 10),
        ({"CPU": 2.0}, 0, 0, math.inf),
        ({}, 1, 0, 0),
        ({"CPU": 16.0, "GPU": 2.0}, 1, 0.5, 4),
        # Two of 0.6 would need 1.2 devices.
        ({"CPU": 16.0, "GPU": 2.0}, 1, 0.6, 2),
        ({"CPU": 16.0, "GPU": 1.0}, 1, 0.1, 10),
        ({"CPU": 2.0, "GPU": 8.0}, 1, 0.25, 2),
        ({"CPU": 16.0, "GPU": 5.0}, 1, 2, 2),
        ({"CPU": 16.0}, 0, 0.5, 0),
    ],
)
def test_places(machine: dict[str, float], cpus: float, gpus: float, room: float) -> None:
    assert places(machine, cpus, gpus) == room
