"""Small coupled backbones, by their names."""

import pytest
import torch
from torch import nn

from algorithms.backbones.building import backbone, build
from algorithms.backbones.coupled import Coupled
from algorithms.backbones.names import BACKBONES

NAMES = sorted(name for name in BACKBONES if issubclass(backbone(name), Coupled))
every_backbone = pytest.mark.parametrize("name", NAMES)
FEATURES, CLASSES, HIDDEN = 5, 4, 8


def make(name: str, seed: int = 0, **options: object) -> nn.Module:
    """A model whose parameters are drawn with a seed."""
    torch.manual_seed(seed)
    small = {"hidden": HIDDEN, **({"heads": 2} if name == "gat" else {})}
    return build(name, FEATURES, CLASSES, 0, 0.5, {**small, **options})
