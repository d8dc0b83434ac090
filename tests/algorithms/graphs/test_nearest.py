"""Nearest rows against all cosines, sorted in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.other_device.device import load
from torch import Tensor

from shoal.algorithms.graphs import nearest as module
from shoal.algorithms.graphs.nearest import nearest, nearest_by_torch


def by_sorting(z: np.ndarray, k: int) -> np.ndarray:
    """Loops over rows; products are exact where rows hold small integers and are of the same length."""
    length = np.sqrt((z.astype(np.float64) ** 2).sum(1))
    alive = [i for i in range(len(z)) if length[i] > 0]
    found = np.full((len(z), k), -1)
    for i in alive:
        others = [j for j in alive if j != i]
        cosines = {j: float((z[i].astype(np.float64) * z[j]).sum() / (length[i] * length[j])) for j in others}
        order = sorted(others, key=lambda j: (-cosines[j], j))[:k]
        found[i, : len(order)] = order
    return found


def signs(nodes: int, width: int, seed: int) -> np.ndarray:
    """Rows of 1 and -1, width a power of four: of equal lengths that are powers of two, so that many are tied."""
    return np.random.default_rng(seed).choice([-1.0, 1.0], (nodes, width)).astype(np.float32)


def embeddings(nodes: int, seed: int = 0, width: int = 32) -> Tensor:
    """Like a trained model's: around centres, none below zero, some rows dead."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((12, width))
    z = np.maximum(centres[rng.integers(12, size=nodes)] + 0.4 * rng.standard_normal((nodes, width)), 0)
    z[rng.random(nodes) < 0.01] = 0
    return torch.from_numpy(z.astype(np.float32))


@given(nodes=st.integers(1, 60), k=st.integers(0, 5), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_ties_go_to_the_lowest_number(nodes: int, k: int, seed: int) -> None:
    z = signs(nodes, 4, seed)
    found = nearest(torch.from_numpy(z), k)
    assert found.dtype == torch.int32
    np.testing.assert_array_equal(found.numpy(), by_sorting(z, k))


@pytest.mark.parametrize("tile", [(3, 4), (7, 7), (5, 2), (1024, 2048)])
def test_tiles_make_no_difference(tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TILE", tile)
    z = embeddings(150).numpy()
    np.testing.assert_array_equal(nearest(torch.from_numpy(z), 3).numpy(), by_sorting(z, 3))
    tied = np.concatenate([signs(40, 16, 1)] * 3)
    np.testing.assert_array_equal(nearest(torch.from_numpy(tied), 4).numpy(), by_sorting(tied, 4))


def test_many_equal_rows() -> None:
    """However a library sums, equal rows are equally near: the lowest numbers win."""
    z = embeddings(1, width=128).repeat(3000, 1)
    found = nearest(z, 3)
    np.testing.assert_array_equal(found[:4].numpy(), [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
    assert bool((found[4:] == torch.tensor([0, 1, 2])).all())


def test_zero_rows_have_and_are_no_neighbours() -> None:
    z = torch.tensor([[0.0, 0], [1, 0], [0, 0], [0, 2], [3, 3]])
    assert nearest(z, 3).tolist() == [[-1] * 3, [4, 3, -1], [-1] * 3, [4, 1, -1], [1, 3, -1]]
    assert nearest(torch.zeros(4, 3), 2).tolist() == [[-1, -1]] * 4
    assert nearest(torch.tensor([[1.0, -1], [-1, 1]]), 1).tolist() == [[1], [0]], "the farthest may be the nearest"
    assert nearest(torch.ones(1, 3), 2).tolist() == [[-1, -1]]
    assert nearest(torch.ones(0, 3), 2).shape == (0, 2)


@pytest.mark.parametrize("exact_up_to", [10**6, 0])
def test_the_same_bits_for_any_threads(exact_up_to: int) -> None:
    z = embeddings(3000)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3, 1):
            torch.set_num_threads(count)
            found.append(nearest(z, 3, exact_up_to))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, found[0]) for one in found)


def test_above_the_limit_most_are_found() -> None:
    z = embeddings(6000)
    exact, found = nearest(z, 3).numpy(), nearest(z, 3, exact_up_to=5000).numpy()
    shared = [len(set(one[one >= 0]) & set(other[other >= 0])) for one, other in zip(exact, found)]
    assert sum(shared) / (exact >= 0).sum() >= 0.9
    dead = (z == 0).all(1).numpy()
    assert dead.any()
    assert (found[dead] == -1).all()
    assert not np.isin(found, np.nonzero(dead)[0]).any()
    assert not (found == np.arange(len(z))[:, None]).any()
    assert all(len(set(row)) == 3 for row in found[~dead])


@pytest.mark.parametrize(("cosines", "pairs"), [(2**20, 2**18), (90, 7)])
@pytest.mark.parametrize("z", [signs(50, 4, 1), signs(30, 16, 2), signs(2, 4, 0), embeddings(60).numpy()])
def test_by_torch_in_blocks(cosines: int, pairs: int, z: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COSINES", cosines)
    monkeypatch.setattr(module, "PAIRS", pairs)
    z = z[z.any(1)]
    unit = torch.from_numpy(z / np.sqrt((z.astype(np.float64) ** 2).sum(1, keepdims=True))).float()
    for k in (1, 3):
        np.testing.assert_array_equal(nearest_by_torch(unit, k).numpy(), by_sorting(z, k))


def test_on_another_device() -> None:
    other = load()
    z = embeddings(500)
    found = nearest(z.to(other), 3, exact_up_to=10)
    assert found.device == other
    assert torch.equal(found.cpu(), nearest(z, 3))
