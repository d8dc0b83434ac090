"""What FedGTA says of propagated labels: its formulas by hand, and its two paths against float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import MakeView
from support.plain_fedgta import equations_3_to_5
from torch import Tensor

from shoal.algorithms.methods.fedgta import label_sketch
from shoal.algorithms.methods.fedgta.fedgta import FedGTA
from shoal.algorithms.methods.fedgta.label_sketch import (
    Sketch,
    SketchForm,
    confidence,
    sketch_by_tiles,
    sketch_by_torch,
    sketch_labels,
)
from shoal.algorithms.methods.fedgta.label_tiles import LANES, empty_tiles, fill, sum_powers
from shoal.storage.shards.view import View

FORM = SketchForm(3, 0.3, "stochastic", 4, "hybrid", "all", "paper")


def random_rows(rows: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)).mul(3).softmax(1)


def test_sketch_without_nodes_is_zero(make_view: Callable[..., View]) -> None:
    someone, nobody = (make_view(nodes, [], [0] * nodes, [], 3) for nodes in (4, 0))
    for changes in ({}, {"moments": "raw"}, {"moments": "central", "moment_steps": "last"}):
        form = FORM._replace(**changes)
        found = sketch_labels(nobody, random_rows(0, 3), form)
        assert found.moments_SC.shape == sketch_labels(someone, random_rows(4, 3), form).moments_SC.shape
        assert not found.moments_SC.any()
        assert found.confidence == 0


def test_confidence_of_rows_that_do_not_sum_to_one_by_hand() -> None:
    # y log y is smallest at 1/e: the first row adds nothing, a hub's row more than a certain one.
    y = torch.tensor([[1 / math.e, 1 / math.e], [2.0, 1.0]])
    assert confidence(y[:1], torch.tensor([4.0]), "paper") == pytest.approx(0, abs=1e-6)
    hub = 2 / math.e + 2 * math.log(2)
    assert confidence(y, torch.tensor([4.0, 3.0]), "paper") == pytest.approx(3 * hub, rel=1e-6)
    assert hub > 2 / math.e


@pytest.mark.parametrize("rows", ["stochastic", "softmax"])
@pytest.mark.parametrize("kind", ["raw", "central", "hybrid"])
@pytest.mark.parametrize("steps", ["all", "last"])
def test_moments_are_within_the_norm_that_is_declared(make_view: MakeView, rows: str, kind: str, steps: str) -> None:
    """One-hot rows of one class reach that of raw moments; of two classes the largest central ones are half apart."""
    method = FedGTA(confidence="uniform", rows=rows, moments=kind, moment_steps=steps, orders=4)
    norm, blocks = method.norms()["m"], 4 * (2 if kind == "hybrid" else 1) * (5 if steps == "all" else 1)
    assert norm == math.sqrt(blocks)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    for seed_NC in (
        F.one_hot(labels, 3).float(),
        F.one_hot(0 * labels, 3).float(),
        random_rows(6, 3),
        random_rows(6, 3, 1),
    ):
        view = make_view(6, [(0, 3), (1, 2)], labels.tolist(), range(6), 3)
        found = sketch_labels(view, seed_NC, method._form).moments_SC
        assert found.shape == (blocks, 3)
        assert float(found.norm()) <= norm + 1e-5
        assert float(found.norm(dim=1).max()) <= 1 + 1e-6
    if kind == "raw" and rows == "stochastic":
        alone = make_view(6, [], labels.tolist(), range(6), 3)
        same = sketch_labels(alone, F.one_hot(0 * labels, 3).float(), method._form).moments_SC
        assert float(same.norm()) == pytest.approx(norm)


@pytest.fixture
def random_view(make_view: Callable[..., View]) -> Callable[..., View]:
    """A client of some nodes, of which the last has no neighbour, with a hub and `degree` random entries a node."""

    def random_view(nodes: int, classes: int, degree: float = 4, weights: str = "none") -> View:
        rng = np.random.default_rng(nodes)
        edges = rng.integers(max(nodes - 1, 1), size=(round(degree * nodes / 2), 2))
        hub = [(0, v) for v in range(2, nodes - 1, 3)] if degree else []
        edges = np.concatenate([edges[edges[:, 0] != edges[:, 1]], np.reshape(hub, (-1, 2)).astype(np.int64)])
        upper = np.triu(rng.uniform(0.1, 5, (nodes, nodes)).astype(np.float32)) if weights == "drawn" else None
        weight = {"none": None, "ones": np.ones((nodes, nodes), np.float32)}.get(weights, upper)
        weight = weight + np.triu(weight, 1).T if weights == "drawn" else weight
        return make_view(nodes, edges, [0] * nodes, [0], classes, weight=weight)

    return random_view


def require_exact(found: Sketch, view: View, seed_NC: Tensor, form: SketchForm) -> None:
    options = {**form._asdict(), "lp_seed": "predictions"}
    h, moments_M = equations_3_to_5(view, seed_NC.double().numpy(), options)
    assert found.moments_SC.dtype == torch.float32
    np.testing.assert_allclose(found.moments_SC.flatten(), moments_M, rtol=2e-5, atol=2e-7)
    assert found.confidence == pytest.approx(h, rel=1e-5, abs=1e-4)


FORMS = [
    {},
    {"rows": "raw"},
    {"moments": "raw", "orders": 1},
    {"moments": "central", "orders": 3},
    {"moments": "hybrid", "orders": 5, "moment_steps": "last"},
    {"moments": "central", "rows": "raw", "lp_steps": 1},
    {"confidence": "normalized", "orders": 13, "lp_seed_weight": 0.8},
    {"confidence": "uniform", "moment_steps": "last", "lp_steps": 6},
    {"lp_seed_weight": 0.0, "lp_steps": 2},
    {"lp_seed_weight": 1.0, "rows": "raw"},
]


@pytest.mark.parametrize("sketch", [sketch_by_tiles, sketch_by_torch])
@pytest.mark.parametrize("changes", FORMS, ids=lambda form: " ".join(map(str, form.values())) or "defaults")
@pytest.mark.parametrize(("nodes", "classes"), [(1, 3), (2, 1), (31, 16), (32, 17), (65, 40)])
def test_both_paths_equal_dense_algebra(
    random_view: Callable[..., View], sketch: Callable[..., Sketch], changes: dict[str, Any], nodes: int, classes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Sixteen rows at a time by torch."""
    form, view, seed = FORM._replace(**changes), random_view(nodes, classes), random_rows(nodes, classes)
    monkeypatch.setattr(label_sketch, "NUMBERS_AT_A_TIME", 16 * classes)
    require_exact(sketch(view, seed, form), view, seed, form)


