"""Shoal in a program or a notebook: what is stable of it; everything else may change.

    import shoal

    config = shoal.load_config("configs/quickstart.yaml", rounds=10)
    run = shoal.run(config)
    run.metrics.to_pandas()

A config is a file, a dict, or what `load_config` gives. Whatever a user can cause raises `ShoalError`, one line.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from algorithms.backbones.own_backbone import Backbone
    from algorithms.base import Algorithm
    from algorithms.client import Client
    from algorithms.context import Context
    from algorithms.protocol import Ask, How, Mix, Replies, Upload
    from engine.callbacks.callback import Callback, Running
    from engine.settings.config import Config
    from partition.own import Partitioner
    from shoal.configs import load_config
    from shoal.kept_run import Run
    from shoal.running import Sweep, prepare, run, sweep
    from storage.datasets.own import Dataset
    from storage.errors import ShoalError
    from storage.graph import Graph

# Where each name comes from: none of these modules is loaded before its name is used, for torch takes seconds.
PLACES = {
    "Algorithm": "algorithms.base",
    "Ask": "algorithms.protocol",
    "Backbone": "algorithms.backbones.own_backbone",
    "Callback": "engine.callbacks.callback",
    "Client": "algorithms.client",
    "Config": "engine.settings.config",
    "Context": "algorithms.context",
    "Dataset": "storage.datasets.own",
    "Graph": "storage.graph",
    "How": "algorithms.protocol",
    "Mix": "algorithms.protocol",
    "Partitioner": "partition.own",
    "Replies": "algorithms.protocol",
    "Run": "shoal.kept_run",
    "Running": "engine.callbacks.callback",
    "ShoalError": "storage.errors",
    "Sweep": "shoal.running",
    "Upload": "algorithms.protocol",
    "load_config": "shoal.configs",
    "prepare": "shoal.running",
    "run": "shoal.running",
    "sweep": "shoal.running",
}

__all__ = [
    "Algorithm",
    "Ask",
    "Backbone",
    "Callback",
    "Client",
    "Config",
    "Context",
    "Dataset",
    "Graph",
    "How",
    "Mix",
    "Partitioner",
    "Replies",
    "Run",
    "Running",
    "ShoalError",
    "Sweep",
    "Upload",
    "load_config",
    "prepare",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = globals()[name] = getattr(importlib.import_module(PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__]
