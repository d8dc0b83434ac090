"""Builds a backbone by name with its options, or from a user's file."""

import importlib
import inspect
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from torch import nn

from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.readout import Adapted, PairEmbedding, Pooling, Readout
from shoal.algorithms.models.names import (
    BACKBONES,
    HEADLESS,
    MOST_LAYERS,
    NEED_EDGES,
    OF_GRAPHS,
    OF_KINDS,
    PROMPTS,
    READ_EDGES,
    WIDEST,
    require_backbone_name,
)
from shoal.algorithms.models.prompts.prompts import Prompted
from shoal.algorithms.models.user.user_model import user_model, user_readout
from shoal.storage.errors import ShoalError
from shoal.storage.graph.edges.kinds import Kinds
from shoal.storage.options.types import is_own, message_of, quoted
from shoal.storage.suggestions import did_you_mean
from shoal.storage.user_code.user_code import UserCode, read_user_code

HEAD_DROPOUT, READOUT, PROMPT = "head_dropout", "readout", "prompt"
# Options of node tasks: the values that other tasks accept, and why no others.
OF_NODES: dict[str, dict[str, tuple[tuple[object, ...], str]]] = {
    "graph": {
        "fanouts": ((None,), "a graph task reads whole graphs, not drawn neighbours"),
        "norm": (
            ("none", "layer"),
            "a graph task reads several graphs at once, and normalises none by the nodes of another",
        ),
        "head": (("linear",), "a graph task pools nodes before the classifier, which passes no messages"),
    },
    "edge": {
        "fanouts": ((None,), "an edge task reads the whole graph, not drawn neighbours"),
        "head": (("linear",), "an edge task joins two nodes before the classifier, which passes no messages"),
    },
}


# Texts of users' files, by name.
Texts = Mapping[str, UserCode]


def backbone(name: str, headless: bool = False, task: str = "node", texts: Texts = MappingProxyType({})) -> Any:
    """Returns the class of a backbone: of `BACKBONES`, for graph tasks also `OF_GRAPHS`, `headless` also `HEADLESS`.

    Or it is `my_file.py:Name`, see `user_model.Backbone`; users' files that `texts` lacks are read. Raises ShoalError:
    there is none of this name for the task, or a user's file fails.
    """
    if is_own(name):
        return user_model(_text("model.name", name, texts))
    if headless and name in HEADLESS:
        return _import(HEADLESS[name])
    require_backbone_name(name, task)
    return _import({**BACKBONES, **OF_GRAPHS}[name])


def _import(place: str) -> type[nn.Module]:
    module_name, _, cls_name = place.partition(":")
    return getattr(importlib.import_module(module_name), cls_name)


def _text(key: str, name: str, texts: Texts) -> UserCode:
    return texts[name] if name in texts else read_user_code(key, name)


def name_of(module: nn.Module) -> str | None:
    """Returns the name of a backbone; None for another module."""
    place = f"{type(module).__module__}:{type(module).__qualname__}"
    return next((name for name, module_place in BACKBONES.items() if module_place == place), None)


@contextmanager
def _without_generated_files() -> Iterator[None]:
    """Removes the files to which PyG writes the loop of a layer, to import it once; it leaves them where they are."""
    count = len(sys.modules)
    yield
    # A list of pairs would be thousands of objects a model, which make Python look for garbage.
    for name in list(sys.modules)[count:]:
        folder, file = os.path.split(getattr(sys.modules.get(name), "__file__", None) or "")
        if folder == tempfile.gettempdir() and file.startswith(f"{name}_"):
            path = os.path.join(folder, file)
            with suppress(OSError):
                os.unlink(path)
            compiled = cache_from_source(path)
            with suppress(OSError):
                os.unlink(compiled)
                os.rmdir(os.path.dirname(compiled))