@pytest.mark.parametrize("sketch", [sketch_by_tiles, sketch_by_torch])
@pytest.mark.parametrize("nodes", [2, 33])
def test_weights_are_dense_entries(random_view: Callable[..., View], sketch: Callable[..., Sketch], nodes: int) -> None:
    seed, form = random_rows(nodes, 5), FORM
    view = random_view(nodes, 5, weights="drawn")
    require_exact(sketch(view, seed, form), view, seed, form)
    # Weights of one have the bits of no weights.
    plain, ones = (sketch(random_view(nodes, 5, weights=weights), seed, form) for weights in ("none", "ones"))
    assert torch.equal(plain.moments_SC, ones.moments_SC)
    assert plain.confidence == ones.confidence


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("classes", [1, 2, 15, 33, 64, 172, 200])
@pytest.mark.parametrize("degree", [0, 12])
def test_tiles_of_any_number_of_classes_and_many_rows(random_view: MakeView, classes: int, degree: int) -> None:
    form, view, seed = FORM, random_view(1060, classes, degree), random_rows(1060, classes)
    require_exact(sketch_by_tiles(view, seed, form), view, seed, form)


def test_a_class_has_the_same_bits_beside_any_others_on_any_number_of_threads(random_view: Callable[..., View]) -> None:
    form, seed = FORM._replace(rows="raw"), random_rows(300, 40)
    everything = sketch_by_tiles(random_view(300, 40), seed, form).moments_SC
    last = sketch_by_tiles(random_view(300, 21), seed[:, 19:], form).moments_SC
    assert torch.equal(everything[:, 19:], last)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3 if threads == 1 else 1)
        again = sketch_by_tiles(random_view(300, 40), seed, form)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(again.moments_SC, everything)


def test_a_seed_is_left_as_it_is_and_may_lie_across(random_view: Callable[..., View]) -> None:
    form, view, seed = FORM, random_view(70, 20), random_rows(70, 20)
    before, across = seed.clone(), seed.T.contiguous().T
    found = [sketch_labels(view, seed, form), sketch_by_tiles(view, across, form)]
    assert torch.equal(seed, before)
    assert torch.equal(found[0].moments_SC, found[1].moments_SC)
    assert found[0].confidence == found[1].confidence
    assert view.written() is None


def test_sums_of_many_rows_keep_small_terms() -> None:
    # One row of 2^24 in front, to which float32 can add no further one.
    (z,), scales, out = empty_tiles(1, 1000, LANES), np.ones(1000, dtype=np.float32), np.empty((1, LANES))
    fill(np.ones((1000, 1), dtype=np.float32), 0, scales, z)
    scales[0] = 2**24
    sum_powers(z, scales, np.zeros((1, LANES), dtype=np.float32), out)
    assert out[0, 0] >= 2**24 + 900
