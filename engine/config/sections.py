"""Sections of a config whose options belong to the engine."""

from collections.abc import Mapping
from dataclasses import field
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic.dataclasses import dataclass

from shoal.algorithms.models.names import WIDEST
from shoal.engine.sections.sections import SECTIONS
from shoal.engine.sections.words import word_or_own
from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.sources.source import EdgeFeatures, EdgeWeights
from shoal.storage.options.dataset_names import usual_name
from shoal.storage.options.masking import Sparsity
from shoal.storage.options.split import SplitOptions
from shoal.storage.options.types import (
    CLOSED,
    FilePath,
    Flag,
    Name,
    Number,
    Place,
    Positive,
    Seed,
    Size,
    Whole,
    is_own,
)

# This is more than any cluster and any processor has.
MOST_HOSTS, MOST_THREADS = 10_000, 1024
# It is thirty years in seconds, which Ray still counts in milliseconds.
LONGEST_WAIT = 1e9

# A run has these metrics; tables call those that rank items by the names given here.
ACCURACY, F1, ROC_AUC, AVERAGE_PRECISION = "accuracy", "f1", "roc_auc", "average_precision"
RANKINGS = {ROC_AUC: "ROC-AUC", AVERAGE_PRECISION: "average precision"}
# Features add these, of what are no classes.
OF_FEATURES = {metric.name: metric for feature in SECTIONS for metric in feature.measures}
# A part has the macro-F1 of clients by this name, as `f1` is that of all items; and by the other the choosing metric.
MACRO_F1, CHOSEN_BY = "macro_f1", "metric"
# A metric of the user's cannot have these names, which other numbers beside it have.
TAKEN = frozenset(
    (
        *("accuracy", "auc", "average_precision", "balanced", "client", "clients", "constant", "constant_class"),
        *("correct", "domains", "f1", "f1_clients", "macro_f1", "majority", "max", "median", "metric", "min", "nodes"),
        *("part", "roc_auc", "round", "rows", "scope", *chain.from_iterable(feature.metrics for feature in SECTIONS)),
        *OF_FEATURES,
    )
)
# Whole graphs have this scope and part: validation and test rows together are what some papers score.
DOMAINS, BOTH = "domains", "both"
# Metrics and summaries have scopes in this order, after a resume too.
SCOPES = ("trained", "deployed", "global", DOMAINS, *(scope for feature in SECTIONS for scope in feature.scopes))
# A line, and a round of a summary, has by this key how many clients were evaluated, where it was not all.
EVALUATED = "evaluated"
# These seconds of a round the simulator scored models itself, which no server of a federation does.
# Lines of earlier versions lack it, and have these seconds in `aggregate`.
SCORING = "scoring"
# Earlier versions wrote these names of scopes and moments; today's follow them.
OLD_SCOPES, OLD_MOMENTS = {"served": "deployed"}, {"last": "final"}


def current_name(figure: str) -> str:
    """Renames a number to its dotted name of today: `served.last.test` becomes `deployed.final.test`."""
    scope, *rest = figure.split(".")
    if rest and scope in ("trained", "global", DOMAINS, *OLD_SCOPES, *OLD_SCOPES.values()):
        rest[0] = OLD_MOMENTS.get(rest[0], rest[0])
    return ".".join((OLD_SCOPES.get(scope, scope), *rest))


def current_scopes(scopes: Mapping[str, Any]) -> dict[str, Any]:
    """Renames the scopes of numbers to today's names."""
    return {OLD_SCOPES.get(scope, scope): numbers for scope, numbers in scopes.items()}


# Tags select the branch of a union that an error names; they are stripped from its key.
ONE_GRAPH, SEVERAL_GRAPHS = "one graph", "list of graphs"
MOST_GRAPHS = 1000
OneOrSeveral = Discriminator(lambda value: SEVERAL_GRAPHS if isinstance(value, list | tuple) else ONE_GRAPH)
Several = Field(min_length=2, max_length=MOST_GRAPHS)
DatasetName = Annotated[Name, AfterValidator(usual_name)]
Names = Annotated[
    Annotated[DatasetName, Tag(ONE_GRAPH)] | Annotated[tuple[DatasetName, ...], Several, Tag(SEVERAL_GRAPHS)],
    OneOrSeveral,
]
Paths = Annotated[
    Annotated[FilePath, Tag(ONE_GRAPH)] | Annotated[tuple[FilePath, ...], Several, Tag(SEVERAL_GRAPHS)], OneOrSeveral
]


