"""Identity of a store: the datasets of a config, its partition, and the folder that follows from them."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from shoal.engine.config.config import Config
from shoal.engine.config.run_identity import PARTITIONS, fingerprint_of, flatten
from shoal.engine.preparing.overlay import additions_go_elsewhere, overlay_path
from shoal.engine.records.graphs import fingerprints, remote_of, sources
from shoal.engine.records.inputs import contents
from shoal.engine.sections.sections import list_store_changes
from shoal.storage.datasets.registry import published_contents
from shoal.storage.datasets.sources.source import data_root
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import may_be_sparse
from shoal.storage.options.types import is_own
from shoal.storage.store.manifest import NAME, WITHOUT_TABLES, Manifest
from shoal.storage.user_code.user_code import read_user_code


def identity(config: Config) -> dict[str, Any]:
    """Identifies a store: the dataset, the partition, held-out edges, masks, and what features change of it."""
    chosen = asdict(config.partition)
    file = chosen.pop("file")
    if file is not None:
        chosen["file"] = contents(config).get("partition.file")
    if is_own(chosen["method"]):
        chosen["method"] = read_user_code("partition.method", chosen["method"]).identity
    if chosen["method"] != "dirichlet":
        del chosen["alpha"]
    if chosen["method"] not in ("features", "homophily"):
        del chosen["skew"]
    if not chosen["zipf"]:
        del chosen["zipf"]
    if chosen["overlap"] == 1:
        del chosen["overlap"], chosen["drawn"]
    if not chosen["options"]:
        del chosen["options"]
    if (version := PARTITIONS.get(config.partition.method)) is not None:
        chosen["version"] = version
    # Stores of one graph keep the names that they had before there were several.
    chosen = {key: value for key, value in chosen.items() if value is not None or key not in ("domains", "chunks")}
    if "domains" in chosen:
        chosen["domains"] = list(chosen["domains"])
    contents_of = fingerprints(config)
    content = contents_of[0] if len(contents_of) == 1 else {"graphs": contents_of}
    data = config.data
    dataset = {**content, "dtype": data.dtype}
    # Stores of dense features keep the names that they had before there were sparse ones.
    mapped = str(data.dataset).lower() == "files" and "x.npy" in content["files"]
    if data.layout != "dense" and not mapped and may_be_sparse(data.dataset, data.path):
        dataset["layout"] = data.layout
    # Which edges are held out is a part of the shards, of no others.
    edges = {"edges": data.split_name} if config.task == "edge" else {}
    masked = {"sparsity": data.sparsity.of_shards} if data.sparsity.of_shards else {}
    changed = {key: value for change in list_store_changes(config) for key, value in change.identify(config).items()}
    return {"dataset": dataset, "partition": chosen, **edges, **masked, **changed}


def published_digests(config: Config) -> dict[str, str]:
    """Returns digests by path of the files of a config's datasets, published or read by own code, as far as present."""
    digests: dict[str, str] = {}
    for source in sources(config):
        if is_own(source.dataset):
            # Other datasets load none of it.
            from shoal.storage.datasets.user.user_dataset import digest_files

            digests |= digest_files(source)
        else:
            digests |= published_contents(source)
    return digests


def store_path(config: Config) -> Path:
    """Returns the folder in which a config's store is made: `data.store`, else a folder under the data root."""
    if (remote := remote_of(config)) is not None:
        return remote.scratch()
    if config.data.store is not None:
        return Path(config.data.store)
    chosen = config.partition
    # Published files are known by the name of the dataset, so that a store is found without them. A store of another
    # Shoal, which this one cannot read, is left where it is: the number is that of the oldest format that is read.
    digits = fingerprint_of({**identity(config), "format": WITHOUT_TABLES})
    names = [source.name for source in sources(config)]
    dataset = "files" if str(config.data.dataset).lower() == "files" else names[0]
    graph = config.data.name or dataset
    if not config.data.name and len(names) > 1:
        from shoal.storage.datasets.domains import joined_name

        graph = joined_name(names)
    method = chosen.method.rpartition(":")[2]
    return data_root(config.data.root) / "stores" / f"{graph}-{method}{chosen.clients}-{digits}"


def store_or_overlay(config: Config) -> Path:
    """Returns the overlay of a config's store if there is one, else the store, which may not exist.

    For a store at an address it is the folder of its manifests, if they are there.
    """
    store, remote = store_path(config), remote_of(config)
    if remote is not None:
        manifests = remote.find()
        return store if manifests is None else manifests.path
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
