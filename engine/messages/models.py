"""The models of a run, and which client trains which."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from shoal.algorithms.base import TASKS, Algorithm, mixes_models
from shoal.algorithms.client import ClientInfo, FlatModel
from shoal.algorithms.context import ModelInfo
from shoal.algorithms.method_errors import ProtocolError, code_of
from shoal.algorithms.methods.registry.load import methods_for, mixing_methods
from shoal.algorithms.models.build import Texts, backbone, build, width_of
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.names import HEADLESS, ModelSpec, least_edge_features
from shoal.algorithms.models.prompts.prompts import freeze_gnn
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.config.sizes import size
from shoal.engine.sections.sections import options_of
from shoal.storage.errors import ShoalError
from shoal.storage.graph.edges.kinds import Kinds
from shoal.storage.options.types import is_own

# A parameter takes so many bytes: value, gradient, and two moments of Adam.
OF_PARAMETER = 16


@dataclass(frozen=True)
class BuiltModel:
    """A model of the run, and what it was built from."""

    spec: ModelSpec
    flat: FlatModel

    @property
    def info(self) -> ModelInfo:
        """Returns what a method's server part sees of the model."""
        sent = set(map(id, self.flat.parameters))
        shapes = {name: tuple(p.shape) for name, p in self.flat.module.named_parameters() if id(p) in sent}
        return ModelInfo(self.spec.name, shapes, width_of(self.flat.module))


# Models are kept by the names that the method gives to a client's models.
BuiltModels = Mapping[str, Sequence[BuiltModel]]


def model_of(built: BuiltModels, info: ClientInfo, name: str) -> BuiltModel:
    """Returns the kind of one of a client's models; a model that the method describes is of one kind at all clients."""
    several = built[name]
    return several[info.model if len(several) > 1 else 0]


class KnownModels:
    """Models that were built, for configs that differ elsewhere, and the configs by which methods were rehearsed.

    What a user's code makes is made anew each time.
    """

    def __init__(self) -> None:
        """Begins without a model."""
        self._built: dict[str, BuiltModels] = {}
        self._rehearsed: set[str] = set()

    def once(self, config: Config, algorithm: Algorithm, rehearse: Callable[[], None]) -> None:
        """Rehearses a method, unless it passed with the same models, clients and training; raises as `rehearse`."""
        of_server = config.heterogeneity, config.train, config.rounds, config.seed, config.kernel().hops
        key = repr((type(algorithm), algorithm, config.models(), config.task, config.partition.clients, of_server))
        if key not in self._rehearsed:
            rehearse()
            if not _has_own(algorithm, config.models()):
                self._rehearsed.add(key)

    def built(
        self, algorithm: Algorithm, specs: Sequence[ModelSpec], embedding: int | None, **shape: Any
    ) -> BuiltModels:
        """Returns what `built_models` builds of equal arguments on the same device; raises as it does."""
        if _has_own(algorithm, specs):
            return built_models(algorithm, specs, embedding, **shape)
        method = type(algorithm), algorithm.models(), algorithm.reads_embedding
        key = repr((torch.get_default_device(), method, specs, embedding, shape))
        if key not in self._built:
            self._built[key] = built_models(algorithm, specs, embedding, **shape)
        return self._built[key]


def _has_own(algorithm: Algorithm, specs: Sequence[ModelSpec]) -> bool:
    return any(is_own(spec.name) for spec in specs) or not type(algorithm).__module__.startswith("shoal.")


def require_fitting(
    algorithm: Algorithm,
    specs: Sequence[ModelSpec],
    embedding: int | None,
    memory_limit: int,
    known: KnownModels | None = None,
    **shape: Any,
) -> BuiltModels:
    """Builds the same models on the device `meta`, as shapes without values, before any memory is taken.

    Models that are `known` are not built again.

    Raises:
        ShoalError: As `built_models` does, or training would take more than `memory_limit` bytes.
    """
    with torch.device("meta"):
        sketched = (known or KnownModels()).built(algorithm, specs, embedding, **shape)
    parameters = sum(built.flat.w.numel() for several in sketched.values() for built in several)
    if parameters * OF_PARAMETER > memory_limit:
        raise ShoalError(
            "model",
            f"{parameters:,} parameters take {size(parameters * OF_PARAMETER)} in training, engine.memory_limit "
            f"is {size(memory_limit)}; take a smaller model.hidden or fewer model.layers, or raise the limit",
        )
    return sketched


