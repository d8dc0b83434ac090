"""A config as a whole: composed of the options of every component, and read from a file."""

import io
import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, create_model, model_validator

from shoal.algorithms.methods.registry.names import MethodSpec, require_method_name
from shoal.algorithms.models.names import ModelSpec, require_backbone_name
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.config.config_text import (
    CONFIG,
    MOST_BYTES,
    announce,
    require_as_kept,
    require_resolvable,
    require_small,
    with_new_keys,
    with_new_names,
)
from shoal.engine.config.effects import COMMAND_LINE, NO_OVERRIDES, Overrides, require_effects
from shoal.engine.config.names import locate_code
from shoal.engine.config.overrides import (
    UNREADABLE,
    Given,
    NeedsOmegaConf,
    is_plain,
    lay_over,
    override_of,
    reason_of,
    sections_of,
    with_long_forms,
)
from shoal.engine.config.round_sections import DeviceOptions, ParticipationOptions, ScheduleOptions
from shoal.engine.config.sections import (
    ACCURACY,
    DataConfig,
    EngineConfig,
    EvaluationConfig,
    HeterogeneityOptions,
    RayConfig,
    ResourcesConfig,
    RunConfig,
)
from shoal.engine.config.sizes import machine_memory
from shoal.engine.sections.rules import reads_hops
from shoal.engine.sections.sections import SECTIONS, add_options
from shoal.partition.methods.options import PartitionOptions
from shoal.storage.errors import ShoalError
from shoal.storage.files.reading import read_text
from shoal.storage.options.dataset_names import TWINS, require_dataset
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.types import Named, Positive, Seed, key_of, path_fault, quoted
from shoal.storage.suggestions import did_you_mean

# Tags select the branch of a union that an error names; they are stripped from its key.
ONE, SEVERAL = "one model", "list of models"
# The limit holds since every host builds them all.
MOST_MODELS = 1000
MOST_CALLBACKS = 100
Models = Annotated[
    Annotated[ModelSpec, Tag(ONE)]
    | Annotated[tuple[ModelSpec, ...], Field(min_length=1, max_length=MOST_MODELS), Tag(SEVERAL)],
    Discriminator(lambda value: SEVERAL if isinstance(value, list | tuple) else ONE),
]


