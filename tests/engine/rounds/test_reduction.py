"""Sums, stacks and weights of uploads against NumPy in float64 over all clients at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Replies, Tree, Upload
from shoal.engine.messages.cell import Outcome
from shoal.engine.rounds.reduction import Sums, combine, reduce_cell, upload_bytes


def reduce(cells: Sequence[Sequence[int]], uploads: dict[int, Upload], up: dict[str, Reduce]) -> tuple[Replies, Tree]:
    outcomes = []
    for cell in cells:
        outcome = Outcome(ids=list(cell))
        reduce_cell([uploads[i] for i in cell], up, outcome)
        outcomes.append(outcome)
    sums = Sums()
    # They come back in any order.
    for position in np.random.default_rng(0).permutation(len(cells)).tolist():
        sums.take(position, outcomes[position])
    return combine(outcomes, [i for cell in cells for i in cell], up, sums)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=4), min_size=1, max_size=5))
def test_weighted_mean_in_any_cells(weights: list[list[float]]) -> None:
    flat = [w for cell in weights for w in cell]
    tensors = [random(7, seed=i) for i in range(len(flat))]
    uploads = {i: Upload({"w": tensors[i]}, {"w": flat[i]}) for i in range(len(flat))}
    ids = iter(range(len(flat)))
    replies, held = reduce([[next(ids) for _ in cell] for cell in weights], uploads, {"w": Reduce.MEAN})
    total = np.sum(flat, dtype=np.float64)
    stacked = torch.stack(tensors).double().numpy()
    expected = np.average(stacked, axis=0, weights=flat) if total > 0 else np.zeros(7)
    np.testing.assert_allclose(replies["w"].numpy(), expected, rtol=1e-6, atol=1e-7)
    assert replies.weights["w"].item() == pytest.approx(total, rel=1e-12)
    assert replies.weights["w"].dtype == torch.float64
    assert replies["w"].dtype == torch.float32
    assert held == {}


def test_sums_are_float64() -> None:
    # In float32, 1e8 + 1 is 1e8.
    values = {0: 1e8, 1: 1.0, 2: -1e8, 3: 2.0}
    uploads = {i: Upload({"s": torch.tensor(value)}) for i, value in values.items()}
    for cells in ([[0, 1, 2, 3]], [[0], [1], [2], [3]], [[0, 1], [2, 3]]):
        assert reduce(cells, uploads, {"s": Reduce.MEAN})[0]["s"].item() == 0.75


def test_weights_of_rows() -> None:
    proto = [random(3, 2, seed=i) for i in range(3)]
    counts = [torch.tensor([[2.0], [0], [0]]), torch.tensor([[1.0], [4], [0]]), torch.tensor([[0.0], [1], [0]])]
    uploads = {i: Upload({"p": proto[i]}, {"p": counts[i]}) for i in range(3)}
    (replies, _) = reduce([[0, 1], [2]], uploads, {"p": Reduce.MEAN})
    expected = torch.stack([(2 * proto[0][0] + proto[1][0]) / 3, (4 * proto[1][1] + proto[2][1]) / 5, torch.zeros(2)])
    torch.testing.assert_close(replies["p"], expected)
    assert replies.weights["p"].tolist() == [[3.0], [5.0], [0.0]]


@pytest.mark.parametrize("weight", [0.0, torch.tensor(0.0), torch.tensor([[0.0], [0.0]])])
def test_what_has_no_weight_is_not_read(weight: float | Tensor) -> None:
    poison = Upload({"p": torch.full((2, 2), float("nan"))}, {"p": weight})
    uploads = {0: poison, 1: Upload({"p": torch.ones(2, 2)}, {"p": 2.0})}
    for cells in ([[0, 1]], [[0], [1]]):
        assert torch.equal(reduce(cells, uploads, {"p": Reduce.MEAN})[0]["p"], torch.ones(2, 2))


def test_tensors_and_lists_lie_in_the_order_of_clients() -> None:
    # Cells of two models: clients 1, 4 and 0, 2, 3.
    up = {"a": Reduce.STACK, "b": Reduce.MIX, "z": Reduce.GATHER}
    sizes = {i: torch.full((i + 1, 2), float(i)) for i in range(5)}
    uploads = {i: Upload({"a": torch.tensor(i), "b": torch.tensor([i, -i]), "z": z}) for i, z in sizes.items()}
    replies, held = reduce([[1, 4], [0, 2], [3]], uploads, up)
    assert replies.ids == replies["a"].tolist() == [0, 1, 2, 3, 4]
    assert held["b"].tolist() == [[i, -i] for i in range(5)]
    assert (replies.entries.keys(), held.keys(), replies["a"].dtype) == ({"a"}, {"b"}, torch.int64)
    assert all(torch.equal(part, sizes[i]) for i, part in enumerate(replies.lists["z"]))


SHAPES = torch.ones(1, 3), "[2, 3] at client 0 and as [1, 3] at client 2; "
# Stacked, the narrower ones would silently become wide.
TYPES = torch.ones(2, 3).double(), "float32 at client 0 and as float64 at client 2; clients must agree on"


@pytest.mark.parametrize(
    ("how", "last", "says"),
    [(how, *SHAPES) for how in (Reduce.MEAN, Reduce.STACK, Reduce.MIX)]
    + [(how, *TYPES) for how in (Reduce.GATHER, Reduce.STACK, Reduce.MIX)],
)
@pytest.mark.parametrize("cells", [[[0, 1, 2]], [[0, 1], [2]]])
def test_shapes_and_types_that_differ_are_refused(how: Reduce, last: Tensor, says: str, cells: Any) -> None:
    uploads = {i: Upload({"z": torch.ones(2, 3) if i < 2 else last}) for i in range(3)}
    with refused(says=f"upload() gives 'z' as {says}"):
        reduce(cells, uploads, {"z": how})


def test_sums_are_added_in_cell_order_and_let_go_as_they_come() -> None:
    outcomes = []
    for value in (1e16, 1.0, -1e16, 1.0):
        outcome = Outcome(ids=[0])
        reduce_cell([Upload({"s": torch.full((3,), value)})], {"s": Reduce.MEAN}, outcome)
        outcomes.append(outcome)
    sums = Sums()
    kept = []
    for position in (2, 0, 3, 1):
        sums.take(position, outcomes[position])
        kept.append([p for p in range(4) if outcomes[p].sums])
    # In any other order the first 1 would not be lost.
    assert sums.total["s"].tolist() == [1.0, 1.0, 1.0]
    assert kept == [[0, 1, 2, 3], [1, 2, 3], [1, 2, 3], []]


def test_rows_that_stay_at_home_are_not_counted() -> None:
    proto, counts = torch.zeros(4, 8), torch.tensor([[3.0], [0], [0], [0]])
    padded = Upload({"p": proto, "h": torch.zeros(2)}, {"p": counts, "h": 1.0})
    assert upload_bytes(padded) == 4 * (32 + 4 + 2 + 1)
    told = Upload(padded.entries, padded.weight, {"p": 4 * (8 + 4)})
    assert upload_bytes(told) == 4 * (8 + 4 + 2 + 1)
