"""From a config to its store: which dataset, which folder, and what of it is still to be made."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

from engine.preparing.on_disk import hops_on_disk, shards_on_disk, split_on_disk
from engine.preparing.store_builder import LazyGraph, StoreBuilder
from engine.records.inputs import contents, differences
from engine.screen.progress import watch
from engine.settings.config import Config
from engine.settings.number_keys import fingerprint_of, flatten
from engine.settings.sizes import size
from partition import require_enough_nodes
from storage.datasets import DataSource, data_root, fingerprint, load, nodes_ahead, published_contents
from storage.disk import writing
from storage.errors import ShoalError
from storage.hops import hops_bytes
from storage.kernel import Kernel
from storage.layout import may_be_sparse, require_possible
from storage.manifest import FORMAT, NAME, Manifest
from storage.option_types import checked, quoted
from storage.split import SplitOptions, read_split_file
from storage.store import WHOLE, Store
from storage.watch import watched_by

OF_DATA_CONFIG = ("dataset", "root", "path", "row_normalize", "memory_limit")


def source(config: Config) -> DataSource:
    """The dataset a config names.

    Raises:
        ShoalError: An option that the dataset does not have, or of a wrong type.
    """
    hints = get_type_hints(DataSource, include_extras=True)
    known = [f.name for f in fields(DataSource) if f.name not in OF_DATA_CONFIG]
    options: dict[str, Any] = {}
    for key, value in config.data.options.items():
        if key not in known:
            raise ShoalError(f"data.options.{key}: unknown; known here: {', '.join(known)}")
        try:
            options[key] = checked(hints[key], value)
        except ValueError as error:
            raise ShoalError(f"data.options.{key}: {error}, found {quoted(value)}") from None
    data = config.data
    if config.engine.memory_limit is not None:
        options["memory_limit"] = config.engine.memory_limit
    return DataSource(data.dataset, root=data.root, path=data.path, row_normalize=data.row_normalize, **options)


def identity(config: Config) -> dict[str, Any]:
    """What tells one store from another: the content of the dataset and the partition.

    Raises:
        ShoalError: A file that the config names cannot be read.
    """
    chosen = asdict(config.partition)
    file = chosen.pop("file")
    if file is not None:
        chosen["file"] = contents(config).get("partition.file")
    dataset = {**fingerprint(source(config)), "dtype": config.data.dtype}
    data = config.data
    # Stores of dense features keep the names that they had before there were sparse ones.
    if data.layout != "dense" and may_be_sparse(data.dataset, data.path):
        dataset["layout"] = data.layout
    return {"dataset": dataset, "partition": chosen}


def published_inputs(config: Config) -> dict[str, str]:
    """Digests of the published files of a config's dataset, as far as all of them are there."""
    return {f"the file {path}": found for path, found in published_contents(source(config)).items()}


def store_path(config: Config) -> Path:
    """The folder of a config's store: `data.store`, else one of its own under the data root."""
    if config.data.store is not None:
        return Path(config.data.store)
    chosen = config.partition
    # Published files are known by the name of the dataset, so that a store is found without them. A store of another
    # Shoal, which this one cannot read, is left where it is.
    digits = fingerprint_of({**identity(config), "format": FORMAT})
    name = f"{config.data.dataset.lower()}-{chosen.method}{chosen.clients}-{digits}"
    return data_root(config.data.root) / "stores" / name


def prepare(config: Config, whole: bool = False, mend: bool = True) -> Store:
    """Makes what is missing of a config's store, and opens it.

    Args:
        config: The run.
        whole: Make the one-client store of the whole graph, too, and return that.
        mend: Make files again that were deleted from a finished store; else opening them fails.

    Raises:
        ShoalError: Bad input, a store of another dataset, no disk space, another prepare at work.
    """
    with watched_by(watch):
        return _prepare(config, whole, mend)


def _prepare(config: Config, whole: bool, mend: bool) -> Store:
    path = store_path(config)
    wanted = config.data, config.propagation
    made = identity(config)
    require_known(config)
    graph = LazyGraph(lambda: load(source(config)), lambda: published_contents(source(config)))
    published = published_contents(source(config))
    store = _complete(path, made, published, *wanted, mend)
    if store is None:
        with writing(path):
            store = StoreBuilder(path, made, graph, config.partition, config).run(*wanted)
    if not whole:
        return store
    whole_made = {"dataset": made["dataset"], "partition": {"method": WHOLE}}
    found = _complete(path / WHOLE, whole_made, published, *wanted, mend)
    if found is not None:
        return found
    edges = store.manifest.cleaning
    entries = edges["entries_read"] - edges["self_loops"] - edges["duplicates"] + edges["reversed_added"]
    manifest = store.manifest
    require_whole(manifest.nodes, manifest.features, manifest.feature_bytes, entries, config)
    with writing(path / WHOLE):
        return StoreBuilder(path / WHOLE, whole_made, graph, None, config, store).run(*wanted)


def _complete(
    path: Path, made: dict[str, Any], published: dict[str, str], split: SplitOptions, kernel: Kernel, mend: bool
) -> Store | None:
    if not (path / NAME).exists():
        return None
    store = Store(path)
    manifest = store.manifest
    require_identity(path, manifest, made)
    if changed := differences(manifest.published, published):
        raise ShoalError(
            f"{path}: this store was made from another content of {', '.join(changed)}; bring that back, set "
            "data.store, or delete the store"
        )
    if mend:
        ready = shards_on_disk(path, manifest) and split_on_disk(path, manifest, split)
        return store if ready and hops_on_disk(path, manifest, kernel) else None
    ready = split.split_name in manifest.splits and (not kernel.stored or kernel.name in manifest.hops)
    return store if ready else None


def require_identity(path: Path, manifest: Manifest, made: dict[str, Any]) -> None:
    """Refuses a store of another dataset or partition.

    Raises:
        ShoalError: It is one; names what differs.
    """
    if manifest.identity != made:
        raise ShoalError(
            f"{path}: this store was made from another dataset or partition: "
            f"{_differences(manifest.identity, made)}; delete it or set data.store"
        )


def _differences(store: dict[str, Any], config: dict[str, Any]) -> str:
    old, new = flatten(store), flatten(config)
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key)} (config: {new.get(key)})" for key in keys)


def require_known(config: Config) -> None:
    """Refuses what is known to be wrong before the graph is made.

    Raises:
        ShoalError: There are more clients than nodes, the dataset or one of its options is wrong, its features cannot
            be sparse, or the file of the split is wrong.
    """
    require_possible(config.data.layout, config.data.dataset, config.data.path)
    nodes = nodes_ahead(source(config))
    if nodes is not None:
        require_enough_nodes(config.partition.clients, nodes, config.data.dataset)
    if config.data.split == "file":
        read_split_file(config.data.split_file)


def require_whole(nodes: int, features: int, feature_bytes: int, entries: int, config: Config) -> None:
    """Refuses to hold a whole graph that is larger than the limit.

    Args:
        nodes: Its nodes.
        features: Width F of its features.
        feature_bytes: Bytes of its features as they are stored.
        entries: Directed entries of its adjacency.
        config: The run.

    Raises:
        ShoalError: It is.
    """
    needed = feature_bytes + hops_bytes(nodes, features, config.propagation) + 4 * entries
    limit = config.memory_limit()
    if needed > limit:
        raise ShoalError(
            f"algorithm.name {config.algorithm.name}: the whole graph takes {size(needed)}, "
            f"engine.memory_limit is {size(limit)}; raise the limit or take a method that trains clients"
        )
