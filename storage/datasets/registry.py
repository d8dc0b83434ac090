"""The graph that a config names, its fingerprint, and what is known of it before it is read."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.storage.datasets.domains import joined
from shoal.storage.datasets.features.features import check_finite, row_normalized
from shoal.storage.datasets.features.made_features import made_features
from shoal.storage.datasets.readers import (
    citation_domains,
    flickr,
    geom_gcn,
    heterophilous,
    linkx,
    npz_graphs,
    ogb_molecules,
    planetoid,
    reddit,
    tu,
    twitch,
)
from shoal.storage.datasets.readers.citation_domains import load_citation_domain
from shoal.storage.datasets.readers.digits import CLASSES, NODES, load_digits
from shoal.storage.datasets.readers.flickr import load_flickr
from shoal.storage.datasets.readers.npz_graphs import load_npz_graph
from shoal.storage.datasets.readers.ogb import PUBLISHED, feature_dtype, load_ogb, raw_files, twin_in_place
from shoal.storage.datasets.readers.ogb_molecules import load_ogb_molecules
from shoal.storage.datasets.readers.planetoid import load_planetoid
from shoal.storage.datasets.readers.reddit import load_reddit
from shoal.storage.datasets.readers.tu import load_tu
from shoal.storage.datasets.readers.twitch import load_twitch
from shoal.storage.datasets.sources.source import DataSource, data_root
from shoal.storage.datasets.synthetic import induced_graphs, sbm, sbm_graphs, twin
from shoal.storage.datasets.synthetic.sbm_graphs import load_sbm_graphs
from shoal.storage.datasets.user import files
from shoal.storage.datasets.user.user_dataset import load_user_dataset, user_content
from shoal.storage.errors import ShoalError
from shoal.storage.files.digest import input_digest
from shoal.storage.graph.graph import Graph
from shoal.storage.options.dataset_names import require_dataset
from shoal.storage.options.types import is_own


def load_induced(name: str, options: DataSource) -> Graph:
    """Small graphs around nodes, edges or groups of nodes of `options.base`; see `induced_graphs.induced`.

    Raises:
        ShoalError: As for `load` of the base, its edges have weights, or as there.
    """
    base = load(_base_of(options))
    if base.edge_weight is not None:
        raise ShoalError(
            f"data.options.base: the edges of '{base.name}' have weights, which {name} leaves out; set "
            "data.edge_weights to drop"
        )
    return induced_graphs.induced(base, induced_graphs.LEVELS[name], options)


LOADERS: dict[str, Callable[[str, DataSource], Graph]] = {
    "digits": load_digits,
    "cora": load_planetoid,
    "citeseer": load_planetoid,
    "pubmed": load_planetoid,
    "computers": load_npz_graph,
    "photo": load_npz_graph,
    "cs": load_npz_graph,
    "physics": load_npz_graph,
    "flickr": load_flickr,
    "reddit": load_reddit,
    **dict.fromkeys(twitch.CODES, load_twitch),
    **dict.fromkeys(citation_domains.FILES, load_citation_domain),
    **dict.fromkeys(geom_gcn.WORDS, geom_gcn.load_geom_gcn),
    **dict.fromkeys(heterophilous.NAMES, heterophilous.load_heterophilous),
    **dict.fromkeys(linkx.FILES, linkx.load_linkx),
    **dict.fromkeys(tu.NAMES, load_tu),
    **dict.fromkeys(ogb_molecules.ARCHIVES, load_ogb_molecules),
    "files": files.load_files,
    "sbm": sbm.load_sbm,
    "sbm-graphs": load_sbm_graphs,
    **dict.fromkeys(induced_graphs.LEVELS, load_induced),
    **dict.fromkeys(PUBLISHED, load_ogb),
    **dict.fromkeys(twin.ORIGINALS, twin.load_twin),
}
# Paths below the data root.
PUBLISHED_FILES: dict[str, list[Path]] = {
    **{name: planetoid.paths(name) for name in planetoid.FOLDERS},
    **{name: [Path(file)] for name, file in npz_graphs.FILES.items()},
    "flickr": [flickr.FOLDER / file for file in flickr.IDS],
    "reddit": [reddit.FOLDER / file for file in reddit.FILES],
    **{name: twitch.paths(name) for name in twitch.CODES},
    **{name: [file] for name, file in citation_domains.FILES.items()},
    **{name: geom_gcn.paths(name) for name in geom_gcn.WORDS},
    **{name: [heterophilous.path_of(name)] for name in heterophilous.NAMES},
    **{name: [linkx.path_of(name)] for name in linkx.FILES},
    **{name: ogb_molecules.paths(name) for name in ogb_molecules.ARCHIVES},
    **{name: [Path(known.folder) / file for file in raw_files(known).values()] for name, known in PUBLISHED.items()},
}


def load(options: DataSource) -> Graph:
    """The graph that a config asks for; features are finite, and normalised if `row_normalize` is set.

    Raises:
        ShoalError: The name is unknown, an option is out of range, or a file is missing or damaged; its one
            line says which.
    """
    name = _known(options)
    loader = load_user_dataset if is_own(name) else LOADERS[name]
    in_blocks = loader in (load_ogb, twin.load_twin)
    if in_blocks and options.row_normalize:
        raise ShoalError(f"data.row_normalize: features of {name} are negative, too, and have no sum to divide by")
    graph = loader(name, options)
    where = f"dataset '{name}'"
    # Graphs that are cut out of a base have what was made for that.
    if options.made.made and name not in induced_graphs.LEVELS:
        x = made_features(graph.indptr, graph.indices, options.made, options.memory_limit)
        graph = replace(graph, x=x, vocabulary=None)
        in_blocks = False
    elif name == "files":
        where = str(files.parts(files.graph_at(options.path))["x"])
    # OGB features are checked as they are written, and features of twins are drawn finite.
    if not in_blocks:
        check_finite(graph.x, where)
    # Those of induced graphs were normalised before they were reduced.
    if not options.row_normalize or name in induced_graphs.LEVELS:
        return graph
    return replace(graph, x=row_normalized(graph.x, where))


def load_all(sources: Sequence[DataSource]) -> Graph:
    """The graph of one source; those of several as one, each a domain under the source's `name`.

    Raises:
        ShoalError: As for `load`, or their features have nothing in common.
    """
    if len(sources) == 1:
        return load(sources[0])
    return joined([replace(load(options), name=options.name) for options in sources])


def fingerprint(options: DataSource) -> dict[str, Any]:
    """What defines the content of this dataset and nothing else, in types JSON has: equal for an equal graph.

    Raises:
        ShoalError: The name is unknown, or a file of the user's own graph is missing.
    """
    name = _known(options)
    content: dict[str, Any] = {"dataset": name, "row_normalize": options.row_normalize}
    if is_own(name):
        content |= user_content(options)
    if name == "digits":
        content["neighbors"] = options.neighbors
    if name == "sbm":
        content |= {key: getattr(options, key) for key in sbm.FIELDS}
        content["blocks"] = options.blocks or options.classes
        content["homophily"], content["signal"] = sbm.strengths(options)
    if name == "sbm-graphs":
        content |= {key: getattr(options, key) for key in sbm_graphs.FIELDS}
        content["homophily"], content["signal"] = sbm.strengths(options)
    if name in induced_graphs.LEVELS:
        content |= {"base": fingerprint(_base_of(options)), **induced_graphs.options_of(options)}
    if name in tu.NAMES:
        content |= tu.options_of(name, options)
    if name in PUBLISHED:
        content["feature_dtype"] = feature_dtype(name, options)
        twin_identity = twin_in_place(name, options)
        if twin_identity is not None:
            content["synthetic"] = twin_identity
    if name in twin.ORIGINALS:
        content |= twin.Twin.of(name, options).identity
    if name == "files":
        content["files"] = files.contents(files.graph_at(options.path), options.made.made)
    if options.made.made:
        content["made_features"] = options.made.identity
    if options.edge_weights != "keep" and (name == "files" or is_own(name)):
        content["edge_weights"] = options.edge_weights
    return content


def published_contents(options: DataSource) -> dict[str, str]:
    """Digest of every published file of a dataset, by its path below the data root; empty if one is not there.

    Their names say what they should hold, so they are no part of the fingerprint, and a store can be used without them.

    Raises:
        ShoalError: The name is unknown, or a file cannot be read.
    """
    name = _known(options)
    if name in induced_graphs.LEVELS:
        return published_contents(_base_of(options))
    root = data_root(options.root)
    known = tu.paths(name, root) if name in tu.NAMES else PUBLISHED_FILES.get(name, ())
    paths = [root / path for path in known]
    if not all(path.is_file() for path in paths):
        return {}
    return {str(path.relative_to(root)): input_digest(path) for path in paths}


def items_ahead(options: DataSource) -> int | None:
    """Number of nodes, or of graphs, where it is known before they are made; else None.

    Raises:
        ShoalError: The name is unknown, or an option is out of range.
    """
    name = _known(options)
    if name in twin.ORIGINALS:
        return twin.Twin.of(name, options).nodes
    return {"sbm": options.nodes, "sbm-graphs": options.graphs, "digits": NODES}.get(name)


def classes_ahead(options: DataSource) -> int | None:
    """Number of classes where it is known before the graph is made; else None.

    Raises:
        ShoalError: The name is unknown.
    """
    name = _known(options)
    if name in induced_graphs.LEVELS:
        return classes_ahead(_base_of(options))
    if name in PUBLISHED:
        return PUBLISHED[name].classes
    if name in twin.ORIGINALS:
        return twin.ORIGINALS[name].classes
    return {"sbm": options.classes, "sbm-graphs": options.classes, "digits": CLASSES}.get(name)


def labels_ahead(options: DataSource) -> str | None:
    """What has labels, `node` or `graph`, where the name tells it; None for the user's own graphs.

    Raises:
        ShoalError: The name is unknown.
    """
    name = _known(options)
    if name == "files" or is_own(name):
        return None
    of_graphs = (*tu.NAMES, *ogb_molecules.ARCHIVES, *induced_graphs.LEVELS, "sbm-graphs")
    return "graph" if name in of_graphs else "node"


def _base_of(options: DataSource) -> DataSource:
    """The dataset that small graphs are cut from.

    Raises:
        ShoalError: There is none, or it is none with labels of nodes.
    """
    found = "none" if options.base is None else repr(options.base)
    base = replace(options, dataset=options.base or "")
    if base.dataset.lower() not in LOADERS or labels_ahead(base) == "graph":
        raise ShoalError(f"data.options.base: {options.dataset} needs a dataset with labels of nodes, found {found}")
    return base


def _known(options: DataSource) -> str:
    require_dataset(options.dataset)
    return options.dataset if is_own(options.dataset) else options.dataset.lower()
