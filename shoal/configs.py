"""Configs of a program: a file, a run folder, a dict, or one that is read already; graphs as their data."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path, PurePath
from types import FunctionType
from typing import Any

from shoal.engine.config.config import Config, config_from
from shoal.engine.config.config import load_config as read_config
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.user_code.notebook_class import spec_of

# Where classes of a notebook and graphs of a program are written; runs keep copies of classes.
NOTEBOOK = Path("runs/notebook")
Source = str | PathLike[str] | Mapping[str, Any] | Config
PARTITION = "partition"


def load_config(source: Source, **overrides: Any) -> Config:
    """Reads and checks a config.

    Args:
        source: A YAML file, a run folder, a dict of the same keys, or a config.
        overrides: Values by key: of a section a dict, which is laid over it (`train={"lr": 0.1}`), or its kind alone
            (`attack="sign_flip"`); or of one dotted key (`**{"train.lr": 0.1}`). `algorithm`, `model` and
            `train.schedule` are replaced as a whole; options that go with that are named on stderr. `data`, or its key
            `dataset`, may be a `shoal.Graph`, as `from_pyg` and `from_clients` give it, in a dict as well: it is
            written below `runs/notebook` as a dataset `files`. Its split, if it has one, is `data.split: public`; its
            clients, if it has them (`assignment`), take the place of the section `partition`.

    Returns:
        The config, with all defaults; it does not change.

    Raises:
        ShoalError: One line that names the file and the key.
    """
    if isinstance(source, Config) and not overrides:
        return source
    values = _plain_keys(overrides)
    if isinstance(source, str | PathLike):
        return read_config(Path(source), values=values)
    keys = source.plain() if isinstance(source, Config) else _plain_keys(source)
    if PARTITION in values and PARTITION not in overrides:
        # That of a graph, beside which no key of another one is left.
        keys.pop(PARTITION, None)
    return config_from(keys, values)


def _plain_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with plain values; a graph as the keys of its folder, before all that is laid over them."""
    data = given.get("data")
    graph, others = (data.get("dataset"), data) if isinstance(data, Mapping) else (data, {})
    if not isinstance(graph, Graph):
        return {str(key): plain(value) for key, value in given.items()}
    keys = _keys_of(graph)
    if PARTITION in keys and (twice := next((key for key in given if key.partition(".")[0] == PARTITION), None)):
        raise ShoalError(twice, "the graph says whose every node is; leave the section out")
    keys["data"] |= {key: plain(value) for key, value in others.items() if key != "dataset"}
    return keys | {str(key): plain(value) for key, value in given.items() if key != "data"}


def _keys_of(graph: Graph) -> dict[str, Any]:
    """The keys of a graph, which is written."""
    from shoal.storage.datasets.user.files import keep_graph

    data = {"dataset": "files", "path": str(keep_graph(graph, NOTEBOOK)), "name": graph.name}
    keys: dict[str, Any] = {"data": data if graph.split is None else {**data, "split": "public"}}
    if graph.assignment is not None:
        keys[PARTITION] = {"method": "file", "clients": int(graph.assignment.max()) + 1, "file": None}
    return keys


def plain(value: Any) -> Any:
    """A value as YAML knows it: of paths their text, of NumPy's numbers Python's, lists and dicts of such.

    Of a class or function, `my_file.py:Name`; if a notebook defined it, of a file that is written to `runs/notebook`.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, type | FunctionType) and value.__module__ != "builtins":
        return spec_of(value, NOTEBOOK)
    if type(value).__module__.startswith("torch_geometric."):
        raise ShoalError("data", "clients' graphs go through shoal.from_clients(list), a graph through shoal.from_pyg")
    # NumPy's numbers and torch's.
    return value.item() if hasattr(value, "item") else value
