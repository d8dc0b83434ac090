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
    from algorithms.base import Algorithm
    from algorithms.protocol import Ask, How, Mix, Upload
    from engine.callbacks.callback import Callback, Running
    from engine.settings.config import Config
    from shoal.configs import load_config
    from shoal.kept_run import Run
    from shoal.running import Sweep, prepare, run, sweep
    from storage.errors import ShoalError

# Where each name comes from: none of these modules is loaded before its name is used, for torch takes seconds.
PLACES = {
    "Algorithm": "algorithms.base",
    "Ask": "algorithms.protocol",
    "Callback": "engine.callbacks.callback",
    "Config": "engine.settings.config",
    "How": "algorithms.protocol",
    "Mix": "algorithms.protocol",
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
    "Callback",
    "Config",
    "How",
    "Mix",
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
