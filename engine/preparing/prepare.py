"""From a config to its store: which dataset, which folder, and what of it is still to be made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.engine.config.config import Config
from shoal.engine.preparing.checks import (
    read_graph,
    require_known,
    require_metric,
    require_task,
    require_whole,
)
from shoal.engine.preparing.edge_weight_checks import require_weights_used
from shoal.engine.preparing.identity import identity, published_digests, require_identity, store_path
from shoal.engine.preparing.overlay import additions_go_elsewhere, overlaid, overlay_path
from shoal.engine.preparing.store_builder import LazyGraph, StoreBuilder
from shoal.engine.preparing.store_steps import hops_on_disk, shards_on_disk, split_on_disk
from shoal.engine.preparing.training_store import TrainingBuilder, made_from
from shoal.engine.records.inputs import differences
from shoal.engine.screen.progress import watch
from shoal.storage.errors import ShoalError
from shoal.storage.files.disk import writing
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.split import SplitOptions
from shoal.storage.progress import watched_by
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import DOMAINS, WHOLE, Store, training_path


def prepare(config: Config, centralized: bool = False, repair: bool = True, known: bool = False) -> Store:
    """Makes what is missing of a config's store, and opens it.

    Args:
        config: The run.
        centralized: Make the one-client store of the whole graph, too, and return that.
        repair: Make files again that were deleted from a finished store; else opening them fails.
        known: `require_known` was called before.

    Raises:
        ShoalError: Bad input, a store of another dataset, no disk space, another prepare at work.
    """
    if not known:
        require_known(config)
    with watched_by(watch):
        return _prepare(config, centralized, repair)


def _prepare(config: Config, centralized: bool, repair: bool) -> Store:
    path = store_path(config)
    wanted = config.data, config.propagation
    made = identity(config)
    graph = LazyGraph(lambda: read_graph(config), lambda: published_digests(config))
    published = published_digests(config)
    if additions_go_elsewhere(path, config) and not _is_ready(path, config, published, centralized, repair):
        overlay = overlay_path(path, config)
        ready = (overlay / NAME).exists() and _is_ready(overlay, config, published, centralized, repair)
        path = overlay if ready else overlaid(path, config)
    store = _complete(path, made, published, *wanted, repair)
    if (path / NAME).exists():
        # Only an edge task is a part of an identity: the labels of a dataset are of one kind.
        found = Store(path).manifest
        require_task(config, found.name, found.item_name)
        require_metric(config, found.name, found.classes)
        require_weights_used(config, found.name, found.weighted)
    if store is None:
        with writing(path):
            store = StoreBuilder(path, made, graph, config.partition, config).run(*wanted)

    def beside(name: str, require_room: Callable[[], None]) -> Store:
        """The store of whole graphs below the clients' one."""
        own = {**made, "partition": {"method": name}}
        found = _complete(path / name, own, published, *wanted, repair)
        if found is not None:
            return found
        require_room()
        with writing(path / name):
            return StoreBuilder(path / name, own, graph, None, config, store).run(*wanted)

    if store.manifest.domains and config.evaluation.domains:
        beside(DOMAINS, lambda: None)
    trained = beside(WHOLE, lambda: _require_room(store, config)) if centralized else store
    if config.data.inductive:
        _prepare_training(trained, config, repair)
    return trained


def _is_ready(path: Path, config: Config, published: dict[str, str], centralized: bool, repair: bool) -> bool:
    """Whether a finished store has all that a config reads of it."""
    made, wanted = identity(config), (config.data, config.propagation)
    clients = _complete(path, made, published, *wanted, repair)
    if clients is None:
        return False
    below = [DOMAINS] if clients.manifest.domains and config.evaluation.domains else []
    below += [WHOLE] if centralized else []
    own = {name: {**made, "partition": {"method": name}} for name in below}
    trained = clients
    for name in below:
        found = _complete(path / name, own[name], published, *wanted, repair)
        if found is None:
            return False
        trained = found if name == WHOLE else trained
    if not config.data.inductive:
        return True
    split = config.data.split_name
    training = trained.path / training_path(split)
    return _complete(training, made_from(trained, split), trained.manifest.published, *wanted, repair) is not None


def _prepare_training(clients: Store, config: Config, repair: bool) -> None:
    """Makes what is missing of the store of the training nodes of some clients."""
    split = config.data.split_name
    path, published = clients.path / training_path(split), clients.manifest.published
    if _complete(path, made_from(clients, split), published, config.data, config.propagation, repair) is None:
        with writing(path):
            TrainingBuilder(clients, config).run(config.data, config.propagation)


def _require_room(store: Store, config: Config) -> None:
    edges = store.manifest.cleaning
    entries = edges["entries_read"] - edges["self_loops"] - edges["duplicates"] + edges["reversed_added"]
    manifest = store.manifest
    require_whole(manifest.nodes, manifest.features, manifest.feature_bytes, entries, config, manifest.weighted)


def _complete(
    path: Path,
    made: dict[str, Any],
    published: dict[str, str],
    split: SplitOptions,
    propagation: PropagationOptions,
    repair: bool,
) -> Store | None:
    if not (path / NAME).exists():
        return None
    store = Store(path)
    manifest = store.manifest
    require_identity(path, manifest, made)
    if changed := differences(manifest.published, published):
        raise ShoalError(
            path,
            f"this store was made from another content of {', '.join(changed)}; bring that back, set "
            "data.store, or delete the store",
        )
    if repair:
        ready = shards_on_disk(path, manifest) and split_on_disk(path, manifest, split)
        return store if ready and hops_on_disk(path, manifest, propagation) else None
    ready = split.split_name in manifest.splits and (not propagation.stored or propagation.name in manifest.hops)
    return store if ready else None
