"""Words for what is wrong in a config: unknown keys with what was meant, and values that belong to a key inside."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from shoal.algorithms.methods.registry.names import METHODS, TO_COMPARE
from shoal.algorithms.models.names import BACKBONES, OF_GRAPHS
from shoal.storage.options.dataset_names import DATASETS
from shoal.storage.options.types import Named, key_of, message_of, quoted
from shoal.storage.suggestions import did_you_mean, did_you_mean_at, keys_named, suggest

# Keys by the names that papers, other libraries and other commands have for them.
OTHER_NAMES = {
    **dict.fromkeys(("learning_rate", "local_lr", "client_lr", "step_size"), "train.lr"),
    **dict.fromkeys(("local_epochs", "num_epochs", "local_steps"), "train.epochs"),
    **dict.fromkeys(("batch", "batchsize", "local_batch_size"), "train.batch_size"),
    **dict.fromkeys(("wd", "l2"), "train.weight_decay"),
    **dict.fromkeys(("clients", "num_clients", "n_clients", "client_num", "clients_num"), "partition.clients"),
    **dict.fromkeys(("partitioner", "partition_method"), "partition.method"),
    **dict.fromkeys(("dirichlet_alpha", "noniid", "non_iid", "iid", "skew"), "partition.alpha"),
    **dict.fromkeys(
        ("fraction", "frac", "participation_rate", "client_fraction", "sample_rate", "join_ratio", "client_frac"),
        "participation.ratio",
    ),
    **dict.fromkeys(
        ("clients_per_round", "cohort", "cohort_size", "participation.clients", "participation.number"),
        "participation.count",
    ),
    **dict.fromkeys(("num_rounds", "n_rounds", "global_rounds", "comm_rounds", "communication_rounds"), "rounds"),
    **dict.fromkeys(("method", "fl_algorithm", "strategy", "aggregator"), "algorithm"),
    **dict.fromkeys(("seeds", "random_seed"), "seed"),
    **dict.fromkeys(("hidden", "hidden_dim", "hidden_size", "hidden_channels"), "model.hidden"),
    **dict.fromkeys(("layers", "num_layers", "n_layers"), "model.layers"),
    **dict.fromkeys(("backbone", "gnn", "net", "arch"), "model"),
    **dict.fromkeys(("gpu", "gpus", "cuda"), "engine.device"),
    **dict.fromkeys(("num_hosts", "workers", "num_workers", "num_cpus", "cpus", "cores"), "engine.hosts"),
    **dict.fromkeys(("eval_every", "eval_interval", "interval"), "evaluation.every"),
    **dict.fromkeys(("out", "output", "output_dir", "save_dir", "log_dir", "logdir", "dir"), "run.root"),
    **dict.fromkeys(("wandb", "mlflow", "logger"), "callbacks"),
}
# An override with spaces around its sign, as a file might have it.
SPACED = re.compile(r"([\w.]+) *= *(\S.*)")
# Several numbers as other tools write them.
RANGE = re.compile(r"\d+(\.\.|:|-)\d+")
# A file needs these keys, which have no defaults.
EXAMPLES = {
    "name": "name: mine",
    "data": "data: {dataset: cora}",
    "data.dataset": "data: {dataset: cora}",
    "algorithm": f"algorithm: {TO_COMPARE[-1]}",
}


def fault_in_words(error: ValidationError, config: type[BaseModel], typed: bool) -> str:
    """Says what is wrong with the first wrong key of a config, and the way out.

    Args:
        typed: Whether the key was given to a command, where the way out is `key.sub=value`, and not in a file.
    """
    first = error.errors()[0]
    location, value, key = first["loc"], first.get("input"), key_of(first["loc"])
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        names = _names_beside(location, config)
        several = "several are for shoal sweep; " if typed and OTHER_NAMES.get(key) == "seed" else ""
        return f"{suggest_key(key, names, config)}{several}unknown key; known here: {', '.join(names)}"
    if first["type"] == "missing":
        return f"missing; write {EXAMPLES[key]}" if key in EXAMPLES else "missing"
    if first["type"] == "dataclass_type":
        way_out = _way_out(key, value, _class_at(location, config), typed)
        return f"{way_out}; expected keys of its own, found {quoted(value)}"
    words = re.findall(r"'([^']+)'", first.get("ctx", {}).get("expected", ""))
    hint = did_you_mean(value, words) if isinstance(value, str) else ""
    several = "; several values are for shoal sweep, and decimals have a point"
    if typed and first["type"] in ("list_type", "tuple_type"):
        # A word stands for a mapping with a name by now.
        several = f"; write {key}=[{value.get('name', '…') if isinstance(value, dict) else value}]"
    elif typed and isinstance(value, list):
        several = "; several values are for shoal sweep, with commas and without brackets"
    elif typed and isinstance(value, str) and RANGE.fullmatch(value):
        several = f"; several values are for shoal sweep, as in {key}=0,1,2"
    elif not (typed and isinstance(value, str) and "," in value):
        several = ""
    return f"{hint}{message_of(error)}, found {quoted(value)}{several}"


def suggest_key(wrong: str, beside: Collection[str], config: type[BaseModel]) -> str:
    """Suggests keys for one that is wrong, or in a wrong place; an empty text where none is alike.

    Args:
        beside: The known keys at that place.
    """
    section, _, last = wrong.rpartition(".")
    other = OTHER_NAMES.get(wrong.lower()) or OTHER_NAMES.get(last.lower(), "")
    if other and (not section or other.startswith(f"{section}.")):
        return suggest([other])
    if section and last in config.model_fields:
        return suggest([last])
    return did_you_mean_at(last, _dotted(config)) or did_you_mean(last, beside) or suggest([other] if other else [])


def override_meant(word: str, value: str, config: type[BaseModel]) -> str:
    """Returns the override that a word of a command, and the value behind it, may stand for: `train.lr=0.1` for `lr`.

    A word may be a key, with or without its section, by another name, or a name of a method, model or dataset. The
    text is empty where none is alike.
    """
    if (spaced := SPACED.fullmatch(word)) is not None:
        return f"{spaced[1]}={spaced[2]}"
    word = word.lstrip("-").replace("-", "_").rstrip(":")
    keys = [*config.model_fields, *_dotted(config)]
    if word in keys:
        return f"{word}={value}"
    for key, names in (("algorithm", METHODS), ("model", (*BACKBONES, *OF_GRAPHS)), ("data.dataset", DATASETS)):
        if word.lower() in names:
            return f"{key}={word.lower()}"
    last = word.rpartition(".")[2].lower()
    meant = OTHER_NAMES.get(last) or next(iter(keys_named(last, keys)), "")
    return f"{meant}={value}" if meant else ""


def _dotted(config: type[BaseModel]) -> Iterator[str]:
    """Yields the keys of sections."""
    for name, field in config.model_fields.items():
        if is_dataclass(field.annotation):
            yield from (f"{name}.{option.name}" for option in fields(field.annotation))


def _class_at(location: Sequence[str | int], config: type[BaseModel]) -> Any:
    """Returns the class of the options of a section, by the location of an error."""
    section: Any = config.model_fields[str(location[0])].annotation
    for inner in location[1:]:
        section = next(option.type for option in fields(section) if option.name == inner)
        # The origin of an annotated type is the class, without what is done to a value before it is checked.
        section = getattr(section, "__origin__", section)
    return section


def _names_beside(location: Sequence[str | int], config: type[BaseModel]) -> list[str]:
    """Lists the known keys at the place of a wrong one: of the config, of a section, or of one inside a section."""
    if len(location) == 1:
        return list(config.model_fields)
    return [option.name for option in fields(_class_at(location[:-1], config))]


def _way_out(key: str, value: Any, section: Any, typed: bool) -> str:
    """Says how to give a section the value that stands in its place: that of its first key that takes it."""
    names = [option.name for option in fields(section)]
    inner = next(_takers(section, value), None)
    if inner is None:
        return f"give {', '.join(f'{key}.{name}' for name in names[:3])} or another of its keys"
    text = value if isinstance(value, str) else json.dumps(value)
    if typed:
        return f"write {key}.{inner}={text}"
    above, _, last = key.rpartition(".")
    return f"write {last}: {{{inner}: {text}}}" + (f" in {above}" if above else "")


def _takers(section: Any, value: Any) -> Iterator[str]:
    """Yields the keys of a section that take a value, in their order; nothing takes an empty value."""
    hints: Mapping[str, Any] = get_type_hints(section, include_extras=True)
    for option in fields(section) if value is not None else ():
        hint = hints[option.name]
        if is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, Named)):
            continue
        if isinstance(value, str) and option.default is None:
            # The name of a file, which is no short form of a section.
            continue
        try:
            TypeAdapter(hint).validate_python(value, strict=not isinstance(value, list | tuple))
        except (ValidationError, PydanticSchemaGenerationError):
            continue
        yield option.name
