"""From a config to its store: which dataset, which folder, and what of it is still to be made."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from shoal.engine.config.config import Config
from shoal.engine.config.run_identity import fingerprint_of, flatten
from shoal.engine.config.sizes import size
from shoal.engine.preparing.edge_weight_checks import require_weights_used
from shoal.engine.preparing.overlay import additions_go_elsewhere, overlaid, overlay_path
from shoal.engine.preparing.store_builder import LazyGraph, StoreBuilder
from shoal.engine.preparing.store_steps import hops_on_disk, shards_on_disk, split_on_disk
from shoal.engine.preparing.training_store import TrainingBuilder, made_from
from shoal.engine.records.inputs import contents, differences
from shoal.engine.screen.progress import watch
from shoal.partition.methods.user_partitioner import user_partitioner
from shoal.partition.partitioning import require_divides_graphs, require_enough_nodes
from shoal.storage.datasets.domains import joined_name
from shoal.storage.datasets.registry import (
    classes_ahead,
    fingerprint,
    items_ahead,
    labels_ahead,
    load_all,
    published_contents,
)
from shoal.storage.datasets.sources.source import DataSource, data_root
from shoal.storage.errors import ShoalError
from shoal.storage.files.disk import writing
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.layout import require_possible
from shoal.storage.options.dataset_names import may_be_sparse
from shoal.storage.options.masking import Sparsity
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.split import SplitOptions, read_split_file
from shoal.storage.options.types import checked, is_own, quoted
from shoal.storage.progress import watched_by
from shoal.storage.store.hops import hops_bytes
from shoal.storage.store.manifest import FORMAT, NAME, Manifest
from shoal.storage.store.store import DOMAINS, WHOLE, Store, training_path
from shoal.storage.suggestions import did_you_mean
from shoal.storage.user_code.user_code import read_user_code

OF_DATA_CONFIG = ("dataset", "root", "path", "row_normalize", "memory_limit", "own", "title", "made", "edge_weights")


def sources(config: Config) -> tuple[DataSource, ...]:
    """The dataset a config names, or each of several.

    Raises:
        ShoalError: An option that the dataset does not have, or of a wrong type; two graphs of one name, or another
            number of paths than of datasets `files`.
    """
    hints = get_type_hints(DataSource, include_extras=True)
    known = [f.name for f in fields(DataSource) if f.name not in OF_DATA_CONFIG]
    options: dict[str, Any] = {}
    of_own = isinstance(config.data.dataset, str) and is_own(config.data.dataset)
    if of_own:
        options["own"] = config.data.options
    for key, value in () if of_own else config.data.options.items():
        if key not in known:
            raise ShoalError(f"data.options.{key}: unknown; known here: {', '.join(known)}{did_you_mean(key, known)}")
        try:
            options[key] = checked(hints[key], value)
        except ValueError as error:
            raise ShoalError(f"data.options.{key}: {error}, found {quoted(value)}") from None
    data = config.data
    if config.engine.memory_limit is not None:
        options["memory_limit"] = config.engine.memory_limit
    if data.name is not None and (not isinstance(data.dataset, str) or data.dataset.lower() != "files"):
        raise ShoalError("data.name: is for one graph of one's own (data.dataset files); others have their names")
    same = partial(
        DataSource,
        root=data.root,
        row_normalize=data.row_normalize,
        title=data.name,
        made=data.features,
        edge_weights=data.edge_weights,
        **options,
    )
    if isinstance(data.dataset, str):
        if isinstance(data.path, tuple):
            raise ShoalError(f"data.path: a list is for a list of datasets; {data.dataset} is one graph")
        return (same(dataset=data.dataset, path=data.path),)
    paths = list(data.path) if isinstance(data.path, tuple) else [data.path] if data.path else []
    own = sum(name.lower() == "files" for name in data.dataset)
    if len(paths) != own:
        raise ShoalError(f"data.path: data.dataset has {own} graphs of one's own (files), found {len(paths)} paths")
    found = tuple(same(dataset=name, path=paths.pop(0) if name.lower() == "files" else None) for name in data.dataset)
    twice = [name for name, times in Counter(each.name for each in found).items() if times > 1]
    if twice:
        raise ShoalError(f"data.dataset: {twice[0]!r} is there twice; give each graph once, and files of other names")
    return found


def read_graph(config: Config) -> Graph:
    """The graph of a config, or its graphs behind one another.

    Raises:
        ShoalError: As for `shoal.storage.datasets.registry.load_all`, its labels are not what the config's task and
            metric are about, or what its edges weigh would be of no use.
    """
    graph = load_all(sources(config))
    require_task(config, graph.name, graph.item_name)
    require_metric(config, graph.name, graph.classes)
    require_weights_used(config, graph.name, graph.edge_weight is not None)
    return graph


def require_task(config: Config, dataset: str, labels: str) -> None:
    """Refuses to predict labels of nodes, or edges, where labels of graphs are given, and the other way about.

    Args:
        config: The run.
        dataset: Name of the dataset.
        labels: What has labels in it: `node` or `graph`, or `pair` in a store of an edge task.

    Raises:
        ShoalError: The config's task is not for it.
    """
    if (config.task == "graph") != (labels == "graph"):
        raise ShoalError(f"task: {config.task}, but labels of dataset '{dataset}' are those of {labels}s; set {labels}")


def require_metric(config: Config, dataset: str, classes: int) -> None:
    """Refuses a metric of two classes where there is another number of them.

    Args:
        config: The run.
        dataset: Name of the dataset.
        classes: Its classes.

    Raises:
        ShoalError: The config's metric is such a one.
    """
    metric = config.evaluation.metric
    # Whether there is an edge are two classes, whatever those of the nodes are.
    if metric != "accuracy" and classes != 2 and config.task != "edge":
        raise ShoalError(
            f"evaluation.metric: {metric} is for two classes, and dataset '{dataset}' has {classes}; set accuracy"
        )


def identity(config: Config) -> dict[str, Any]:
    """What tells one store from another: the dataset, the partition, which edges are held out, and what is masked.

    Raises:
        ShoalError: A file that the config names cannot be read.
    """
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
    for later in ("domains", "chunks"):
        # Stores of one graph keep the names that they had before there were several.
        if chosen[later] is None:
            del chosen[later]
    if "domains" in chosen:
        chosen["domains"] = list(chosen["domains"])
    contents_of = [fingerprint(each) for each in sources(config)]
    content = contents_of[0] if len(contents_of) == 1 else {"graphs": contents_of}
    dataset = {**content, "dtype": config.data.dtype}
    data = config.data
    # Stores of dense features keep the names that they had before there were sparse ones.
    if data.layout != "dense" and may_be_sparse(data.dataset, data.path):
        dataset["layout"] = data.layout
    # Which edges are held out is a part of the shards, of no others.
    edges = {"edges": data.split_name} if config.task == "edge" else {}
    masked = {"sparsity": data.sparsity.of_shards} if data.sparsity.of_shards else {}
    return {"dataset": dataset, "partition": chosen, **edges, **masked}


def published_inputs(config: Config) -> dict[str, str]:
    """Digests of the published files of a config's dataset, as far as all of them are there."""
    return {f"the file {path}": found for path, found in _published(config).items()}


