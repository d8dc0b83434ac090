"""The one place that knows every key of a config: types, bounds, defaults, and which keys change numbers."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from yaml import YAMLError

from storage.errors import ShoalError
from storage.propagation import Kernel
from storage.split import PROTOCOLS, SplitOptions

UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def _size(value: Any) -> Any:
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if match is None or match[2] not in UNITS:
        return value
    return int(float(match[1]) * UNITS[match[2]])


def _absolute(value: Any) -> Any:
    return os.path.abspath(os.path.expanduser(value)) if isinstance(value, str) else value


def _method(value: Any) -> Any:
    """A method given by its bare name; the file of one's own is found from any working directory."""
    plain = {"name": value} if isinstance(value, str) else value
    if isinstance(plain, dict) and ".py:" in str(plain.get("name")):
        plain = {**plain, "name": _absolute(plain["name"])}
    return plain


Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]
FilePath = Annotated[str, BeforeValidator(_absolute)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A section of a config: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Section):
    """Which graph, where it lies, and how its nodes are split.

    Attributes:
        dataset: Name of the dataset.
        root: Folder of published files; null: $SHOAL_DATA, else a cache folder.
        store: Folder of the prepared store; null: a folder of its own under the data root.
        path: The graph of dataset `files`.
        split: Protocol of the split.
        split_seed: Seed of a random split.
        split_file: The array of split `file`.
        fractions: Shares of training, validation, test of a random split.
        dtype: How features are stored.
        row_normalize: Scale the features of every node to sum to one.
        options: What a dataset of our own making is made from (`sbm`, `digits`).
    """

    dataset: str
    root: FilePath | None = None
    store: FilePath | None = None
    path: FilePath | None = None
    split: Literal[PROTOCOLS] = "stratified"  # type: ignore[valid-type]
    split_seed: int = Field(0, ge=0)
    split_file: FilePath | None = None
    fractions: tuple[float, float, float] = (0.2, 0.4, 0.4)
    dtype: Literal["float32", "float16"] = "float32"
    row_normalize: bool = False
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _shares(self) -> "DataConfig":
        if any(share < 0 for share in self.fractions) or not 0 < sum(self.fractions) <= 1 + 1e-9:
            raise ValueError("fractions must not be negative and must sum to at most 1")
        return self


class PartitionConfig(Section):
    """How nodes become clients.

    Attributes:
        method: `metis`, `kaminpar`, `semi-external`, `louvain`, `random` or `file`.
        clients: Number of clients.
        seed: Seed of the partitioner.
        resolution: Of Louvain; larger finds smaller communities.
        imbalance: Of METIS, KaMinPar and semi-external; 1.03 allows clients 3 % above the mean.
        balance: What Louvain's packing balances: all `nodes`, or `labelled` ones.
        file: The array of method `file`, the client of every node.
    """

    method: Literal["metis", "kaminpar", "semi-external", "louvain", "random", "file"] = "metis"
    clients: Positive = 10
    seed: int = Field(0, ge=0)
    resolution: float = Field(1.0, gt=0)
    imbalance: float = Field(1.03, ge=1.0)
    balance: Literal["nodes", "labelled"] = "nodes"
    file: FilePath | None = None


class PropagationConfig(Section):
    """X^(k) = (D^(r-1) (A+I) D^(-r))^k X, computed once.

    Attributes:
        hops: K.
        r: Exponent of the normalisation.
        dtype: How hops are stored.
        rows: Rows that are kept, `all` or `labelled`. With the latter a client sees its labelled nodes, their
            neighbours and the edges among these only: label propagation is limited to them, hops are not.
    """

    hops: int = Field(3, ge=0)
    r: float = Field(0.5, ge=0, le=1)
    dtype: Literal["float32", "float16"] = "float32"
    rows: Literal["all", "labelled"] = "all"


