"""GAMLP's gradients by formula beside autograd's, on dense and sparse hops."""

import pytest
import torch
import torch.nn.functional as F
from support.sparse_rows import sparse

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.training.analytic.choice import AnalyticGradient, analytic, needed_for_analytic
from shoal.algorithms.training.analytic.gamlp import apart
from shoal.storage.graph.sparse_matrix import Features

FEATURES, CLASSES = 20, 4
BY_FORMULA = ("simple", "gate", "ori_ref", "jk")


def model_of(
    attention: str, layers: int, dropout: float, hops: int, by_column: bool = False, features: int = FEATURES
) -> FlatModel:
    options = {"hidden": 8, "layers": layers, "attention": attention}
    model = FlatModel(build("gamlp", features, CLASSES, hops, dropout, options), sparse=by_column)
    model.initial(3)
    # Biases and some attentions start at zero.
    model.load(model.w.detach() + 0.1 * torch.randn(len(model.w), generator=torch.Generator().manual_seed(0)))
    model.module.train()
    return model


def rows_of(rows: int, hops: int, features: int = FEATURES) -> list[torch.Tensor]:
    torch.manual_seed(rows)
    return [torch.randn(rows, features) * (torch.rand(rows, features) < 0.3) for _ in range(hops + 1)]


def check(model: FlatModel, closed: AnalyticGradient, inputs: list[Features], rows: int) -> None:
    """The gradient of a step is autograd's, and draws what that draws."""
    label = torch.arange(rows) % CLASSES
    assert model.w.grad is not None
    model.w.grad.zero_()
    torch.manual_seed(1)
    expected_loss = F.cross_entropy(model(inputs).logits_NC, label)
    expected_loss.backward()
    expected, drawn = model.w.grad.clone(), torch.rand(1)
    model.w.grad.fill_(torch.nan)
    torch.manual_seed(1)
    loss = closed.gradient(inputs, label)
    assert torch.equal(torch.rand(1), drawn)
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.w.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("attention", BY_FORMULA)
@pytest.mark.parametrize(("layers", "dropout"), [(1, 0.5), (2, 0.0), (3, 0.5)])
@pytest.mark.parametrize("hops", [0, 2])
@pytest.mark.parametrize("which", ["dense", "first sparse", "last sparse", "all sparse"])
def test_gradients_are_those_of_autograd(attention: str, layers: int, dropout: float, hops: int, which: str) -> None:
    model = model_of(attention, layers, dropout, hops, by_column=which != "dense")
    closed = analytic(model)
    for rows in (15, 1, 20):
        turned = {"dense": (), "first sparse": (0,), "last sparse": (hops,), "all sparse": range(hops + 1)}[which]
        check(model, closed, [sparse(hop) if k in turned else hop for k, hop in enumerate(rows_of(rows, hops))], rows)


@pytest.mark.parametrize("attention", BY_FORMULA)
def test_gradients_of_one_feature(attention: str) -> None:
    model = model_of(attention, 2, 0.5, 2, features=1)
    check(model, analytic(model), list(rows_of(9, 2, 1)), 9)


@pytest.mark.parametrize(("turned", "summed"), [((), [0, 1, 2]), ((1,), [0, 2]), ((0, 2), []), ((0, 1, 2), [])])
def test_dense_hops_are_summed_if_there_are_several(turned: tuple[int, ...], summed: list[int]) -> None:
    hops: list[Features] = [sparse(hop) if k in turned else hop for k, hop in enumerate(rows_of(6, 2))]
    found = apart(hops)
    assert list(found.summed) == summed
    assert {**found.summed, **found.others} == dict(enumerate(hops))


def test_float16_hops_are_multiplied_in_float32() -> None:
    model = model_of("jk", 2, 0.0, 1)
    half = [hop.half() for hop in rows_of(6, 1)]
    label = torch.arange(6) % CLASSES
    found = []
    for inputs in (half, [hop.float() for hop in half]):
        analytic(model).gradient(inputs, label)
        assert model.w.grad is not None
        found.append(model.w.grad.clone())
    assert torch.equal(*found)


def test_recursive_attention_is_trained_by_autograd() -> None:
    missing = needed_for_analytic(Algorithm(), model_of("recursive", 2, 0.0, 2))
    assert missing == "another model.attention than recursive"
    assert needed_for_analytic(Algorithm(), model_of("jk", 2, 0.0, 2)) is None
