"""Which keys of a config change numbers, and the names of folders made from them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.partition.methods.options import ALPHA
from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.options.dataset_names import may_be_sparse
from shoal.storage.options.types import is_own

# `data.synthetic` has done its work when `data.dataset` names the twin.
PLACES = (
    "name",
    "data.root",
    "data.store",
    "data.overlay",
    "data.name",
    "data.synthetic",
    "ray",
    "resources",
    "run",
    "engine",
)
# Of sections whose other keys only say where and how fast.
NUMBERS_ALL_THE_SAME = (
    "engine.cell_size",
    "engine.device",
    "engine.trainer",
    "engine.precision",
    "engine.threads",
    "resources.server_gpus",
)
# Callbacks that only write down what a run comes to; others may end it.
LOGGERS = ("csv", "mlflow", "tensorboard", "wandb")
# Raised with every change of Shoal that moves the last bits of runs: runs of before keep their names.
ARITHMETIC = 8
# Keys that came later: at their default they are no part of a name, so that older runs keep theirs.
LATER: dict[str, Any] = {
    "resources.server_gpus": 0.0,
    "partition.domains": None,
    "partition.chunks": None,
    "evaluation.domains": True,
    "evaluation.metric": "accuracy",
    "partition.alpha": ALPHA,
    "partition.options": {},
    "task": "node",
    "model.pretrained": None,
    "data.sparsity.features": 0.0,
    "data.sparsity.edges": 0.0,
    "data.sparsity.labels": 0.0,
    "data.sparsity.seed": 0,
    "data.inductive": False,
    "data.edge_weights": "keep",
    "train.schedule": None,
    "data.features.kind": "given",
    "data.features.width": MadeFeatures.width,
    "data.features.seed": MadeFeatures.seed,
}


def changes_numbers(key: str) -> bool:
    """Whether a dotted key may change any number of a run; others may differ on resume."""
    return key in NUMBERS_ALL_THE_SAME or not any(key == place or key.startswith(place + ".") for place in PLACES)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def identity_keys(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys of a resolved config that change numbers."""
    values = {key: value for key, value in flatten(plain).items() if changes_numbers(key)}
    if values.get("data.layout") == "dense" or not may_be_sparse(values.get("data.dataset"), values.get("data.path")):
        # All features were dense once, and runs on such keep their names.
        values.pop("data.layout", None)
    if isinstance(values.get("model"), list | tuple):
        # A key that came later, too, and of which the content counts (`shoal.engine.records.inputs`).
        values["model"] = [
            {key: _without_place(value) for key, value in model.items() if key != "pretrained"}
            for model in values["model"]
        ]
    for number, callback in enumerate(steering(values.pop("callbacks", ()))):
        values |= flatten(callback, f"callbacks.{number}.")
    return {key: value for key, value in values.items() if key not in LATER or value != LATER[key]}


def steering(callbacks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The callbacks of a resolved config that may end a run: all but those that only write."""
    return [callback for callback in callbacks if callback.get("name") not in LOGGERS]


def _without_place(value: Any) -> Any:
    """A name of the user's own code without its file, of which the content counts."""
    return value.rpartition(":")[2] if isinstance(value, str) and is_own(value) else value


def fingerprint_of(values: Mapping[str, Any]) -> str:
    """8 hexadecimal digits over plain values; part of the name of a store or run folder."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
