"""A partitioner of the user's own."""

from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from shoal.partition.methods.cover import NO_CLIENT
from shoal.partition.methods.options import PartitionOptions
from shoal.storage.graph.graph import Graph
from shoal.storage.user_code.option_fields import field_values, require_all
from shoal.storage.user_code.user_code import UserCode, read_user_code

KEY, OPTIONS = "partition.method", "partition.options."


class Partitioner(ABC):
    """Base class of a user's partitioner: `partition.method: my_file.py:Mine`.

        @dataclass(frozen=True)
        class ByDegree(shoal.Partitioner):
            descending: bool = False

            def assign(self, graph, clients, rng):
                degree = np.diff(graph.indptr) * (-1 if self.descending else 1)
                return np.argsort(np.argsort(degree)) * clients // graph.nodes

    The fields of the dataclass, each with a type, are the keys of `partition.options`; without options it may be a
    plain class.
    """

    @abstractmethod
    def assign(self, graph: Graph, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Assigns a client to every item, integers `[items]` from 0 to clients - 1; -1: none. No client may be empty.

        The graph, which must not be changed, has neighbours as CSR (`indptr`, `indices`), features `x` and labels `y`;
        of many small graphs the items are these, else nodes. All randomness comes from `rng`, by `partition.seed`
        alone.
        """


def by_user(graph: Graph, options: PartitionOptions, *_: object) -> np.ndarray:
    """Assigns every item as the user's class gives it, int32 `[items]`; a ShoalError names the line of a fault."""
    code, partitioner = user_partitioner(options)
    clients = options.clients
    with code.at_work(KEY):
        client_N = np.asarray(partitioner.assign(_read_only(graph), clients, np.random.default_rng(options.seed)))
    if client_N.shape != (graph.items,) or client_N.dtype.kind not in "iu":
        raise code.fault(KEY, f"must give integers [{graph.items}], found {client_N.dtype} {list(client_N.shape)}")
    wrong = np.flatnonzero((client_N < NO_CLIENT) | (client_N >= clients))
    if len(wrong):
        raise code.fault(KEY, f"row {wrong[0]} is client {client_N[wrong[0]]}, not in {NO_CLIENT}..{clients - 1}")
    empty = np.flatnonzero(np.bincount(client_N[client_N != NO_CLIENT], minlength=clients) == 0)
    if len(empty):
        raise code.fault(KEY, f"client {empty[0]} gets nothing; every client needs an item")
    return client_N.astype(np.int32)


def user_partitioner(options: PartitionOptions) -> tuple[UserCode, Partitioner]:
    """The user's partitioner with its options, and its text; a ShoalError names what is wrong with either."""
    code = read_user_code(KEY, options.method)
    cls = code.load()
    if not isinstance(cls, type) or not issubclass(cls, Partitioner):
        raise code.fault(KEY, f"{getattr(cls, '__name__', cls)} is no partitioner; derive it from shoal.Partitioner")
    values: dict[str, Any] = {}
    if is_dataclass(cls):
        values = field_values(cls, options.options, OPTIONS, cls.__name__, f"{KEY}: {code.place}")
        require_all(cls, values, OPTIONS)
    elif options.options:
        raise code.fault(KEY, f"{cls.__name__} has no options; write @dataclass(frozen=True) above it, and fields")
    with code.at_work(KEY):
        return code, cls(**values)


def _read_only(graph: Graph) -> Graph:
    """The same graph; arrays of it that the user's code writes to are refused by NumPy."""
    views: dict[str, Any] = {}
    for field in fields(graph):
        if isinstance(array := getattr(graph, field.name), np.ndarray):
            views[field.name] = array.view()
            views[field.name].flags.writeable = False
    return replace(graph, **views)
