"""Heads trained in one call beside autograd's steps, visit for visit."""

from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import MakeClient, MakeView
from support.one_call import VISITS, fit_in_one_call, require_same_bits_on_any_threads, require_visits_of_autograd

from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.compiled.step_operations import adam
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import analytic
from shoal.algorithms.training.analytic.small_heads import MOST_PRODUCTS, SmallHead, is_small_head

FEATURES, CLASSES = 9, 4


def head(layers: int, dropout: float = 0.0, sparse: bool = False, name: str = "mlp") -> FlatModel:
    model = FlatModel(build(name, FEATURES, CLASSES, 0, dropout, {"hidden": 6, "layers": layers}), sparse=sparse)
    model.initial(layers)
    return model


def client_of(rows: int, model: FlatModel, make_view: MakeView, make_client: MakeClient) -> Client:
    """Twenty nodes without edges, of which so many are trained on."""
    x = np.random.default_rng(rows).standard_normal((20, FEATURES)).astype(np.float32)
    view = make_view(20, [], list(np.arange(20) % CLASSES), list(range(1, rows + 1)), CLASSES, x)
    return make_client(view, model.module)


@pytest.mark.parametrize("options", VISITS)
@pytest.mark.parametrize(("layers", "dropout"), [(1, 0.5), (2, 0.0), (2, 0.4)])
@pytest.mark.parametrize("rows", [1, 13])
def test_visits_are_those_of_autograd(
    rows: int, layers: int, dropout: float, options: str, make_view: MakeView, make_client: MakeClient
) -> None:
    def make() -> Client:
        return client_of(rows, head(layers, dropout), make_view, make_client)

    require_visits_of_autograd(make, analytic, VISITS[options])


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_is_that_of_float64_to_rounding(weight_decay: float) -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal(500).astype(np.float32)
    w, mean, square = start.copy(), np.zeros(500, np.float32), np.zeros(500, np.float32)
    m, v, exact = np.zeros(500), np.zeros(500), start.astype(np.float64)
    for step in range(1, 31):
        gradient = (rng.standard_normal(500) * 10.0 ** rng.uniform(-4, 0, 500)).astype(np.float32)
        adam(w, gradient.copy(), mean, square, step, 0.01, weight_decay)
        change = gradient + weight_decay * exact
        m, v = 0.9 * m + 0.1 * change, 0.999 * v + 0.001 * change**2
        exact -= 0.01 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(w, exact, rtol=0, atol=2e-6)
    np.testing.assert_allclose(mean, m, rtol=1e-5, atol=1e-7)
    # Where 1 - beta2 is computed in float32 all squares are off by 1.3e-5.
    np.testing.assert_allclose(square, v, rtol=3e-6)


def test_bits_depend_on_no_threads(make_view: MakeView, make_client: MakeClient) -> None:
    require_same_bits_on_any_threads(lambda: client_of(11, head(2), make_view, make_client), SmallHead)


@pytest.mark.parametrize("layers", [1, 2])
def test_nan_in_any_weight_is_nan_in_the_loss(layers: int, make_view: MakeView, make_client: MakeClient) -> None:
    client = client_of(11, head(layers), make_view, make_client)
    client.model.flat.w.data[0] = torch.nan
    last, first = fit_in_one_call(SmallHead(client.model.flat), client, client.data.train_label)
    assert np.isnan([last, first]).all()


@pytest.mark.parametrize(
    ("layers", "rows", "options", "takes"),
    [
        (1, MOST_PRODUCTS // 36, {}, True),
        (1, MOST_PRODUCTS // 36 + 1, {}, False),
        (2, MOST_PRODUCTS // 78, {}, True),
        (2, MOST_PRODUCTS // 78 + 1, {}, False),
        (1, 8, {"batch_size": 8}, True),
        (1, 8, {"batch_size": 7}, False),
        (1, 8, {"optimizer": "sgd", "momentum": 0.1}, False),
    ],
)
def test_what_one_call_takes(layers: int, rows: int, options: dict[str, Any], takes: bool) -> None:
    assert SmallHead(head(layers)).takes([torch.zeros(rows, FEATURES)], TrainOptions(**options)) is takes


def test_small_heads_have_two_layers_at_most_and_read_dense_rows() -> None:
    assert is_small_head(head(2, name="sgc"))
    assert not is_small_head(head(3))
    assert not is_small_head(head(1, sparse=True))
    assert not is_small_head(head(1, name="gcn"))
