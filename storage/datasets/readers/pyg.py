"""Datasets that torch_geometric reads: `pyg:CLASS/NAME`, and those of ours whose files its classes parse.

Raw files are read where they are, and what PyG makes of them is kept in memory. Files of `pyg:` that are missing are
downloaded as their class does it, as a whole or not at all.
"""

import inspect
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.storage.datasets.features.features import compact
from shoal.storage.datasets.sources.download import PATIENCE_SECONDS, fetch_published
from shoal.storage.datasets.sources.source import AGAIN, DatasetSpec, DataSource, data_root, reading
from shoal.storage.datasets.user.user_dataset import checked_options
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import load_npy, open_npz
from shoal.storage.graph.graph import Graph
from shoal.storage.options.dataset_names import DATASETS as OURS
from shoal.storage.options.dataset_names import OTHER_NAMES, PYG_NAME
from shoal.storage.suggestions import did_you_mean_name

# Parameters of PyG's constructors that `data.options` does not set.
OF_PYG = ("root", "name", "transform", "pre_transform", "pre_filter", "force_reload", "log")
MASKS = ("train_mask", "val_mask", "test_mask")


class _RawFiles(Exception):
    """Carries the paths of a dataset's raw files out of its constructor."""


def _open(
    cls: Any,
    arguments: Mapping[str, Any],
    files: Sequence[str] | None = None,
    listed: bool = False,
    fetch: bool = False,
) -> Any:
    """Opens a dataset of PyG over raw files that are there, `files` or those that the class needs.

    Nothing is written beside them. `listed` raises `_RawFiles` with their paths, and reads none. `fetch` downloads them
    where one is missing. Raises FileNotFoundError with the path of one that is missing, and why it cannot be
    downloaded; damaged ones raise whatever PyG does.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-pyg-") as folder:

        class Opened(cls):
            processed_dir = folder
            has_download = True

            def _download(self) -> None:
                try:
                    paths = [Path(path) for path in self.raw_paths]
                except NotImplementedError:
                    # A class without files draws its graph.
                    return
                if listed:
                    raise _RawFiles(paths)
                if not all(path.exists() for path in paths):
                    reason = _fetch(self, super().download) if fetch else ""
                    for path in paths:
                        if not path.exists():
                            raise FileNotFoundError(path, reason)

            def _process(self) -> None:
                self.log = False
                super()._process()

        if files is not None:
            Opened.raw_file_names = list(files)
        return Opened(**arguments)


def _fetch(dataset: Any, download: Callable[[], None]) -> str:
    """Downloads raw files of a dataset of PyG, and moves them to their place when all are there; else says why not."""
    place, root = Path(dataset.raw_dir), dataset.root
    above = next(folder for folder in place.parents if folder.is_dir())
    patience = socket.getdefaulttimeout()
    try:
        with tempfile.TemporaryDirectory(prefix=".shoal-pyg-", dir=above) as folder:
            dataset.root = folder
            socket.setdefaulttimeout(PATIENCE_SECONDS)
            os.makedirs(dataset.raw_dir)
            download()
            place.mkdir(parents=True, exist_ok=True)
            for file in Path(dataset.raw_dir).iterdir():
                if not (place / file.name).exists():
                    shutil.move(file, place / file.name)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    finally:
        socket.setdefaulttimeout(patience)
        dataset.root = root
    return "the download has no such file"


def _graph(name: str, dataset: Any, called: str, options: DataSource) -> Graph:
    """Makes the graph of a dataset of PyG, of its one `Data` or of many small ones; of several splits the first."""
    import torch
    from torch_geometric.data import Data

    from shoal.storage.datasets.user.pyg_data import features_of_edges, graph_of_data
    from shoal.storage.datasets.user.unread import WEIGHTS, meaning

    graphs = [dataset[number] for number in range(len(dataset))]
    for data in graphs:
        if options.made.made and getattr(data, "x", None) is None:
            data.x = torch.zeros(data.num_nodes, 1)
        if options.edge_weights == "drop" and isinstance(data, Data):
            for key in features_of_edges(data):
                del data[key]
        if options.edge_features == "drop" and isinstance(data, Data) and data.edge_attr is not None:
            del data.edge_attr
        for relation in () if options.edge_features == "keep" else getattr(data, "edge_types", ()):
            data[relation].pop("edge_attr", None)
        for key in MASKS:
            mask = getattr(data, key, None)
            if mask is not None and mask.dim() == 2:
                data[key] = mask[:, 0]

    def way_out(key: str) -> str:
        if meaning(key) == WEIGHTS or key in features_of_edges(graphs[0]):
            return "set data.edge_weights to drop"
        return "read it by a dataset of your own (data.dataset: my_file.py:MyDataset)"

    graphs = graphs[0] if len(graphs) == 1 else graphs
    graph = graph_of_data(graphs, name, called, way_out, own=False, target=options.target)
    if options.edge_features == "drop":
        # What is left are kinds of edges.
        return replace(graph, edge_attr=None, edge_names=None, edge_kinds=0)
    return graph


def _constructor(options: DataSource) -> tuple[Any, dict[str, Any]]:
    """Finds the class that `pyg:CLASS/NAME` names, and its arguments."""
    import torch_geometric.datasets as known

    match = PYG_NAME.fullmatch(options.dataset)
    assert match is not None
    title, name = match.groups()
    key = "data.options.base" if options.base == options.dataset else "data.dataset"
    if title not in known.__all__:
        meant = did_you_mean_name(title, known.__all__) or did_you_mean_name(title, OURS, OTHER_NAMES)
        raise ShoalError(
            key,
            f"{meant}torch_geometric.datasets has no class {title}; write pyg:CLASS/NAME, as pyg:Planetoid/Cora, or "
            f"tu:{title} for TUDataset",
        )
    cls = getattr(known, title)
    parameters = inspect.signature(cls).parameters
    if ("name" in parameters) != (name is not None):
        form = f"pyg:{title}/NAME" if "name" in parameters else f"pyg:{title}"
        raise ShoalError(key, f"expected {form}, got {options.dataset!r}")
    chosen = dict(options.user_options)
    arguments: dict[str, Any] = {} if name is None else {"name": name}
    folder = chosen.pop("root", None) if "root" in parameters else None
    if folder is not None and (not isinstance(folder, str) or Path(folder).is_absolute() or ".." in Path(folder).parts):
        raise ShoalError("data.options.root", f"expected a folder below the data root, got {folder!r}")
    hints = {key: parameter.annotation for key, parameter in parameters.items() if key not in OF_PYG}
    arguments |= checked_options(chosen, hints, title)
    if "root" in parameters:
        top = data_root(options.root)
        roots = [str(top / below) for below in ([folder] if folder is not None else _folders(title, name))]
        with_files = (root for root in roots if len(roots) > 1 and _are_there(cls, arguments | {"root": root}))
        arguments["root"] = next(with_files, roots[0])
    return cls, arguments


def _folders(title: str, name: str | None) -> list[str]:
    """Lists the folders below the data root in which files of a class may lie; with NAME the root itself, too."""
    of_collection = ["tu"] if title == "TUDataset" else []
    return [title.lower(), *of_collection, title, *([""] if name is not None else [])]


def _are_there(cls: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether all raw files of a class are in its folder."""
    with suppress(Exception):
        try:
            _open(cls, arguments, listed=True)
        except _RawFiles as found:
            return all(path.exists() for path in found.args[0])
    return False


