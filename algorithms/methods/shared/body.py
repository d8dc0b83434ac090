"""A model taken apart at its classifier, for methods that average only the body or only the classifier."""

import torch
from torch import Tensor

from shoal.algorithms.client import FlatModel


def body_of(flat: FlatModel, w: Tensor | None = None) -> Tensor:
    """Copies all parameters but the classifier's, in their order, `[P - P_h]`; the model's own, or others `w`."""
    w, head = flat.w.detach() if w is None else w, flat.classifier
    return torch.cat([w[: head.start], w[head.stop :]])


def classifier_of(flat: FlatModel) -> Tensor:
    """Copies the parameters of the classifier, `[C H + C]`."""
    return flat.w.detach()[flat.classifier].clone()


def join_body(flat: FlatModel, body: Tensor, classifier: Tensor) -> Tensor:
    """Joins the parameters `[P]` of a model of this kind, from what the two functions above give."""
    start = flat.classifier.start
    return torch.cat([body[:start], classifier, body[start:]])


def as_layer(classifier: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Splits classifiers as they are sent, `[…, C H + C]`, into weight `[…, C, H]` and bias `[…, C]`; views."""
    weight, bias = classifier[..., :-classes], classifier[..., -classes:]
    return weight.unflatten(-1, (classes, -1)), bias
