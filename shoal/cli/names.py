"""The names that a config can choose from: datasets, methods, models and partitioners, each in a line."""

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, get_args

from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.models.names import BACKBONES, OF_GRAPHS
from shoal.partition.methods.options import Methods as Partitioners
from shoal.storage.options.dataset_names import DATASETS, INDUCED
from shoal.storage.options.dataset_summaries import ABOUT
from shoal.tables.text_table import TextTable

if TYPE_CHECKING:
    from shoal.algorithms.base import Algorithm

PARTITIONERS: tuple[str, ...] = get_args(Partitioners)


def describe_names(kind: str) -> dict[str, str]:
    """Says of every name of a kind, one of `KINDS`, what it is."""
    names, describe = KINDS[kind]
    return {name: describe(name) for name in names}


def table_of_names(kind: str) -> TextTable:
    """Makes a table of the names of a kind, and of what each is."""
    rows = tuple(describe_names(kind).items())
    return TextTable(
        (kind.removesuffix("s"), "what"), rows, 2, notes=(f"shoal explain NAME says more; {WRITTEN[kind]}",)
    )


def describe_dataset(name: str) -> str:
    """Says what a dataset of ours is, and whether its published files are on this machine."""
    from shoal.storage.datasets.registry import missing_files, record
    from shoal.storage.datasets.sources.source import DataSource

    what, source = ABOUT[name], DataSource(name)
    if name == "files" or name in INDUCED:
        return what
    if not record(name).published_files(source):
        return f"{what}; made when it is used"
    return f"{what}; its files are {'not here yet' if missing_files(source) else 'here'}"


def describe_published(name: str) -> str:
    """Says where the files of `tu:NAME` or `pyg:CLASS/NAME` are looked for, and whether they are on this machine."""
    from shoal.storage.datasets.registry import labels_ahead, missing_files
    from shoal.storage.datasets.sources.source import DataSource, data_root

    source = DataSource(name)
    what = "graphs with labels" if labels_ahead(source) == "graph" else "a dataset of PyG"
    if missing := missing_files(source):
        return f"{what}; its files are not here yet: {missing[0]} and others, downloaded when it is used"
    return f"{what}; its files are below {data_root(None)}, or it is made when it is used"


def describe_partitioner(name: str) -> str:
    """Says in a sentence what a partition method does."""
    from shoal.partition.partitioning import METHODS as FUNCTIONS

    module, _, function = FUNCTIONS[name].partition(":")
    # The shape of what the function returns is for readers of the code.
    return re.sub(r"(; client of every item)?, int32 \[\w+\]", "", _first(getattr(import_module(module), function)))


def describe_method(name: str) -> str:
    """Says in a sentence or two what a method does, and where it is published."""
    return _first(class_of_method(name))


def describe_model(name: str) -> str:
    """Says in a sentence or two what a model computes, and where it is published."""
    return _first(class_of_model(name))


def class_of_method(name: str) -> "type[Algorithm]":
    """Returns the class of a method of ours."""
    from shoal.algorithms.methods.registry.load import describe, load

    return type(load(describe(name, {})))


def class_of_model(name: str) -> type:
    """Returns the class of a model of ours."""
    from shoal.algorithms.models.build import backbone

    cls: type = backbone(name, task="graph")
    return cls


def _first(documented: object) -> str:
    """Returns the first paragraph of a docstring as a line without marks, with a formula that ends its sentence."""
    first, *rest = (documented.__doc__ or "").split("\n\n")
    text = first if first.rstrip().endswith(".") or not rest else f"{first} {rest[0]}"
    return " ".join(text.split()).replace("`", "")


KINDS: dict[str, tuple[Iterable[str], Callable[[str], str]]] = {
    "datasets": (DATASETS, describe_dataset),
    "methods": (METHODS, describe_method),
    "models": ((*BACKBONES, *OF_GRAPHS), describe_model),
    "partitioners": (PARTITIONERS, describe_partitioner),
}
# What else a key takes than these names.
WRITTEN = {
    "datasets": "data.dataset=NAME, tu:NAME, ogb:NAME, pyg:CLASS/NAME, or my_file.py:MyDataset",
    "methods": "algorithm=NAME, or my_file.py:MyMethod",
    "models": "model=NAME, or my_file.py:MyModel",
    "partitioners": "partition=NAME, or my_file.py:MyPartitioner",
}
