"""Small coupled backbones, by their names."""

import pytest
import torch
from torch import nn

from shoal.algorithms.models.build import backbone, build
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.names import BACKBONES, NEED_EDGES

NAMES = sorted(name for name in BACKBONES if issubclass(backbone(name), Coupled))
every_backbone = pytest.mark.parametrize("name", NAMES)
FEATURES, CLASSES, HIDDEN = 5, 4, 8


def make(name: str, seed: int = 0, **options: object) -> nn.Module:
    """A model whose parameters are drawn with a seed."""
    torch.manual_seed(seed)
    small = {"hidden": HIDDEN, **({"heads": 2} if name == "gat" else {})}
    return build(name, FEATURES, CLASSES, 0, 0.5, {**small, **options}, edge_features=edge_features(name))


def edge_features(name: str) -> int:
    """Features of edges for a model that needs some: as many as graphs without any stand for."""
    return 3 if name in NEED_EDGES else 0
