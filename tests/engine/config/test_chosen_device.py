"""On what a run computes follows from its config; what does not go together is refused before anything starts."""

from collections.abc import Callable
from typing import Any

import pytest
from support.errors import refused

from shoal.engine.config.config import Config, device_choice


@pytest.mark.parametrize(
    ("keys", "device"),
    [
        ({}, "cpu"),
        ({"resources.gpus_per_host": 0.25}, "cuda"),
        ({"resources.gpus_per_host": 0.25, "engine.device": "cpu"}, "cpu"),
        ({"resources.gpus_per_host": 2, "engine.device": "cpu"}, "cpu"),
        ({"engine.device": "cuda"}, "cuda"),
        ({"engine.device": "cuda", "engine.backend": "ray", "resources.gpus_per_host": 1}, "cuda"),
        ({"engine.device": "cuda", "engine.precision": "tf32"}, "cuda"),
        ({"engine.precision": "bfloat16"}, "cpu"),
        # The server's share says nothing of the hosts.
        ({"resources.server_gpus": 1.0}, "cpu"),
    ],
)
def test_chosen(configure: Callable[..., Config], keys: dict[str, Any], device: str) -> None:
    assert device_choice(configure(keys)) == device


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"resources.gpus_per_host": 2}, "resources.gpus_per_host"),
        ({"engine.device": "cuda", "engine.backend": "ray"}, "engine.device"),
        ({"engine.precision": "tf32"}, "engine.precision"),
        ({"engine.precision": "tf32", "engine.device": "cpu", "resources.gpus_per_host": 1}, "engine.precision"),
    ],
)
def test_device_choice_refuses_contradictions(configure: Callable[..., Config], keys: dict[str, Any], key: str) -> None:
    with refused(key):
        device_choice(configure(keys))
