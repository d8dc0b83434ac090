"""FedIIH in whole rounds against loops over nodes, factors and pairs of clients, and torch's own divergences."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.dense_clients import DenseClient
from support.errors import refused
from support.fixtures import ModuleOf, Start, Views
from support.plain_routing import route
from support.written_rounds import require_mean_loss
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from shoal.algorithms.methods.fediih.likeness import divergences

DEFAULTS = {"scale": 10.0, "encoder_layers": 1}


def apart(a: Tensor, b: Tensor) -> float:
    """The divergence of two clients in a factor, from their latents."""
    one, other = (Normal(t.double(), (t.double().exp()).sqrt()) for t in (a, b))
    middle = Normal((one.mean + other.mean) / 2, ((one.variance + other.variance) / 2).sqrt())
    return float(sum(kl_divergence(p, middle).sum() for p in (one, other))) / 2


def latent(client: DenseClient, factors: int, routing: int, layers: int) -> list[Tensor]:
    rows = client.module.eval() and client.output_without_drops()
    for _ in range(layers):
        rows = F.leaky_relu(route(client.a_NN, rows, factors, routing))
    return list(rows.mean(0).chunk(factors))


class Disentangled(DenseClient):
    """A client whose parameters can be mixed by their names."""

    def output_without_drops(self) -> Tensor:
        with torch.no_grad():
            return self.output().embedding_NH

    def named(self) -> dict[str, Tensor]:
        return {name: p.detach().double().clone() for name, p in self.module.named_parameters()}

    def take(self, named: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, p in self.module.named_parameters():
                p.copy_(named[name])


def mixed(models: list[dict[str, Tensor]], weights: list[list[float]], factors: int) -> dict[str, Tensor]:
    """Mixes models, of which each factor has weights of its own; the classifier's bias is a plain mean."""
    found = {}
    for name in models[0]:
        if name.endswith("linears.0.bias"):
            found[name] = sum(model[name] for model in models) / len(models)
            continue
        axis = 1 if name.startswith("head") else 0
        parts = [[*model[name].chunk(factors, axis)] for model in models]
        sums = [sum(w * part[k] for w, part in zip(weights[k], parts)) for k in range(factors)]
        found[name] = torch.cat(sums, axis)
    return found


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({"hidden": 8, "layers": 1}, {"scale": 2.0}),
        ({"hidden": 12, "factors": 4, "routing": 2}, {"scale": 3.0, "encoder_layers": 2}),
        ({"hidden": 8}, {"scale": 0.0}),
    ],
    ids=["two factors", "four factors", "plain means"],
)
def test_rounds_written_out(
    start: Start,
    views: Views,
    module_of: ModuleOf,
    unequal: dict[str, Any],
    model: dict[str, Any],
    options: dict[str, Any],
) -> None:
    algorithm = {"algorithm.name": "fediih", **{f"algorithm.{name}": value for name, value in options.items()}}
    server = start({**unequal, **algorithm, "model": {"name": "disengcn", **model}, "train.dropout": 0.0})
    options, shape = {**DEFAULTS, **options}, {"factors": 2, "routing": 6, **model}
    factors, width = shape["factors"], shape["hidden"]
    clients = [Disentangled(i, view, module_of(server, server._initial)) for i, view in enumerate(views(server))]
    size, met = len(server._initial), set[int]()
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        losses = {i: clients[i].visit() for i in cohort}
        require_mean_loss(line, losses, [client.view for client in clients])
        sent = {i: latent(clients[i], factors, shape["routing"], options["encoder_layers"]) for i in cohort}
        counted = [j for j in cohort if len(clients[j].y)]
        models = [clients[j].named() for j in counted]
        taken = {}
        for i in cohort if counted else []:
            weights = []
            for k in range(factors):
                scores = [1 - apart(sent[i][k], sent[j][k]) / math.log(2) for j in counted]
                weights.append(torch.tensor([options["scale"] * s for s in scores]).softmax(0).tolist())
            taken[i] = mixed(models, weights, factors)
        for i, named in taken.items():
            clients[i].take(named)
        for i in cohort:
            inbox = server.state.inboxes[i]
            torch.testing.assert_close(
                sum(float(t.double().square().sum()) for t in inbox.values()),
                float(clients[i].w.square().sum()),
                rtol=1e-3,
                atol=1e-4,
            )
            for k in range(factors):
                named = clients[i].named()
                lift, bias, head = (named[name] for name in ("lift.weight", "lift.bias", "head.linears.0.weight"))
                parts = head.chunk(factors, 1)[k], lift.chunk(factors)[k], bias.chunk(factors)[k]
                found = inbox[f"factor.{k}"].double().sort()[0]
                torch.testing.assert_close(
                    found, torch.cat([p.flatten() for p in parts]).sort()[0], rtol=1e-3, atol=1e-4
                )
        assert line["bytes_up"] == 4 * len(cohort) * (size + width)
        assert line["bytes_down"] == 4 * size * (len(cohort) + len(set(cohort) - met))
        met |= set(cohort)


def test_divergences_of_pairs() -> None:
    latents = torch.tensor([[0.3, -1.0, 2.0], [0.0, 0.5, 1.0], [3.0, 0.5, -1.0]])
    found = divergences(latents)
    for i, a in enumerate(latents):
        for j, b in enumerate(latents):
            assert float(found[i, j]) == pytest.approx(apart(a, b), abs=1e-9)


def test_other_models_are_refused(start: Start) -> None:
    with refused("model.name", says="expected disengcn, got gcn"):
        start({"algorithm.name": "fediih", "model.name": "gcn"})
