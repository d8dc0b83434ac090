import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.decoupled.gamlp import ATTENTIONS, GAMLP
from shoal.algorithms.models.layers.weighted_hops import weighted_hops


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
    weights = model.weights_NK(weighted_hops(x, model.head))
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights.sum(1), torch.ones(9))

    u = sum(w.unsqueeze(1) * hop.double() for w, hop in zip(expected.T, x))
    first, second, last = (linear.double() for linear in model.head.linears)
    embedding = F.leaky_relu(second(F.leaky_relu(first(u), 0.25)), 0.25)
    out = model.float()(x)
    torch.testing.assert_close(out.embedding_NH.double(), embedding, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.logits_NC.double(), last.double()(embedding), rtol=1e-4, atol=1e-5)


def test_simple_starts_as_the_mean_of_the_hops() -> None:
    model = GAMLP(3, 2, 3, 0.0, attention="simple")
    found = model.weights_NK(weighted_hops(random_hops(5, 3, 3), model.head))
    torch.testing.assert_close(found, torch.full((5, 4), 0.25))
