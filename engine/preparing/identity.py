"""Identity of a store: the datasets of a config, its partition, and the folder that follows from them."""

from collections import Counter
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from shoal.engine.config.config import Config
from shoal.engine.config.run_identity import fingerprint_of, flatten
from shoal.engine.preparing.overlay import additions_go_elsewhere, overlay_path
from shoal.engine.records.inputs import contents
from shoal.storage.datasets.domains import joined_name
from shoal.storage.datasets.registry import fingerprint, published_contents
from shoal.storage.datasets.sources.source import DataSource, data_root
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import has_user_options, may_be_sparse
from shoal.storage.options.types import checked, is_address, is_own, quoted
from shoal.storage.store.manifest import NAME, WITHOUT_TABLES, Manifest
from shoal.storage.suggestions import did_you_mean
from shoal.storage.user_code.user_code import read_user_code

if TYPE_CHECKING:
    # It is loaded where a store is at an address.
    from shoal.storage.store.remote_store import Remote

# Fields of `DataSource` that are no options of a dataset.
OF_DATA_CONFIG = (
    *("dataset", "root", "path", "row_normalize", "memory_limit", "user_options", "title", "made", "edge_weights"),
    *("labels", "beside"),
)


def sources(config: Config) -> tuple[DataSource, ...]:
    """The datasets that a config names; refuses wrong options, names and numbers of paths."""
    hints = get_type_hints(DataSource, include_extras=True)
    known = [f.name for f in fields(DataSource) if f.name not in OF_DATA_CONFIG]
    options: dict[str, Any] = {}
    user_class = isinstance(config.data.dataset, str) and has_user_options(config.data.dataset)
    if user_class:
        options["user_options"] = config.data.options
    for key, value in () if user_class else config.data.options.items():
        if key not in known:
            raise ShoalError(
                f"data.options.{key}", f"unknown; known here: {', '.join(known)}{did_you_mean(key, known)}"
            )
        try:
            options[key] = checked(hints[key], value)
        except ValueError as error:
            raise ShoalError(f"data.options.{key}", f"{error}, found {quoted(value)}") from None
    data = config.data
    if config.engine.memory_limit is not None:
        options["memory_limit"] = config.engine.memory_limit
    same = partial(
        DataSource,
        root=data.root,
        row_normalize=data.row_normalize,
        title=data.name,
        made=data.features,
        edge_weights=data.edge_weights,
        labels=config.task != "edge",
        beside=tuple(file for file in (data.split_file, config.partition.file, config.participation.trace) if file),
        **options,
    )
    if isinstance(data.dataset, str):
        if isinstance(data.path, tuple):
            raise ShoalError("data.path", f"a list is for a list of datasets; {data.dataset} is one graph")
        return (same(dataset=data.dataset, path=data.path),)
    paths = list(data.path) if isinstance(data.path, tuple) else [data.path] if data.path else []
    own = sum(name.lower() == "files" for name in data.dataset)
    if len(paths) != own:
        raise ShoalError("data.path", f"data.dataset has {own} graphs of your own (files), found {len(paths)} paths")
    found = tuple(same(dataset=name, path=paths.pop(0) if name.lower() == "files" else None) for name in data.dataset)
    twice = [name for name, times in Counter(each.name for each in found).items() if times > 1]
    if twice:
        raise ShoalError("data.dataset", f"{twice[0]!r} is there twice; give each graph once, and files of other names")
    return found


def identity(config: Config) -> dict[str, Any]:
    """Identifies a store: the dataset, the partition, which edges are held out, and what is masked."""
    chosen = asdict(config.partition)
    file = chosen.pop("file")
    if file is not None:
        chosen["file"] = contents(config).get("partition.file")
    if is_own(chosen["method"]):
        chosen["method"] = read_user_code("partition.method", chosen["method"]).identity
    if chosen["method"] != "dirichlet":
        del chosen["alpha"]
    if not chosen["options"]:
        del chosen["options"]
    # Stores of one graph keep the names that they had before there were several.
    chosen = {key: value for key, value in chosen.items() if value is not None or key not in ("domains", "chunks")}
    if "domains" in chosen:
        chosen["domains"] = list(chosen["domains"])
    contents_of = [fingerprint(each) for each in sources(config)]
    content = contents_of[0] if len(contents_of) == 1 else {"graphs": contents_of}
    data = config.data
    dataset = {**content, "dtype": data.dtype}
    # Stores of dense features keep the names that they had before there were sparse ones.
    if data.layout != "dense" and may_be_sparse(data.dataset, data.path):
        dataset["layout"] = data.layout
    # Which edges are held out is a part of the shards, of no others.
    edges = {"edges": data.split_name} if config.task == "edge" else {}
    masked = {"sparsity": data.sparsity.of_shards} if data.sparsity.of_shards else {}
    return {"dataset": dataset, "partition": chosen, **edges, **masked}


def published_digests(config: Config) -> dict[str, str]:
    """Digests by path of the published files of a config's datasets, as far as all of them are there."""
    return {path: digest for each in sources(config) for path, digest in published_contents(each).items()}


def remote_of(config: Config) -> "Remote | None":
    """The store of a config, if that is at an address."""
    data = config.data
    if data.store is None or not is_address(data.store):
        return None
    from shoal.storage.store.remote_store import Remote

    return Remote(data.store, data.cache, data.cache_limit)


def store_path(config: Config) -> Path:
    """The folder in which a config's store is made: `data.store`, else one of its own under the data root."""
    if (remote := remote_of(config)) is not None:
        return remote.scratch()
    if config.data.store is not None:
        return Path(config.data.store)
    chosen = config.partition
    # Published files are known by the name of the dataset, so that a store is found without them. A store of another
    # Shoal, which this one cannot read, is left where it is: the number is that of the oldest format that is read.
    digits = fingerprint_of({**identity(config), "format": WITHOUT_TABLES})
    names = [each.name for each in sources(config)]
    one = "files" if str(config.data.dataset).lower() == "files" else names[0]
    graph = config.data.name or (one if len(names) == 1 else joined_name(names))
    method = chosen.method.rpartition(":")[2]
    return data_root(config.data.root) / "stores" / f"{graph}-{method}{chosen.clients}-{digits}"


def store_or_overlay(config: Config) -> Path:
    """The overlay of a config's store where there is one, else the store, which may not exist.

    Of a store at an address the manifests, if they are there.
    """
    store, remote = store_path(config), remote_of(config)
    if remote is not None:
        found = remote.find()
        return store if found is None else found.path
    overlay = overlay_path(store, config) if additions_go_elsewhere(store, config) else store
    return overlay if (overlay / NAME).exists() else store


def require_identity(path: Path, manifest: Manifest, made: dict[str, Any]) -> None:
    """Refuses a store of another dataset or partition, or with other edges held out or masked; names what differs."""
    if manifest.identity == made:
        return
    old, new = flatten(manifest.identity), flatten(made)
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    differences = ", ".join(f"{key} {old.get(key)} (config: {new.get(key)})" for key in keys)
    raise ShoalError(
        path,
        f"this store was made from another dataset or partition: {differences}; delete it or set data.store",
    )
