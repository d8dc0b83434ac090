"""Makes the store of a config: finds its dataset and its folder, and makes the parts that are missing."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.engine.config.config import Config
from shoal.engine.config.sizes import machine_cores
from shoal.engine.preparing.checks import require_fitting_data, require_kinds_kept, require_known, require_whole
from shoal.engine.preparing.identity import identity, published_digests, require_identity, store_path
from shoal.engine.preparing.overlay import additions_go_elsewhere, make_overlay, overlay_path
from shoal.engine.preparing.store_builder import LazyGraph, StoreBuilder, TrainingBuilder, made_from
from shoal.engine.preparing.store_steps import StoreSteps, hops_on_disk, shards_on_disk, split_on_disk
from shoal.engine.records.graphs import gone, remote_of
from shoal.engine.records.inputs import differences
from shoal.engine.screen.progress import say, watch
from shoal.storage.errors import ShoalError
from shoal.storage.files.disk import LOCK, writing
from shoal.storage.files.names import place_in
from shoal.storage.progress import watched_by
from shoal.storage.runner import HERE, Runner, run_by
from shoal.storage.store.client_table import TABLES
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import ASSIGNMENT, DOMAINS, TRAINING, WHOLE, Store, training_path
from shoal.storage.store.writer import PROGRESS
from shoal.storage.threads import threads

if TYPE_CHECKING:
    # This module imports Ray.
    from shoal.engine.preparing.cluster_tasks import Machines

    # This module is loaded only if a store is at an address.
    from shoal.storage.store.remote_store import Remote


def prepare(config: Config, centralized: bool = False, repair: bool = True, known: bool = False) -> Store:
    """Makes the missing parts of a config's store, and opens it.

    Args:
        config: The config; if it is `known`, `require_known` was called with it.
        centralized: Make the one-client store of the whole graph, too, and return that.
        repair: Make files again that were deleted from a finished store; else opening them fails.

    Raises:
        ShoalError: Bad input, a store of another dataset, no disk space, another prepare at work.
    """
    if not known:
        require_known(config)
    remote = remote_of(config)
    with watched_by(watch), threads(machine_cores()), _on_machines(config):
        if remote is not None:
            return _read_instead(_prepared_elsewhere(remote, config, centralized), config)
        path, published = store_path(config), published_digests(config)
        if additions_go_elsewhere(path, config) and not _open(path, config, published, centralized, repair):
            overlay = overlay_path(path, config)
            ready = (overlay / NAME).exists() and _open(overlay, config, published, centralized, repair)
            path = overlay if ready else make_overlay(path, config)
        store = _open(path, config, published, centralized, repair, LazyGraph(config))
    assert store is not None
    return _read_instead(store, config)


def _read_instead(store: Store, config: Config) -> Store:
    """Says which store is read instead of a graph that is gone."""
    for path in gone(config):
        say(f"{path}: not found; {store.path}, which was made of that graph, is read")
    return store


# Work on so many bytes is worth the start of a cluster, or the calls to one that is joined.
TO_START, TO_JOIN = 1 << 28, 1 << 26


@contextmanager
def _on_machines(config: Config) -> Iterator[None]:
    """Lets tasks of Ray do large work inside of the block, if Ray is the config's backend."""
    machines: Machines | None = None
    here_alone = False

    def choice(size: int, folder: Path, files: Sequence[Path]) -> Runner:
        nonlocal machines, here_alone
        address = config.ray.address
        if machines is None:
            least = TO_START if address is None else TO_JOIN
            if here_alone or config.engine.backend != "ray" or size < least or (address or "").startswith("ray://"):
                return HERE
            # A prepare in one process must not load Ray.
            import ray

            # If Ray is up, hosts of earlier runs have the processors.
            if ray.is_initialized():
                return HERE
            from shoal.engine.cluster.cluster import NotStarted
            from shoal.engine.cluster.open_backend import require_own_package
            from shoal.engine.preparing.cluster_tasks import Machines

            require_own_package()
            try:
                machines = Machines(config)
            except NotStarted as error:
                say(f"{error}; the prepare goes on in this process")
                here_alone = True
                return HERE
        return machines.runner(folder, files)

    try:
        with run_by(choice):
            yield
    finally:
        if machines is not None:
            machines.close()


