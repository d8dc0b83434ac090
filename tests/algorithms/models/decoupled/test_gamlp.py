import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.decoupled.gamlp import ATTENTIONS, GAMLP
from shoal.storage.errors import ShoalError


def random_hops(nodes: int, features: int, hops: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(nodes)
    return [torch.randn(nodes, features, generator=generator) for _ in range(hops + 1)]


def sharp(attention: str, features: int, hops: int) -> GAMLP:
    """A model whose scores are far from zero, so that a wrong weight shows."""
    model = GAMLP(features, 4, hops, 0.5, hidden=8, attention=attention)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in ("theta", "score.weight", "score.bias"):
                p.copy_(torch.randn(p.shape))
    return model


def naive_weights(model: GAMLP, hops: list[Tensor]) -> list[list[float]]:
    """The formulas node by node, with every concatenation formed, in float64."""
    sigmoid = lambda z: 1 / (1 + math.exp(-z))  # noqa: E731

    def softmax(scores: list[float]) -> list[float]:
        exponentials = [math.exp(z) for z in scores]
        return [e / sum(exponentials) for e in exponentials]

    result = []
    for v in range(len(hops[0])):
        rows = [hop[v].double() for hop in hops]
        if model.attention == "simple":
            result.append(softmax([sigmoid(float(theta)) for theta in model.theta.detach()]))
            continue
        a, b = model.score.weight[0].detach().double(), float(model.score.bias.detach())
        gates: list[float] = []
        for row in rows:
            if model.attention == "gate":
                pair = row
            elif model.attention == "ori_ref":
                pair = torch.cat([rows[0], row])
            elif model.attention == "jk":
                pair = torch.cat([*rows, row])
            else:
                history = [w * earlier for w, earlier in zip(softmax(gates), rows)] if gates else [rows[0]]
                pair = torch.cat([torch.stack(history).sum(0), row])
            gates.append(sigmoid(float(a @ pair) + b))
        result.append(softmax(gates))
    return result


@pytest.mark.parametrize("hops", [0, 1, 4])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_equals_the_formula_node_by_node(attention: str, hops: int) -> None:
    torch.manual_seed(0)
    model, x = sharp(attention, 6, hops).eval(), random_hops(9, 6, hops)
    expected = torch.tensor(naive_weights(model, x), dtype=torch.float64)
    weights = model.attention_NK(x)
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights.sum(1), torch.ones(9))

    u = sum(w.unsqueeze(1) * hop.double() for w, hop in zip(expected.T, x))
    first, second, last = (linear.double() for linear in model.head.linears)
    embedding = F.leaky_relu(second(F.leaky_relu(first(u), 0.25)), 0.25)
    out = model.float()(x)
    torch.testing.assert_close(out.embedding_NH.double(), embedding, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.logits_NC.double(), last.double()(embedding), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("features", "classes", "hidden", "parameters"),
    [
        (1433, 7, 64, 103_558),  # Cora
        (500, 3, 64, 38_921),  # PubMed
        (3703, 6, 64, 260_123),  # CiteSeer
        (100, 47, 256, 104_229),  # ogbn-products
        (128, 172, 256, 143_662),  # ogbn-papers100M
    ],
)
def test_sizes_of_the_reference_configuration(features: int, classes: int, hidden: int, parameters: int) -> None:
    model = GAMLP(features, classes, 3, 0.5, hidden=hidden)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_score_starts_like_a_linear_layer_of_torch() -> None:
    torch.manual_seed(0)
    score = GAMLP(500, 3, 3, 0.5).score
    bound = 1 / math.sqrt(5 * 500)
    assert 0.99 * bound < score.weight.abs().max() <= bound
    assert 0 < score.bias.abs() <= bound


def test_simple_starts_as_the_mean_of_the_hops() -> None:
    torch.testing.assert_close(
        GAMLP(3, 2, 3, 0.0, attention="simple").attention_NK(random_hops(5, 3, 3)), torch.full((5, 4), 0.25)
    )


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients_are_right(attention: str) -> None:
    torch.manual_seed(0)
    model, x = sharp(attention, 3, 2).double().eval(), [hop.double() for hop in random_hops(4, 3, 2)]
    names = list(dict(model.named_parameters()))

    def logits(*values: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, values)), (x,)).logits_NC

    assert torch.autograd.gradcheck(logits, tuple(model.parameters()))


def test_unknown_attention_is_named() -> None:
    with pytest.raises(ShoalError, match=r"^model\.attention: there is no 'mha'; choose one of simple, gate, "):
        GAMLP(3, 2, 1, 0.0, attention="mha")
