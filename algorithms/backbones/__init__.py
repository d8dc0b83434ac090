"""Models, one file each, all mapping some nodes to logits and an embedding.

A decoupled backbone reads rows of the hops, a coupled one features and the matrices of a neighbourhood.
"""

import inspect
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError
from torch import nn

from algorithms.backbones.adapted import Adapted
from algorithms.backbones.gamlp import GAMLP
from algorithms.backbones.gat import GAT
from algorithms.backbones.gcn import GCN
from algorithms.backbones.gcnii import GCNII
from algorithms.backbones.gin import GIN
from algorithms.backbones.mlp import MLP
from algorithms.backbones.output import Output
from algorithms.backbones.sage import GraphSAGE
from algorithms.backbones.sgc import SGC
from storage.errors import ShoalError

__all__ = ["BACKBONES", "Output", "build", "width_of"]

BACKBONES: dict[str, type[nn.Module]] = {
    "gamlp": GAMLP,
    "gat": GAT,
    "gcn": GCN,
    "gcnii": GCNII,
    "gin": GIN,
    "mlp": MLP,
    "sage": GraphSAGE,
    "sgc": SGC,
}


def build(
    name: str,
    features: int,
    classes: int,
    hops: int,
    dropout: float,
    options: Mapping[str, object],
    embedding: int | None = None,
) -> nn.Module:
    """Makes a backbone; its parameters are drawn from torch's default generator.

    Args:
        name: Key of `BACKBONES` (`model.name` in a config).
        features: Width F of a hop.
        classes: Number of classes C.
        hops: Hops K that exist beyond the features (`propagation.hops`).
        dropout: Probability that a hidden activation is dropped in training (`train.dropout`).
        options: The backbone's keyword-only parameters (the other keys of `model`).
        embedding: Width of the embedding; a backbone of another width is adapted. None: the backbone's own.

    Raises:
        ShoalError: The name or an option does not exist, or a value has the wrong type or is out of range.
    """
    if name not in BACKBONES:
        raise ShoalError(f"model.name: there is no {name!r}; choose one of {', '.join(sorted(BACKBONES))}")
    if hops < 0:
        raise ShoalError(f"propagation.hops: must be at least 0, found {hops}")
    backbone = BACKBONES[name]
    known = {
        key: parameter.annotation
        for key, parameter in inspect.signature(backbone).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for key, value in options.items():
        if key not in known:
            raise ShoalError(f"model.{key}: {name} has no such option; it has {', '.join(sorted(known))}")
        try:
            TypeAdapter(known[key]).validate_python(value, strict=True)
        except ValidationError:
            kind = inspect.formatannotation(known[key])
            raise ShoalError(f"model.{key}: must be of type {kind}, found {value!r}") from None
    module = backbone(features, classes, hops, dropout, **options)
    if embedding is None or embedding == width_of(module):
        return module
    return Adapted(backbone(features, embedding, hops, dropout, **options), embedding, classes, dropout)


def width_of(module: nn.Module) -> int:
    """Width of a backbone's embedding: what its classifier reads."""
    return module.head.linears[-1].in_features  # type: ignore