def built_models(algorithm: Algorithm, specs: Sequence[ModelSpec], embedding: int | None, **shape: Any) -> BuiltModels:
    """Builds all models that clients of a method hold; `embedding` and `shape` are what `build_models` takes.

    Raises:
        ShoalError: As `build_models` does, or the method describes its models wrongly.
    """
    method = type(algorithm).__name__
    with code_of(algorithm, "models"):
        wanted = algorithm.models()
        if not isinstance(wanted, Mapping) or wanted.get(MODEL, {}) is not None:
            raise ProtocolError(f"models() must name {MODEL!r}: None, the model of the config")
        for name, described in wanted.items():
            _require_description(name, described)
    built: dict[str, Sequence[BuiltModel]] = {}
    for name, described in wanted.items():
        try:
            if described is None:
                chosen, width = [_with_head(model, algorithm, specs, shape) for model in specs], embedding
            else:
                chosen, width = [_with_head(ModelSpec(**described), algorithm, specs, shape)], None
            flats = build_models(chosen, width, **shape, headless=described is not None)
            built[name] = [BuiltModel(spec, flat) for spec, flat in zip(chosen, flats)]
        except ShoalError as error:
            raise error if described is None else ShoalError("algorithm", method, f"model {name!r}: {error}") from None
    return built


def _with_head(
    spec: ModelSpec, algorithm: Algorithm, beside: Sequence[ModelSpec], shape: Mapping[str, Any]
) -> ModelSpec:
    """Gives the model the classifier of its paper, where the config leaves open which one it has.

    It is linear where the method reads the embedding below it, where models that differ are compared by it, where a
    step reads drawn neighbours, where all layers come from a file, and where nothing would be left below.
    """
    options, task = spec.options, shape["task"]
    linear = algorithm.reads_embedding or len(beside) > 1 or task != "node" or spec.pretrained is not None
    if linear or "head" in options or spec.name in HEADLESS:
        return spec
    cls = backbone(spec.name, True, task, shape.get("texts") or {})
    if not issubclass(cls, Coupled) or cls.papers_head == "linear":
        return spec
    if any(options.get(name) is not None for name in ("fanouts", "prompt")) or options.get("layers", 2) == 1:
        return spec
    return ModelSpec.model_validate({**spec.model_dump(), "head": cls.papers_head})


def _require_description(name: Any, described: Any) -> None:
    """Checks one entry of what a method's `models` gives."""
    word = isinstance(name, str) and re.fullmatch(r"\w+", name)
    if not word or not (described is None or (isinstance(described, Mapping) and "name" in described)):
        raise ProtocolError(f"models()[{name!r}]: give a word and a mapping with a `name`")
    try:
        spec = ModelSpec(**(described or {}))
        if spec.pretrained is not None or spec.frozen:
            raise ShoalError("pretrained and frozen are for the model of the config")
    except (ValidationError, TypeError, ShoalError) as error:
        raise ProtocolError(f"models()[{name!r}]: {' '.join(str(error).split())}") from None


