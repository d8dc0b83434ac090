"""Training nodes of clients with `data.inductive`, in a store below that of all their nodes."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine.config.config import Config
from shoal.engine.preparing.store_steps import StoreSteps
from shoal.engine.screen.progress import progress, say
from shoal.storage.files.disk import require_disk
from shoal.storage.graph.edge_weights import weights_among
from shoal.storage.options.split import SplitOptions
from shoal.storage.store.arrow_file import FileRecord
from shoal.storage.store.manifest import Manifest, SplitRecord
from shoal.storage.store.shard import training_graph, write_training_shard
from shoal.storage.store.split import Split, write_split
from shoal.storage.store.store import TRAINING, Store, shard_path, split_path, training_path


def made_from(clients: Store, split: str) -> dict[str, Any]:
    """Identity of the training nodes of a store's clients: the store's content, and one of its splits."""
    content = clients.manifest.content(split, None)
    return {**clients.manifest.identity, TRAINING: {"split": split, "of": content}}


class TrainingBuilder(StoreSteps):
    """One prepare of a store of the training nodes of clients: the graphs that they induce, and hops on these."""

    def __init__(self, clients: Store, config: Config) -> None:
        """Of the finished store of the clients, or of the whole graph as one, with the split of a config."""
        self.clients, self.split = clients, config.data.split_name
        path = clients.path / training_path(self.split)
        super().__init__(path, made_from(clients, self.split), lambda: clients.manifest.published, config)

    def _shards(self) -> Manifest:
        of = self.clients.manifest
        share = sum(train for train, _, _ in of.splits[self.split].counts) / max(1, sum(c.nodes for c in of.clients))
        needed = int(share * sum(client.file.bytes for client in of.clients))
        require_disk(self.path, needed - self.writer.bytes_finished(shard_path(0).parent), "the training nodes")
        count = self.clients.clients
        files = []
        with progress("training nodes", count, "clients") as step:
            for client in range(count):
                files.append(self.writer.once(shard_path(client), partial(self._write_shard, client)))
                step.advance()
        records = [self._record(client, file, of.classes) for client, file in enumerate(files)]
        nodes, entries = (sum(getattr(record, what) for record in records) for what in ("nodes", "entries"))
        say(f"inductive: training sees {nodes:,} nodes and the {entries // 2:,} undirected edges among them")
        # Ids, classes and domains are those of all nodes.
        return replace(
            of,
            identity=self.made,
            clients=records,
            splits={},
            hops={},
            feature_values=self._stored_values(records) if of.layout == "sparse" else 0,
        )

    def _write_shard(self, client: int, path: Path) -> FileRecord:
        shard = self.clients.shard(client)
        part, row = training_graph(shard, self.clients.split(self.split, client).train)
        weight = shard.edge_weight
        if weight is not None:
            weight = weights_among(replace(part, node=row), shard.indptr, shard.indices, weight)
        return write_training_shard(path, part, shard.label[row], shard.x[row], weight)

    def _splits(self, shards: Store, options: SplitOptions) -> SplitRecord:
        none = np.zeros(0, dtype=np.int32)
        files = []
        for client in shards.manifest.clients:
            all_train = Split(np.arange(client.nodes, dtype=np.int32), none, none)
            path = split_path(options.split_name, client.client)
            files.append(self.writer.once(path, partial(write_split, split=all_train)))
        counts = [[client.nodes, 0, 0] for client in shards.manifest.clients]
        return SplitRecord(counts, [i for i, (nodes, _, _) in enumerate(counts) if not nodes], 0, files)