def load_pyg(name: str, options: DataSource) -> Graph:
    """Loads a dataset class of `torch_geometric.datasets`, over raw files that are there, or are downloaded.

    `data.options` are keyword arguments of its constructor; `root` is a folder below the data root, by default the
    name of the class in lower case, or one of `_folders` that has the files. Its graphs have one kind of nodes and one
    class each.
    """
    cls, arguments = _constructor(options)
    try:
        with reading(name, f"see torch_geometric.datasets.{cls.__name__} for what it reads"):
            dataset = _open(cls, arguments, fetch=True)
    except ShoalError as error:
        if isinstance(error.__cause__, FileNotFoundError) and isinstance(error.__cause__.args[0], Path):
            path, reason = error.__cause__.args
            *_, title = PYG_NAME.fullmatch(options.dataset).groups()  # type: ignore[union-attr]
            others = [folder or "the data root" for folder in _folders(cls.__name__, title)[1:]]
            looked = "" if "root" in options.user_options else f", nor below {', '.join(others)}"
            raise ShoalError(
                path,
                f"not found{looked}, and {name} cannot be downloaded ({reason}); put its raw files there, or set "
                "data.root, or data.options.root to their folder below it",
            ) from error
        raise
    graph = _graph(options.name, dataset, name, options)
    return replace(graph, x=compact(graph.x)) if isinstance(graph.x, np.ndarray) else graph


def _raw_files(options: DataSource) -> list[Path]:
    """Lists the raw files of a class of PyG, as paths below the data root."""
    cls, arguments = _constructor(options)
    # Loading it reports other faults.
    with suppress(Exception):
        try:
            _open(cls, arguments, listed=True)
        except _RawFiles as found:
            return [path.relative_to(data_root(options.root)) for path in found.args[0]]
    return []


