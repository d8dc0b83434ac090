"""Predicts the nodes of a graph that no store has, by a model of a finished run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch
from pyarrow import csv, parquet
from torch import Tensor

from shoal.engine.config.config import Config, load_config
from shoal.engine.hosts.host import Visit
from shoal.engine.preparing.checks import require_weights_used
from shoal.engine.records.graphs import sources
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.runs.export import Reopened, reopen, stated_values
from shoal.engine.scores.counts import scores_of
from shoal.engine.sections.sections import options_of
from shoal.storage.datasets.features.features import check_finite, made_features, row_normalized
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.user.files import load_files
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import output, replacing
from shoal.storage.graph.edge_weights import weights_among
from shoal.storage.graph.edges.kinds import OF_NODES, Kinds
from shoal.storage.graph.gather import gather_features
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import entries_among, kept_entries
from shoal.storage.graph.targets import Scale, scale_of
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.target_names import CLASSIFICATION
from shoal.storage.shards.cache import Cache
from shoal.storage.shards.hops import write_hops
from shoal.storage.shards.shard import open_hops, open_shard, write_shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import View
from shoal.storage.store.manifest import Manifest

GRAPH = "graph"


@dataclass(frozen=True)
class OtherGraph:
    """A graph that no store has, in the form that models of a run read.

    Attributes:
        config: That of the run.
        opened: The run at one round.
        graph: The graph, with features and weights as the run's store would have them.
        asks: What names a client, in messages.
    """

    config: Config
    opened: Reopened
    graph: Graph
    asks: str

    @property
    def label_names(self) -> list[str] | None:
        """Names of the classes, or None."""
        return self.opened.store.manifest.label_names

    def scores(self, client: int | None) -> Tensor:
        """Predicts by the server's model, or by a client's deployed one: scores, float `[N, C]`, in the graph's order.

        Raises ShoalError: the server has no model, or there is no such client.
        """
        opened, last = self.opened, self.opened.store.clients - 1
        kinds = len(opened.job.models)
        by_server = client is None and bool(opened.global_model) and kinds == 1
        if client is None and not by_server and last:
            has = f"has {kinds} global models" if opened.global_model else "has no global model"
            raise ShoalError(self.asks, f"{self.config.algorithm.name} {has}; name a client, 0 to {last}")
        number = 0 if client is None else client
        if not isinstance(number, int | np.integer) or not 0 <= number <= last:
            raise ShoalError(self.asks, f"expected 0 to {last}, got {number!r}")
        with TemporaryDirectory() as folder:
            view = _view_of(self.graph, number, self.config, opened, Path(folder), by_server)
            visit = _visit(opened, view, number, by_server)
            scores_NC = scores_of(opened.algorithm, visit.scored, visit.received, "all", view.nodes).detach().float()
            # A shard has its nodes in another order than the graph.
            in_order_NC = torch.empty_like(scores_NC)
            in_order_NC[torch.from_numpy(view.node.copy())] = scores_NC
        return in_order_NC


def open_graph(run: Path, graph: Any, best: str | None, called: str = GRAPH, asks: str = "client") -> OtherGraph:
    """Opens a run, and a graph for its models; see `shoal.Run.predict`.

    Args:
        run: Folder of a finished run.
        graph: The graph, or a text: a path of files, as `data.path` takes it.
        best: As `export` takes it.
        called: The graph in messages.
        asks: As `OtherGraph` has it.

    Raises:
        ShoalError: As `export`, or the graph cannot be read, or has another number of features than the run's.
    """
    config = load_config(run)
    if (target := options_of(config, "targets")) is not None and target.clusters:
        raise ShoalError("target", "clustering numbers clusters of a client's items anew; see shoal export for those")
    if config.task != "node":
        raise ShoalError("task", f"{config.task}, and only nodes of another graph are predicted; see shoal export")
    opened = reopen(run, best)
    if isinstance(graph, str):
        data, target = config.data, opened.store.manifest.target
        # Features are made of the new graph as they were of the run's, but scaled below.
        of_run = next((source for source in sources(config) if source.key == "files"), DataSource("files"))
        files = replace(
            of_run, path=graph, made=data.features, edge_weights=data.edge_weights, labels=False, target=target,
            edge_features=data.edge_features, row_normalize=False, title=None, noted=None, invalid="refuse", beside=(),
        )  # fmt: skip
        graph = load_files("files", files)
    features = opened.store.manifest.features
    clean = _as_prepared(_graph_of(graph, config.data.features.made, called), config, called)
    clean = _with_columns_of(opened.store.manifest, clean, called)
    if clean.features != features:
        raise ShoalError(called, f"expected {features} features a node, as in {run}, got {clean.features}")
    expected = opened.store.manifest.edge_features
    if clean.edge_features != expected:
        way_out = "; take a graph with these, as the run had them"
        raise ShoalError(
            called, f"expected {expected} features an edge, as in {run}, got {clean.edge_features}{way_out}"
        )
    return OtherGraph(config, opened, clean, asks)


def _with_columns_of(manifest: Manifest, graph: Graph, called: str) -> Graph:
    """Puts features of nodes and edges in the order of a run's, where both have names; kinds that are missing are zero.

    Raises ShoalError: a column has a name that the run's have not, or another one than a kind is missing.
    """
    names = None if graph.vocabulary is None else graph.vocabulary.tolist()
    if names is not None and manifest.feature_names is not None:
        graph = replace(
            graph,
            x=_columns_in_order(graph.x, names, manifest.feature_names, f"{called}.x", (OF_NODES,)),
            vocabulary=np.array(manifest.feature_names),
        )
    if graph.edge_names is not None and manifest.edge_names is not None:
        # Kinds of edges, ones and zeros, may all be missing, and with a relation its features.
        kinds: tuple[str, ...] = ("",) if graph.edge_attr is not None and np.isin(graph.edge_attr, (0, 1)).all() else ()
        of_run = Kinds.read(manifest.kinds)
        kinds = tuple(manifest.edge_names[: of_run.edges]) if of_run is not None and of_run.edges else kinds
        names, where = list(graph.edge_names), f"{called}.edge_attr"
        attr = _columns_in_order(graph.edge_attr, names, manifest.edge_names, where, kinds)
        graph = replace(graph, edge_attr=attr, edge_names=tuple(manifest.edge_names))
    return graph


def _columns_in_order(values: Any, names: list[str], wanted: list[str], called: str, may_miss: tuple[str, ...]) -> Any:
    """Returns columns in another order, dense or sparse; those whose names begin so are zero where they are missing."""
    if names == wanted:
        return values
    if unknown := next((name for name in names if name not in wanted), None):
        raise ShoalError(called, f"column {unknown!r} is none that the run had; take it out")
    missing = [name for name in wanted if name not in names]
    if lacks := next((name for name in missing if not name.startswith(may_miss)), None):
        raise ShoalError(called, f"column {lacks!r} is missing, which the run had; add it")
    place = {name: number for number, name in enumerate([*names, *missing])}
    order = [place[name] for name in wanted]
    if sp.issparse(values):
        nothing = sp.csr_array((values.shape[0], len(missing)), dtype=np.float32)
        return sp.csr_array(sp.hstack([values, nothing], format="csr")[:, order])
    nothing = np.zeros((len(values), len(missing)), dtype=np.float32)
    return np.concatenate([values, nothing], axis=1)[:, order]


def table_of(other: OtherGraph, clients: Sequence[int | None]) -> pa.Table:
    """Predicts by one model or several, None for the server's, one after another.

    Returns:
        A row a node: `client` int32, where several are asked; `node`, its id if the graph has ids, else its number,
        int64; `predicted`, the class, int32, or its name; `probability` float32, that of the class by the softmax of
        scores. Where no classes are predicted, a column a target, named after it: its number, or the probability of the
        label, float32.
    """
    ids = pa.array(range(other.graph.nodes), pa.int64()) if other.graph.ids is None else other.graph.ids
    tables = []
    for client in clients:
        columns = {"node": ids, **_columns_of(other, other.scores(client))}
        if len(clients) > 1:
            columns = {"client": pa.array(np.full(len(ids), client, dtype=np.int32)), **columns}
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def _columns_of(other: OtherGraph, scores_NC: Tensor) -> dict[str, pa.Array]:
    """Returns columns of what a model predicts."""
    manifest = other.opened.store.manifest
    if manifest.target != CLASSIFICATION:
        usual = ["predicted"] if manifest.classes == 1 else [f"predicted_{t}" for t in range(manifest.classes)]
        values_NT = stated_values(scores_NC, manifest.target).numpy()
        return dict(zip(other.label_names or usual, map(pa.array, values_NT.T)))
    p_N, class_N = scores_NC.softmax(1).max(1)
    predicted = pa.array(class_N.int().numpy())
    if other.label_names is not None:
        predicted = pa.array(other.label_names).take(predicted)
    return {"predicted": predicted, "probability": pa.array(p_N.numpy())}


def write_table(table: pa.Table, out: Path) -> None:
    """Writes a table in the form that the ending of the file asks for, `.npz` an array a column, texts as numpy's."""
    with replacing(output(out)) as unfinished, unfinished.open("wb") as sink:
        if out.suffix.lower() == ".npz":
            arrays: dict[str, Any] = {name: _to_numpy(table[name]) for name in table.column_names}
            np.savez(sink, **arrays)
        elif out.suffix.lower() == ".parquet":
            parquet.write_table(table, sink)
        else:
            csv.write_csv(table, sink)


