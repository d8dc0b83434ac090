"""Configs of a program: a file, a run folder, a dict, or one that is read already."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path, PurePath
from types import FunctionType
from typing import Any

from shoal.engine.config.config import Config, config_from
from shoal.engine.config.config import load_config as read_config
from shoal.storage.user_code.notebook_class import spec_of

# Where classes of a notebook are written; runs keep copies.
NOTEBOOK = Path("runs/notebook")
Source = str | PathLike[str] | Mapping[str, Any] | Config


def load_config(source: Source, **overrides: Any) -> Config:
    """Reads and checks a config.

    Args:
        source: A YAML file, a run folder, a dict of the same keys, or a config.
        overrides: Values by key: of a section a dict, which is laid over it (`train={"lr": 0.1}`), or one dotted key
            (`**{"train.lr": 0.1}`). `algorithm` and `model` are replaced as a whole.

    Returns:
        The config, with all defaults; it does not change.

    Raises:
        ShoalError: One line that names the file and the key.
    """
    values = {key: plain(value) for key, value in overrides.items()}
    if isinstance(source, Config):
        return config_from(source.plain(), values) if values else source
    if isinstance(source, Mapping):
        return config_from(plain(source), values)
    return read_config(Path(source), values=values)


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
    # NumPy's numbers and torch's.
    return value.item() if hasattr(value, "item") else value
