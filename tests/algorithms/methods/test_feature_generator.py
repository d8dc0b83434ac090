"""FedGen's generator and the terms of its loss, written out for every embedding and every pair."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.fedgen import FeatureGenerator, ensemble_cross_entropy, sameness

RNG = torch.Generator().manual_seed(8)
Y = torch.tensor([2, 0, 0, 1, 2])


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=RNG)


def test_embeddings_are_two_layers_over_noise_and_class() -> None:
    generator = FeatureGenerator(noise=2, classes=4, hidden=6, width=4)
    torch.manual_seed(3)
    generator.reset_parameters()
    torch.manual_seed(3)
    twin = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))
    noise = drawn(5, 2)
    hot = torch.tensor([[0.0, 0, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    found = generator(noise, Y)
    torch.testing.assert_close(found, twin(torch.cat([noise, hot], 1)))
    assert found.shape == (5, 4)
    assert FlatModel(generator).w.numel() == (2 + 4 + 1) * 6 + (6 + 1) * 4


def test_noise_is_standard_normal_of_its_stream() -> None:
    generator = FeatureGenerator(noise=50, classes=3, hidden=1, width=1)
    noise = generator.draw(Y.repeat(80), torch.Generator().manual_seed(1))
    assert torch.equal(noise, torch.randn(400, 50, generator=torch.Generator().manual_seed(1)))
    assert float(noise.std()) == pytest.approx(1, abs=0.02)


def test_every_classifier_counts_by_its_share_of_the_class() -> None:
    g, weight, bias = drawn(5, 4), drawn(2, 3, 4), drawn(2, 3)
    share = torch.tensor([[0.25, 1.0, 0.0], [0.75, 0.0, 1.0]])
    expected = torch.zeros(())
    for row, y in zip(g, Y.tolist()):
        for i in range(2):
            expected = expected + share[i, y] * F.cross_entropy(weight[i] @ row + bias[i], torch.tensor(y)) / 5
    torch.testing.assert_close(ensemble_cross_entropy(g, Y, weight, bias, share), expected)


def test_sameness_of_all_pairs() -> None:
    noise, g = drawn(5, 2), drawn(5, 4)
    pairs = [
        math.dist(noise[a].tolist(), noise[b].tolist()) * float((g[a] - g[b]).abs().mean())
        for a in range(5)
        for b in range(5)
    ]
    assert float(sameness(noise, g)) == pytest.approx(math.exp(-sum(pairs) / 25), rel=1e-5)
    assert float(sameness(noise, g[:1].expand(5, 4))) == 1


def test_sameness_pushes_equal_embeddings_nowhere_and_others_apart() -> None:
    g = torch.tensor([[0.0, 1.0], [0.0, 1.0], [2.0, 1.0]], requires_grad=True)
    sameness(torch.tensor([[0.0], [1.0], [3.0]]), g).backward()
    assert g.grad is not None
    assert g.grad.isfinite().all()
    # Down the gradient, the third goes further right, the other two further left.
    assert g.grad[:, 0].sign().tolist() == [1, 1, -1]