@_without_generated_files()
def build(
    name: str,
    features: int,
    classes: int,
    hops: int,
    dropout: float,
    options: Mapping[str, object],
    embedding: int | None = None,
    headless: bool = False,
    task: str = "node",
    texts: Texts = MappingProxyType({}),
    edge_features: int = 0,
    kinds: Kinds | None = None,
) -> nn.Module:
    """Makes a backbone; its parameters are drawn from torch's default generator.

    Args:
        name: As for `backbone` (`model.name` in a config).
        features: Width F of a hop; `classes` is the number of classes C.
        hops: Hops K that exist beyond the features (`propagation.hops`).
        dropout: Probability that a hidden activation is dropped in training (`train.dropout`).
        options: The backbone's keyword-only parameters (the other keys of `model`), and for every backbone
            `head_dropout`: whether there is dropout before the classifier, true by default; in graph tasks also
            `readout`: how the embeddings of a graph's nodes become one, `mean` by default, or `my_file.py:Name`, and
            `prompt`: key of `PROMPTS`, or a mapping of its `name` and its options.
        embedding: Width of the embedding; a backbone of another width is adapted. None: the backbone's own.
        headless: It may be one of `HEADLESS`, which has no `head_dropout` and is not adapted.
        task: What the model answers for: every `node`, whether an `edge` joins two nodes, or every `graph`.
        edge_features: Features of an edge; 0 where edges have none.
        kinds: Kinds of nodes and edges; None: they are not known.

    Raises:
        ShoalError: The name or an option does not exist, a value has the wrong type or is out of range, or the model
            needs features of edges, and there are none.
    """
    cls = backbone(name, headless, task, texts)
    if hops < 0:
        raise ShoalError("propagation.hops", f"must be at least 0, found {hops}")
    _require_options(name, cls, options, task)
    if name in HEADLESS:
        return cls(features, classes, hops, dropout, **options)
    of_class = {key: value for key, value in options.items() if key not in (HEAD_DROPOUT, READOUT, PROMPT)}
    readout: Any = options.get(READOUT, "mean")
    pooling = user_readout(_text("model.readout", readout, texts)) if is_own(readout) else None
    prompt = _prompt(name, cls, options[PROMPT], task) if PROMPT in options else None

    shape: list[Any] = [hops, dropout]
    if is_own(name):
        shape.append(edge_features)
    if needs_edges(name, cls) or (edge_features and name in READ_EDGES):
        _require_edges(name, edge_features, prompt is not None)
    if name in NEED_EDGES or (edge_features and name in READ_EDGES):
        cls = _import({**READ_EDGES, **NEED_EDGES}[name])
        of_edges = (kinds or Kinds()).edges or edge_features
        if name in OF_KINDS:
            _require_one_graph(name, task)
            shape.append((kinds or Kinds())._replace(edges=of_edges))
        else:
            shape.append(of_edges if name == "rgcn" else edge_features)

    def of_classes(classes: int) -> nn.Module:
        module = cls(features, classes, *shape, **of_class)
        if task == "edge":
            return PairEmbedding(module, dropout)
        if task != "graph":
            return module
        of_graphs = Readout(module, readout, dropout, pooling)
        return of_graphs if prompt is None else Prompted(prompt(features), of_graphs)

    module = of_classes(classes)
    if embedding is not None and embedding != width_of(module):
        module = Adapted(of_classes(embedding), embedding, classes, dropout)
    module.head.drops_embedding = options.get(HEAD_DROPOUT, True)  # type: ignore
    return module


def needs_edges(name: str, cls: type[nn.Module]) -> bool:
    """Whether a model reads features of edges, and no graph without any: one of ours, or a class of the user's."""
    return name in NEED_EDGES or (is_own(name) and issubclass(cls, Coupled) and cls.operator == "edges")


def _require_one_graph(name: str, task: str) -> None:
    """Raises a ShoalError if a model that takes means over all nodes would see them a few graphs at a time."""
    if name == "han" and task == "graph":
        raise ShoalError(
            "model.name",
            "han weighs meta-paths by means over all nodes of a client, and a graph task reads some graphs at a time; "
            "take hgt or rgcn",
        )


def _require_edges(name: str, edge_features: int, prompted: bool) -> None:
    """Raises a ShoalError if a model that reads features of edges cannot."""
    if not edge_features:
        other = "gin" if name == "gine" else "gcn"
        raise ShoalError("model.name", f"{name} reads features of edges, and these edges have none; take {other}")
    if prompted:
        raise ShoalError(
            f"model.{PROMPT}",
            f"{name} reads features of edges, which those of a prompt have not; set data.edge_features to drop",
        )