def assign_models(config: Config, clients: int) -> list[int]:
    """Assigns every client its model, by number from 0, by `heterogeneity.rule`.

    With M models, client k of N has model k mod M (`round-robin`) or floor(M k / N) (`blocks`); `random` shuffles the
    former, so that shares are equal.

    Raises:
        ShoalError: `heterogeneity.clients` does not name a model for every client.
    """
    chosen, models = config.heterogeneity, len(config.models())
    if chosen.rule == "explicit":
        return _explicit(chosen.clients, clients, models)
    if chosen.rule == "blocks":
        return [models * k // clients for k in range(clients)]
    numbers = np.arange(clients) % models
    if chosen.rule == "random":
        numbers = np.random.default_rng(key(chosen.seed, "models")).permutation(numbers)
    return numbers.tolist()


def build_models(
    specs: Sequence[ModelSpec],
    embedding: int | None,
    features: int,
    classes: int,
    hops: int,
    dropout: float,
    bfloat16: bool = False,
    sparse: bool = False,
    headless: bool = False,
    task: str = "node",
    texts: Texts | None = None,
    edge_features: int = 0,
    kinds: Kinds | None = None,
) -> list[FlatModel]:
    """Builds the models of a run; several have embeddings of one width, by adapters.

    Args:
        specs: What to build.
        embedding: Width of all embeddings; None: that of the first of several, or a single model's own.
        features: Width F of a hop.
        sparse: Features are sparse.
        headless: They may be networks without a classifier, which methods describe.
        task: As `texts`, `edge_features` and `kinds` what `shoal.algorithms.models.build.build` takes.

    Raises:
        ShoalError: A backbone or an option is unknown or out of range, or a coupled one is to multiply in bfloat16.
    """
    models = []
    for number, spec in enumerate(specs):
        try:
            shape = features, classes, hops, dropout
            of_edges = edge_features, kinds
            module = build(spec.name, *shape, spec.options, embedding, headless, task, texts or {}, *of_edges)
            if spec.frozen:
                freeze_gnn(module)
        except ShoalError as error:
            if len(specs) == 1 or not error.line.startswith("model."):
                raise
            raise ShoalError(error.line.replace("model.", f"model.{number}.", 1)) from None
        if len(specs) > 1 and embedding is None:
            embedding = width_of(module)
        models.append(FlatModel(module, bfloat16, sparse, spec.frozen))
        if bfloat16 and models[-1].coupled:
            raise ShoalError("engine.precision", f"bfloat16 is for decoupled models, {spec.name} is not; use float32")
    return models


def _explicit(numbers: Sequence[int] | None, clients: int, models: int) -> list[int]:
    if numbers is None or len(numbers) != clients:
        given = "none" if numbers is None else len(numbers)
        raise ShoalError(
            "heterogeneity.clients", f"must give the model of each of the {clients} clients, found {given}"
        )
    for client, number in enumerate(numbers):
        if not 0 <= number < models:
            raise ShoalError(
                "heterogeneity.clients", f"client {client} has model {number}, there are 0 to {models - 1}"
            )
    return list(numbers)


def require_supported(config: Config, algorithm: Algorithm) -> None:
    """Raises a ShoalError if a method is not for the task of a config, or reads other edges between clients."""
    edges, data = getattr(algorithm, "edges_read", None), options_of(config, "cross_edges")
    given = "drop" if data is None else data.cross_edges
    if edges not in (None, given):
        raise ShoalError(
            "data.cross_edges",
            f"{config.algorithm.name} with its options reads {edges}, found {given}; set it, or "
            f"algorithm.{'hops' if hasattr(algorithm, 'hops') else 'cross_edges'}",
        )
    hidden = data is not None and (data.cross_min_neighbours > 1 or data.cross_hidden)
    if edges == "hops" and (hidden or config.propagation.rows != "all"):
        raise ShoalError(
            "algorithm.cross_edges",
            "labels propagate over all edges that hops run over, by sums of each other client; set "
            "data.cross_min_neighbours to 1, data.cross_hidden to false and propagation.rows to all",
        )
    if config.task not in algorithm.supports:
        tasks = " and ".join(sorted(algorithm.supports & TASKS))
        raise ShoalError(
            "task",
            f"{config.algorithm.name} is for {tasks} tasks, found {config.task}; "
            f"take a method for {config.task} tasks ({', '.join(methods_for(config.task))})",
        )


def require_mixable(config: Config, algorithm: Algorithm, known: KnownModels | None = None) -> None:
    """Refuses a list of models for a method whose clients must share one, and models that no dataset could be for.

    Raises:
        ShoalError: The method needs one model, the models' assignment is wrong, an option of theirs is, or they are
            beyond the memory even with one feature and one class.
    """
    models = config.models()
    if len(models) > 1 and not mixes_models(algorithm):
        names = ", ".join(model.name for model in models)
        raise ShoalError(
            "model",
            f"{config.algorithm.name} needs the same model at every client, found a list of {names}; "
            f"give one model, or take a method that averages no whole models ({', '.join(mixing_methods())})",
        )
    if not algorithm.centralized:
        assign_models(config, config.partition.clients)
    hops, train = config.propagation.hops, config.train
    bfloat16 = config.engine.precision == "bfloat16"
    shape: dict[str, Any] = {"features": 1, "classes": 1, "hops": hops, "dropout": train.dropout, "bfloat16": bfloat16}
    shape |= {"task": config.task, "edge_features": least_edge_features([model.name for model in models])}
    require_fitting(algorithm, models, config.heterogeneity.embedding, config.memory_limit(), known, **shape)
