"""Files of pre-trained parameters (`model.pretrained`): written by one command, read by the driver, sent with the job.

A file holds the parameters of a backbone by their names in the backbone itself, whatever it is wrapped in, so that one
file fits nodes, pairs and graphs. It has those of the GNN, and need not have those of the classifier.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.names import ModelSpec
from shoal.algorithms.protocol import Tree
from shoal.engine.config.sizes import size
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import output, replacing
from shoal.storage.files.reading import open_plain

# The name of a classifier's parameter begins so.
CLASSIFIER = "head."
# The one entry of the metadata: several would be written in any order, and the same file would have many contents.
METADATA = "shoal"
# Reading a damaged file may raise these.
DAMAGED = (SafetensorError, ValueError, KeyError, TypeError, RuntimeError)
WAY_OUT = "take a file that `shoal pretrain` makes with this config's data and model, or leave the key out"


def gnn_parameters(backbone: nn.Module) -> dict[str, nn.Parameter]:
    """Copies the parameters of a backbone by name, without those of its classifier."""
    return {name: p for name, p in backbone.named_parameters() if not name.startswith(CLASSIFIER)}


def write_pretrained(path: Path, backbone: nn.Module, described: Mapping[str, Any]) -> None:
    """Writes the parameters of a backbone's GNN as safetensors; the same ones and the same words are the same bytes.

    `described` says in plain values what the backbone is and how it was made. The file is replaced as a whole.
    """
    tensors = {name: p.detach().cpu().contiguous() for name, p in gnn_parameters(backbone).items()}
    content = save(tensors, {METADATA: json.dumps(described)})
    with replacing(output(path)) as unfinished:
        unfinished.write_bytes(content)


def read_pretrained(models: Sequence[ModelSpec], most_bytes: int) -> dict[str, bytes]:
    """Reads the contents of the files that models start from, by path.

    Raises:
        ShoalError: A file is missing, larger than `most_bytes`, or cannot be read.
    """
    contents = {}
    for path in {spec.pretrained for spec in models if spec.pretrained is not None}:
        try:
            with open_plain(path) as file:
                # Memory for all that is asked for would be taken before anything is read.
                nbytes = os.fstat(file.fileno()).st_size
                contents[path] = file.read(nbytes) if nbytes <= most_bytes else b""
        except OSError as error:
            raise ShoalError("model.pretrained", path, f"cannot be read: {error.strerror}") from error
        if nbytes > most_bytes:
            raise ShoalError("model.pretrained", path, f"is larger than engine.memory_limit, {size(most_bytes)}")
    return contents


def require_fitting_files(models: Iterable[tuple[ModelSpec, FlatModel]], contents: Mapping[str, bytes]) -> None:
    """Refuses files (as `read_pretrained` gives them) that are not for the models that are to start from them.

    Raises:
        ShoalError: A file is damaged, or has other tensors than the model, or numbers that are not finite.
    """
    for spec, flat in models:
        if spec.pretrained is not None:
            _require_fitting(spec, flat.backbone, contents[spec.pretrained])


def start_from(flat: FlatModel, content: bytes) -> Tensor:
    """Replaces parameters of a model, which keeps them, by those of a file; returns all of them, `[P]`."""
    parameters = dict(flat.backbone.named_parameters())
    with torch.no_grad():
        for name, tensor in load(content).items():
            parameters[name].copy_(tensor)
    return flat.w.detach().clone()


def _require_fitting(spec: ModelSpec, backbone: nn.Module, content: bytes) -> None:
    where = f"model.pretrained: {spec.pretrained}"
    given = _tensors(content, where)
    expected = dict(backbone.named_parameters())
    for name, tensor in given.items():
        if name not in expected:
            raise ShoalError(where, f"has {name}, which this model, {spec.name}, has not; {WAY_OUT}")
        if tensor.shape != expected[name].shape:
            shapes = f"is {list(tensor.shape)}, that of this model, {spec.name}, is {list(expected[name].shape)}"
            raise ShoalError(where, f"{name} {shapes}; {WAY_OUT}")
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise ShoalError(where, f"{name} has numbers that are not finite, or no numbers; {WAY_OUT}")
    missing = [name for name in gnn_parameters(backbone) if name not in given]
    if missing or not given:
        what = missing[0] if missing else "tensors"
        raise ShoalError(where, f"has no {what}, which this model, {spec.name}, starts from; {WAY_OUT}")


def _tensors(content: bytes, where: str) -> Tree:
    try:
        return load(content)
    except DAMAGED as error:
        reason = " ".join(str(error).split())
        raise ShoalError(where, f"damaged, or no safetensors ({reason}); bring it back, or make it again") from error