def _published(config: Config) -> dict[str, str]:
    return {path: digest for each in sources(config) for path, digest in published_contents(each).items()}


def store_path(config: Config) -> Path:
    """The folder of a config's store: `data.store`, else one of its own under the data root."""
    if config.data.store is not None:
        return Path(config.data.store)
    chosen = config.partition
    # Published files are known by the name of the dataset, so that a store is found without them. A store of another
    # Shoal, which this one cannot read, is left where it is.
    digits = fingerprint_of({**identity(config), "format": FORMAT})
    names = [each.name for each in sources(config)]
    one = "files" if str(config.data.dataset).lower() == "files" else names[0]
    graph = config.data.name or (one if len(names) == 1 else joined_name(names))
    method = chosen.method.rpartition(":")[2]
    name = f"{graph}-{method}{chosen.clients}-{digits}"
    return data_root(config.data.root) / "stores" / name


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
    graph = LazyGraph(lambda: read_graph(config), lambda: _published(config))
    published = _published(config)
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
            f"{path}: this store was made from another content of {', '.join(changed)}; bring that back, set "
            "data.store, or delete the store"
        )
    if repair:
        ready = shards_on_disk(path, manifest) and split_on_disk(path, manifest, split)
        return store if ready and hops_on_disk(path, manifest, propagation) else None
    ready = split.split_name in manifest.splits and (not propagation.stored or propagation.name in manifest.hops)
    return store if ready else None


