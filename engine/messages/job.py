"""The job, which has what a host must know of a run: sent once, small, plain values."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, overrides
from shoal.algorithms.client import ClientInfo, ClientTable, FlatModel
from shoal.algorithms.methods.registry.load import MethodSpec, describe, load
from shoal.algorithms.models.names import ModelSpec
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.config.config import Config, device_choice
from shoal.engine.config.names import own_among, read_all
from shoal.engine.config.sections import ACCURACY
from shoal.engine.config.sizes import machine_memory, size
from shoal.engine.messages.models import BuiltModel, BuiltModels, assign_models, built_models, require_fitting
from shoal.engine.messages.pretrained import read_pretrained, require_fitting_files, start_from
from shoal.engine.messages.trainers import AUTOGRAD, Clients, trainers_of
from shoal.engine.sections.section import load as load_place
from shoal.engine.sections.sections import SECTIONS, find_bounding, options_of
from shoal.storage.errors import ShoalError
from shoal.storage.graph.edges.kinds import Kinds
from shoal.storage.graph.targets import Scale
from shoal.storage.options.propagation import PropagationOptions, propagation_of
from shoal.storage.options.target_names import CLASSIFICATION, CLUSTERING, Target
from shoal.storage.shards.view import CPU, Cache, Change, View
from shoal.storage.store.store import Store
from shoal.storage.user_code.user_code import UserCode

if TYPE_CHECKING:
    # These are loaded only where a store is at an address.
    from shoal.storage.store.remote_store import Remote


@dataclass(frozen=True)
class Compute:
    """The resources that hosts compute with, and how.

    Attributes:
        memory_limit: Bytes that the run may use on a machine, its models among them; None: the machine's memory.
        trainer: How clients are trained: `autograd`, `batched`, `analytic`, or as fits the device (`auto`).
        device: `cpu` or `cuda`.
        gpu_share: Share of a GPU that a host may use.
        precision: `float32` or `bfloat16`.
    """

    memory_limit: int | None
    trainer: str = "autograd"
    device: str = "cpu"
    gpu_share: float = 1.0
    precision: str = "float32"


@dataclass(frozen=True)
class Job:
    """A run as its hosts see it.

    Attributes:
        id: Tells the runs of a sweep apart.
        store: Folder of the store, or where `remote` has it, its path below that.
        remote: The store at an address, with its manifests; None: the store is a folder.
        content: Of the store, as far as the run reads it; see `Manifest.content`.
        propagation: Name of the hops; None if only the features are used.
        hops: Hops beyond the features that models read: K, or K of each relation.
        model_of: Number of every client's model.
        embedding: Width of all embeddings; None: that of the first of several models, or a single model's own.
        compute: What hosts compute with.
        first_read: Check every file of the store when a process opens it for the first time.
        skip_failed_clients: Leave a client whose code fails out of the round, instead of ending the run.
        domains: Names of the domains whose whole graphs are evaluated: under numbers that follow those of clients.
        graphs: Content of the store of these graphs; empty without any.
        training: Content of the store of training nodes, where these are all that training sees; else empty.
        metrics: What models are evaluated by, accuracy always; the first chooses rounds.
        own_metrics: The user's functions among them, by name.
        predictions: A callback asks for what evaluated clients predict.
        stages: Options of what happens to uploads, by the names of features, see `shoal.engine.sections`.
        user_code: The user's functions that these name.
        clipped_rows: Clip and noise of training rows, as of `ClippedRows`; None: they have none.
        in_round: Number of clients in a round where all are online.
        pretrained: Contents of the files that models start from, by `ModelSpec.pretrained`.
        texts: Of files of the user's own that models are in, by name.
        scale: Mean and spread by which training sees numbers that are predicted, see `View`.
        clusters: Items are clustered: all of them train, without labels, which score clusters alone.
    """

    id: str
    store: str
    content: str
    split: str
    propagation: str | None
    hops: int
    method: MethodSpec
    models: tuple[ModelSpec, ...]
    model_of: tuple[int, ...]
    embedding: int | None
    train: TrainOptions
    seed: int
    compute: Compute
    first_read: bool = True
    skip_failed_clients: bool = False
    domains: tuple[str, ...] = ()
    graphs: str = ""
    training: str = ""
    metrics: tuple[str, ...] = (ACCURACY,)
    own_metrics: Mapping[str, UserCode] = field(default_factory=dict)
    stages: Mapping[str, Any] = field(default_factory=dict)
    user_code: Mapping[str, UserCode] = field(default_factory=dict)
    clipped_rows: tuple[float | None, float] | None = None
    predictions: bool = False
    in_round: int = 1
    pretrained: Mapping[str, bytes] = field(default_factory=dict)
    texts: Mapping[str, UserCode] = field(default_factory=dict)
    remote: "Remote | None" = None
    scale: Scale | None = None
    clusters: bool = False

    @property
    def method_name(self) -> str:
        """Returns the name of the method's class, for errors."""
        return type(self.algorithm()).__name__

    def without_stage(self, name: str) -> "Job":
        """Returns the same job without a stage of uploads."""
        return replace(self, stages={key: options for key, options in self.stages.items() if key != name})

    def on_processor(self) -> "Job":
        """Returns the same job on processors, in single precision."""
        return replace(self, compute=replace(self.compute, device="cpu", precision="float32"))

    @property
    def store_path(self) -> Path:
        """Returns the folder of the store."""
        return Path(self.store)

    @property
    def hops_folder(self) -> str | None:
        """Returns the folder of what lies on disk of hops; see `PropagationOptions.folder`."""
        return None if self.propagation is None else propagation_of(self.propagation).folder

    @property
    def computes_hops(self) -> bool:
        """Returns whether hops are computed at visits, and lie in memory."""
        return self.propagation is not None and propagation_of(self.propagation).computed

    @property
    def computes_parts(self) -> bool:
        """Returns whether what a client sees of its shard lies in memory, and in no map."""
        options = None if self.propagation is None else propagation_of(self.propagation)
        return options is not None and options.computed and options.rows == "labelled"

    def require_room(self, stores: Iterable[Store], limit: int) -> None:
        """Raises a ShoalError if hops that are computed, dense ones of a client, take more than a cache of `limit`."""
        options = None if self.propagation is None else propagation_of(self.propagation)
        if options is None or not options.computed:
            return
        for manifest in (store.manifest for store in stores if store.manifest.layout == "dense"):
            nodes = int(manifest.clients.count("nodes").max(initial=0))
            require_room_for_hops(options, nodes, manifest.features, limit, manifest.relations)

    def open_store(self) -> Store:
        """Opens the store as this process sees it; raises a ShoalError if the run was made for another one."""
        where, first_read = self.store_path, self.first_read
        store = Store(where, first_read) if self.remote is None else self.remote.open().store(where, first_read)
        return self._as_started(store, self.content)

    def open_graphs(self, store: Store) -> Store | None:
        """Opens the whole graphs of the domains; None if none is evaluated. Raises as `open_store` does."""
        return self._as_started(store.domain_graphs(), self.graphs) if self.domains else None

    def open_training(self, store: Store) -> Store:
        """Opens what methods see of clients: training nodes alone, or the store itself. Raises as `open_store` does."""
        return self._as_started(store.training(self.split), self.training) if self.training else store

    def _as_started(self, store: Store, content: str) -> Store:
        manifest = store.manifest
        prepared = self.split in manifest.splits and self.hops_folder in (None, *manifest.hops)
        if not prepared or manifest.content(self.split, self.hops_folder) != content:
            raise ShoalError(
                store.path,
                f"machine {platform.node()} sees another store here than the run was started with; "
                "copy the store of the machine that runs the command, or set data.store to a folder that all share",
            )
        return store

    def algorithm(self) -> Algorithm:
        """Makes the method; raises a ShoalError if a hyper-parameter is unknown or out of its range."""
        return load(self.method)

    def build_models(self, store: Store, algorithm: Algorithm) -> BuiltModels:
        """Builds the models that clients hold, by name; raises a ShoalError if a file of parameters does not fit."""
        built = self._fitting(built_models(algorithm, self.models, self.embedding, **self._shape(store)))
        for model in built[MODEL]:
            if model.spec.frozen:
                # No message brings what is frozen: it is drawn, or read, here.
                self.initial(model, MODEL, 0)
        return built

    def sketch_models(self, store: Store, algorithm: Algorithm) -> BuiltModels:
        """Builds the models that clients hold on the device `meta`, before any process takes memory for them.

        Raises:
            ShoalError: They do not fit the memory, an option is out of range, or a file that one of them is to start
                from does not fit it.
        """
        shape = self._shape(store)
        return self._fitting(
            require_fitting(
                algorithm, self.models, self.embedding, self.compute.memory_limit or machine_memory(), **shape
            )
        )

    def trainers(
        self, store: Store, algorithm: Algorithm, models: Sequence[FlatModel], device: str | None = None
    ) -> list[str]:
        """Chooses how clients are trained, by the models of the config; see `trainers_of`.

        `device` is the type of a host's device; None: that of the job.
        """
        clients = Clients(self.infos(self.open_training(store)), store.manifest.features, self.in_round)
        of_classes = self.clipped_rows is None and self.target_of(store) == CLASSIFICATION
        path = self.compute.trainer if of_classes else AUTOGRAD
        return trainers_of(path, device or self.compute.device, algorithm, models, self.train, clients)

    def _shape(self, store: Store) -> dict[str, Any]:
        manifest = store.manifest
        return {
            "features": manifest.features,
            "classes": manifest.classes,
            "hops": self.hops,
            "dropout": self.train.dropout,
            "bfloat16": self.compute.precision == "bfloat16",
            "sparse": manifest.layout == "sparse",
            "task": manifest.task,
            "texts": self.texts,
            "edge_features": manifest.edge_features,
            "kinds": Kinds.read(manifest.kinds),
        }

    def _fitting(self, built: BuiltModels) -> BuiltModels:
        require_fitting_files([(model.spec, model.flat) for model in built[MODEL]], self.pretrained)
        return built

    def initial(self, built: BuiltModel, name: str, client: int) -> Tensor:
        """Makes the initial parameters of one of a client's models, `[P]`: the same for all clients of the kind, or
        its own.
        """
        purpose = ("init",) if name == MODEL else ("init", name)
        drawn = built.flat.initial(key(self.seed, *purpose, *([client] if built.spec.init == "own" else [])))
        path = built.spec.pretrained
        return drawn if path is None else start_from(built.flat, self.pretrained[path])

    def view(
        self,
        store: Store,
        client: int,
        cache: Cache,
        device: torch.device = CPU,
        flipped: bool = False,
        change: Change | None = None,
    ) -> View:
        """Opens the data of a client of a store, changed where something is asked; `flipped` is as of `View`."""
        changed = [*(["flipped"] if flipped else []), *([change] if change else [])]
        name = (str(store.path), self.split, self.propagation, client, *changed)
        shard, split, hops = store.data(self.split, self.propagation, client)
        propagation = propagation_of(self.propagation) if self.propagation else None
        if change is not None:
            shard, hops = change.apply(shard, split, propagation)
        edges = None
        if propagation is not None and propagation.first_layer:
            edges = store.all_edges(propagation.name, client)
        cross = None if propagation is None else propagation.boundaries
        boundary = None if cross is None else partial(store.boundary, cross, client)
        classes, target = store.manifest.classes, self.target_of(store)
        if self.clusters:
            split = replace(split, train=np.arange(shard.items, dtype=np.int32))
        seen = (classes, cache, device, propagation, edges, flipped, boundary, target, self.scale)
        return View(name, shard, split, hops, *seen)

    def target_of(self, store: Store) -> Target:
        """Returns what is predicted of the items of a store."""
        return CLUSTERING if self.clusters else store.manifest.target

    def infos(self, store: Store) -> ClientTable:
        """Reads the sizes of all clients."""
        manifest = store.manifest
        domain = np.zeros(len(manifest.clients), dtype=np.int64)
        for number, record in enumerate(manifest.domains):
            domain[record.numbers] = number
        copies, clients = manifest.copies.get(self.split), manifest.clients
        predicted = {name: clients.columns[name] for name in ("graphs", "pairs") if name in clients.columns}
        train = manifest.splits[self.split].counts[:, 0]
        if self.clusters:
            train = predicted.get("graphs", clients.count("nodes"))
        sizes: dict[str, Any] = {"client": np.arange(len(clients)), "nodes": clients.count("nodes"), "train": train}
        columns = sizes | predicted | {"model": self.model_of, "domain": domain}
        return ClientTable(columns, manifest.classes, None if copies is None else copies.most)

    def graph_infos(self, graphs: Store | None) -> list[ClientInfo]:
        """Reads sizes of the evaluated whole graphs, as of clients that never train; the model is the first kind."""
        if graphs is None:
            return []
        counts, classes = graphs.manifest.splits[self.split].counts.tolist(), graphs.manifest.classes
        first = len(self.model_of)
        return [
            ClientInfo(first + g.client, g.nodes, counts[g.client][0], classes, graphs=g.graphs, pairs=g.pairs)
            for g in graphs.manifest.clients
        ]

    def is_graph(self, number: int) -> bool:
        """Returns whether a number is that of a domain's whole graph, and not of a client."""
        return 0 <= number - len(self.model_of) < len(self.domains)

    def who(self, number: int) -> str:
        """Returns how an error names a client, or the domain of a whole graph."""
        return f"domain {self.domains[number - len(self.model_of)]}" if self.is_graph(number) else f"client {number}"


