"""The graph that a config names, its fingerprint, and what is known of it before it is read."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from shoal.storage.datasets.features.features import check_finite, made_features, row_normalized
from shoal.storage.datasets.sources.source import DatasetSpec, DataSource, data_root
from shoal.storage.errors import ShoalError
from shoal.storage.files.digest import input_digest
from shoal.storage.graph.graph import Graph
from shoal.storage.options.dataset_names import DATASETS, INDUCED, PYG, PYG_NAME, TU, require_dataset
from shoal.storage.options.target_names import CLASSIFICATION
from shoal.storage.options.types import is_own

# Datasets that the tables of a paper take in turns, and some more.
MOST_OUTLINES = 32


def load(options: DataSource, large: "LargeGraph | None" = None) -> Graph:
    """Loads the graph that a config asks for, its features finite and, by `row_normalize`, normalised.

    Small graphs are cut out of `large`, where other datasets are, too.

    A ShoalError names an unknown name, an option out of its range, or a missing or damaged file.
    """
    spec, name = _spec(options), options.key
    require_target(options)
    if spec.finite and options.row_normalize:
        raise ShoalError("data.row_normalize", f"features of {name} are negative, too, and have no sum to divide by")
    graph = large.small(options) if large is not None and name in INDUCED else spec.load(name, options)
    where, finite = f"dataset '{name}'", spec.finite
    # Published datasets are known to have labels, and may be larger than memory.
    if options.labels and spec.task is None and not (graph.y >= 0).any():
        from shoal.storage.graph.from_arrays import no_label

        raise no_label(where, graph.item_name)
    # Graphs that are cut out of a base have what was made for that.
    if options.made.made and name not in INDUCED:
        x = made_features(graph.indptr, graph.indices, options.made, options.memory_limit)
        graph = replace(graph, x=x, vocabulary=None)
        finite = False
    elif name == "files":
        from shoal.storage.datasets.user.files import graph_at, parts

        path = graph_at(options.path)
        where = str(path if path.is_file() else parts(path, labels=options.labels)["x"])
    if not finite:
        check_finite(graph.x, where)
    # Features of induced graphs were normalised before they were reduced.
    if not options.row_normalize or name in INDUCED:
        return graph
    return replace(graph, x=row_normalized(graph.x, where))


def load_all(sources: Sequence[DataSource]) -> Graph:
    """Loads the graph of one source, or joins several, each a domain under the source's `name`."""
    if len(sources) == 1:
        return load(sources[0])
    from shoal.storage.datasets.domains import join_domains

    large = LargeGraph()
    return join_domains([replace(load(options, large), name=options.name) for options in sources])


def load_outlines(sources: Sequence[DataSource], large: "LargeGraph") -> Graph:
    """Loads a graph to count with: of small graphs that are cut out of large ones, features are ones.

    They take no memory and no decomposition of the large graph's features. Raises as `load_all`.
    """
    if not all(options.key in INDUCED for options in sources):
        return load_all(sources)
    from shoal.storage.datasets.domains import join_domains

    graphs = [replace(large.outline(options), name=options.name) for options in sources]
    graph = graphs[0] if len(graphs) == 1 else join_domains(graphs)
    return replace(graph, x=np.broadcast_to(np.float32(1), (graph.nodes, sources[0].width)))


class LargeGraph:
    """The large graph that datasets of small ones are cut out of, and its reduced features, for the next dataset.

    If `outlines` are asked for, it keeps the small graphs of the last datasets, too, without features.
    """

    def __init__(self, outlines: bool = False) -> None:
        """Keeps nothing yet."""
        self._base: tuple[str, Graph] | None = None
        self._reduced: tuple[str, np.ndarray] | None = None
        self._outlines: dict[str, Graph] | None = {} if outlines else None

    def outline(self, options: DataSource) -> Graph:
        """Returns the small graphs of a dataset without features; loads and cuts what is new."""
        from shoal.storage.datasets.synthetic.induced_graphs import LEVELS, leave_shots, outline_graphs

        key = repr(replace(options, shots=None))
        outline = None if self._outlines is None else self._outlines.get(key)
        if outline is None:
            outline = outline_graphs(self._large(options), LEVELS[options.key], options)
            if self._outlines is not None:
                self._outlines[key] = outline
                for oldest in [*self._outlines][:-MOST_OUTLINES]:
                    del self._outlines[oldest]
        assert outline.split is not None
        return replace(outline, split=leave_shots(outline.split, outline.y, options.shots))

    def small(self, options: DataSource) -> Graph:
        """Returns the small graphs of a dataset."""
        from shoal.storage.datasets.synthetic.induced_graphs import reduce_features, with_features

        outline = self.outline(options)
        key = repr((replace(_base_of(options), shots=None), options.width, options.seed))
        if self._reduced is None or self._reduced[0] != key:
            self._reduced = key, reduce_features(self._large(options).x, options.width, options.seed)
        return with_features(outline, self._reduced[1])

    def _large(self, options: DataSource) -> Graph:
        """Loads the large graph. Raises ShoalError: its edges have weights or features."""
        source = replace(_base_of(options), shots=None)
        if self._base is None or self._base[0] != repr(source):
            base = load(source)
            for what, key, has in (
                ("weights", "edge_weights", base.edge_weight is not None),
                ("features", "edge_features", base.edge_attr is not None),
            ):
                if has:
                    raise ShoalError(
                        "data.options.base",
                        f"the edges of '{base.name}' have {what}, which {options.key} leaves out; set data.{key} to "
                        "drop",
                    )
            self._base = repr(source), base
        return self._base[1]


