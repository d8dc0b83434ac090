"""FML by hand on three nodes, in whole rounds written out with two modules a client, and alone against Local."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from support.fixtures import Check, Keys, Make, MakeClient, Start
from torch import Tensor

from shoal.algorithms.base import Output
from shoal.algorithms.client import Client
from shoal.algorithms.methods.fml import FML
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.store.view import View

ME = {"algorithm.name": "fml"}
# Of the copilot: SGC's 6 x 5 + 6 and 4 x 6 + 4.
P = 64

# What the two say of three nodes; node 0 is the one to train on, and of class 1.
OWN = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
COPILOT = torch.tensor([[0.2, 0.6, 0.2], [0.25, 0.5, 0.25], [0.3, 0.3, 0.4]])
TRUE = torch.tensor([0.0, 1.0, 0.0])


@pytest.fixture
def pair_of(pair_of_tables: MakeClient) -> Callable[[list[int]], Client]:
    return partial(pair_of_tables, own_NC=OWN, copilot_NC=COPILOT)


def step(method: FML, client: Client) -> tuple[float, Tensor, Tensor]:
    """The loss, and by how much a step of length one lowers the tables of both models, row by row of the nodes."""
    flats = {name: model.flat for name, model in client.models.items()}
    trainer = LocalTrainer(flats, TrainOptions(1, "sgd", 1.0, 0.0), method)
    before = [client.models[name].w.clone() for name in (MODEL, "copilot")]
    loss = method.train(client, {}, trainer, "train")
    after = [client.models[name].w for name in (MODEL, "copilot")]
    own, copilot = ((a - b)[:9].view(3, 3).t() for a, b in zip(before, after))
    return loss, own, copilot


def assert_rows(found: Tensor, *expected: Tensor) -> None:
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_alpha_one_still_teaches_the_copilot(pair_of: MakeClient) -> None:
    """alpha = 1: the own model is trained first, then teaches."""
    client = pair_of([0])
    loss, own, copilot = step(FML(alpha=1.0, beta=0.2), client)
    assert loss == pytest.approx(np.log(4), rel=1e-5)
    nothing = torch.zeros(3)
    assert_rows(own, OWN[0] - TRUE, nothing, nothing)
    pull = 0.8 / 3 * (COPILOT - client.model.logits().softmax(1))
    assert_rows(copilot, 0.2 * (COPILOT[0] - TRUE) + pull[0], pull[1], pull[2])


def mutual(method: FML, view: View, out: dict[str, Output]) -> dict[str, Tensor]:
    """Losses node by node."""
    losses = {}
    train = view.train.tolist()
    for learner, teacher, labels in (("model", "copilot", method.alpha), ("copilot", "model", method.beta)):
        student, said = out[learner].logits_NC.log_softmax(1), out[teacher].logits_NC.softmax(1)
        answered = train if method.rows == "train" else list(range(view.nodes))
        heard = [(p * (p.log() - q)).sum() for p, q in zip(said, student)]
        loss = (1 - labels) * torch.stack(heard).mean()
        if train:
            own = [-student[answered.index(i)][view.label[i]] for i in train]
            loss = loss + labels * torch.stack(own).mean()
        if train or labels < 1:
            losses[learner] = loss
    return losses


@pytest.mark.parametrize("options", [{}, {"alpha": 0.8, "beta": 0.3, "rows": "train"}, {"alpha": 0.0, "beta": 1.0}])
def test_rounds_written_out(
    start: Start, with_copilots: Keys, plain_pairs: Make, assert_holds: Check, options: Keys
) -> None:
    """Half of all activations are dropped. Rounds 3 and 4 have a cohort of one, that of round 4 nothing to train on."""
    server = start({**with_copilots, **ME, **{f"algorithm.{name}": value for name, value in options.items()}})
    method, clients = FML(**options), plain_pairs(server)
    w = server.state.server["w"]
    assert torch.equal(w, server._build("copilot").w.detach())
    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        sizes = []
        for i in cohort:
            pair = clients[i]
            pair.receive(w)
            trains = len(pair.y) or method.rows != "train"
            if trains:
                pair.train(number, method.rows, partial(mutual, method, pair.view))
            sizes.append(14 if len(pair.y) or (method.rows != "train" and method.beta < 1) else 0)
            held = server.state.clients[i]
            torch.testing.assert_close(held["copilot.w"], pair.copilot_w, rtol=1e-3, atol=1e-5)
            assert sum(".opt." in entry for entry in held) == 3 * sum(bool(o.state) for o in pair.optimizers.values())
        assert (line["bytes_up"], line["bytes_down"]) == (4 * (P + 1) * len(cohort), 4 * P * len(cohort))
        if sum(sizes):
            w = sum(size * clients[i].copilot_w for i, size in zip(cohort, sizes)) / sum(sizes)
            torch.testing.assert_close(server.state.server["w"], w, rtol=1e-3, atol=1e-5)
        else:
            assert torch.equal(server.state.server["w"], w)
        if len(cohort) == 1 and sum(sizes):
            # Times its weight, and divided by it.
            back = server.state.clients[cohort[0]]["copilot.w"]
            torch.testing.assert_close(server.state.server["w"], back, rtol=2e-7, atol=0)
        w = server.state.server["w"]
        assert_holds(server, clients)
