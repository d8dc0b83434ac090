"""The identity of a run: the keys that change its numbers, and the name of its folder."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.models.names import BACKBONES
from shoal.engine.config.config import usual
from shoal.engine.config.round_sections import OTHERS, DeviceOptions
from shoal.storage.options.types import is_own

# It is raised with every change of a default or of an arithmetic: earlier runs then have other names.
NUMBERS = 13
# It is raised where a partitioner divides a graph otherwise than before: earlier stores, and runs on them, then have
# other names. Partitioners that are not here are what they always were.
PARTITIONS = {"semi-external": 2}
# These keys, and sections of such, say where and how fast, or what is not refused. The name of the dataset has
# `data.synthetic`.
NEUTRAL = (
    *("name", "data.root", "data.store", "data.overlay", "data.name", "data.synthetic", "data.allow_untrained"),
    *("data.cache", "data.cache_limit", "propagation.keep"),
    *("ray", "resources", "run", "engine"),
)
# Keys of these sections that change numbers.
BUT_THESE = (
    *("engine.cell_size", "engine.device", "engine.trainer", "engine.precision", "engine.threads"),
    "resources.server_gpus",
)
# Keys of devices, by their names in the section; and what schedules in simulated time read without them.
DEVICES = {f"devices.{field.name}": field.name for field in fields(DeviceOptions)}
STANDARD = DeviceOptions().in_steps
# These callbacks only record a run; others may end it.
LOGGERS = ("csv", "mlflow", "tensorboard", "wandb")


@lru_cache(maxsize=4096)
def changes_numbers(key: str) -> bool:
    """Returns whether a dotted key may change any number of a run; others may differ on resume."""
    return key in BUT_THESE or not any(key == place or key.startswith(place + ".") for place in NEUTRAL)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        # Most values are plain, and asking for their class is faster than for an abstract one.
        if value and (type(value) is dict or isinstance(value, Mapping)):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


@lru_cache(maxsize=1)
def defaults() -> Mapping[str, Any]:
    """Lists the default of every dotted key that changes numbers and has one."""
    return {
        key: v for key, v in identity_keys(usual().plain()).items() if key not in ("data.dataset", "algorithm.name")
    }


def identity_keys(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Lists the dotted keys of a resolved config that change numbers, with their values."""
    values = {key: value for key, value in flatten(plain).items() if changes_numbers(key)}
    if isinstance(values.get("model"), list | tuple):
        # Files of parameters count by their content (`shoal.engine.records.inputs`), and `frozen` came after lists.
        values["model"] = [
            {
                key: _without_place(v)
                for key, v in model.items()
                if key != "pretrained" and (key, v) != ("frozen", False)
            }
            for model in values["model"]
        ]
    metrics = values.get("evaluation.metrics", ())
    if len(metrics) == 1 and not is_own(metrics[0]):
        # Runs by one metric have the names that they had when there could only be one.
        values["evaluation.metric"] = values.pop("evaluation.metrics")[0]
    if values.get("schedule.name") in OTHERS:
        values |= {key: getattr(STANDARD, name) for key, name in DEVICES.items() if values.get(key) is None}
    # Files of the user's that entries of these lists name count by their content (`shoal.engine.records.inputs`).
    lists = {"stages": values.pop("stages", ()), "callbacks": steering(values.pop("callbacks", ()))}
    for key, entries in lists.items():
        for number, entry in enumerate(entries):
            values |= flatten(entry, f"{key}.{number}.")
    return values


def name_digits(plain: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Computes 8 hexadecimal digits of a run, of its `named_keys`."""
    return fingerprint_of(named_keys(plain, inputs))


def named_keys(plain: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    """Lists what names a run: keys that differ from their defaults, inputs, and `NUMBERS`.

    A key that comes new, and stays at its default, changes no name.

    Args:
        inputs: Digests of the files that keys name, which replace the values of these keys.
    """
    usual = {**defaults(), **option_defaults(plain["algorithm"]["name"], plain["model"])}
    values, section = identity_keys(plain), "participation"
    if values.get("schedule.name") in OTHERS:
        section, usual = "schedule", usual | {key: getattr(STANDARD, name) for key, name in DEVICES.items()}
    changed = {**{key: v for key, v in values.items() if key not in usual or v != usual[key]}, **inputs}
    # Runs have the names that they had when each section had keys of devices.
    before = {key: f"{section}.{'devices' if name == 'kind' else name}" for key, name in DEVICES.items()}
    named = {before.get(key, key): v for key, v in changed.items()} | {"numbers": NUMBERS}
    if (version := PARTITIONS.get(str(values.get("partition.method")))) is not None:
        named["partition.version"] = version
    return named


def of_seed(named: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Returns the `named_keys` of a run whose config differs in its seed alone."""
    others = {key: value for key, value in named.items() if key != "seed"}
    return others if seed == defaults()["seed"] else {**others, "seed": seed}


def option_defaults(method: str, model: Any) -> dict[str, Any]:
    """Lists defaults of the options of a method and of one model, by dotted key; none of users' own classes."""
    of_method = _defaults_of_method(method) if method in METHODS else {}
    name = model["name"] if isinstance(model, Mapping) else None
    return {**of_method, **(_defaults_of_model(name) if name in BACKBONES else {})}


@lru_cache
def _defaults_of_method(name: str) -> Mapping[str, Any]:
    # It loads torch, without which a wrong name is refused; so do models.
    from shoal.algorithms.methods.registry.load import describe, load

    cls: Any = type(load(describe(name, {})))
    return {f"algorithm.{field.name}": field.default for field in fields(cls)}


@lru_cache
def _defaults_of_model(name: str) -> Mapping[str, Any]:
    from shoal.algorithms.models.build import backbone, keywords

    return {f"model.{key}": option.default for key, option in keywords(backbone(name)).items()}


def steering(callbacks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Lists the callbacks of a resolved config that may end a run: all but the loggers."""
    return [callback for callback in callbacks if callback.get("name") not in LOGGERS]


def _without_place(value: Any) -> Any:
    """Strips the file from a name of user code, since its content counts."""
    return value.rpartition(":")[2] if isinstance(value, str) and is_own(value) else value


def fingerprint_of(values: Mapping[str, Any]) -> str:
    """Computes 8 hexadecimal digits over plain values; part of the name of a store or run folder."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
