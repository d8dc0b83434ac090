"""The clients of a cell scored at once on a device; those that one model answers for also by one pass of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client
from shoal.algorithms.models.build import name_of
from shoal.algorithms.training.batched.batched_inputs import batched_inputs, numbers_of_row, padded
from shoal.algorithms.training.batched.batched_model import evaluated, outputs
from shoal.algorithms.training.batched.size_groups import size_groups
from shoal.engine.hosts.batched_counts import Predicted, batched_counts
from shoal.engine.rounds.scoring import PARTS, class_label
from shoal.storage.graph.sparse_matrix import SparseMatrix

# Of hops that a pass reads, in float32: 256 MB.
NUMBERS_OF_A_PASS = 2**26


@dataclass(frozen=True)
class Held:
    """A client that waits for a pass.

    Attributes:
        client: On the data that it is scored on.
        w: Its parameters, `[P]`, which nobody changes any more.
    """

    client: Client
    w: Tensor


# Predictions of the parts, or what is needed for them.
Scored = Sequence[Predicted] | Held


def may_wait(algorithm: Algorithm, client: Client) -> bool:
    """Whether a client's predictions are what its one model makes of rows of dense hops, or of a graph that may lie
    beside others, and nothing else.
    """
    plain, model = type(algorithm).predict is Algorithm.predict, client.model
    if not plain or model.items is not None or model.pattern.prompted or name_of(model.pattern.module) is None:
        return False
    if model.coupled is not None:
        return model.coupled.stacks and not model.answered
    return not any(isinstance(client.data.hop(k), SparseMatrix) for k in model.pattern.inputs)


def counts_of(scored: Sequence[Scored], classes: int) -> list[Tensor]:
    """Counts of every client, int64 `[parts, 4, C]`; see `batched_counts`."""
    held = [one for one in scored if isinstance(one, Held)]
    if held and held[0].client.model.coupled is not None:
        found = iter(_predicted_on_graphs(held))
    else:
        found = iter(list(zip(*(_predicted(held, part) for part in PARTS))))
    pieces = [piece for one in scored for piece in (next(found) if isinstance(one, Held) else one)]
    return list(batched_counts(pieces, classes).unflatten(0, (len(scored), len(PARTS))))


def _predicted(held: Sequence[Held], part: str) -> list[Predicted]:
    """Predictions of a part of clients of one model."""
    found: list[Predicted] = []
    for group in _groups(held, part):
        labels = [class_label(one.client.data, part) for one in group]
        model = group[0].client.model.pattern
        hops = [padded(list(rows), 0) for rows in zip(*(one.client.model.gathered(part) for one in group))]
        logits_BNC = evaluated(model, torch.stack([one.w for one in group]), hops)
        class_BN, best_BN = logits_BNC.argmax(2), logits_BNC.amax(2)
        found += [Predicted(y, c[: len(y)], best[: len(y)]) for y, c, best in zip(labels, class_BN, best_BN)]
    return found


def _predicted_on_graphs(held: Sequence[Held]) -> list[tuple[Predicted, ...]]:
    """Predictions of every part of clients of one model that passes messages: one pass for all parts."""
    model = held[0].client.model
    gathered = [one.client.model.gathered("all") for one in held]
    rows, numbers = zip(*(numbers_of_row(inputs, model.coupled) for inputs in gathered))
    found: dict[int, tuple[Predicted, ...]] = {}
    for places in size_groups(rows, 4 * numbers[0], 4 * len(held[0].w), 4 * NUMBERS_OF_A_PASS):
        group = [held[i] for i in places]
        inputs = batched_inputs([gathered[i] for i in places])
        logits_BNC = outputs(model.pattern, torch.stack([one.w for one in group]), inputs).logits_NC.float()
        class_BN, best_BN = logits_BNC.argmax(2), logits_BNC.amax(2)
        of_parts = [_chosen(group, part, class_BN, best_BN) for part in PARTS]
        found |= zip(places, zip(*of_parts))
    return [found[i] for i in range(len(held))]


def _chosen(group: Sequence[Held], part: str, class_BN: Tensor, best_BN: Tensor) -> list[Predicted]:
    """Of predictions for all nodes those of a part."""
    labels = [class_label(one.client.data, part) for one in group]
    row_BT = padded([getattr(one.client.data, part) for one in group], 0)
    class_BT, best_BT = class_BN.gather(1, row_BT), best_BN.gather(1, row_BT)
    return [Predicted(y, c[: len(y)], best[: len(y)]) for y, c, best in zip(labels, class_BT, best_BT)]


def _groups(held: Sequence[Held], part: str) -> Iterator[list[Held]]:
    """Neighbouring clients, as many as a pass may have."""
    group: list[Held] = []
    most = 0
    for one in held:
        data, hops = one.client.data, len(one.client.model.pattern.inputs)
        rows = len(getattr(data, part))
        if group and (len(group) + 1) * max(most, rows) * data.features * hops > NUMBERS_OF_A_PASS:
            yield group
            group, most = [], 0
        group.append(one)
        most = max(most, rows)
    if group:
        yield group
