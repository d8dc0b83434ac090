"""The graphs that a config names, and the digests of their files, which stores made of them keep if files are gone."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from shoal.engine.config.config import Config
from shoal.engine.records.checkpoint import newest_inputs
from shoal.engine.sections.sections import files_of, options_of
from shoal.storage.datasets.registry import fingerprint
from shoal.storage.datasets.sources.source import DataSource, data_root
from shoal.storage.datasets.user.files import contents, graph_at, is_gone
from shoal.storage.errors import GraphGone, ShoalError
from shoal.storage.files.checksummed_json import unsealed
from shoal.storage.files.digest import text_digest
from shoal.storage.files.reading import read_bytes
from shoal.storage.options.dataset_names import has_user_options
from shoal.storage.options.target_names import CLASSIFICATION
from shoal.storage.options.types import checked, is_address, quoted
from shoal.storage.store.manifest import NAME
from shoal.storage.suggestions import did_you_mean

if TYPE_CHECKING:
    # A store at an address loads it; others need nothing of it.
    from shoal.storage.store.remote_store import Remote

# These fields of `DataSource` are no options of a dataset.
OF_DATA_CONFIG = (
    *("dataset", "root", "path", "row_normalize", "memory_limit", "user_options", "title", "made", "edge_weights"),
    *("edge_features", "labels", "target", "beside", "noted"),
)


@lru_cache(maxsize=1)
def _types() -> Mapping[str, Any]:
    return get_type_hints(DataSource, include_extras=True)


def sources(config: Config) -> tuple[DataSource, ...]:
    """Makes the datasets that a config names. Raises ShoalError: options, names or numbers of paths are wrong."""
    hints = _types()
    readable = [name for name in hints if name not in OF_DATA_CONFIG]
    options: dict[str, Any] = {}
    user_class = isinstance(config.data.dataset, str) and has_user_options(config.data.dataset)
    if user_class:
        options["user_options"] = config.data.options
    for key, value in () if user_class else config.data.options.items():
        if key not in readable:
            raise ShoalError(
                f"data.options.{key}", f"{did_you_mean(key, readable)}unknown; known here: {', '.join(readable)}"
            )
        try:
            options[key] = checked(hints[key], value)
        except ValueError as error:
            raise ShoalError(f"data.options.{key}", f"{error}, found {quoted(value)}") from None
    data, target = config.data, options_of(config, "targets")
    if config.engine.memory_limit is not None:
        options["memory_limit"] = config.engine.memory_limit
    same = partial(
        DataSource,
        root=data.root,
        row_normalize=data.row_normalize,
        title=data.name,
        made=data.features,
        edge_weights=data.edge_weights,
        edge_features=data.edge_features,
        labels=config.task != "edge",
        target=CLASSIFICATION if target is None else target.of_data,
        beside=tuple(file for file in (data.split_file, config.partition.file, *files_of(config).values()) if file),
        **options,
    )
    if isinstance(data.dataset, str):
        if isinstance(data.path, tuple):
            raise ShoalError("data.path", f"a list is for a list of datasets; {data.dataset} is one graph")
        return (same(dataset=data.dataset, path=data.path),)
    paths = list(data.path) if isinstance(data.path, tuple) else [data.path] if data.path else []
    files = sum(name.lower() == "files" for name in data.dataset)
    if len(paths) != files:
        raise ShoalError("data.path", f"data.dataset has {files} graphs of your own (files), found {len(paths)} paths")
    graphs = tuple(same(dataset=name, path=paths.pop(0) if name.lower() == "files" else None) for name in data.dataset)
    twice = [name for name, times in Counter(graph.name for graph in graphs).items() if times > 1]
    if twice:
        raise ShoalError("data.dataset", f"{twice[0]!r} is there twice; give each graph once, and files of other names")
    return graphs


def remote_of(config: Config) -> "Remote | None":
    """Returns the store of a config if it is at an address, else None."""
    data = config.data
    if data.store is None or not is_address(data.store):
        return None
    from shoal.storage.store.remote_store import Remote

    return Remote(data.store, data.cache, data.cache_limit)


def fingerprints(config: Config) -> list[dict[str, Any]]:
    """Identifies the graphs of a config. Raises ShoalError: one is missing or wrong, and no store knows it."""
    every = sources(config)
    try:
        return [fingerprint(source) for source in every]
    except GraphGone as gone:
        noted = _files_noted(config, gone)
        return [fingerprint(replace(source, noted=files)) for source, files in zip(every, noted)]


def digest_of_graphs(config: Config) -> str | None:
    """Digests the user's own graphs, as the value of the input `data.path`; None: there are none.

    Raises ShoalError: one is missing or wrong, and no store knows it.
    """
    of_user = [number for number, source in enumerate(sources(config)) if source.key == "files"]
    if not of_user:
        return None
    candidates: list[Mapping[str, str]]
    try:
        candidates = [_contents(source) for source in sources(config) if source.key == "files"]
    except GraphGone as gone:
        noted = _files_noted(config, gone)
        candidates = [noted[number] or {} for number in of_user]
    return _digest(candidates)


def gone(config: Config) -> list[Path]:
    """Returns the paths of the user's own graphs that are gone."""
    paths = [graph_at(source.path) for source in sources(config) if source.key == "files"]
    return [path for path in paths if is_gone(path)]