def _prepared_elsewhere(remote: "Remote", config: Config, centralized: bool) -> Store:
    """Opens the store at an address; makes missing parts in a scratch folder of this machine, and sends them there."""
    from shoal.storage.store.remote_store import publish

    published, scratch = published_digests(config), remote.scratch()
    old = remote.find()
    if old is None or not _open(old.path, config, published, centralized, repair=False):
        with writing(scratch.parent, "data.cache"):
            if old is not None:
                old.link_into(scratch)
            _open(scratch, config, published, centralized, old is None, LazyGraph(config))
            say(f"{remote}: what is new of the store is sent, the manifest last")
            publish(remote, old)
        old = remote.find()
    assert old is not None
    return old.store(Path(WHOLE) if centralized else Path())


def _open(
    path: Path,
    config: Config,
    published: dict[str, str],
    centralized: bool,
    repair: bool,
    graph: LazyGraph | None = None,
) -> Store | None:
    """Opens the store that a run trains on, with the stores below it that the run reads; makes missing parts.

    Without a graph nothing is made, and None is returned if anything is missing.
    """
    made, top = identity(config), path

    def open_below(
        path: Path,
        made: dict[str, Any],
        published: dict[str, str],
        steps: Callable[[LazyGraph], StoreSteps],
        require_room: Callable[[], None] | None = None,
    ) -> Store | None:
        store = _complete(path, made, published, config, repair)
        if store is not None or graph is None:
            return store
        if require_room is not None:
            require_room()
        _require_place(path)
        place_in(top, path.relative_to(top))
        with writing(path):
            return steps(graph).run(config.data, config.kernel())

    clients = open_below(path, made, published, lambda graph: StoreBuilder(path, made, graph, config.partition, config))
    if clients is None:
        return None

    def of_graphs(name: str, require_room: Callable[[], None] | None = None) -> Store | None:
        """Opens the store of whole graphs below the clients' one."""
        below, info = path / name, {**made, "partition": {"method": name}}
        return open_below(
            below,
            info,
            published,
            lambda graph: StoreBuilder(below, info, graph, None, config, clients),
            require_room,
        )

    if clients.manifest.domains and config.evaluation.domains and of_graphs(DOMAINS) is None:
        return None
    trained = of_graphs(WHOLE, lambda: _require_room(clients, config)) if centralized else clients
    if trained is None or not config.data.inductive:
        return trained
    split = config.data.split_name
    of_training, training = made_from(trained, split), trained.path / training_path(split)
    nodes = open_below(training, of_training, trained.manifest.published, lambda _: TrainingBuilder(trained, config))
    return None if nodes is None else trained


def _require_place(path: Path) -> None:
    """Raises ShoalError: a store is to be made in a folder that is neither empty nor one of a store."""
    with suppress(OSError):
        names = set(os.listdir(path))
        others = sorted(
            names - {LOCK, str(ASSIGNMENT), "clients", "splits", "hops", "boundaries", TABLES, WHOLE, DOMAINS, TRAINING}
        )
        if others and not names & {PROGRESS, NAME}:
            raise ShoalError(
                path, f"holds {others[0]}, so is neither empty nor a store; set data.store to another folder"
            )


def _require_room(store: Store, config: Config) -> None:
    manifest = store.manifest
    edges = manifest.cleaning
    entries = edges["entries_read"] - edges["self_loops"] - edges["duplicates"] + edges["reversed_added"]
    sizes = manifest.nodes, manifest.features, manifest.feature_bytes, entries
    require_whole(*sizes, config, manifest.weighted, manifest.relations)


def _complete(
    path: Path, made: dict[str, Any], published: dict[str, str], config: Config, repair: bool
) -> Store | None:
    """Returns the store of a folder if it has the shards, the split and the hops of a config, else None."""
    if not (path / NAME).exists():
        return None
    store = Store(path)
    manifest, split, propagation = store.manifest, config.data, config.kernel()
    require_identity(path, manifest, made)
    if changed := differences(manifest.published, published):
        raise ShoalError(
            path,
            f"this store was made from another content of {', '.join(changed)}; bring that back, set "
            "data.store, or delete the store",
        )
    # The identity of a store names the task only for edges, so that a task for labels of another kind is refused here.
    of_edges = manifest.weighted, manifest.edge_features
    require_fitting_data(config, manifest.name, manifest.item_name, manifest.classes, *of_edges)
    require_kinds_kept(config, path, manifest)
    if repair:
        ready = shards_on_disk(path, manifest) and split_on_disk(path, manifest, split)
        return store if ready and hops_on_disk(path, manifest, propagation) else None
    ready = split.split_name in manifest.splits and propagation.folder in (None, *manifest.hops)
    return store if ready else None
