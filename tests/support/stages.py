"""Where a stage finds uploads and phases, for stages that are tried alone."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.algorithms.protocol import COMPRESSION, Ask, Tree, Upload
from shoal.algorithms.rng import key
from shoal.engine.messages.cell import Cell
from shoal.engine.rounds.stage import AtClient, Phase, Stage


def draw_for(purpose: str) -> torch.Generator:
    """Returns a stream for a purpose, of client 0 in every round."""
    return torch.Generator().manual_seed(key(0, purpose))


def pass_through(
    stage: Stage,
    upload: Upload,
    cell: Cell,
    received: Tree | None = None,
    state: Tree | None = None,
    rng: Callable[[str], torch.Generator] = draw_for,
) -> tuple[Upload, Tree]:
    """Returns the upload of client 0 after a stage, and what is kept with the client; takes that out of its state."""
    state = {} if state is None else state
    kept = {name: state.pop(name) for name in list(state) if name.startswith(COMPRESSION)}
    at = AtClient(0, cell, received or {}, kept, {}, rng, lambda purpose: key(0, purpose))
    return stage.at_client(upload, at), at.kept


def phase_of(ask: Ask, cohort: Sequence[int] = (), ids: Sequence[int] | None = None, **more: Any) -> Phase:
    """Returns the first phase of round 1."""
    fields: dict[str, Any] = {"lost": frozenset(), "number": 1, "first": True, "kept": {}, "columns": {}}
    return Phase(ask, 1, cohort, cohort if ids is None else ids, **{**fields, **more})
