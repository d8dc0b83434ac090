"""Predictions of many clients counted at once: a device is told once, and waited for when all else is fetched.

Axes: J pieces, a piece being one part of one client; S items of all pieces, one piece behind the other; C classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Received
from shoal.algorithms.client import Client
from shoal.engine.rounds.scoring import KINDS, PARTS, class_label, require_winner, scores_in_form

# Beside the kinds of `scoring`: items whose largest score is not finite, of which nobody knows the class.
LOST = KINDS


class Predicted(NamedTuple):
    """Predictions of one part of a client, on its device.

    Attributes:
        label_N: Labels, int64.
        class_N: Predicted classes, int64.
        best_N: The scores of these.
    """

    label_N: Tensor
    class_N: Tensor
    best_N: Tensor


def predicted(algorithm: Algorithm, client: Client, received: Received) -> list[Predicted]:
    """Predictions of the parts that are scored, not yet known to be finite.

    Raises:
        ShoalError: The method's code failed, or gave scores of another shape.
    """
    found = []
    for part in PARTS:
        label_N = class_label(client.data, part)
        scores_NC = label_N.new_empty(0, client.info.classes, dtype=torch.float32)
        if len(label_N):
            scores_NC = scores_in_form(algorithm, client, received, part, len(label_N)).detach()
        found.append(Predicted(label_N, scores_NC.argmax(1), scores_NC.amax(1)))
    return found


def batched_counts(pieces: Sequence[Predicted], classes: int) -> Tensor:
    """Counts of every piece, int64 `[J, 4, C]`: those of `scoring`, and in one place how many are `LOST`."""
    label_S, class_S, best_S = (torch.cat(parts) for parts in zip(*pieces))
    piece_J = torch.arange(len(pieces), device=label_S.device)
    piece_S = torch.cat([piece_J[j : j + 1].expand(len(piece.label_N)) for j, piece in enumerate(pieces)])
    first_S = piece_S * ((LOST + 1) * classes)
    places = [first_S + label_S, first_S + classes + class_S, first_S + 2 * classes + label_S]
    places.append(first_S + LOST * classes)
    ones_S = torch.ones_like(label_S)
    found = [ones_S, ones_S, (label_S == class_S).long(), (~best_S.isfinite()).long()]
    counts = label_S.new_zeros(len(pieces) * (LOST + 1) * classes)
    return counts.index_add_(0, torch.cat(places), torch.cat(found)).view(len(pieces), LOST + 1, classes)


def without_lost(counts_PKC: np.ndarray) -> np.ndarray:
    """Counts of a client's parts, int64 `[parts, 3, C]`.

    Raises:
        ShoalError: A row's largest score was not finite.
    """
    for part, lost in zip(PARTS, counts_PKC[:, LOST, 0]):
        require_winner(part, not lost)
    return counts_PKC[:, :KINDS]
