"""Class means: sums over clients by hand, who is sent what and when, and training on the extra rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from algorithms.methods.class_means import ClassMeans
from engine.rounds.server import Server
from storage.errors import ShoalError
from storage.view import View

Run = Callable[..., Server]
Views = Callable[..., list[View]]
ME = {"algorithm.name": "class_means"}


def loop_means(data: list[View], clients: list[int], at_least: int) -> dict[int, np.ndarray]:
    """Mean of hop 2 over the training rows of all given clients that have enough of the class."""
    rows: dict[int, list[np.ndarray]] = {}
    for i in clients:
        view = data[i]
        label = view.label[view.train].tolist()
        for c in set(label):
            if label.count(c) >= at_least:
                own = [view.hop(2)[row].double().numpy() for row, y in zip(view.train.tolist(), label) if y == c]
                rows.setdefault(c, []).extend(own)
    return {c: np.mean(found, 0) for c, found in rows.items()}


@pytest.mark.parametrize("at_least", [1, 3])
def test_means_over_clients(run: Run, views: Views, at_least: int) -> None:
    server = run({**ME, "algorithm.at_least": at_least}, rounds=1)
    expected = loop_means(views(server), list(range(6)), at_least)
    held = server.state.server
    assert (held["count"][:, 0] > 0).nonzero()[:, 0].tolist() == sorted(expected)
    assert 3 not in expected
    for i in range(6):
        assert server.state.clients[i]["means.class"].tolist() == sorted(expected)
        for row, c in enumerate(sorted(expected)):
            np.testing.assert_allclose(server.state.clients[i]["means"][row].numpy(), expected[c], rtol=1e-5, atol=1e-6)


def test_a_class_of_few_nodes_stays_at_home(start: Run) -> None:
    server = start({**ME, "algorithm.at_least": 1000})
    for _ in range(2):
        line = server.round()
        assert line["bytes_down"] == 0
    assert "sum" not in server.state.server
    assert "means" not in server.state.clients[0]


def test_messages_go_once(start: Run, views: Views) -> None:
    server = start({**ME, "participation.ratio": 0.34, "rounds": 8})
    data, met, version, sent = views(server), set(), 0, dict.fromkeys(range(6), 0)
    for number in range(1, 9):
        line = server.round()
        up = 0
        newcomers = set(server.cohort(number)) - met
        for i in newcomers:
            label = data[i].label[data[i].train].tolist()
            up += 4 * 5 * sum(label.count(c) >= 2 for c in set(label)) + 4 * 4
        met |= newcomers
        version += any(len(data[i].train) for i in newcomers)
        known = loop_means(data, sorted(met), 2)
        behind = [i for i in server.cohort(number) if sent[i] < version]
        sent.update(dict.fromkeys(behind, version))
        assert line["bytes_up"] == up
        assert line["bytes_down"] == len(behind) * (4 * 5 * len(known) + 1)
    assert len(met) == 6


@pytest.mark.parametrize("model", ["sgc", "gamlp"])
def test_training_is_plain_descent_with_extra_rows(
    start: Run, views: Views, module_of: Callable[..., nn.Module], model: str
) -> None:
    sgd = {"train.optimizer": "sgd", "train.lr": 0.1, "train.weight_decay": 0.0, "train.epochs": 2}
    server = start({**ME, **sgd, "model.name": model, "train.dropout": 0.0, "algorithm.weight": 3.0})
    server.round()
    for i, view in enumerate(views(server)[:5]):
        module, kept = module_of(server, server._initial), server.state.clients[i]
        y = view.label[view.train]
        for _ in range(2):
            module.zero_grad()
            loss = F.cross_entropy(
                module([view.hop(k)[view.train] for k in module.inputs]).logits_NC, y, reduction="sum"
            )
            extra = module([kept["means"] for _ in module.inputs]).logits_NC
            loss = loss + 3 * F.cross_entropy(extra, kept["means.class"], reduction="sum")
            (loss / len(y)).backward()
            for p in module.parameters():
                p.data -= 0.1 * p.grad
        w = nn.utils.parameters_to_vector(module.parameters()).detach()
        torch.testing.assert_close(kept["model.w"], w, rtol=1e-4, atol=1e-5)


def test_without_weight_it_is_local_to_the_last_bit(run: Run) -> None:
    keys = {"train.dropout": 0.5, "participation.ratio": 0.7}
    local, silent = run({**keys, "algorithm.name": "local"}), run({**keys, **ME, "algorithm.weight": 0})
    for i, tree in local.state.clients.items():
        for name, tensor in tree.items():
            assert torch.equal(silent.state.clients[i][name], tensor)
    heard = run({**keys, **ME})
    assert not torch.equal(heard.state.clients[0]["model.w"], local.state.clients[0]["model.w"])


def test_noise_changes_a_share_of_the_features(run: Run) -> None:
    plain, noised = (run({**ME, "algorithm.noise": share}, rounds=1) for share in (0.0, 0.2))
    assert not torch.equal(plain.state.server["sum"], noised.state.server["sum"])
    assert torch.equal(plain.state.server["count"], noised.state.server["count"])


def test_labels_outside_the_training_rows_change_nothing(run: Run) -> None:
    plain, shuffled = (run(ME, rounds=3, graph=graph) for graph in ("plain", "shuffled"))
    for name, tensor in plain.state.server.items():
        assert torch.equal(tensor, shuffled.state.server[name]), name


def test_hops_that_are_not_stored(start: Run) -> None:
    with pytest.raises(ShoalError, match=r"algorithm.hops: 5 needs propagation.hops"):
        start({**ME, "algorithm.hops": 5}).round()


@pytest.mark.parametrize("options", [{"hops": -1}, {"at_least": 0}, {"noise": 2.0}, {"weight": -1.0}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ClassMeans(**options)
