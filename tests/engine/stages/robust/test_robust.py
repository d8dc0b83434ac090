"""Robust reductions against NumPy, client by client and pair by pair, in any cells; and what is refused."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.plain_fedavg import by_trust
from support.small_cells import cell_of
from support.stages import phase_of
from torch import Tensor

from shoal.algorithms.protocol import Ask, Reduce, Replies, Upload
from shoal.engine.messages.cell import OfStages, Outcome, one_by_one
from shoal.engine.rounds.reduction import TILE, merge, reduce_cell
from shoal.engine.stages.robust.robust import NormBound, Robust, count_tolerated, reduce_by_trust, require_enough
from shoal.engine.stages.robust.section import AggregationOptions

KINDS = ("median", "trimmed", "krum", "multi_krum", "bulyan", "geometric_median")


def reduce(kind: str, cells: Sequence[Sequence[int]], uploads: dict[int, Upload], share: float = 0.2) -> Replies:
    up = dict.fromkeys(next(iter(uploads.values())).entries, Reduce.MEAN)
    outcomes = []
    for number, ids in enumerate(cells):
        cell = cell_of(ids, up, stages=OfStages(rows=True))
        outcome = Outcome(ids=list(ids))
        if number % 2:
            # As where clients of a cell ran one by one.
            singles = []
            for one in one_by_one(cell):
                single = Outcome(ids=list(one.ids))
                reduce_cell([uploads[i] for i in one.ids], one, single)
                singles.append(single)
            outcome = merge(singles)
        else:
            reduce_cell([uploads[i] for i in ids], cell, outcome)
        assert not outcome.sums
        outcomes.append(outcome)
    return Robust(AggregationOptions(kind=kind, share=share), "Mine").reduce(outcomes, phase_of(Ask("train", up)))


def krum_order(rows: np.ndarray, f: int) -> list[int]:
    scores = []
    for i, row in enumerate(rows):
        apart = sorted(float(((row - other) ** 2).sum()) for j, other in enumerate(rows) if j != i)
        scores.append(sum(apart[: max(len(rows) - f - 2, 1)]))
    return sorted(range(len(rows)), key=lambda i: (scores[i], i))


def expected(kind: str, rows: np.ndarray, share: float) -> np.ndarray:
    """The reduction of float64 rows `[M, P]`."""
    m = len(rows)
    f = math.ceil(round(share * m, 9))
    if kind == "median":
        return np.median(rows, axis=0)
    if kind == "trimmed":
        cut = min(f, (m - 1) // 2)
        return np.sort(rows, axis=0)[cut : m - cut].mean(0)
    if kind in ("krum", "multi_krum"):
        return rows[krum_order(rows, f)[: 1 if kind == "krum" else m - f]].mean(0)
    if kind == "bulyan":
        left, chosen = list(range(m)), []
        for _ in range(m - 2 * f):
            chosen.append(left.pop(krum_order(rows[left], f)[0]))
        found = np.empty(rows.shape[1])
        for column, values in enumerate(rows[chosen].T):
            middle = np.median(values)
            found[column] = np.mean(sorted(values, key=lambda v: (abs(v - middle), v))[: m - 4 * f])
        return found
    point = rows.mean(0)
    for _ in range(5000):
        inverse = 1 / np.maximum(1e-6, np.sqrt(((rows - point) ** 2).sum(1)))
        point = inverse @ rows / inverse.sum()
    return point


def uploads_of(rows: np.ndarray, weights: Sequence[float]) -> dict[int, Upload]:
    """Entries `a`, of the first three columns, and `b` `[2, …]`, of the others."""
    found = torch.from_numpy(rows.astype(np.float32))
    return {
        i: Upload({"a": r[:3], "b": r[3:].view(2, -1)}, {"a": w, "b": w})
        for i, (r, w) in enumerate(zip(found, weights))
    }


def joined(replies: Replies) -> np.ndarray:
    assert {t.dtype for t in replies.entries.values()} == {torch.float32}
    return np.concatenate([replies["a"].numpy(), replies["b"].numpy().reshape(-1)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("clients", "share"), [(11, 0.2), (7, 0.1), (12, 0.2), (9, 0.0), (23, 0.2)])
def test_reduction_is_that_of_numpy_in_any_cells(kind: str, clients: int, share: float) -> None:
    """Eleven clients of which three are hostile are too few for Bulyan, seven with one are at its bound."""
    rng = np.random.default_rng(clients)
    rows = rng.standard_normal((clients, 3 + TILE + 102)).astype(np.float32).astype(np.float64)
    rows[:2] *= 30
    weights = rng.integers(1, 50, clients).astype(float).tolist()
    cells = [[*range(clients)], [0, 2, *range(4, clients)], [1, 3]]
    if kind == "bulyan" and clients in (11, 12):
        with refused("aggregation.kind", says=f"needs {4 * 3 + 3} in a round"):
            reduce(kind, cells[:1], uploads_of(rows, weights), share)
        return
    replies = reduce(kind, cells[:1], uploads_of(rows, weights), share)
    found = joined(replies)
    np.testing.assert_allclose(found, expected(kind, rows, share), rtol=0, atol=2e-6)
    # Weights do not count, but are added up.
    assert float(replies.weights["a"]) == pytest.approx(sum(weights), rel=1e-12)
    again = joined(reduce(kind, cells[1:], uploads_of(rows, [1.0] * clients), share))
    np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize("kind", KINDS)
def test_who_has_no_weight_is_left_out(kind: str) -> None:
    rows = np.random.default_rng(3).standard_normal((9, 9)).astype(np.float32).astype(np.float64)
    rows[[1, 4]] = np.nan
    weights = [0.0 if i in (1, 4) else 2.0 for i in range(9)]
    found = joined(reduce(kind, [[*range(9)]], uploads_of(rows, weights), 0.1))
    np.testing.assert_allclose(found, expected(kind, np.delete(rows, [1, 4], 0), 0.1), rtol=0, atol=1e-6)
    nobody = reduce(kind, [[*range(9)]], uploads_of(rows, [0.0] * 9), 0.1)
    assert not joined(nobody).any()
    assert float(nobody.weights["b"]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_equal_uploads_are_the_result_and_of_equal_scores_the_first(kind: str) -> None:
    row = np.random.default_rng(0).standard_normal(9).astype(np.float32)
    rows = np.stack([row] * 9 + [row + 100.0] * 2).astype(np.float64)
    found = joined(reduce(kind, [[*range(11)]], uploads_of(rows, [1.0] * 11), 2 / 11))
    # The geometric median of nine equal rows is at most nu from them.
    np.testing.assert_allclose(found, row, rtol=0, atol=1e-5 if kind == "geometric_median" else 0)
    # Opposite pairs: all scores are equal.
    corners = np.zeros((4, 9))
    corners[:, :2] = [[1, 1], [1, -1], [-1, 1], [-1, -1]]
    if kind == "krum":
        np.testing.assert_array_equal(
            joined(reduce(kind, [[2, 3], [0, 1]], uploads_of(corners, [1.0] * 4), 0.0)), corners[0]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_one_client(kind: str) -> None:
    rows = np.random.default_rng(1).standard_normal((1, 9)).astype(np.float32)
    if kind in ("krum", "multi_krum", "bulyan"):
        with refused("aggregation.kind", says="against 1 hostile of 1 clients needs"):
            reduce(kind, [[0]], uploads_of(rows, [3.0]))
    else:
        np.testing.assert_array_equal(joined(reduce(kind, [[0]], uploads_of(rows, [3.0]))), rows[0])


@pytest.mark.parametrize(
    ("kind", "f", "least"), [("krum", 2, 7), ("multi_krum", 3, 9), ("bulyan", 2, 11), ("bulyan", 0, 3)]
)
def test_fewest_clients(kind: Any, f: int, least: int) -> None:
    options = AggregationOptions(kind=kind, share=f / least)
    assert count_tolerated(options, least) == f
    require_enough(options, least)
    with refused(
        "aggregation.kind", says=f"{kind} against {f} hostile of {least - 1} clients needs {least} in a round"
    ):
        require_enough(AggregationOptions(kind=kind, share=f / (least - 1)), least - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_rows(kind: str) -> None:
    """Rows that a client lacks are not read: each coordinate has its own clients."""
    rng = np.random.default_rng(2)
    proto = rng.standard_normal((6, 4, 5)).astype(np.float32)
    counts = np.array(
        [[2, 1, 0, 0], [1, 1, 0, 3], [5, 1, 0, 0], [0, 1, 0, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=np.float32
    )
    proto[counts == 0] = np.nan
    uploads = {
        i: Upload({"p": torch.from_numpy(proto[i])}, {"p": torch.from_numpy(counts[i])[:, None]}) for i in range(6)
    }
    if kind not in ("median", "trimmed"):
        with refused("aggregation.kind", says="'p' has a weight for each of its rows"):
            reduce(kind, [[*range(6)]], uploads)
        return
    replies = reduce(kind, [[0, 3], [1, 2, 4, 5]], uploads)
    for c in range(4):
        has = counts[:, c] > 0
        of_class = expected(kind, proto[has, c].astype(np.float64), 0.2) if has.any() else np.zeros(5)
        np.testing.assert_allclose(replies["p"][c].numpy(), of_class, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(replies.weights["p"].numpy(), counts.sum(0, dtype=np.float64)[:, None])


def test_what_is_no_mean_is_refused() -> None:
    up = {"w": Reduce.MEAN, "proto": Reduce.STACK}
    for stage in (Robust(AggregationOptions(kind="median"), "FPL"), NormBound(AggregationOptions("norm_bound"), "FPL")):
        with refused("aggregation.kind", says="reduces means, and 'proto' of FPL is kept for every client; take"):
            stage.before(phase_of(Ask("train", up)))
        stage.before(phase_of(Ask("train", {"w": Reduce.MEAN})))
        stage.before(phase_of(Ask("train", {})))
        assert stage.whole == isinstance(stage, Robust)


def test_shapes_that_differ_are_refused() -> None:
    def one(t: Tensor) -> Upload:
        return Upload({"w": t})

    for cells in ([[0, 1]], [[0], [1]]):
        with refused(says="upload() gives 'w' as [2] at client 0 and as [3] at client 1; "):
            reduce("median", cells, {0: one(torch.ones(2)), 1: one(torch.ones(3))})


@pytest.mark.parametrize("width", [7, TILE + 5])
def test_fltrust_weighs_changes_by_likeness_to_that_of_the_root(width: int) -> None:
    rng = np.random.default_rng(width)
    base = rng.standard_normal(width).astype(np.float32)
    toward = rng.standard_normal(width)
    # One is opposed, one large, one did not move.
    changes = toward + rng.standard_normal((6, width))
    changes[1], changes[2], changes[3] = -changes[1], 50 * changes[2], 0
    rows = (base + changes).astype(np.float32)
    shared = {"a": torch.from_numpy(base[:3].copy()), "b": torch.from_numpy(base[3:].copy())}
    entries = {
        "a": [torch.from_numpy(row[:3].copy()) for row in rows],
        "b": [torch.from_numpy(row[3:].copy()) for row in rows],
    }
    found = reduce_by_trust(8, [2, 4, 5, 6, 8, 9], entries, shared)
    expected_change = by_trust(rows.astype(np.float64) - base, 4)
    np.testing.assert_allclose(torch.cat(list(found.values())), base + expected_change, rtol=1e-5, atol=1e-5)
    # What was not received is its own change; where all others are opposed, nothing changes.
    alone = reduce_by_trust(1, [0, 1], {"a": [torch.tensor([-1.0, 0.0]), torch.tensor([2.0, 0.0])]}, {})
    assert alone["a"].tolist() == [0.0, 0.0]
    for ids in ([0, 2], [1]):
        with refused("aggregation.root", says=f"client 1 and another one must train in every round, found {ids}"):
            reduce_by_trust(1, ids, {"a": [torch.ones(2) for _ in ids]}, {})