@dataclass(frozen=True, config=CLOSED)
class DatasetPlaces:
    """The graph of a run, by name, and the folders of its files.

    Attributes:
        dataset: Name of the dataset; or a list: each is a domain, with separate clients.
        root: Folder of published files; null: $SHOAL_DATA, else a cache folder.
        store: Folder of the prepared store, or its address: `s3://bucket/store`, `gs://…`, `file://…`; null: a folder
            under the data root.
        cache: Folder of each machine for what it reads of a store at an address; null: `stores` in the cache folder.
        cache_limit: Bytes or e.g. `100GiB` of that folder; null: nine tenths of what its disk has free.
        overlay: Folder for splits, hops and whole graphs that are made later of a finished store, which stays as it is;
            null: in the store, or where that cannot be written in a cache folder.
        path: The graph of dataset `files`; a list where `dataset` has several of that name.
        name: Name of the graph of dataset `files` in stores, summaries and tables; null: `files`.
    """

    dataset: Names
    root: FilePath | None = None
    store: Place | None = None
    cache: FilePath | None = None
    cache_limit: Size | None = None
    overlay: FilePath | None = None
    path: Paths | None = None
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=60)] | None = None


def metric_key(metric: str) -> str:
    """Returns the name of a metric among the numbers of a part: for a user's metric that of its function."""
    return MACRO_F1 if metric == F1 else metric.rpartition(":")[2]


def _no_other_number(name: str) -> str:
    if is_own(name) and metric_key(name) in TAKEN:
        raise ValueError(f"{metric_key(name)} is the name of another number; give the function another one")
    return name


def _different(metrics: tuple[str, ...]) -> tuple[str, ...]:
    keys = [metric_key(name) for name in metrics]
    if len(set(keys)) < len(keys):
        raise ValueError("each metric once, and functions with different names")
    return metrics


def _as_list(value: Any) -> Any:
    """Makes a list of one metric that is given alone."""
    return (value,) if isinstance(value, str) else value


MOST_METRICS = 100
Metric = Annotated[
    Name,
    BeforeValidator(lambda name: ROC_AUC if name == "auc" else name),
    word_or_own(ACCURACY, F1, *RANKINGS, *OF_FEATURES, own="my_metric"),
    AfterValidator(_no_other_number),
]
Metrics = Annotated[
    tuple[Metric, ...],
    Field(min_length=1, max_length=MOST_METRICS),
    AfterValidator(_different),
    BeforeValidator(_as_list),
]


# The bases have this order so that a resolved config begins with the dataset.
@dataclass(frozen=True, config=CLOSED)
class DataConfig(SplitOptions, DatasetPlaces):
    """The graph of a run, how its nodes are split, and how its features are kept.

    Attributes:
        dtype: How features are stored.
        layout: `dense`, or `sparse`: only what is not zero; `auto` is sparse for features that are read into memory
            and at most 40 % full, else dense. Models sum sparse features in another order, which changes the last
            bits.
        row_normalize: Scale the features of every node to sum to one.
        options: Options of generated datasets (`sbm`, `sbm-graphs`, `digits`), and of reading those of TU and PyG.
        features: Where features come from, the dataset's own or made of edges or drawn; a kind alone stands for it.
        sparsity: Shares of features, edges and training labels that clients lack.
        synthetic: Take the synthetic twin of the dataset, at `options.scale`, which `dataset` then names.
        inductive: Train on the graphs that the training nodes of each client induce, as if there were no others, and
            evaluate on all nodes.
        edge_weights: `keep` or `drop` the weights of edges; `drop` is for models and methods that cannot use them.
        edge_features: `keep` or `drop` the features of edges, kinds of bonds or of relations, which gine, rgcn, hgt,
            han, gat and transformer read.
        allow_untrained: Run even if more than nine tenths of the clients have no training item.
    """

    dtype: Literal["float32", "float16"] = "float32"
    layout: Literal["auto", "dense", "sparse"] = "auto"
    row_normalize: Flag = False
    options: dict[str, Any] = field(default_factory=dict)
    features: MadeFeatures = MadeFeatures()
    sparsity: Sparsity = Sparsity()
    synthetic: Flag = False
    inductive: Flag = False
    edge_weights: EdgeWeights = "keep"
    edge_features: EdgeFeatures = "keep"
    allow_untrained: Flag = False

    @property
    def split_name(self) -> str:
        """Names the folder of the split inside a store; other shares of masked training labels have another one."""
        return super().split_name + self.sparsity.of_split


@dataclass(frozen=True, config=CLOSED)
class HeterogeneityOptions:
    """The rule for which client trains which model of a list; see `shoal.engine.messages.models.assign_models`.

    Attributes:
        rule: `round-robin`, `blocks`, `random`, or `explicit`.
        seed: Seed of `random`.
        clients: Number of every client's model, from 0, for `explicit`.
        embedding: Width of every model's embedding, by a linear adapter where a model has another one; null: the width
            of the first of several models.
    """

    rule: Literal["round-robin", "blocks", "random", "explicit"] = "round-robin"
    seed: Seed = 0
    clients: tuple[Whole, ...] | None = None
    embedding: Annotated[Positive, Field(le=WIDEST)] | None = None


