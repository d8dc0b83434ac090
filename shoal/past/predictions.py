"""Predictions of a finished run of the validation and test items of all clients, put together."""

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.engine.config.sizes import machine_memory, size
from shoal.engine.runs.export import Reopened, visits_of
from shoal.engine.scores.counts import PARTS, class_label, scores_in_form
from shoal.engine.screen.progress import progress
from shoal.storage.errors import ShoalError


class Predictions(NamedTuple):
    """Scores float32 `[N, C]` and labels `[N]`, or targets `[N, C]`, of one part, in the order of clients; and how many
    clients have any.
    """

    scores_NC: Tensor
    label: Tensor
    clients: int


def predict_parts(opened: Reopened) -> dict[str, dict[str, Predictions]]:
    """Returns the predictions of all clients by scope and part; parts without items are left out.

    Raises ShoalError: they do not fit in `engine.memory_limit`.
    """
    require_room(opened)
    gathered: dict[str, dict[str, list[tuple[Tensor, Tensor]]]] = {}
    with progress("scores", opened.store.clients, "clients") as step:
        for client in range(opened.store.clients):
            for scope, visit in visits_of(opened.host, opened.state, client, opened.global_model):
                scored = visit.scored
                for part in PARTS:
                    if count := len(getattr(scored.data, part)):
                        scores = scores_in_form(opened.algorithm, scored, visit.received, part, count)
                        label = class_label(scored.data, part)
                        parts = gathered.setdefault(scope, {}).setdefault(part, [])
                        parts.append((scores.detach().float().cpu(), label.cpu()))
            step.advance()
    return {
        scope: {
            part: Predictions(torch.cat([s for s, _ in pairs]), torch.cat([y for _, y in pairs]), len(pairs))
            for part, pairs in of_parts.items()
        }
        for scope, of_parts in gathered.items()
    }


def require_room(opened: Reopened) -> None:
    """Refuses to hold the scores of all items where these, in float32 twice and once in float64, take too much."""
    manifest, scopes = opened.store.manifest, 2 if opened.global_model else 1
    items = int(manifest.splits[opened.job.split].counts[:, 1:].sum())
    needed, limit = items * manifest.classes * (8 * scopes + 16), opened.job.compute.memory_limit or machine_memory()
    if needed > limit:
        raise ShoalError(
            "engine.memory_limit",
            f"scores of {items:,} items take {size(needed)}, and there are {size(limit)}; read on a larger machine",
        )