def fingerprint(options: DataSource) -> dict[str, Any]:
    """Identifies a dataset's content and nothing else, in types JSON has: equal for an equal graph."""
    spec = _spec(options)
    content = {"dataset": options.key, "row_normalize": options.row_normalize, **spec.content(options)}
    if options.made.made:
        content["made_features"] = options.made.identity
    if options.edge_weights != "keep" and spec.weighted:
        content["edge_weights"] = options.edge_weights
    if options.edge_features != "keep" and spec.weighted:
        content["edge_features"] = options.edge_features
    if options.edge_weights == "drop" and options.edge_features == "keep" and options.dataset.startswith(PYG):
        # Stores from before, which this value alone could make of such graphs, lack what their edges have.
        content["edge_features"] = "keep"
    if options.target != CLASSIFICATION:
        content["target"] = options.target
    return content


def published_contents(options: DataSource) -> dict[str, str]:
    """Digests every published file of a dataset, by its path below the data root; empty if one is not there."""
    root, files = data_root(options.root), _spec(options).published_files(options)
    if not all((root / path).is_file() for path in files):
        return {}
    return {str(path): input_digest(root / path) for path in files}


def missing_files(options: DataSource) -> list[Path]:
    """Lists published files of a dataset that are not there yet."""
    root = data_root(options.root)
    return [root / path for path in _spec(options).published_files(options) if not (root / path).is_file()]


def items_ahead(options: DataSource) -> int | None:
    """Counts nodes, or graphs, where that is known before they are made; else None."""
    return _spec(options).items(options)


def classes_ahead(options: DataSource) -> int | None:
    """Counts classes where that is known before the graph is made; else None."""
    return _spec(options).classes(options)


def labels_ahead(options: DataSource) -> str | None:
    """Returns the items with labels, `node` or `graph`, by the name; None for graphs of the user or of PyG."""
    return _spec(options).task


def require_target(options: DataSource) -> None:
    """Refuses to predict what the labels of a dataset are not, where its name tells what they are."""
    spec = _spec(options)
    if not options.labels and spec.target != CLASSIFICATION:
        raise ShoalError("task", f"edge is for datasets of classes, and '{options.key}' is for {spec.target}; set node")
    if spec.task is not None and options.target != spec.target:
        has = f"dataset '{options.key}' is for {spec.target}, found {options.target}"
        raise ShoalError("target", f"{has}; set target to {spec.target}")


def options_of(options: DataSource) -> tuple[str, ...]:
    """Lists the keys of `data.options` that a dataset reads, with those of the one that it is cut from."""
    names = tuple(_spec(options).options)
    return (*names, *options_of(_base_of(options))) if options.key in INDUCED else names


def _base_of(options: DataSource) -> DataSource:
    """Returns the dataset, with labels of nodes, that small graphs are cut from; of PyG, they show when it is read."""
    base = replace(options, dataset=options.base or "")
    if not PYG_NAME.fullmatch(base.dataset) and (base.key not in DATASETS or record(base.key).task == "graph"):
        got = "none" if options.base is None else repr(options.base)
        raise ShoalError("data.options.base", f"{options.dataset} needs a dataset with labels of nodes, found {got}")
    return base


def record(name: str) -> DatasetSpec:
    """Returns the record of one of `DATASETS`; its reader is loaded here."""
    if name in INDUCED:
        return _induced_spec(name)
    module = import_module(f"shoal.storage.datasets.{DATASETS[name]}")
    spec: DatasetSpec = next(spec for spec in module.DATASETS if spec.name == name)
    return spec


def _induced_spec(name: str) -> DatasetSpec:
    """Makes the record of small graphs around nodes, edges or groups of nodes of `options.base`."""
    from shoal.storage.datasets.synthetic import induced_graphs

    return DatasetSpec(
        name,
        lambda _, options: LargeGraph().small(options),
        lambda options: _spec(_base_of(options)).published_files(_base_of(options)),
        task="graph",
        classes=lambda options: classes_ahead(_base_of(options)),
        content=lambda options: {
            "base": fingerprint(_base_of(options)),
            **{key: getattr(options, key) for key in induced_graphs.FIELDS},
        },
        options=("base", *induced_graphs.FIELDS),
    )


def _spec(options: DataSource) -> DatasetSpec:
    """Returns the record of a dataset; a ShoalError lists the known ones if the name is unknown."""
    require_dataset(options.dataset)
    if options.dataset.startswith(PYG):
        from shoal.storage.datasets.readers.pyg import PYG_DATASET

        return PYG_DATASET
    if options.key.startswith(TU):
        from shoal.storage.datasets.readers.tu import describe_any

        return describe_any(options)
    if is_own(options.dataset):
        from shoal.storage.datasets.user.user_dataset import USER_DATASET

        return USER_DATASET
    return record(options.key)