@dataclass(frozen=True, config=CLOSED)
class EvaluationConfig:
    """The rounds in which clients are evaluated, and the metrics.

    Attributes:
        every: Rounds between evaluations. The best round is one of these, and patience of early stopping counts them; 1
            evaluates after every round.
        clients: Who is evaluated before the last round: `all`; the clients of that round (`cohort`); or so many, drawn
            anew for every evaluation. The best round is then the best of samples.
        last: How the last round ends: `all` clients are evaluated, whatever `every` and `clients` say; a `sample`, as
            `clients` says; or `none`, as any other round: it is evaluated where `every` divides it.
        domains: Evaluate the server's model on every whole graph, too, where `data.dataset` lists several.
        metrics: One or several, of each client's items among themselves; the first chooses the best round, the one
            with its largest value. `accuracy`, which is always there; `f1`, macro-F1; `roc_auc` or `auc`, the area
            under the ROC curve, and `average_precision`, of more than two classes means of each against the others; and
            functions of your own, `my_file.py:ECE`. Where no classes are predicted (`target`), and by default there, of
            regression `r2`, and `rmse`, `mae`, `mse`; of several labels their means `label_roc_auc`,
            `label_average_precision`, `label_f1`; of clusters `nmi`, and `ari`, `cluster_accuracy`.
    """

    every: Positive = 5
    clients: Positive | Literal["all", "cohort"] = "all"
    last: Literal["all", "sample", "none"] = "all"
    domains: Flag = True
    metrics: Metrics = (ACCURACY,)