def _contents(source: DataSource) -> dict[str, str]:
    return contents(graph_at(source.path), source.made.made, source.labels)


def _digest(graphs: Sequence[Mapping[str, str]]) -> str:
    digests = [text_digest(str(sorted(graph.items()))) for graph in graphs]
    return digests[0] if len(digests) == 1 else text_digest(str(digests))


Noted = list[Mapping[str, str] | None]


def _files_noted(config: Config, gone: GraphGone) -> Noted:
    """Finds the digests of the files of each graph that a store notes; None for a graph without files of the user.

    If the config comes from the folder of a run, the graphs are those that the run had. Else they are those of
    `data.store`, or those that lay at the paths of the config. Raises ShoalError: no store has them, or several do.
    """
    every = sources(config)
    of_user = [source.key == "files" for source in every]
    of_run = None if config.of_run is None else newest_inputs(config.of_run).get("data.path")
    candidates: dict[str, tuple[Path, Noted]] = {}
    for store, graphs, places in _stores(config):
        if len(graphs) != len(every):
            continue
        noted: Noted = [graph.get("files") for graph in graphs]
        if of_run is not None:
            same = _digest([files or {} for files, counts in zip(noted, of_user) if counts]) == of_run
        else:
            same = config.data.store is not None or places == places_of(config)
        if same and all(map(_is_of, graphs, (replace(source, noted=files) for source, files in zip(every, noted)))):
            candidates.setdefault(json.dumps(noted, sort_keys=True), (store, noted))
    if not candidates:
        raise gone
    if len(candidates) > 1:
        stores = " and ".join(str(store) for store, _ in list(candidates.values())[:2])
        raise ShoalError(
            *gone.args[:-1],
            f"not found, and {stores} were made of different graphs that lay there; set data.store",
        )
    return next(noted for _, noted in candidates.values())


def _is_of(graph: Mapping[str, Any], source: DataSource) -> bool:
    """Returns whether a store's graph is one of a config, whatever the form in which features are kept."""
    try:
        return all(graph.get(key) == value for key, value in fingerprint(source).items())
    except GraphGone:
        return False


def places_of(config: Config) -> list[str | None]:
    """Returns the absolute paths at which the graphs of a config lie, or lay; None for a graph that is not a user's."""
    return [str(graph_at(source.path)) if source.key == "files" else None for source in sources(config)]


def _stores(config: Config) -> Iterator[tuple[Path, list[dict[str, Any]], list[str | None]]]:
    """Yields stores that may be of the graphs of a config, with the graphs that each was made of and their paths."""
    if (remote := remote_of(config)) is not None:
        there = remote.find()
        paths = [] if there is None else [there.path]
    elif config.data.store is not None:
        paths = [Path(config.data.store)]
    else:
        paths = sorted((data_root(config.data.root) / "stores").glob("*"))
    for path in paths:
        # A store that cannot be read says nothing of the graph.
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            manifest = unsealed(read_bytes(path / NAME))
            dataset = manifest["identity"]["dataset"]
            graphs = dataset.get("graphs", [dataset])
            yield path, graphs, manifest.get("provenance", {}).get("places", [])
