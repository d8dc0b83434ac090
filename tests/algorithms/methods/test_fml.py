"""FML by hand on three nodes, in whole rounds written out with two modules a client, and alone against Local."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.base import Output
from shoal.algorithms.client import Client
from shoal.algorithms.methods.fml import FML
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.server import Server
from shoal.storage.store.view import View

Run = Callable[..., Server]
Keys = Mapping[str, Any]
ME = {"algorithm.name": "fml"}
# Of the copilot: SGC's 6 x 5 + 6 and 4 x 6 + 4.
P = 64

# What the two say of three nodes; node 0 is the one to train on, and of class 1.
OWN = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
COPILOT = torch.tensor([[0.2, 0.6, 0.2], [0.25, 0.5, 0.25], [0.3, 0.3, 0.4]])
TRUE = torch.tensor([0.0, 1.0, 0.0])


def divergence(teacher: list[float], student: list[float]) -> float:
    return sum(p * float(np.log(p / q)) for p, q in zip(teacher, student))


@pytest.fixture
def pair_of(pair_of_tables: Callable[..., Client]) -> Callable[[list[int]], Client]:
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


def test_by_hand_over_all_rows(pair_of: Callable[..., Client]) -> None:
    """Cross-entropy pulls p towards the label at node 0, a third of the KL towards the other's p at all three."""
    loss, own, copilot = step(FML(alpha=0.7, beta=0.2), pair_of([0]))
    # -log 0.25 at node 0; the divergences from the copilot to the own model.
    each = [divergence(p, q) for p, q in zip(COPILOT.tolist(), OWN.tolist())]
    assert loss == pytest.approx(0.7 * np.log(4) + 0.3 * sum(each) / 3, rel=1e-5)
    pull = 0.3 / 3 * (OWN - COPILOT)
    assert_rows(own, 0.7 * (OWN[0] - TRUE) + pull[0], pull[1], pull[2])
    # The own model took its step before: the copilot learns from what it said earlier.
    pull = 0.8 / 3 * (COPILOT - OWN)
    assert_rows(copilot, 0.2 * (COPILOT[0] - TRUE) + pull[0], pull[1], pull[2])


def test_by_hand_over_training_rows(pair_of: Callable[..., Client]) -> None:
    loss, own, copilot = step(FML(alpha=0.7, beta=0.2, rows="train"), pair_of([0]))
    each = divergence(COPILOT[0].tolist(), OWN[0].tolist())
    assert loss == pytest.approx(0.7 * np.log(4) + 0.3 * each, rel=1e-5)
    nothing = torch.zeros(3)
    assert_rows(own, 0.7 * (OWN[0] - TRUE) + 0.3 * (OWN[0] - COPILOT[0]), nothing, nothing)
    assert_rows(copilot, 0.2 * (COPILOT[0] - TRUE) + 0.8 * (COPILOT[0] - OWN[0]), nothing, nothing)


def test_training_rows_that_are_not_the_first(pair_of: Callable[..., Client]) -> None:
    """Of label 0, which both give 0.1 and 0.3."""
    loss, own, copilot = step(FML(alpha=0.7, beta=0.2, rows="train"), pair_of([2]))
    each = divergence(COPILOT[2].tolist(), OWN[2].tolist())
    assert loss == pytest.approx(0.7 * np.log(10) + 0.3 * each, rel=1e-5)
    label = torch.tensor([1.0, 0, 0])
    torch.testing.assert_close(own[2], 0.7 * (OWN[2] - label) + 0.3 * (OWN[2] - COPILOT[2]))
    torch.testing.assert_close(copilot[2], 0.2 * (COPILOT[2] - label) + 0.8 * (COPILOT[2] - OWN[2]))
    assert not own[:2].any()


def test_both_terms_are_means_over_their_rows(pair_of: Callable[..., Client]) -> None:
    _, own, _ = step(FML(alpha=0.7), pair_of([0, 1]))
    pull, label = 0.3 / 3 * (OWN - COPILOT), torch.tensor([1.0, 0, 0])
    assert_rows(own, 0.35 * (OWN[0] - TRUE) + pull[0], 0.35 * (OWN[1] - label) + pull[1], pull[2])


def test_without_training_rows(pair_of: Callable[..., Client]) -> None:
    """Over all rows there is something to be taught; the weight of the labels goes to nobody."""
    method = FML(alpha=0.7, beta=0.2)
    client = pair_of([])
    loss, own, copilot = step(method, client)
    each = [divergence(p, q) for p, q in zip(COPILOT.tolist(), OWN.tolist())]
    assert loss == pytest.approx(0.3 * sum(each) / 3, rel=1e-5)
    torch.testing.assert_close(own, 0.1 * (OWN - COPILOT))
    torch.testing.assert_close(copilot, 0.8 / 3 * (COPILOT - OWN))
    assert method.upload(client, {}, "train").weight == {"w": 3.0}


@pytest.mark.parametrize(
    ("method", "own_learns"),
    [(FML(beta=1.0), True), (FML(alpha=1.0, beta=1.0), False), (FML(rows="train"), False)],
)
def test_a_copilot_that_did_not_train_has_no_weight(
    method: FML, own_learns: bool, pair_of: Callable[..., Client]
) -> None:
    client = pair_of([])
    loss, own, copilot = step(method, client)
    assert bool(own.any()) == own_learns == (not np.isnan(loss))
    assert not copilot.any()
    assert method.upload(client, {}, "train").weight == {"w": 0.0}
    assert method.upload(pair_of([1]), {}, "train").weight == {"w": 3.0}


def test_alpha_one_still_teaches_the_copilot(pair_of: Callable[..., Client]) -> None:
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
    start: Run, with_copilots: Keys, plain_pairs: Callable[..., Any], assert_holds: Callable[..., None], options: Keys
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


MODELS = [{"name": "gcn", "hidden": 8}, {"name": "gamlp", "hidden": 12, "init": "own"}, {"name": "sgc"}]


@pytest.mark.parametrize("more", [{"algorithm.beta": 0.3}, {"algorithm.beta": 1.0, "algorithm.rows": "train"}])
def test_alpha_one_equals_local_to_the_bit(run: Run, more: Keys) -> None:
    """Models that read hops and such that pass messages, with dropout."""
    keys = {"model": MODELS, "train.dropout": 0.5, "participation.ratio": 0.7}
    local = run({**keys, "algorithm.name": "local", "engine.trainer": "autograd"}, rounds=3).state.clients
    alone, taught = (run({**keys, **ME, **more, "algorithm.alpha": a}, rounds=3).state.clients for a in (1.0, 0.5))
    assert {0, 1, 2} <= set(local)
    for i, tree in local.items():
        for name, tensor in tree.items():
            assert torch.equal(alone[i][name], tensor), (i, name)
        assert torch.equal(taught[i]["model.w"], tree["model.w"]) == (i == 5 and "algorithm.rows" in more)


@pytest.mark.parametrize("options", [{"alpha": -0.1}, {"alpha": 1.1}, {"beta": -0.1}, {"beta": 1.1}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        FML(**options)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_bounds_are_possible(value: float) -> None:
    assert FML(alpha=value, beta=value).models() == {"model": None, "copilot": {"name": "gcn"}}
