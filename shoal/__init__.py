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
    from shoal.algorithms.base import Algorithm
    from shoal.algorithms.client import Client
    from shoal.algorithms.context import Context
    from shoal.algorithms.models.user.user_model import Backbone
    from shoal.algorithms.protocol import Ask, Mix, Reduce, Replies, Upload
    from shoal.configs import load_config
    from shoal.engine.callbacks.callback import Callback, Running
    from shoal.engine.config.config import Config
    from shoal.kept_run import Run
    from shoal.partition.methods.user_partitioner import Partitioner
    from shoal.running import Sweep, prepare, run, sweep
    from shoal.storage.datasets.user.user_dataset import Dataset
    from shoal.storage.errors import ShoalError
    from shoal.storage.graph.graph import Graph

# Where each name comes from: none of these modules is loaded before its name is used, for torch takes seconds.
PLACES = {
    "Algorithm": "shoal.algorithms.base",
    "Ask": "shoal.algorithms.protocol",
    "Backbone": "shoal.algorithms.models.user.user_model",
    "Callback": "shoal.engine.callbacks.callback",
    "Client": "shoal.algorithms.client",
    "Config": "shoal.engine.config.config",
    "Context": "shoal.algorithms.context",
    "Dataset": "shoal.storage.datasets.user.user_dataset",
    "Graph": "shoal.storage.graph.graph",
    "Reduce": "shoal.algorithms.protocol",
    "Mix": "shoal.algorithms.protocol",
    "Partitioner": "shoal.partition.methods.user_partitioner",
    "Replies": "shoal.algorithms.protocol",
    "Run": "shoal.kept_run",
    "Running": "shoal.engine.callbacks.callback",
    "ShoalError": "shoal.storage.errors",
    "Sweep": "shoal.running",
    "Upload": "shoal.algorithms.protocol",
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
    "Mix",
    "Partitioner",
    "Reduce",
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
