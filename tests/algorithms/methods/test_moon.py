"""MOON in whole rounds written out, by hand, and without its term."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.methods.moon import MOON, Anchors
from shoal.algorithms.models.layers.output import Output
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError

Run = Callable[..., Server]
Keys = Mapping[str, Any]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm.mu": 4.0, "algorithm.tau": 0.2, "algorithm.weight": "train", "model.name": "gamlp"},
        {"algorithm.rows": "all", "algorithm.mu": 2.0},
    ],
)
def test_rounds_written_out(
    start: Run,
    patchy: Keys,
    plain_average: Callable[..., Any],
    module_of: Callable[..., nn.Module],
    assert_averaged: Callable[..., None],
    more: Keys,
) -> None:
    server = start({**patchy, "algorithm.name": "moon", "model.hidden": 8, **more})
    plain = plain_average(server, more.get("algorithm.weight", "nodes"))
    mu, tau = more.get("algorithm.mu", 1.0), more.get("algorithm.tau", 0.5)
    everybody = more.get("algorithm.rows") == "all"
    previous: dict[int, Tensor] = {}

    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        constant = {}
        for i in (i for i in cohort if i in previous):
            view, found = plain.clients[i].view, []
            for w in (plain.w, previous[i]):
                module = module_of(server, w).eval()
                with torch.no_grad():
                    rows = torch.arange(view.nodes) if everybody else view.train
                    found.append(module([view.hop(k)[rows] for k in module.inputs]).embedding_NH)
            constant[plain.clients[i].module] = found
            assert len(found[0]) == (view.nodes if everybody else len(view.train))

        def loss(module: nn.Module, out: Output, y: Tensor, constant: dict[nn.Module, Any] = constant) -> Tensor:
            total = F.cross_entropy(out.logits_NC, y)
            if module not in constant:
                return total
            terms = []
            if everybody:
                (view,) = (client.view for client in plain.clients if client.module is module)
                out = module([view.hop(k) for k in module.inputs])
            for z, sent, before in zip(out.embedding_NH, *constant[module], strict=True):
                near, far = (torch.exp(F.cosine_similarity(z, other, dim=0) / tau) for other in (sent, before))
                terms.append(-torch.log(near / (near + far)))
            return total + mu * torch.stack(terms).mean()

        plain.round(number, cohort, loss)
        previous |= {i: plain.clients[i].w for i in cohort if len(plain.clients[i].y)}
        assert_averaged(server, plain)
        kept = {i: state["previous"] for i, state in server.state.clients.items() if "previous" in state}
        assert kept.keys() == previous.keys()
        for i, w in previous.items():
            torch.testing.assert_close(kept[i], w, rtol=1e-3, atol=1e-4)
        p = len(plain.w)
        assert (line["bytes_up"], line["bytes_down"]) == (len(cohort) * 4 * (p + 1), len(cohort) * 4 * p)


def test_loss_by_hand() -> None:
    out = Output(torch.zeros(2, 3), torch.tensor([[2.0, 0.0], [3.0, 4.0]]))
    anchors = Anchors(torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[0.0, 1], [1, 0]]))
    # Cosines with what was sent 1 and 0.8, with what was there 0 and 0.6.
    terms = [math.log(1 + math.exp((far - near) / 0.25)) for near, far in ((1, 0), (0.8, 0.6))]
    found = MOON(mu=3, tau=0.25).loss(out, torch.tensor([0, 1]), torch.zeros(1), anchors)
    assert float(found) == pytest.approx(math.log(3) + 3 * sum(terms) / 2)
    assert float(MOON().loss(out, torch.tensor([0, 1]), torch.zeros(1), None)) == pytest.approx(math.log(3))


@pytest.mark.parametrize("model", ["gcn", "gamlp"])
def test_labels_outside_of_the_training_rows_change_nothing(run: Run, model: str) -> None:
    """Where all nodes are contrasted, too, which is another training."""
    keys = {"algorithm.name": "moon", "model.name": model, "train.dropout": 0.0}
    plain, shuffled = (run({**keys, "algorithm.rows": "all"}, rounds=3, graph=graph) for graph in ("plain", "shuffled"))
    assert torch.equal(plain.state.server["w"], shuffled.state.server["w"])
    assert not torch.allclose(run(keys, rounds=3).state.server["w"], plain.state.server["w"], atol=1e-4)


@pytest.mark.parametrize("rows", ["train", "all"])
def test_a_resume_changes_no_bit(start: Run, run: Run, rows: str) -> None:
    """Clients that stayed away for a round still know their model of before."""
    keys = {"algorithm.name": "moon", "algorithm.mu": 5.0, "train.dropout": 0.5, "participation.ratio": 0.5}
    keys |= {"algorithm.rows": rows}
    whole, forgetful = run(keys, rounds=5), run({**keys, "algorithm.mu": 0.0}, rounds=5)
    resumed = start(keys, state=run(keys, rounds=2).state)
    for _ in range(3):
        resumed.round()
    assert torch.equal(resumed.state.server["w"], whole.state.server["w"])
    assert not torch.allclose(forgetful.state.server["w"], whole.state.server["w"], atol=1e-4)
    assert resumed.state.clients.keys() == whole.state.clients.keys()
    for i, tree in whole.state.clients.items():
        assert tree.keys() == resumed.state.clients[i].keys()
        assert all(torch.equal(t, resumed.state.clients[i][name]) for name, t in tree.items())


def test_without_the_term_it_is_fedavg_to_the_last_bit(run: Run) -> None:
    keys = {"train.dropout": 0.5, "participation.ratio": 0.7}
    fedavg = run({**keys, "algorithm.name": "fedavg", "engine.trainer": "autograd"}).state.server["w"]
    off = run({**keys, "algorithm.name": "moon", "algorithm.mu": 0.0})
    assert torch.equal(off.state.server["w"], fedavg)
    assert not any("previous" in kept for kept in off.state.clients.values())
    assert not torch.equal(run({**keys, "algorithm.name": "moon"}).state.server["w"], fedavg)


@pytest.mark.parametrize("rows", ["train", "all"])
def test_the_first_round_is_that_of_fedavg_to_the_last_bit(run: Run, rows: str) -> None:
    """There is no model of before yet."""
    keys = {"train.dropout": 0.5, "engine.trainer": "autograd", "model": {"name": "gcn", "head": "linear"}}
    moon = {**keys, "algorithm.name": "moon", "algorithm.rows": rows}
    for rounds in (1, 2):
        fedavg, found = (run({**keys, "algorithm.name": "fedavg"}, rounds=rounds), run(moon, rounds=rounds))
        assert torch.equal(fedavg.state.server["w"], found.state.server["w"]) == (rounds == 1)


def test_batches_are_refused(start: Run) -> None:
    with pytest.raises(ShoalError, match=r"^train\.batch_size: MOON takes all rows in one step; leave it out$"):
        start({"algorithm.name": "moon", "train.batch_size": 4})


@pytest.mark.parametrize("wrong", [{"mu": -1}, {"tau": 0}, {"tau": -1}])
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MOON(**wrong)
