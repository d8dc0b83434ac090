"""What rounds written out have in common: who takes part, the loss of a line, counts of predictions."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.engine.rounds.server import Server
from shoal.storage.shards.view import View


def cohorts_of(folder: Path, cohorts: Sequence[Iterable[int]], clients: int = 6) -> dict[str, Any]:
    """Gives keys of a config for rounds of these cohorts; their trace is written into the folder."""
    np.save(folder / "online.npy", np.array([[i in set(cohort) for i in range(clients)] for cohort in cohorts]))
    return {"participation.trace": str(folder / "online.npy"), "rounds": len(cohorts)}


def require_mean_loss(line: Mapping[str, Any], losses: Mapping[int, float], views: Sequence[View]) -> None:
    """Asserts that a round's line has the mean of clients' losses over their training rows, none if none trained."""
    rows = {i: len(views[i].train) for i in losses if len(views[i].train)}
    if not rows:
        assert line["loss"] is None
        return
    assert line["loss"] == pytest.approx(sum(rows[i] * losses[i] for i in rows) / sum(rows.values()), rel=1e-3)


def require_counts(server: Server, scope: str, counts: Mapping[int, np.ndarray]) -> None:
    """Asserts that a scope has these counts of predictions, `[2, 3, C]`, by client."""
    for i, expected in counts.items():
        np.testing.assert_array_equal(server.state.scores[scope][i], expected, err_msg=f"{scope} {i}")


def require_model_bytes(line: Mapping[str, Any], parameters: int) -> None:
    """Asserts that a cohort was sent a model each, and sent it back with its weight."""
    clients = len(line["cohort"])
    assert (line["bytes_up"], line["bytes_down"]) == (4 * clients * (parameters + 1), 4 * clients * parameters)


def require_close_runs(one: Server, other: Server, rtol: float, atol: float) -> None:
    """Asserts that server and clients hold nearly the same, and not the same bits: rounding tells two ways apart."""
    pairs = [(one.state.server, other.state.server)]
    pairs += [(tree, other.state.clients[i]) for i, tree in one.state.clients.items()]
    for tree, twin in pairs:
        assert tree.keys() == twin.keys()
        for entry, tensor in tree.items():
            torch.testing.assert_close(twin[entry], tensor, rtol=rtol, atol=atol)
    assert any(not torch.equal(twin[entry], tensor) for tree, twin in pairs for entry, tensor in tree.items())
