"""Configs of a program: a file, a run folder, a dict, or one that is read already; graphs as their data."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from os import PathLike
from pathlib import Path, PurePath
from types import FunctionType
from typing import Any

from pydantic import BaseModel

from shoal.engine.config.config import NO_FILE, Config, config_from
from shoal.engine.config.config import load_config as read_config
from shoal.engine.config.config_text import DEEPEST
from shoal.engine.config.overrides import reason_of
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.user_code.notebook_class import spec_of

# Classes of a notebook and graphs of a program are written here; runs keep copies of classes.
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
    if not isinstance(source, Config | Mapping):
        kind = type(source).__name__
        raise ShoalError(NO_FILE, f"expected a file, a run folder, a dict or a Config, got a value of type {kind}")
    keys = source.plain() if isinstance(source, Config) else _plain_keys(source)
    if PARTITION in values and PARTITION not in overrides:
        # The graph has a partition already, so keys of the config's partition are dropped.
        keys.pop(PARTITION, None)
    return config_from(keys, values)


def _plain_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with plain values; a graph as the keys of its folder, before all that is laid over them."""
    data = given.get("data")
    graph, others = (data.get("dataset"), data) if isinstance(data, Mapping) else (data, {})
    if not isinstance(graph, Graph):
        return {str(key): plain(value, str(key)) for key, value in given.items()}
    keys = _keys_of(graph)
    if PARTITION in keys and (twice := next((key for key in given if key.partition(".")[0] == PARTITION), None)):
        raise ShoalError(twice, "the graph says whose every node is; leave the section out")
    keys["data"] |= {key: plain(value, f"data.{key}") for key, value in others.items() if key != "dataset"}
    return keys | {str(key): plain(value, str(key)) for key, value in given.items() if key != "data"}


def _keys_of(graph: Graph) -> dict[str, Any]:
    """The keys of a graph, which is written."""
    from shoal.storage.datasets.user.files import keep_graph

    data = {"dataset": "files", "path": str(keep_graph(graph, NOTEBOOK)), "name": graph.name}
    keys: dict[str, Any] = {"data": data if graph.split is None else {**data, "split": "public"}}
    if graph.assignment is not None:
        keys[PARTITION] = {"method": "file", "clients": int(graph.assignment.max()) + 1, "file": None}
    return keys


def plain(value: Any, key: str = "config", depth: int = 0) -> Any:
    """Returns a value as YAML knows it: of paths their text, of NumPy's and torch's numbers and arrays Python's.

    Of options as a config has them their keys; of a class or function, `my_file.py:Name`; if a notebook defined it, of
    a file that is written to `runs/notebook`.

    Raises:
        ShoalError: There is no such value for `key`, at which it stands.
    """
    if depth > DEEPEST:
        raise ShoalError(key, f"nested more than {DEEPEST} deep")
    if value is None or (isinstance(value, bool | int | float | str) and type(value).__module__ == "builtins"):
        return value
    if isinstance(value, BaseModel):
        value = value.model_dump()
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(inner, f"{key}.{name}", depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, key, depth + 1) for inner in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, type | FunctionType) and value.__module__ != "builtins":
        return spec_of(value, NOTEBOOK)
    if type(value).__module__.startswith("torch_geometric."):
        raise ShoalError("data", "clients' graphs go through shoal.from_clients(list), a graph through shoal.from_pyg")
    if type(value).__module__.partition(".")[0] in ("numpy", "torch"):
        try:
            return plain(value.tolist(), key, depth + 1)
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise ShoalError(key, f"a {type(value).__name__} without values of its own: {reason_of(error)}") from error
    raise ShoalError(
        key, f"a {type(value).__name__} is no value of a config; give a number, a text, or a list or dict of these"
    )