class ConfigOfRounds(BaseModel):
    """The first sections of a config, before those of features."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # The folder of a run has nine more characters.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=200)]
    seed: Seed = 0
    # A run predicts the label of every node, whether an edge joins two nodes, or the label of every graph of many.
    task: Literal["node", "edge", "graph"] = "node"
    rounds: Positive = 100
    data: DataConfig
    partition: PartitionOptions = PartitionOptions()
    propagation: PropagationOptions = PropagationOptions()
    model: Models = ModelSpec()
    heterogeneity: HeterogeneityOptions = HeterogeneityOptions()
    train: TrainOptions = TrainOptions()
    algorithm: MethodSpec
    participation: ParticipationOptions = ParticipationOptions()
    schedule: ScheduleOptions = ScheduleOptions()
    devices: DeviceOptions = DeviceOptions()


if TYPE_CHECKING:
    # What features add is read by `Section.of`, which knows its type.
    ConfigOfFeatures = ConfigOfRounds
else:
    DataConfig, EvaluationConfig, RunConfig = (
        add_options(options, name, __name__)
        for name, options in {"data": DataConfig, "evaluation": EvaluationConfig, "run": RunConfig}.items()
    )
    ConfigOfFeatures = create_model(
        "ConfigOfFeatures",
        __base__=ConfigOfRounds,
        data=(DataConfig, ...),
        **{name: kind for section in SECTIONS for name, kind in section.as_field().items()},
    )


class Config(ConfigOfFeatures):
    """A whole config; the sections are the keys of the file. Unknown keys are refused, values do not change.

    Attributes:
        name: The run's name, with which its folder begins.
        seed: Seed of parameters, cohorts, batches and all that methods draw.
        task: `node`, `edge` or `graph`: what is predicted.
        rounds: Rounds.
        algorithm: The method: its name, or a mapping of `name` and options.
        callbacks: A list of callbacks: names, or mappings of `name` and options.
    """

    evaluation: EvaluationConfig = EvaluationConfig()
    engine: EngineConfig = EngineConfig()
    resources: ResourcesConfig = ResourcesConfig()
    ray: RayConfig = RayConfig()
    # They are called at the start, after each round and evaluation, and at the end.
    callbacks: Annotated[tuple[Named, ...], Field(max_length=MOST_CALLBACKS)] = ()
    # The default is made anew, for its folder is relative to where the process is then.
    run: RunConfig = Field(default_factory=RunConfig)

    @model_validator(mode="before")
    @classmethod
    def _with_usual_metrics(cls, values: Any) -> Any:
        """Adds metrics of targets that are no classes, where a config names none, or has the default."""
        given = values.get("evaluation", {}) if isinstance(values, dict) else None
        named = given.get("metrics", ACCURACY) if isinstance(given, dict) else None
        if not isinstance(given, dict) or named not in (ACCURACY, [ACCURACY], (ACCURACY,)):
            return values
        usual = next(filter(None, (section.usual_metrics(values) for section in SECTIONS)), None)
        return values if usual is None else {**values, "evaluation": {**given, "metrics": usual}}

    @cached_property
    def of_run(self) -> Path | None:
        """Returns the folder of a run on the same graphs that the config was read from; None: it is from elsewhere."""
        return None

    def models(self) -> tuple[ModelSpec, ...]:
        """Returns the models of the run, one or several."""
        return (self.model,) if isinstance(self.model, ModelSpec) else self.model

    def kernel(self) -> PropagationOptions:
        """Reads how hops are computed: section `propagation`, and over which edges between clients.

        Where neither model nor method reads hops, there are none.
        """
        crossing = (section.kernel(self) for section in SECTIONS if section.kernel and section.is_on(self))
        none = replace(self.propagation, hops=0, keep="all", relations=False)
        return next(crossing, self.propagation if reads_hops(self) else none)

    def memory_limit(self) -> int:
        """Returns the bytes the run may use: `engine.memory_limit`, else the memory of the machine or container."""
        return self.engine.memory_limit or machine_memory()

    def plain(self) -> dict[str, Any]:
        """Lists the resolved config as plain values, ready for YAML or JSON."""
        return self.model_dump(mode="json")


# The package has the configs of the repository.
SHIPPED = Path(__file__).absolute().parents[2] / "config_files"
# Errors of configs without a file name this.
NO_FILE = "config"
NO_VALUES: Mapping[str, Any] = {}
OF_A_GRAPH = "a config names the folder of a graph by data.path, as shoal init own-graph does"
# Files that are taken for configs, by their ends, and how a config names them.
WAYS = {
    ".py": "a config names code of yours, as in shoal run quickstart algorithm=mine.py:MyMethod",
    **dict.fromkeys((".csv", ".npy", ".npz", ".pt", ".parquet"), OF_A_GRAPH),
}
OVERRIDE = re.compile(r"[\w.]{1,200}=[^\x00-\x1f\x7f]*")


@lru_cache(maxsize=1)
def sections() -> Mapping[str, type]:
    """Returns the class of the options of each section, at any depth, by dotted key."""
    return dict(sections_of(Config))


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    values: Mapping[str, Any] = NO_VALUES,
    varied: frozenset[str] = frozenset(),
    source: str = COMMAND_LINE,
    typed: Collection[str] | None = None,
) -> Config:
    """Reads a config file, or the config of a run folder, and applies overrides.

    A key of a file whose effect an override takes is left out, with a line.

    Raises ShoalError: one line that names the file or the key.

    Args:
        overrides: As `key.sub=value`.
        values: By dotted key, plain values; those of a section are laid over it.
        varied: Keys of which a sweep has several values: what has no effect in a row is left out of it.
        source: Where overrides stand, which errors of them name.
        typed: The overrides of the user, None: all; what others replace is not named.
    """
    file = _config_file(path)
    for override, following in zip(overrides, [*overrides[1:], ""]):
        if not OVERRIDE.fullmatch(override):
            from shoal.engine.config.faults import override_meant

            meant = override_meant(override, "VALUE" if "=" in following else following or "VALUE", Config)
            hint = f"write {meant}; " if meant else ""
            raise ShoalError(override, f"{hint}an override has the form key.sub=value")
    try:
        text = read_text(file, MOST_BYTES)
        resolved, given = _lay_over(text, _named_anew([*map(override_of, overrides), *_given(values)]), typed)
    except FileNotFoundError:
        names = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
        hint = did_you_mean(file.stem, names)
        if OVERRIDE.fullmatch(str(path)):
            raise ShoalError(path, "is an override; a config comes before it, as in quickstart KEY=VALUE") from None
        runs = "" if file.suffix else " or run; shoal list shows runs"
        raise ShoalError(file, f"{hint}no such config{runs}; by name there are {', '.join(names)}") from None
    except (OSError, *UNREADABLE) as error:
        raise ShoalError(file, f"not a config: {reason_of(error)}") from error
    source = source if overrides else NO_FILE
    if not Path(path).is_dir():
        laid = Overrides(given.keys, given.keys, given.words, varied, source)
        return parse_config(resolved, str(file), overrides=laid)
    # User code is loaded from the run folder, not from its original path. What the run had, it keeps.
    kept = Overrides(given.keys, words=given.words, source=source)
    config = parse_config(locate_code(resolved, file.parent), str(file), given.keys, kept)
    if not given.keys & {"data", "data.path", "data.dataset"}:
        # The folder is no key, and two configs do not differ in it.
        vars(config)["of_run"] = file.parent
    return config


def _given(values: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Returns the keys that a program gave, as a command gives them."""
    return [(key, key, value) for key, value in values.items()]


