import math

import pytest
import torch
from torch import nn

from shoal.algorithms.models.layers.head import Head
from shoal.storage.errors import ShoalError


@pytest.mark.parametrize("activation", ["relu", "prelu"])
def test_equals_a_stack_of_torch_modules(activation: str) -> None:
    head = Head(5, 8, 3, 3, 0.5, activation=activation).eval()
    act = nn.ReLU() if activation == "relu" else nn.PReLU(init=0.25)
    layers = [nn.Linear(5, 8), act, nn.Linear(8, 8), act]
    last = nn.Linear(8, 3)
    for own, theirs in zip(head.linears, (layers[0], layers[2], last)):
        theirs.load_state_dict(own.state_dict())
    x = torch.randn(6, 5)
    hidden = nn.Sequential(*layers)(x)
    out = head(x)
    torch.testing.assert_close(out.embedding_NH, hidden)
    torch.testing.assert_close(out.logits_NC, last(hidden))


@pytest.mark.parametrize(("layers", "slopes"), [(1, 0), (2, 1), (3, 1)])
def test_a_slope_needs_a_hidden_layer(layers: int, slopes: int) -> None:
    head = Head(5, 1, 3, layers, 0.0, activation="prelu")
    assert sum(p.dim() == 1 and len(p) == 1 and p.item() == 0.25 for p in head.parameters()) == slopes


def test_one_prelu_is_shared_and_counted_once() -> None:
    assert sum(p.numel() for p in Head(5, 8, 3, 4, 0.0, activation="prelu").parameters()) == 48 + 72 + 72 + 27 + 1


@pytest.mark.parametrize("gain", [None, 1.0, math.sqrt(2)])
def test_weights_are_xavier_uniform_and_biases_zero(gain: float | None) -> None:
    """The gain is that of a ReLU, sqrt 2, where none is given."""
    torch.manual_seed(0)
    head = Head(300, 200, 100, 2, 0.0) if gain is None else Head(300, 200, 100, 2, 0.0, gain=gain)
    gain = gain or nn.init.calculate_gain("relu")
    for linear in head.linears:
        bound = gain * math.sqrt(6 / (linear.in_features + linear.out_features))
        assert 0.99 * bound < linear.weight.abs().max() <= bound
        assert linear.weight.var().item() == pytest.approx(bound**2 / 3, rel=0.05)
        assert not linear.bias.any()


def test_one_layer_is_a_logistic_regression() -> None:
    head = Head(5, 8, 3, 1, 0.5, activation="prelu")
    x = torch.randn(4, 5)
    out = head(x)
    assert torch.equal(out.embedding_NH, x)
    torch.testing.assert_close(out.logits_NC, x @ head.linears[0].weight.T + head.linears[0].bias)


def test_dropout_zeroes_and_rescales_what_the_last_layer_reads() -> None:
    head = Head(4, 1000, 1000, 2, 0.25).train()
    with torch.no_grad():
        head.linears[1].weight.copy_(torch.eye(1000))
    out = head(torch.randn(1, 4))
    active = out.embedding_NH > 0
    kept = out.logits_NC[active] / out.embedding_NH[active]
    dropped = kept == 0
    torch.testing.assert_close(kept[~dropped], torch.full_like(kept[~dropped], 1 / 0.75))
    assert 0.15 < dropped.float().mean() < 0.35


@pytest.mark.parametrize(
    ("hidden", "layers", "dropout", "key"),
    [
        (0, 2, 0.0, "model.hidden"),
        (4, 0, 0.0, "model.layers"),
        (4, 2, 1.0, "train.dropout"),
        (4, 2, -0.1, "train.dropout"),
    ],
)
def test_impossible_values_are_named(hidden: int, layers: int, dropout: float, key: str) -> None:
    with pytest.raises(ShoalError, match=f"^{key}: "):
        Head(3, hidden, 2, layers, dropout)
