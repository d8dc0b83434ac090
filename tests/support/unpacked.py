"""A store whose clients have files of their own, whatever their size, to take away or damage those of some clients."""

from pathlib import Path
from typing import Any

from shoal.engine.messages.job import Job
from shoal.storage.shards.arrow_file import Pack, write
from shoal.storage.store.client_table import Clients, Files, SplitRecord
from shoal.storage.store.store import Store, hops_path, shard_path, split_path, stores_below, training_path


def unpack(path: Path) -> None:
    """Writes every batch of the packs of a store, and of those below it, to a file of its own."""
    for store in [Store(folder) for folder in (path, *stores_below(path))]:
        if store.manifest.pack == 1:
            continue

        def files(kind: str, place: Any, packed: Files, store: Store = store) -> Files:
            records = []
            for clients, _ in packed.files():
                pack = Pack(store.path / place(clients), kind)
                for number, client in enumerate(clients):
                    batch = pack.batch(number)
                    columns = dict(zip(batch.schema.names, batch.columns))
                    records.append(write(store.path / place(client), kind, columns))
                (store.path / place(clients)).unlink()
            return Files.of(records)

        old = store.manifest
        clients = Clients(old.clients.columns, files("shard", shard_path, old.clients.files))
        splits, hops = {}, {}
        for name, split in old.splits.items():
            of_split = files("split", lambda clients, name=name: split_path(name, clients), split.files)
            splits[name] = SplitRecord(split.counts, split.unreachable, of_split)
        for name, packed in old.hops.items():
            hops[name] = files("hops", lambda clients, name=name: hops_path(name, clients), packed)
        for table, _ in old.tables():
            (store.path / table).unlink()
        type(old)(**{**vars(old), "clients": clients, "splits": splits, "hops": hops}).write(store.path)


def contents_of(job: Job) -> dict[str, str]:
    """The fields of a job that say what its store holds, as it is now."""
    store = Store(job.store_path)
    of_training = Store(store.path / training_path(job.split)) if job.training else None
    contents = {"content": store, "training": of_training}
    return {key: of.manifest.content(job.split, job.propagation) for key, of in contents.items() if of is not None}