def require_identity(path: Path, manifest: Manifest, made: dict[str, Any]) -> None:
    """Refuses a store of another dataset or partition, or with other edges held out or masked.

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
            be sparse, the file of the split is wrong, graphs or edges are divided or propagated as only nodes can be,
            or masked, a partitioner of one's own or its options are wrong, or the metric is for fewer classes.
    """
    require_possible(config.data.layout, config.data.dataset, config.data.path)
    if config.task == "graph":
        require_divides_graphs(config.partition.method)
    if is_own(config.partition.method):
        user_partitioner(config.partition)
    if config.task == "edge" and config.data.split != "stratified":
        raise ShoalError(f"data.split: {config.data.split} divides nodes; with task edge take stratified")
    if config.task == "edge" and config.data.sparsity != Sparsity(seed=config.data.sparsity.seed):
        raise ShoalError("data.sparsity: masks what nodes and graphs have; with task edge leave all its shares at 0")
    hidden = config.task == "edge" or config.data.inductive or config.data.sparsity.edges > 0
    if hidden and config.data.features.from_edges:
        raise ShoalError(
            f"data.features: {config.data.features.kind} would tell of edges that clients do not see (task edge, "
            "data.inductive, data.sparsity.edges); take one-hot or random"
        )
    if config.task != "node" and config.propagation.rows != "all":
        raise ShoalError(
            f"propagation.rows: {config.propagation.rows} is for labels of nodes; with task {config.task} set all"
        )
    what = "graph" if config.task == "graph" else "node"
    numbers = config.partition.domains or (config.partition.clients,)
    for each, clients in zip(sources(config), numbers):
        if (labels := labels_ahead(each)) is not None:
            require_task(config, each.dataset, labels)
        classes = classes_ahead(each)
        # Several graphs have the classes of all of them together.
        if classes is not None and (classes > 2 or isinstance(config.data.dataset, str)):
            require_metric(config, each.dataset, classes)
        items = items_ahead(each)
        if items is not None:
            require_enough_nodes(clients, items, each.dataset, what)
    if config.data.split == "file":
        read_split_file(config.data.split_file)


def require_whole(
    nodes: int, features: int, feature_bytes: int, entries: int, config: Config, weighted: bool = False
) -> None:
    """Refuses to hold a whole graph that is larger than the limit.

    Args:
        nodes: Its nodes.
        features: Width F of its features.
        feature_bytes: Bytes of its features as they are stored.
        entries: Directed entries of its adjacency.
        config: The run.
        weighted: Edges have weights.

    Raises:
        ShoalError: It is.
    """
    needed = feature_bytes + hops_bytes(nodes, features, config.propagation) + (8 if weighted else 4) * entries
    limit = config.memory_limit()
    if needed > limit:
        raise ShoalError(
            f"algorithm.name {config.algorithm.name}: the whole graph takes {size(needed)}, "
            f"engine.memory_limit is {size(limit)}; raise the limit or take a method that trains clients"
        )