def _to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    """Converts a column; texts without objects, which nobody could read without unpickling."""
    array: np.ndarray = column.to_numpy()
    return array.astype(np.str_) if array.dtype == np.object_ else array


def _graph_of(graph: Any, made: bool, called: str) -> Graph:
    """Makes a clean graph of edges and features; its labels are not read."""
    if isinstance(graph, Graph):
        clean = graph
        check_finite(clean.x, f"{called}.x")
    else:
        # PyG takes a second to import, and need not be installed.
        from torch_geometric.data import Data

        from shoal.storage.adapters import from_pyg

        keys = ("x", "edge_index", "adj_t", "edge_weight", "edge_attr")
        if isinstance(graph, Data):
            given = {key: value for key in keys if (value := getattr(graph, key, None)) is not None}
            if made:
                given["x"] = torch.zeros(int(graph.num_nodes or 0), 1)
            graph = Data(**given, y=torch.zeros(len(given["x"]) if "x" in given else 0, dtype=torch.int64))
        clean = from_pyg(graph, called=called)
    if clean.graph_of is not None:
        raise ShoalError(called, "many small graphs; give one graph, whose nodes are predicted")
    return clean


def _as_prepared(graph: Graph, config: Config, called: str) -> Graph:
    """Converts features and weights to those that a store of the config would have."""
    data = config.data
    if data.features.made:
        if data.features.kind != "degree":
            raise ShoalError("data.features", f"{data.features.kind} says nothing of the nodes of another graph")
        graph = replace(graph, x=made_features(graph.indptr, graph.indices, data.features, config.memory_limit()))
    if data.row_normalize:
        graph = replace(graph, x=row_normalized(graph.x, f"{called}.x"))
    if data.edge_weights == "drop":
        graph = replace(graph, edge_weight=None)
    if data.edge_features == "drop":
        graph = replace(graph, edge_attr=None, edge_names=None, edge_kinds=0)
    require_weights_used(config, graph.name, graph.edge_weight is not None)
    return graph