def require_room_for_hops(
    propagation: PropagationOptions, nodes: int, features: int, limit: int, relations: int = 0
) -> None:
    """Raises a ShoalError if dense hops that are computed for so many nodes take more than a cache of `limit` bytes."""
    # The import loads the kernel, which only a host that computes hops needs.
    from shoal.storage.shards.hops import hops_bytes

    needed = hops_bytes(nodes, features, replace(propagation, rows="all"), relations)
    if needed > limit:
        raise ShoalError(
            "propagation.keep",
            f"{propagation.keep} computes hops of {size(needed)} for a client of {nodes:,} nodes, and a host caches at "
            f"most {size(limit)}; set all, take more clients or fewer hosts, or raise engine.memory_limit",
        )


def make_job(config: Config, store: Store, job_id: str) -> Job:
    """Makes the job of a config on its prepared store.

    Raises:
        ShoalError: Whole graphs are to be evaluated, and were not prepared from those of the clients, a file that a
            model is to start from cannot be read, or a feature refuses the store.
    """
    hops = config.kernel()
    method = describe(config.algorithm.name, config.algorithm.options)
    domains, graphs = _graphs(config, store, method)
    remote = store.remote
    scoring = [section for section in SECTIONS if section.is_on(config) and section.scores(section.of(config))]
    of_stages = [metric for section in scoring for metric in section.metrics]
    return Job(
        id=job_id,
        store=str(Path(store.path).resolve() if remote is None else store.path.relative_to(remote.path)),
        remote=None if remote is None else remote.remote,
        content=store.manifest.content(config.data.split_name, hops.folder),
        split=config.data.split_name,
        propagation=hops.name if hops.used else None,
        hops=hops.stored(store.manifest.relations),
        method=method,
        models=config.models(),
        model_of=tuple(assign_models(config, store.clients)),
        embedding=config.heterogeneity.embedding,
        train=config.train,
        seed=config.seed,
        compute=Compute(
            config.engine.memory_limit,
            config.engine.trainer,
            device_choice(config),
            config.resources.gpus_per_host or 1.0,
            config.engine.precision,
        ),
        first_read=config.engine.verify == "first-read",
        skip_failed_clients=config.engine.on_client_error == "skip",
        domains=domains,
        graphs=graphs,
        training=_training(config, store),
        metrics=(*config.evaluation.metrics, *of_stages),
        own_metrics=own_among("evaluation.metrics", config.evaluation.metrics),
        stages=_options_of_stages(config),
        user_code={
            name: code
            for section in SECTIONS
            if section.own
            for name, code in own_among(
                f"{section.name}.{section.own}", [getattr(section.of(config), section.own)]
            ).items()
        },
        clipped_rows=_clipped_rows(config, store),
        # Clients of a run that is not synchronous train one by one.
        in_round=config.participation.size(store.clients) if config.schedule.synchronous else 1,
        pretrained=read_pretrained(config.models(), config.memory_limit()),
        texts={code.name: code for key, code in read_all(config.plain()) if key.startswith("model")},
        scale=_scale(config, store),
        clusters=(target := options_of(config, "targets")) is not None and target.clusters,
    )