@dataclass(frozen=True, config=CLOSED)
class EngineConfig:
    """The hosts, trainers and devices of a run.

    Attributes:
        backend: `ray`, or `local` for the same code in this process.
        hosts: Processes on Ray that train clients. `auto`: one for each core of the machine, or each free core of the
            cluster, with `device: cuda` for each GPU; at most as many as a round has cells and as memory holds.
        threads: Threads of a process: 1. Several made rounds slower, and are refused; hosts use the other cores.
        trainer: `autograd` trains the clients of a cell one after another, `analytic` those of one in a compiled call,
            or by the formulas of the gradients, `batched` all clients in one batch; the same numbers to rounding. The
            last two are for methods of plain cross-entropy, `batched` with means over training rows. `analytic` is for
            mlp, sgc and gamlp, and on processors for models of sparse hops and of graphs, also on a loss that is marked
            as pure, without fanouts, adapters, recursive attention, `norm: batch` and `jumping: max`. `batched` is for
            whole batches of decoupled models, and of gcn, gin, sage and gcnii on whole graphs. `auto` takes `batched`
            on GPUs, and, without such means, on processors for rounds of 64 clients and more with at most 128 features
            and 16,384 numbers a step, but for small sgc and mlp of one or two layers; else `analytic` where it can,
            else `autograd`.
        device: `cpu`, `cuda`, or `auto`: `cuda` if hosts have a share of a GPU; changes the last bits, and what clients
            draw (dropout, noise, views).
        precision: Precision of products: `float32`; `tf32` on GPUs; `bfloat16` for decoupled models, parameters, sums
            and losses stay float32. On processors it needs amx_bf16 (`shoal doctor`) and pays from about 16 million
            multiplications of a layer in a step; sparse rows are multiplied in float32. Changes numbers, and its last
            bits may differ between processors with and without amx_bf16 and avx512_bf16.
        cell_size: Clients of one call to a host. `auto` gives every host five cells or more, if the cohort allows it:
            the largest power of two in clamp(cohort // (3 hosts), 1, 16), and for the last quarter of the clients in
            clamp(cohort // (12 hosts), 1, 16), so that hosts end together. Where clients train in batches, a cell is
            the batch: on GPUs, but with `trainer: autograd`, the power of two next to clamp(cohort // 8, 1, 128), on
            processors where `auto` trains in batches, to clamp(cohort // 4, 1, 64). Changes the last bits of clients in
            batches alone.
        memory_limit: Bytes or e.g. `8GiB`, on a machine; null: its memory, or that of its container.
        cell_timeout: Seconds after which a host is replaced on which no client begins; as long as the slowest client.
        retries: Number of times that a cell may be lost before the run stops.
        on_client_error: A client whose code or upload fails, or that kills its host time and again, ends the run
            (`fail`), or is skipped in the round and logged (`skip`).
        verify: `first-read` checks every byte and every index of a file of the store when a process opens it for the
            first time; `never` only its size and form, and a damaged file may change numbers or end the process.
    """

    backend: Literal["ray", "local"] = "ray"
    hosts: Annotated[Positive, Field(le=MOST_HOSTS)] | Literal["auto"] = "auto"
    threads: Annotated[Positive, Field(le=MOST_THREADS)] = 1
    trainer: Literal["auto", "autograd", "batched", "analytic"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    cell_size: Positive | Literal["auto"] = "auto"
    memory_limit: Size | None = None
    cell_timeout: Annotated[Number, Field(gt=0, le=LONGEST_WAIT)] = 600.0
    retries: Annotated[Whole, Field(ge=0)] = 4
    on_client_error: Literal["fail", "skip"] = "fail"
    verify: Literal["first-read", "never"] = "first-read"


def _whole_above_one(share: float) -> float:
    if share > 1 and share % 1:
        raise ValueError("above 1 it must be a whole number")
    return share


@dataclass(frozen=True, config=CLOSED)
class ResourcesConfig:
    """The resources that every host and the server ask Ray for.

    Attributes:
        cpus_per_host: Processors of a host.
        gpus_per_host: GPUs of a host; a share of one also limits its memory. A host computes on one GPU, more than one
            are for a custom method, with `engine.device: cpu`. 0 with `cuda`: one, or an even share if hosts of this
            machine are more.
        server_cpus: Processors that Ray keeps free for the server. It computes with `engine.threads` threads whatever
            this is, as more would change the last bits of sums.
        server_gpus: Share of a GPU on which the method's server part computes; 0: the processor. Changes numbers.
    """

    cpus_per_host: Annotated[Number, Field(ge=0)] = 1.0
    gpus_per_host: Annotated[Number, Field(ge=0), AfterValidator(_whole_above_one)] = 0.0
    server_cpus: Annotated[Number, Field(ge=0)] = 0.0
    server_gpus: Annotated[Number, Field(ge=0, le=1)] = 0.0


# Ray's runtime environment has these keys.
EnvironmentKey = Literal[
    "env_vars",
    "pip",
    "uv",
    "conda",
    "py_modules",
    "working_dir",
    "excludes",
    "py_executable",
    "image_uri",
    "worker_process_setup_hook",
    "nsight",
    "config",
]


def _with_texts(environment: dict[str, Any]) -> dict[str, Any]:
    """Turns environment variables into texts, as Ray takes them; YAML reads numbers."""
    variables = environment.get("env_vars", {})
    if not isinstance(variables, dict):
        raise ValueError("env_vars must be a mapping of names to values")
    return {**environment, **({"env_vars": {str(name): str(v) for name, v in variables.items()}} if variables else {})}


@dataclass(frozen=True, config=CLOSED)
class RayConfig:
    """The cluster that a run joins.

    Attributes:
        address: Of an existing cluster (`auto`, `host:port`); null starts Ray on this machine, which only processes of
            this machine can reach.
        runtime_env: Of hosts and server, in the keys of Ray's runtime environments, e.g. `{env_vars: {A: 1}}`.
        start_timeout: Seconds to wait for all hosts, for which an autoscaler is asked for machines; after that a run
            begins with the hosts that are up, if any, and others join. Clients that no host can run wait as long, at
            least 120 s.
    """

    address: str | None = None
    runtime_env: Annotated[dict[EnvironmentKey, Any], AfterValidator(_with_texts)] = field(default_factory=dict)
    start_timeout: Positive = 120


@dataclass(frozen=True, config=CLOSED)
class RunConfig:
    """The files that are kept of a run.

    Attributes:
        root: Folder of run folders, or its address: `s3://bucket/runs`, `gs://…`, `file://…`.
        checkpoint_every: Rounds between checkpoints.
        checkpoint_seconds: One is also written after the round in which so much time is over since the last.
        keep: Checkpoints kept.
        keep_finished: Checkpoints kept once the run is finished; null: as many as before.
        keep_best: Also keep a checkpoint of the best validation round of every scope, for `shoal export --best`.
        keep_records: Keep, of evaluated rounds, what the method records for `shoal report`: matrices of mixing, which
            are a number for every pair of clients, and prototypes.
        client_scores: Keep the scores of every client at every evaluation, in `clients.arrows`.
        tensorboard: Write TensorBoard events.
        log_format: Of `run.log`: `text`, or `json`, an object a line with time, level, run, round, host, client and
            message.
        max_seconds: Stop with a checkpoint after the round in which this time is over; null: never.
    """

    root: Annotated[Place, Field(validate_default=True)] = "runs"
    checkpoint_every: Positive = 10
    checkpoint_seconds: Annotated[Number, Field(gt=0)] = 600.0
    keep: Positive = 2
    keep_finished: Positive | None = None
    keep_best: Flag = False
    keep_records: Flag = False
    client_scores: Flag = True
    tensorboard: Flag = True
    log_format: Literal["text", "json"] = "text"
    max_seconds: Annotated[Number, Field(gt=0)] | None = None