def _view_of(graph: Graph, client: int, config: Config, opened: Reopened, folder: Path, by_server: bool) -> View:
    """Opens the graph as the data of a client, with its shard and its hops in a folder."""
    everybody = np.zeros(graph.nodes, dtype=np.int32)
    kept = kept_entries(graph.indptr, graph.indices, everybody)
    limit, layout = config.memory_limit(), opened.store.manifest.layout
    ((_, part, x),) = gather_features(graph, everybody, kept, [0], config.data.dtype, limit, layout)
    weight = edge_attr = None
    if graph.edge_weight is not None:
        weight = weights_among(part, graph.indptr, graph.indices, graph.edge_weight)
    if graph.edge_attr is not None:
        edge_attr = graph.edge_attr[entries_among(part, graph.indptr, graph.indices)]
    write_shard(folder / "shard", client, part, np.zeros(graph.nodes), x, edge_weight=weight, edge_attr=edge_attr)
    shard = open_shard(folder / "shard", client)
    hops = []
    # All nodes are predicted, so that hops of all of them are needed, with and without labels.
    propagation: PropagationOptions = replace(config.propagation, rows="all", keep="all")
    if propagation.used:
        write_hops(folder / "hops", shard, propagation, opened.store.manifest.relations)
        file = open_hops(folder / "hops", shard.nodes, propagation)
        hops = [file.features(name) for name in file.names]
    none = np.zeros(0, dtype=np.int32)
    classes = opened.store.manifest.classes
    kernel = propagation if propagation.used else None
    view = (str(folder), shard, Split(none, none, none), hops, classes, Cache(0))
    return View(
        *view, propagation=kernel, target=opened.store.manifest.target, scale=_scale_of(opened, client, by_server)
    )


def _scale_of(opened: Reopened, client: int, by_server: bool) -> Scale | None:
    """Returns the scale of the numbers of a model; where clients have their own, the server's has the federation's."""
    job, store = opened.job, opened.store
    if by_server:
        return job.scale
    return scale_of(job.scale, store.shard(client).target, store.split(job.split, client).train)


def _visit(opened: Reopened, view: View, client: int, by_server: bool) -> Visit:
    """Makes a visit that is scored on the graph: by a client's deployed model, or by the server's model."""
    state = opened.state
    if by_server:
        cell, down = evaluation_cell(state.round, [client], {}, {}), opened.global_model
    else:
        cell = evaluation_cell(state.round, [client], state.clients, state.inboxes)
        down = state.downloads.get(state.newest.get(client, 0), {})
    return opened.host.visit_elsewhere(view, client, cell, down, alone=by_server)