def _scale(config: Config, store: Store) -> Scale | None:
    target = options_of(config, "targets")
    if target is None:
        return None
    scale: Scale | None = target.of_views(
        store.manifest.splits[config.data.split_name].scale, find_bounding(config) is not None
    )
    return scale


def _options_of_stages(config: Config) -> dict[str, Any]:
    options = {
        section.feature: load_place(section.on_hosts)(config) if section.on_hosts else section.of(config)
        for section in SECTIONS
        if (section.stages or section.on_hosts) and section.is_on(config)
    }
    return {name: of_hosts for name, of_hosts in options.items() if of_hosts is not None}


def _clipped_rows(config: Config, store: Store) -> tuple[float | None, float] | None:
    clips = (
        load_place(section.clipped_rows)(config, store)
        for section in SECTIONS
        if section.clipped_rows and section.is_on(config)
    )
    return next((clip for clip in clips if clip is not None), None)


def _training(config: Config, store: Store) -> str:
    """Reads the content of the store of training nodes; empty where methods see all nodes.

    Raises:
        ShoalError: They are to be seen alone, and were not prepared.
    """
    if not config.data.inductive:
        return ""
    return _content(store.training(config.data.split_name), config)


def _content(store: Store, config: Config) -> str:
    """Digests what a run reads of a store. Raises ShoalError: the config's split or hops are not in it."""
    try:
        return store.manifest.content(config.data.split_name, config.kernel().folder)
    except KeyError as missing:
        raise ShoalError(store.path, f"has no {missing} of this config; run `shoal prepare` on it") from None


def _graphs(config: Config, store: Store, method: MethodSpec) -> tuple[tuple[str, ...], str]:
    """Reads names of the domains whose whole graphs are evaluated, and the content of the store of these.

    Raises:
        ShoalError: They are to be evaluated, and were not prepared, or from other graphs than the clients' ones.
    """
    clients = store.manifest
    if not (clients.domains and config.evaluation.domains and overrides(load(method), "global_model")):
        return (), ""
    graphs = store.domain_graphs()
    manifest = graphs.manifest
    same = manifest.identity["dataset"] == clients.identity["dataset"] and manifest.published == clients.published
    if not same or [graph.nodes for graph in manifest.clients] != [domain.nodes for domain in clients.domains]:
        raise ShoalError(
            graphs.path,
            f"holds other graphs than those that the clients of {store.path} come from; delete that "
            "folder and run `shoal prepare` again",
        )
    return tuple(domain.name for domain in clients.domains), _content(graphs, config)
