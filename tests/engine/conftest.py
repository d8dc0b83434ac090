"""Configs on a small block model, with dotted keys changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.settings.config import Config, parse_config

MakeConfig = Callable[..., dict[str, Any]]


@pytest.fixture
def plain(tmp_path: Path) -> MakeConfig:
    """Plain values of a config on a block model of 400 nodes, with dotted keys changed."""

    def make(**changes: Any) -> dict[str, Any]:
        options = {"nodes": 400, "features": 5, "classes": 4, "degree": 6.0}
        config: dict[str, Any] = {
            "name": "prepared",
            "data": {"dataset": "sbm", "store": str(tmp_path / "store"), "root": str(tmp_path), "options": options},
            "partition": {"method": "metis", "clients": 5},
            "propagation": {"hops": 2},
            "algorithm": {"name": "fedavg"},
        }
        for key, value in changes.items():
            section, name = key.split("__")
            config.setdefault(section, {})[name] = value
        return config

    return make


@pytest.fixture
def make_config(plain: MakeConfig) -> Callable[..., Config]:
    return lambda **changes: parse_config(plain(**changes), "test")
