"""Hops computed in parallel: one Ray task a shard, or a pack of them, on any free machine of the cluster."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.engine.cluster.cluster import connect
from shoal.engine.config.config import Config
from shoal.storage.errors import ShoalError
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.store.arrow_file import FileRecord
from shoal.storage.store.hops import hop_memory, hops_bytes, write_hops_of
from shoal.storage.store.store import Store

RETRIES = 3


def hops_on_cluster(
    config: Config, shards: Store, packs: Sequence[range], propagation: PropagationOptions
) -> Iterator[tuple[range, FileRecord]]:
    """Writes the hops of some packs, and yields each as it is done; refused after `engine.cell_timeout` silent seconds.

    At most so many tasks run at a time as `engine.memory_limit` holds, and as there are processors. All machines must
    see the folder of the store. A task checks its shards before it reads them.
    """
    manifest = shards.manifest
    shape = manifest.features, propagation
    nodes, entries = (manifest.clients.count(what) for what in ("nodes", "entries"))

    def needed(pack: range) -> int:
        """Bytes for the largest client, and for the hops of all until they are written."""
        of_each = (hop_memory(int(nodes[i]), int(entries[i]), *shape, manifest.weighted) for i in pack)
        return max(of_each) + (hops_bytes(int(nodes[pack].sum()), *shape) if len(pack) > 1 else 0)

    largest = max(map(needed, packs))
    connect(config)
    try:
        cpus = int(ray.cluster_resources().get("CPU", 1))
        parallel = max(1, min(cpus, config.memory_limit() // largest))
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_write)
        waiting = list(reversed(packs))
        running: dict[ray.ObjectRef, range] = {}
        while waiting or running:
            while waiting and len(running) < parallel:
                pack = waiting.pop()
                running[task.remote(shards.path, pack, propagation)] = pack
            done, _ = ray.wait(list(running), timeout=config.engine.cell_timeout)
            if not done:
                late = sorted(client for pack in running.values() for client in pack)
                raise ShoalError(
                    "prepare",
                    f"no hops of clients {late} for {config.engine.cell_timeout:.0f} s; "
                    "look at the cluster or raise engine.cell_timeout, and run it again to go on",
                )
            yield running.pop(done[0]), _result(done[0])
    finally:
        ray.shutdown()


def _write(store: Path, clients: range, propagation: PropagationOptions) -> FileRecord:
    return write_hops_of(Store(store), propagation, clients)


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
