"""Shoal in a program or a notebook: what is stable of it; everything else may change.

    import shoal

    config = shoal.load_config("configs/quickstart.yaml", rounds=10)
    run = shoal.run(config)
    run.metrics.to_pandas()

A config is a file, a dict, or what `load_config` gives. Whatever a user can cause raises `ShoalError`, one line.
"""

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shoal.storage.errors import ShoalError as ShoalError
from shoal.storage.files.places import give_places

# This runs before numba is imported and looks for its folder; a command that has no folder says so.
with suppress(ShoalError):
    give_places()

if TYPE_CHECKING:
    from shoal.algorithms.base import Algorithm as Algorithm
    from shoal.algorithms.base import Pull as Pull
    from shoal.algorithms.base import Trainer as Trainer
    from shoal.algorithms.base import pure as pure
    from shoal.algorithms.client import Client as Client
    from shoal.algorithms.client import ClientInfo as ClientInfo
    from shoal.algorithms.client import ClientModel as ClientModel
    from shoal.algorithms.context import Context as Context
    from shoal.algorithms.models.layers.head import Output as Output
    from shoal.algorithms.models.user.user_model import Backbone as Backbone
    from shoal.algorithms.protocol import Ask as Ask
    from shoal.algorithms.protocol import Mix as Mix
    from shoal.algorithms.protocol import Reduce as Reduce
    from shoal.algorithms.protocol import Replies as Replies
    from shoal.algorithms.protocol import Upload as Upload
    from shoal.configs import load_config as load_config
    from shoal.engine.callbacks.callback import Callback as Callback
    from shoal.engine.callbacks.callback import Running as Running
    from shoal.engine.config.config import Config as Config
    from shoal.engine.rounds.sampling import Drawn as Drawn
    from shoal.engine.rounds.sampling import Schedule as Schedule
    from shoal.engine.rounds.stage import AtClient as AtClient
    from shoal.engine.rounds.stage import Phase as Phase
    from shoal.engine.rounds.stage import Stage as Stage
    from shoal.engine.rounds.stage import ToHosts as ToHosts
    from shoal.engine.rounds.stage import rows_of as rows_of
    from shoal.kept_run import Run as Run
    from shoal.partition.methods.user_partitioner import Partitioner as Partitioner
    from shoal.past.reader import Reader as Reader
    from shoal.past.reader import Reading as Reading
    from shoal.past.rewind import PastRun as PastRun
    from shoal.running import prepare as prepare
    from shoal.running import run as run
    from shoal.storage.adapters.clients import from_clients as from_clients
    from shoal.storage.adapters.libraries import from_dgl as from_dgl
    from shoal.storage.adapters.libraries import to_pyg as to_pyg
    from shoal.storage.adapters.networkx_graph import from_networkx as from_networkx
    from shoal.storage.datasets.user.files import save_graph as save_graph
    from shoal.storage.datasets.user.pyg_data import from_pyg as from_pyg
    from shoal.storage.datasets.user.user_dataset import Dataset as Dataset
    from shoal.storage.graph.graph import Graph as Graph
    from shoal.storage.shards.view import View as View
    from shoal.studies import Sweep as Sweep
    from shoal.studies import compare as compare
    from shoal.studies import report as report
    from shoal.studies import scale as scale
    from shoal.studies import sweep as sweep
    from shoal.studies import table as table
    from shoal.tables.text_table import TextTable as TextTable

# Modules that define each name. None is loaded before its name is used, because torch takes seconds.
PLACES = {
    "Algorithm": "shoal.algorithms.base",
    "Ask": "shoal.algorithms.protocol",
    "AtClient": "shoal.engine.rounds.stage",
    "Backbone": "shoal.algorithms.models.user.user_model",
    "Callback": "shoal.engine.callbacks.callback",
    "Client": "shoal.algorithms.client",
    "ClientInfo": "shoal.algorithms.client",
    "ClientModel": "shoal.algorithms.client",
    "Config": "shoal.engine.config.config",
    "Context": "shoal.algorithms.context",
    "Dataset": "shoal.storage.datasets.user.user_dataset",
    "Drawn": "shoal.engine.rounds.sampling",
    "Graph": "shoal.storage.graph.graph",
    "Mix": "shoal.algorithms.protocol",
    "Output": "shoal.algorithms.models.layers.head",
    "Partitioner": "shoal.partition.methods.user_partitioner",
    "PastRun": "shoal.past.rewind",
    "Phase": "shoal.engine.rounds.stage",
    "Pull": "shoal.algorithms.base",
    "Reader": "shoal.past.reader",
    "Reading": "shoal.past.reader",
    "Reduce": "shoal.algorithms.protocol",
    "Replies": "shoal.algorithms.protocol",
    "Run": "shoal.kept_run",
    "Running": "shoal.engine.callbacks.callback",
    "Schedule": "shoal.engine.rounds.sampling",
    "ShoalError": "shoal.storage.errors",
    "Stage": "shoal.engine.rounds.stage",
    "Sweep": "shoal.studies",
    "TextTable": "shoal.tables.text_table",
    "ToHosts": "shoal.engine.rounds.stage",
    "Trainer": "shoal.algorithms.base",
    "Upload": "shoal.algorithms.protocol",
    "View": "shoal.storage.shards.view",
    "compare": "shoal.studies",
    "from_clients": "shoal.storage.adapters.clients",
    "from_dgl": "shoal.storage.adapters.libraries",
    "from_networkx": "shoal.storage.adapters.networkx_graph",
    "from_pyg": "shoal.storage.datasets.user.pyg_data",
    "load_config": "shoal.configs",
    "prepare": "shoal.running",
    "pure": "shoal.algorithms.base",
    "report": "shoal.studies",
    "rows_of": "shoal.engine.rounds.stage",
    "run": "shoal.running",
    "save_graph": "shoal.storage.datasets.user.files",
    "scale": "shoal.studies",
    "sweep": "shoal.studies",
    "table": "shoal.studies",
    "to_pyg": "shoal.storage.adapters.libraries",
}
__all__ = [*PLACES]


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = globals()[name] = getattr(importlib.import_module(PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__]
