"""The changes that features make of shards and splits while a store is written."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from shoal.engine.config.config import Config
from shoal.engine.sections.section import load
from shoal.engine.sections.sections import list_store_changes
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import Induced
from shoal.storage.graph.rows import Rows
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split


class Alteration(Protocol):
    """A change of shards and splits; it goes to the tasks that write them, on any machine."""

    def alter_shard(self, client: int, part: Induced, x: Rows) -> tuple[Induced, Rows]:
        """Returns the graph and the features `[N, F]` of a client, or a whole graph, that are written.

        Both may be used up.
        """
        ...

    def alter_split(self, shard: Shard, split: Split) -> Split:
        """Returns the split of a client that is written."""
        ...


def make_alterations(
    config: Config, clients: int, classes: int, graph: Graph | None = None, client_of: np.ndarray | None = None
) -> list[Alteration]:
    """Makes what the features of a config change of a store.

    Args:
        clients, classes: Numbers of clients that own nodes, and of classes.
        graph: What shards are made from; None: shards are there, and splits are made.
        client_of: Client that owns each node, int32 `[nodes]`, -1 for none, where shards are whole graphs; None: they
            are those of clients.
    """
    changes = list_store_changes(config)
    return [load(change.make)(config, clients, classes, graph, client_of) for change in changes]


def alter_shard(alterations: Sequence[Alteration], client: int, part: Induced, x: Rows) -> tuple[Induced, Rows]:
    """Returns the graph and features of a client as features of the run change them, one after another."""
    for alteration in alterations:
        part, x = alteration.alter_shard(client, part, x)
    return part, x