def _named_anew(given: Sequence[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    """Returns what the user wrote, keys by the names of today, and their values."""
    return [(shown, *today) for shown, key, value in given for today in with_new_names(key, value)]


def config_from(plain: Mapping[str, Any], values: Mapping[str, Any] = NO_VALUES) -> Config:
    """Makes a config of plain values, as a file would hold them; arguments and errors are those of `load_config`."""
    try:
        resolved, given = _resolve(_of_today(OmegaConf.create(dict(plain))), _named_anew(_given(values)))
    except UNREADABLE as error:
        raise ShoalError(NO_FILE, reason_of(error)) from error
    return parse_config(resolved, NO_FILE, overrides=Overrides(given.keys, given.keys, given.words))


def _of_today(raw: Any) -> Any:
    """Returns the content of a file by the keys of today, with mappings for words that stand for a section."""
    plain = OmegaConf.to_container(raw)
    today = with_long_forms(with_new_keys(plain), sections()) if isinstance(plain, dict) else plain
    return raw if today == plain else OmegaConf.create(today)


@lru_cache(maxsize=8)
def _content(text: str) -> Any:
    """Reads the content of a file by the keys of today: plain values, or OmegaConf's where one names another."""
    require_small(text)
    raw = _of_today(OmegaConf.load(io.StringIO(text)))
    plain = OmegaConf.to_container(raw)
    return plain if type(plain) is dict and is_plain(plain) else raw


def _lay_over(
    text: str, given: Sequence[tuple[str, str, Any]], typed: Collection[str] | None
) -> tuple[dict[str, Any], Given]:
    """Lays values over the text of a file, as `_resolve`."""
    # What is laid over it changes a copy.
    content = deepcopy(_content(text))
    if type(content) is not dict:
        return _resolve(content, given, typed)
    try:
        return content, lay_over(content, given, sections(), typed)
    except NeedsOmegaConf:
        return _resolve(OmegaConf.create(_content(text)), given, typed)


def _resolve(
    raw: Any, given: Sequence[tuple[str, str, Any]], typed: Collection[str] | None = None
) -> tuple[dict[str, Any], Given]:
    """Lays values over the content of a file, and returns it, its references resolved, with the keys of these."""
    laid = lay_over(raw, given, sections(), typed)
    plain = OmegaConf.to_container(raw)
    if not isinstance(plain, dict):
        raise ValueError("the file must be a mapping of keys")
    require_resolvable(plain)
    resolved: Any = OmegaConf.to_container(raw, resolve=True)
    return resolved, laid


def _config_file(path: str | Path) -> Path:
    """Finds the file itself, that of a run folder, or one that comes with Shoal, by its bare name."""
    if fault := path_fault(str(path)):
        raise ShoalError(path, f"no such config: {fault}")
    try:
        file = Path(path)
        if file.is_dir() and not (file / CONFIG).exists():
            raise ShoalError(path, f"is a folder without {CONFIG}, so no run; {OF_A_GRAPH}")
        if way := WAYS.get(file.suffix.lower()):
            raise ShoalError(path, f"is no config; {way}")
        if file.is_dir():
            file /= CONFIG
            require_as_kept(file)
        ours = SHIPPED / f"{file}.yaml"
        return ours if len(file.parts) == 1 and not file.exists() and ours.exists() else file
    except OSError as error:
        raise ShoalError(path, f"not a config: {error.strerror}") from error


def parse_config(
    plain: dict[str, Any], where: str, changed: Collection[str] | None = None, overrides: Overrides = NO_OVERRIDES
) -> Config:
    """Checks a config given as plain values. Raises ShoalError: one line with the first wrong key.

    Only keys that were `changed` have to have an effect, None: all; those that `overrides` excuse are left out.
    """
    try:
        config = Config.model_validate(plain)
    except UnicodeEncodeError as error:
        # Pydantic raises this when its message quotes the value.
        raise ShoalError(where, f"{quoted(error.object)}: is not in UTF-8, so no config can keep it") from None
    except ValidationError as error:
        from shoal.engine.config.faults import fault_in_words

        key = key_of(error.errors()[0]["loc"])
        fault = fault_in_words(error, Config, typed=overrides.gave(key) and overrides.source == COMMAND_LINE)
        raise ShoalError(overrides.place_of(key, where), key, fault) from None

    place = partial(overrides.place_of, file=where)
    if config.data.synthetic:
        twin = _twin(config.data.dataset, place("data.synthetic"))
        config = config.model_copy(update={"data": replace(config.data, dataset=twin)})
    _require_clients_of_each(config, place("partition.clients"))
    excused = require_effects(config, usual(), where, changed, overrides)
    if not excused:
        return config
    for key, why in excused.items():
        announce(key, f"{why}; it is left out")
    # Options of what is left out have no effect either.
    further = overrides._replace(varied=overrides.varied.union(excused))
    return parse_config(_without(plain, excused), where, changed, further)


def _without(plain: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Copies plain values without dotted keys."""
    left = {name: value for name, value in plain.items() if name not in keys}
    for name, value in left.items():
        inner = {key.partition(".")[2] for key in keys if key.startswith(f"{name}.")}
        if inner and isinstance(value, Mapping):
            left[name] = _without(value, inner)
    return left


@lru_cache(maxsize=1)
def usual() -> Config:
    """Makes a config of no dataset and no method, whose keys have their defaults."""
    return Config.model_validate({"name": "none", "data": {"dataset": "none"}, "algorithm": "none"})


def _twin(dataset: str | tuple[str, ...], where: str) -> str:
    """Returns the synthetic twin of a dataset, which for a twin is the dataset itself."""
    name = str(dataset).lower()
    if name not in TWINS and name not in TWINS.values():
        twins = ", ".join(TWINS)
        raise ShoalError(where, "data.synthetic", f"there are synthetic twins of {twins}, found {quoted(dataset)}")
    return TWINS.get(name, name)


def _require_clients_of_each(config: Config, where: str) -> None:
    """Refuses several graphs without a number of clients for each, and such numbers for one graph."""
    names, numbers = config.data.dataset, config.partition.domains
    if isinstance(names, str):
        if numbers is not None:
            raise ShoalError(where, "partition.clients", f"a list is for a list of datasets; {names} is one graph")
    elif numbers is None or len(numbers) != len(names):
        given = f"one number, {config.partition.clients}" if numbers is None else f"{len(numbers)}"
        raise ShoalError(
            where,
            "partition.clients",
            f"data.dataset has {len(names)} graphs; give a list of {len(names)} numbers, found {given}",
        )


def require_names(config: Config) -> None:
    """Raises ShoalError: there is no such method, model or dataset; files of the user's own are not looked into."""
    require_method_name(config.algorithm.name)
    for model in config.models():
        require_backbone_name(model.name, config.task)
    dataset = config.data.dataset
    for name in (dataset,) if isinstance(dataset, str) else dataset:
        require_dataset(name)


def require_one_thread(config: Config) -> None:
    """Raises ShoalError: processes are to have several threads. Runs of earlier versions may have had."""
    if config.engine.threads > 1:
        raise ShoalError(
            "engine.threads",
            f"{config.engine.threads} threads make rounds slower, 1.3 to 1.5 times with two for GCN on Computers and "
            "Physics; set it to 1: hosts work on the other cores (engine.hosts)",
        )


def device_choice(config: Config) -> str:
    """Chooses `cpu` or `cuda`: `engine.device`, or, if that is `auto`, a GPU where hosts have a share of one.

    Raises ShoalError: device, share and precision exclude one another.
    """
    share, device = config.resources.gpus_per_host, config.engine.device
    if device == "auto":
        device = "cuda" if share else "cpu"
    if device == "cuda" and share > 1:
        raise ShoalError(
            "resources.gpus_per_host",
            f"a host computes on one GPU, found {share:g}; set it to 1 and engine.hosts to "
            "the number of GPUs, or engine.device=cpu",
        )
    if device == "cpu" and config.engine.precision == "tf32":
        raise ShoalError("engine.precision", "tf32 is of GPUs; the run's device is cpu: take float32 or bfloat16")
    return device