def _require_options(name: str, cls: type[nn.Module], options: Mapping[str, object], task: str) -> None:
    """Checks names, types and bounds of options."""
    hints = _annotations(cls)
    if name not in HEADLESS:
        hints[HEAD_DROPOUT] = bool
    for key, (plain, why) in OF_NODES.get(task, {}).items():
        if key in hints and options.get(key, plain[0]) not in plain:
            raise ShoalError(f"model.{key}", f"{why}; leave it out")
    if task == "graph":
        hints[READOUT] = str if is_own(str(options.get(READOUT))) else Pooling
    elif READOUT in options:
        a_task = "an edge" if task == "edge" else "a node"
        raise ShoalError(
            f"model.{READOUT}", f"is for graph tasks (task: graph), {a_task} task pools nothing; leave it out"
        )
    _require_values("model", name, hints, {key: value for key, value in options.items() if key != PROMPT})


def keywords(cls: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Lists keyword-only parameters by name, those of the base class included that a constructor hands on."""
    parameters = inspect.signature(cls).parameters.values()
    hands_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    inherited = keywords(cls.__base__) if hands_on else {}  # type: ignore[arg-type]
    return inherited | {
        parameter.name: parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    }


def _annotations(cls: type[nn.Module]) -> dict[str, Any]:
    return {name: parameter.annotation for name, parameter in keywords(cls).items()}


def _prompt(name: str, cls: type[nn.Module], chosen: object, task: str) -> Callable[[int], nn.Module]:
    """Makes a prompt from the width of the features, if the backbone and the task have prompts."""
    if task != "graph":
        raise ShoalError(f"model.{PROMPT}", "is for graph tasks (task: graph); leave it out")
    if name in OF_GRAPHS or not issubclass(cls, Coupled):
        raise ShoalError(
            f"model.{PROMPT}",
            f"{name} reads what was computed of features and edges before; take a model that passes "
            "messages, such as gcn",
        )
    options = dict(chosen) if isinstance(chosen, Mapping) else {"name": chosen}
    prompt = options.pop("name", None)
    if not isinstance(prompt, str) or prompt not in PROMPTS:
        raise ShoalError(f"model.{PROMPT}", f"there is no {quoted(prompt)}; name one of {', '.join(sorted(PROMPTS))}")
    made = _import(PROMPTS[prompt])
    _require_values(f"model.{PROMPT}", prompt, _annotations(made), options)
    return lambda features: made(features, **options)


def _require_values(place: str, name: str, known: Mapping[str, Any], options: Mapping[str, object]) -> None:
    """Checks options against their annotations, see `_require_options`."""
    for key, value in options.items():
        if key not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise ShoalError(f"{place}.{key}", f"{did_you_mean(key, known)}{name} has no such option; {has}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ShoalError(f"{place}.{key}", f"must be finite, found {value}")
        try:
            TypeAdapter(known[key]).validate_python(value, strict=True)
        except ValidationError as error:
            is_range = error.errors()[0]["type"].startswith(("greater", "less"))
            rule = message_of(error) if is_range else f"must be {_type_name(known[key])}"
            several = "; several values are for shoal sweep" if isinstance(value, str) and "," in value else ""
            raise ShoalError(f"{place}.{key}", f"{rule}, found {quoted(value)}{several}") from None
        most = MOST_LAYERS if key == "layers" else WIDEST
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, int | float) and number > most:
                raise ShoalError(f"{place}.{key}", f"must be at most {most}, found {quoted(number)}")


PLAIN = {int: "a whole number", float: "a number with a point, as 0.5", bool: "true or false", str: "a text"}


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(get_args(annotation))}"
    return PLAIN.get(annotation) or f"of type {inspect.formatannotation(annotation)}"


def width_of(module: nn.Module) -> int:
    """Returns the width of a backbone's embedding: what its classifier reads, if it has one."""
    return module.width if module.head is None else module.head.linears[-1].in_features  # type: ignore
