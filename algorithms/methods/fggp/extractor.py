"""A model without its classifier: what clients of FGGP share of it."""

import torch
from torch import Tensor

from algorithms.flat_model import FlatModel


def extractor_of(flat: FlatModel) -> Tensor:
    """All parameters but those of the classifier, in their order, `[P_f]`."""
    w, head = flat.w.detach(), flat.classifier
    return torch.cat([w[: head.start], w[head.stop :]])


def classifier_of(flat: FlatModel) -> Tensor:
    """A copy of the parameters of the classifier, `[C H + C]`."""
    return flat.w.detach()[flat.classifier].clone()


def together(flat: FlatModel, extractor: Tensor, classifier: Tensor) -> Tensor:
    """The parameters `[P]` of a model of this kind, from what the two above give."""
    start = flat.classifier.start
    return torch.cat([extractor[:start], classifier, extractor[start:]])