class NamedConfig(BaseModel):
    """A name and the options of what it names, checked where the name is looked up."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelConfig(NamedConfig):
    """The backbone, its options, and whether clients start equal (`shared`) or each its own (`own`)."""

    name: str = "gamlp"
    init: Literal["shared", "own"] = "shared"


class HeterogeneityConfig(Section):
    """Which client trains which model, where `model` is a list; see `engine.wire.models.assign_models`.

    Attributes:
        rule: `round-robin`, `blocks`, `random`, or `explicit`.
        seed: Of `random`.
        clients: Of `explicit`: the number of every client's model, from 0.
        embedding: Width of every model's embedding, by a linear adapter where a model has another one; null: the width
            of the first of several models.
    """

    rule: Literal["round-robin", "blocks", "random", "explicit"] = "round-robin"
    seed: int = Field(0, ge=0)
    clients: tuple[int, ...] | None = None
    embedding: Positive | None = None


class TrainConfig(Section):
    """Local training; see `algorithms.training.local_training.TrainOptions`."""

    epochs: Positive = 3
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = Field(0.01, gt=0)
    weight_decay: float = Field(5e-4, ge=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    batch_size: Positive | None = None
    opt_state: Literal["keep", "reset"] = "keep"
    dropout: float = Field(0.5, ge=0, lt=1)


class ParticipationConfig(Section):
    """Who takes part in a round: drawn uniformly and without replacement.

    Attributes:
        ratio: Share of all clients; at least one.
        count: Number of clients; wins over `ratio`.
        at_least: A round with fewer clients online does not take place.
        trace: `.npy` of 0 and 1, `[rounds, clients]`: which client is online in which round, repeated from its start.
    """

    ratio: float = Field(1.0, gt=0, le=1)
    count: Positive | None = None
    at_least: Positive = 1
    trace: FilePath | None = None


class EvaluationConfig(Section):
    """Every how many rounds all clients are evaluated; the last round always is."""

    every: Positive = 1


class EngineConfig(Section):
    """How a run is carried out.

    Attributes:
        backend: `ray`, or `local` for the same code in this process.
        hosts: Host actors.
        threads: Threads of the mathematics in every process; changes the last bits.
        path: `loop` trains the clients of a cell one after another, `stacked` in one batch; the same numbers to
            rounding. The latter is for decoupled models, whole batches and methods of plain cross-entropy, and pays on
            GPUs; `auto` takes it there where it can, and the loop elsewhere.
        device: `cpu`, `cuda`, or `auto`: `cuda` if hosts have a share of a GPU; changes the last bits.
        precision: Of products: `float32`; `tf32` on GPUs; `bfloat16` for decoupled models; changes numbers.
        cell_size: Clients of one call to a host; `auto` = clamp(cohort // 32, 1, 16); changes the last bits.
        memory_limit: Bytes or e.g. `8GiB`; null: the memory of the machine.
        cell_timeout: Seconds after which a silent host is replaced.
        retries: How often a cell may be lost before the run stops.
        on_client_error: A client whose code or upload fails, or that kills its host time and again, ends the run
            (`fail`), or is left out of the round and logged (`skip`).
    """

    backend: Literal["ray", "local"] = "ray"
    hosts: Positive = 2
    threads: Positive = 1
    path: Literal["auto", "loop", "stacked"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    cell_size: Positive | Literal["auto"] = "auto"
    memory_limit: Size | None = None
    cell_timeout: float = Field(600.0, gt=0)
    retries: int = Field(4, ge=0)
    on_client_error: Literal["fail", "skip"] = "fail"


class ResourcesConfig(Section):
    """What every host and the server ask Ray for.

    Attributes:
        cpus_per_host: Processors of a host.
        gpus_per_host: GPUs of a host; a share of one also limits its memory. A host computes on one GPU, more than one
            are for a method of your own, with `engine.device: cpu`.
        server_cpus: Processors that Ray keeps free for the server.
        server_gpus: Share of a GPU on which the method's server part computes; 0: the processor. Changes numbers.
    """

    cpus_per_host: float = Field(1.0, ge=0)
    gpus_per_host: float = Field(0.0, ge=0)
    server_cpus: float = Field(0.0, ge=0)
    server_gpus: float = Field(0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _whole_devices(self) -> "ResourcesConfig":
        if self.gpus_per_host > 1 and self.gpus_per_host % 1:
            raise ValueError("gpus_per_host above 1 must be a whole number")
        return self


class RayConfig(Section):
    """Address of an existing cluster (`auto`, `host:port`); null starts Ray on this machine."""

    address: str | None = None


class RunConfig(Section):
    """What is kept of a run.

    Attributes:
        root: Folder of run folders.
        checkpoint_every: Rounds between checkpoints.
        keep: Checkpoints kept.
        tensorboard: Write TensorBoard events.
        max_seconds: Stop with a checkpoint after the round in which this time is over; null: never.
    """

    root: FilePath = Field("runs", validate_default=True)
    checkpoint_every: Positive = 10
    keep: Positive = 2
    tensorboard: bool = True
    max_seconds: float | None = Field(None, gt=0)


# The tags make an error speak of the one that was meant, and are left out of its key.
ONE, SEVERAL = "one model", "list of models"
Models = Annotated[
    Annotated[ModelConfig, Tag(ONE)] | Annotated[tuple[ModelConfig, ...], Field(min_length=1), Tag(SEVERAL)],
    Discriminator(lambda value: SEVERAL if isinstance(value, list | tuple) else ONE),
]


class Config(Section):
    """A whole config; the sections are the keys of the file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    seed: int = Field(0, ge=0)
    rounds: Positive = 100
    data: DataConfig
    partition: PartitionConfig = PartitionConfig()
    propagation: PropagationConfig = PropagationConfig()
    model: Models = ModelConfig()
    heterogeneity: HeterogeneityConfig = HeterogeneityConfig()
    train: TrainConfig = TrainConfig()
    algorithm: Annotated[NamedConfig, BeforeValidator(_method)]
    participation: ParticipationConfig = ParticipationConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    engine: EngineConfig = EngineConfig()
    resources: ResourcesConfig = ResourcesConfig()
    ray: RayConfig = RayConfig()
    run: RunConfig = RunConfig()

    def kernel(self) -> Kernel:
        """The hops that the run reads."""
        return Kernel(self.propagation.hops, self.propagation.r, self.propagation.dtype, self.propagation.rows)

    def models(self) -> tuple[ModelConfig, ...]:
        """The models of the run, one or several."""
        return (self.model,) if isinstance(self.model, ModelConfig) else self.model

    def split_options(self) -> SplitOptions:
        """The split that the run reads."""
        return SplitOptions(self.data.split, self.data.split_seed, self.data.fractions, self.data.split_file)

    def memory_limit(self) -> int:
        """Bytes the run may use: `engine.memory_limit`, else the memory of the machine."""
        return self.engine.memory_limit or psutil.virtual_memory().total

    def plain(self) -> dict[str, Any]:
        """The resolved config as plain values, ready for YAML or JSON."""
        return self.model_dump(mode="json")


OF_UNIONS = (ONE, SEVERAL, "int", "literal['auto']", "constrained-int")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a config file, or the config of a run folder, and applies `key.sub=value` overrides.

    Raises:
        ShoalError: One line that names the file or the key.
    """
    file = Path(path) / "config.yaml" if Path(path).is_dir() else Path(path)
    for override in overrides:
        if not re.match(r"^[\w.]+=", override):
            raise ShoalError(f"{override}: an override has the form key.sub=value")
    try:
        raw = OmegaConf.load(file)
        for override in overrides:
            _override(raw, override)
        plain = OmegaConf.to_container(raw, resolve=True)
    except FileNotFoundError:
        raise ShoalError(f"{file}: no such config") from None
    except (OmegaConfBaseException, YAMLError, OSError, UnicodeDecodeError) as error:
        raise ShoalError(f"{file}: not a config: {' '.join(str(error).split())}") from error
    if not isinstance(plain, dict):
        raise ShoalError(f"{file}: not a config: the file must be a mapping of keys")
    return parse_config(plain, str(file))  # type: ignore[arg-type]


def _override(raw: Any, override: str) -> None:
    """Puts `key.sub=value` into a config; in a list, a part of the key is a place in it.

    Raises:
        ShoalError: A part of the key is neither.
    """
    try:
        raw.merge_with_dotlist([override])
    except (TypeError, ValueError, IndexError) as error:
        raise ShoalError(
            f"{override}: cannot be set: {' '.join(str(error).split())}; an entry of a list is named by its place, "
            "as in model.0.hidden=32"
        ) from error


def parse_config(plain: dict[str, Any], where: str) -> Config:
    """Checks a config given as plain values.

    Raises:
        ShoalError: One line with the first wrong key.
    """
    try:
        return Config.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if part not in OF_UNIONS)
        if first["type"] == "extra_forbidden":
            raise ShoalError(f"{where}: {key}: unknown key; {_known(first['loc'])}") from None
        if first["type"] == "missing":
            raise ShoalError(f"{where}: {key}: missing") from None
        message = first["msg"].removeprefix("Value error, ")
        raise ShoalError(f"{where}: {key}: {message}, found {first.get('input')!r}") from None


def _known(location: Sequence[str | int]) -> str:
    section: Any = Config
    for part in location[:-1]:
        section = section.model_fields[str(part)].annotation
    return f"known here: {', '.join(section.model_fields)}"
