"""Sums, stacks and weights of uploads against NumPy in float64 over all clients at once."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from support.other_device.device import load
from support.small_cells import cell_of
from torch import Tensor

from shoal.algorithms.client import ClientInfo
from shoal.algorithms.protocol import Reduce, Replies, Upload
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.messages.cell import Cell, Outcome, PartialSum, one_by_one
from shoal.engine.rounds import reduction
from shoal.engine.rounds.reduction import Sums, Uploads, add_up, combine, join_sums, reduce_cell, upload_bytes
from shoal.engine.rounds.sampling import draw_cohort, form_cells


def reduce(
    cells: Sequence[Sequence[int]], uploads: dict[int, Upload], up: dict[str, Reduce]
) -> tuple[Replies, dict[str, Uploads]]:
    places, used = [], 0
    for ids in cells:
        places.append(range(used, used := used + len(ids)))
    outcomes, sums = reduced([cell_of(ids, up, places=of) for ids, of in zip(cells, places)], uploads)
    return combine(outcomes, [i for cell in cells for i in cell], up, sums)


def reduced(cells: Sequence[Cell], uploads: dict[int, Upload]) -> tuple[list[Outcome], Sums]:
    """Cells that come back in any order; clients without an upload failed."""
    outcomes, sums = [], Sums()
    for cell in cells:
        outcome = Outcome(ids=[i for i in cell.ids if i in uploads])
        reduce_cell([uploads[i] for i in outcome.ids], cell, outcome)
        outcomes.append(outcome)
    for position in np.random.default_rng(len(cells)).permutation(len(cells)).tolist():
        for places, part in outcomes[position].sums.items():
            sums.take(places, part)
    return outcomes, sums


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# A smaller one times a number has fewer digits than float32.
WEIGHT = st.just(0.0) | st.floats(2.0**-90, 1e6, width=32)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(WEIGHT, min_size=1, max_size=4), min_size=1, max_size=5))
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
    uploads = {i: Upload({"a": torch.tensor(i), "b": torch.tensor([1.0, i]), "z": z}) for i, z in sizes.items()}
    replies, held = reduce([[1, 4], [0, 2], [3]], uploads, up)
    assert replies.ids == replies["a"].tolist() == [0, 1, 2, 3, 4]
    assert held["b"].product(torch.eye(5)).tolist() == [[1, i] for i in range(5)]
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


def by_halves(terms: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The sum of a power of two of terms, of which some are missing."""
    if len(terms) == 1:
        return terms[0]
    first, second = by_halves(terms[: len(terms) // 2]), by_halves(terms[len(terms) // 2 :])
    return second if first is None else first if second is None else first + second


@pytest.mark.parametrize("weighs", ["numbers", "tensors", "both"])
@pytest.mark.parametrize("models", [1, 3])
def test_cells_change_no_bit(models: int, weighs: str) -> None:
    """Of whatever size, for any number of hosts, whole or client by client, some of them failing."""
    infos = [ClientInfo(i, 10, 2, 3, i % 7 % models) for i in range(90)]
    cohort = draw_cohort(90, ParticipationOptions(ratio=0.3), seed=1, round_number=1)
    failed = cohort[4:6] + cohort[-2:]
    rng = np.random.default_rng(5)
    uploads: dict[int, Upload] = {}
    # What is added up of every client: its entry times its weight, and its weight.
    products, weights = {}, {}
    for i in cohort:
        # Of sizes so apart that the order of additions shows.
        t, w = rng.standard_normal((3, 2)) * 10.0 ** rng.integers(-8, 8, (3, 2)), rng.random((3, 1))
        entry = torch.from_numpy(t.astype(np.float32))
        of_tensor = weighs == "tensors" or (weighs == "both" and i % 2)
        weight = torch.from_numpy(w.astype(np.float32)) if of_tensor else float(w[0, 0])
        if i not in failed:
            uploads[i] = Upload({"s": entry}, {"s": weight})
            products[i] = (entry * (weight.double() if isinstance(weight, Tensor) else weight)).double().numpy()
            weights[i] = np.float64(weight)
    ordered = [[i for i in cohort if infos[i].model == model] for model in range(models)]
    room = 2 ** math.ceil(math.log2(max(map(len, ordered))))
    padded = [of + [-1] * (room - len(of)) for of in ordered] + [[-1] * room] * (models // 3)
    total, weight = (by_halves([of_client.get(i) for of in padded for i in of]) for of_client in (products, weights))
    for size, hosts in [(1, 1), (3, 1), (5, 1), (16, 1), (90, 1), *(("auto", hosts) for hosts in (1, 2, 3, 500))]:
        groups = form_cells(cohort, infos, size, hosts)
        cells = [cell_of(group.ids, {"s": Reduce.MEAN}, places=group.places) for group in groups]
        for some in (cells, [*one_by_one(cells[0]), *cells[1:]], [one for cell in cells for one in one_by_one(cell)]):
            whole = reduced(some, uploads)[1].whole
            np.testing.assert_array_equal(whole.total["s"].double().numpy(), total)
            np.testing.assert_array_equal(np.float64(whole.weight["s"]), weight)


def test_sums_are_joined_as_they_come_and_others_stay_as_they_are() -> None:
    parts = [
        PartialSum(i, {"s": torch.full((3,), t, dtype=torch.float64)}, {"s": 1.0})
        for i, t in enumerate((1e16, 1, -1e16, 1))
    ]
    sums, waiting = Sums(), []
    for place in (2, 0, 3, 1):
        sums.take(range(place, place + 1), parts[place])
        waiting.append(len(sums.parts))
    # One after another they are 1.
    assert sums.whole.total["s"].tolist() == [0.0, 0.0, 0.0]
    assert waiting == [1, 2, 2, 1]
    assert [part.total["s"][0].item() for part in parts] == [1e16, 1.0, -1e16, 1.0]


@pytest.mark.parametrize("missing", [set(), {5}, set(range(16, 32))])
def test_cells_of_a_call_are_joined_without_a_change_of_bits(missing: set[int]) -> None:
    """The first outcome then has the sums of all; no order, and no client that fails, changes the whole."""
    infos, up = [ClientInfo(i, 10, 2, 3) for i in range(45)], {"s": Reduce.MEAN}
    cells = [cell_of(group.ids, up, places=group.places) for group in form_cells(range(45), infos, "auto")]
    uploads = {i: Upload({"s": random(5, seed=i)}, {"s": 1.0 + i}) for i in range(45) if i not in missing}
    outcomes, apart = reduced(cells, uploads)
    parts = sum(len(outcome.sums) for outcome in outcomes)
    join_sums(outcomes[::-1], None)
    assert len(outcomes[-1].sums) < parts
    assert not any(outcome.sums for outcome in outcomes[:-1])
    joined = Sums()
    for places, part in outcomes[-1].sums.items():
        joined.take(places, part)
    assert torch.equal(joined.whole.total["s"], apart.whole.total["s"])
    assert joined.whole.weight == apart.whole.weight


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 12), st.randoms(use_true_random=False))
def test_a_stack_is_added_up_as_its_rows_one_by_one(start: int, most: int, behind: int, draw: Any) -> None:
    """In any order of rows, with gaps and with empty places behind: the ranges and bits of a cell's sums.

    On a device, and on the processor by some columns at a time.
    """
    cell = cell_of(list(range(most)), {"s": Reduce.MEAN}, places=range(start, start + most + behind))
    rows = draw.sample(cell.ids, draw.randint(1, most))
    weighted = torch.where(
        random(most, 5) > 1, -0.0, random(most, 5, seed=1) * 10.0 ** random(most, 1, seed=2).mul(3).round()
    )
    places = [cell.places[i] for i in rows]
    there = add_up(weighted[rows].to(load()), places, cell.places)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduction, "NUMBERS", draw.choice([1, 2 * most, 5 * most]))
        here = add_up(weighted[rows], places, cell.places)
    outcome = Outcome(ids=sorted(rows))
    reduce_cell([Upload({"s": weighted[i]}) for i in outcome.ids], cell, outcome)
    for found in (here, there):
        assert found.keys() == outcome.sums.keys()
        for span, total in found.items():
            expected = outcome.sums[span].total["s"].double()
            assert torch.equal(total.cpu(), expected)
            assert torch.equal(total.cpu().signbit(), expected.signbit())
            assert total.untyped_storage().nbytes() == total.nbytes


@pytest.mark.parametrize("size", [1, 2, 4, 16, "auto"])
def test_an_aligned_cell_sends_one_sum(size: int | str) -> None:
    """Also the last one, and one of which some failed."""
    for group in form_cells(range(45), [ClientInfo(i, 10, 2, 3, i % 2) for i in range(45)], size, hosts=3):
        outcome = Outcome(ids=[i for i in group.ids if i % 5])
        cell = cell_of(group.ids, {"s": Reduce.MEAN}, places=group.places)
        reduce_cell([Upload({"s": torch.ones(2)})] * len(outcome.ids), cell, outcome)
        assert len(outcome.sums) == bool(outcome.ids)


def test_rows_that_stay_at_home_are_not_counted() -> None:
    proto, counts = torch.zeros(4, 8), torch.tensor([[3.0], [0], [0], [0]])
    padded = Upload({"p": proto, "h": torch.zeros(2)}, {"p": counts, "h": 1.0})
    assert upload_bytes(padded) == 4 * (32 + 4 + 2 + 1)
    told = Upload(padded.entries, padded.weight, {"p": 4 * (8 + 4)})
    assert upload_bytes(told) == 4 * (8 + 4 + 2 + 1)