PYG_DATASET = DatasetSpec(
    "", load_pyg, _raw_files, task=None, content=lambda options: {"options": dict(options.user_options)}, weighted=True
)


@dataclass(frozen=True)
class _Published:
    """Published files that a class of PyG, `title`, reads: below the data root, in one folder of its argument `root`.

    `url` is the address of a file, of the class and the name; features are kept sparse where that is smaller
    (`compacted`).
    """

    title: str
    root: str
    files: Sequence[Path]
    url: Callable[[Any, str], str]
    arguments: Mapping[str, str] = field(default_factory=dict)
    compacted: bool = False

    def load(self, name: str, options: DataSource) -> Graph:
        """Loads the graph; of several published splits the first."""
        import torch_geometric.datasets as known

        cls = getattr(known, self.title)
        paths = fetch_published(options, self.files, partial(self.url, cls))
        folder = paths[0].parent
        for path in paths:
            _require_sound(path, whole=False)
        arguments = {"root": str(data_root(options.root) / self.root), **self.arguments}
        try:
            with reading(folder, f"replace the raw files of dataset '{name}'"):
                dataset = _open(cls, arguments, [path.name for path in paths])
        except ShoalError:
            for path in paths:
                _require_sound(path, whole=True)
            raise
        graph = _graph(name, dataset, f"dataset '{name}' in {folder}", options)
        return replace(graph, x=compact(graph.x)) if self.compacted else graph


def _require_sound(path: Path, whole: bool) -> None:
    """Refuses a damaged file, found by its content if `whole`, else by the header of an array."""
    with reading(path, AGAIN):
        if path.suffix == ".npz":
            with open_npz(path) as file:
                for array in file.names:
                    _ = file[array] if whole else file.header(array)
        elif path.suffix == ".npy":
            load_npy(path, mapped=not whole)
        elif path.suffix == ".json" and whole:
            json.loads(path.read_text())
        elif path.name == GEOM_GCN_NODES:
            numbers = [int(line.split("\t")[0]) for line in path.read_text().splitlines()[1:]]
            if numbers != list(range(len(numbers))):
                raise ValueError("nodes are not numbered in order")


FLICKR = {
    "adj_full.npz": "adj_full_id",
    "feats.npy": "feats_id",
    "class_map.json": "class_map_id",
    "role.json": "role_id",
}
DRIVE = "https://drive.usercontent.google.com/download?id={}&confirm=t"
HETEROPHILOUS = ("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions")
# Graphs of Geom-GCN by what their files call them.
GEOM_GCN_NODES = "out1_node_feature_label.txt"
GEOM_GCN = {"cornell": "cornell", "texas": "texas", "wisconsin": "wisconsin", "actor": "film"}


def _of_geom_gcn(name: str, word: str) -> _Published:
    """Describes one of four graphs; PyG reads all of ten splits, here the first is enough."""

    def url(cls: Any, file: str) -> str:
        return f"{cls.url}/splits/{file}" if file.endswith(".npz") else f"{cls.url}/new_data/{word}/{file}"

    raw = (GEOM_GCN_NODES, "out1_graph_edges.txt", f"{word}_split_0.6_0.2_0.npz")
    files = [Path(name, "raw", file) for file in raw]
    if name == "actor":
        return _Published("Actor", name, files, url)
    return _Published("WebKB", "", files, url, {"name": name})


def _heterophilous(name: str) -> _Published:
    word, url = name.replace("-", "_"), "{0.url}/{1}".format
    return _Published("HeterophilousGraphDataset", "", [Path(word, "raw", f"{word}.npz")], url, {"name": word})


PUBLISHED = {
    # Zeng et al., "GraphSAINT: Graph Sampling Based Inductive Learning Method", ICLR 2020.
    "flickr": _Published(
        "Flickr", "flickr", [Path("flickr/raw", file) for file in FLICKR],
        lambda cls, file: DRIVE.format(getattr(cls, FLICKR[file])), compacted=True,
    ),
    # Pei et al., "Geom-GCN: Geometric Graph Convolutional Networks", ICLR 2020.
    **{name: _of_geom_gcn(name, word) for name, word in GEOM_GCN.items()},
    # Platonov et al., "A critical look at the evaluation of GNNs under heterophily", ICLR 2023.
    **{name: _heterophilous(name) for name in HETEROPHILOUS},
}  # fmt: skip
DATASETS = tuple(DatasetSpec(name, known.load, known.files) for name, known in PUBLISHED.items())
