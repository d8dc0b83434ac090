"""Hops computed in parallel: one Ray task a shard, on any free machine of the cluster."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.engine.cluster.cluster import connect
from shoal.engine.config.config import Config
from shoal.storage.errors import ShoalError
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.store.arrow_file import FileRecord
from shoal.storage.store.bounds import Limits
from shoal.storage.store.hops import hop_memory, write_hops
from shoal.storage.store.manifest import ClientRecord
from shoal.storage.store.shard import open_shard
from shoal.storage.store.store import hops_path, shard_path

RETRIES = 3


def hops_on_cluster(
    config: Config, store: Path, clients: Sequence[ClientRecord], limits: Limits, propagation: PropagationOptions
) -> Iterator[tuple[int, FileRecord]]:
    """Writes the hops of some clients, and yields each as it is done; refused after `engine.cell_timeout` silent
    seconds.

    At most so many tasks run at a time as `engine.memory_limit` holds, and as there are processors. All machines must
    see the folder of the store. A task checks its shard before it reads it.
    """
    shape = limits.features, propagation, limits.weighted
    largest = max(hop_memory(client.nodes, client.entries, *shape) for client in clients)
    connect(config)
    try:
        cpus = int(ray.cluster_resources().get("CPU", 1))
        parallel = max(1, min(cpus, config.memory_limit() // largest))
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_write)
        waiting = list(reversed(clients))
        running: dict[ray.ObjectRef, int] = {}
        while waiting or running:
            while waiting and len(running) < parallel:
                client = waiting.pop()
                running[task.remote(store, client, limits, propagation)] = client.client
            done, _ = ray.wait(list(running), timeout=config.engine.cell_timeout)
            if not done:
                raise ShoalError(
                    "prepare",
                    f"no hops of clients {sorted(running.values())} for {config.engine.cell_timeout:.0f} s; "
                    "look at the cluster or raise engine.cell_timeout, and run it again to go on",
                )
            yield running.pop(done[0]), _result(done[0])
    finally:
        ray.shutdown()


def _write(store: Path, client: ClientRecord, limits: Limits, propagation: PropagationOptions) -> FileRecord:
    shard = open_shard(store / shard_path(client.client), client.client, client.file, limits)
    return write_hops(store / hops_path(propagation.name, client.client), shard, propagation)


def _result(done: ray.ObjectRef) -> FileRecord:
    try:
        record: FileRecord = ray.get(done)
    except RayTaskError as error:
        if isinstance(error.cause, ShoalError):
            raise error.cause from None
        raise
    except RayError as error:
        raise ShoalError("prepare", f"a task that computes hops was lost ({error}); run it again to go on") from error
    return record
