"""Rows and edges found from a client's change, against the rows and the steps that made it; what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.errors import refused
from support.needs import needs
from support.ring_clients import ring_clients

from shoal.attacks import inversion as module
from shoal.attacks.inversion import Attack, inversion
from shoal.attacks.seen_uploads import seen_round
from shoal.past.rewind import PastRun

CLIENTS = [[0, 1, 2, 0, 1, 2], [1, 2, 0, 1], [2, 0, 1, 2, 0], [0, 1, 2]]
SGD = {"optimizer": "sgd", "lr": 0.5, "epochs": 1, "weight_decay": 0.0}


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that suffice for a row of the one training node."""
    monkeypatch.setattr(module, "STEPS", 150)


def cosines(run: Path, number: int = 1, client: int | None = None) -> dict[str, float]:
    """The cosine of all rows, by what they are."""
    return {row[0]: float(row[1]) for row in inversion(run, number, client).rows}


@pytest.mark.parametrize(("model", "epochs"), [({"name": "sgc"}, 3), ({"name": "mlp", "hidden": 8}, 1)])
@pytest.mark.usefixtures("few_steps")
def test_row_of_the_one_training_node_is_found_exactly(tmp_path: Path, model: dict[str, Any], epochs: int) -> None:
    run = ring_clients(tmp_path, CLIENTS, 1, model=model, train={**SGD, "epochs": epochs, "dropout": 0.0})
    found = cosines(run, client=2)
    assert found["upload"] == 100
    assert max(found["of others"], found["mean of others"]) < 95


@pytest.mark.parametrize(
    ("model", "train"),
    [
        ({"name": "sgc"}, {**SGD, "epochs": 3, "momentum": 0.9, "weight_decay": 0.01}),
        ({"name": "sign", "hidden": 8}, {**SGD, "epochs": 2}),
        ({"name": "gcn", "hidden": 8}, {**SGD, "epochs": 2}),
        ({"name": "gcn", "hidden": 8, "head": "linear"}, {"optimizer": "adam", "lr": 0.01, "epochs": 3}),
        ({"name": "sgc"}, {"optimizer": "adam", "lr": 0.01, "epochs": 3, "weight_decay": 0.0}),
    ],
)
def test_steps_of_the_attack_are_those_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], train: dict[str, Any]
) -> None:
    monkeypatch.setattr(module, "SMOOTH", 0.0)
    past = PastRun(ring_clients(tmp_path, CLIENTS, 3, model=model, train={**train, "dropout": 0.0}))
    seen = seen_round(past, 1, (1,))
    client = seen.client(1)
    attack = Attack.on(seen.sent[0], client, past.job.train, True)
    assert attack is not None
    object.__setattr__(attack, "label_n", client.data.train_label)
    rows, edges = module.rows_of(client), None
    if client.model.coupled is not None:
        # The nodes that train come first.
        order = torch.cat([client.data.train, torch.tensor([i for i in range(4) if i not in client.data.train])])
        rows, edges = rows[order], client.data.adjacency.to_dense()[order][:, order]
    client.model.module.eval()
    change = attack.simulate_training(attack.inputs(rows, edges)).detach()
    sent = attack.change_P
    assert torch.nn.functional.cosine_similarity(change, sent, dim=0).item() == pytest.approx(1.0, abs=1e-4)
    assert change.norm().item() == pytest.approx(sent.norm().item(), rel=1e-2)


def test_found_rows_of_a_gcn_are_nearer_than_chance(tmp_path: Path) -> None:
    run = ring_clients(tmp_path, CLIENTS, 2, features=40, model={"name": "gcn"}, train={**SGD, "dropout": 0.0})
    upload, _, *chance = (row[1:] for row in inversion(run, 1, 0).rows)
    for column in (0, 1):
        assert float(upload[column]) > 10 + max(float(row[column]) for row in chance)
    assert upload[2] != "-"
    assert [row[2] for row in chance] == ["-", "-"]


def test_success_is_of_rows_and_edges_in_any_order(tmp_path: Path) -> None:
    seen = seen_round(PastRun(ring_clients(tmp_path, CLIENTS, 2, model={"name": "gcn", "hidden": 8})), 1, ())
    client, order = seen.client(0), torch.tensor([3, 5, 1, 0, 2, 4])
    rows, edges = module.rows_of(client), client.data.adjacency.to_dense()
    assert module._success(client, rows, rows[order], edges[order][:, order]) == ("100.0", "100.0", "100.0")
    assert module._success(client, rows, rows[order], 1 - edges[order][:, order])[2] == "0.0"
    assert module._success(client, rows, torch.zeros_like(rows), torch.zeros_like(edges)) == ("0.0", "0.0", "50.0")


@needs("privacy")
@pytest.mark.usefixtures("few_steps")
def test_noise_in_training_hides_the_row_and_clipping_at_the_server_does_not(tmp_path: Path) -> None:
    node = {"propagation": {"hops": 1, "r": 0.0, "max_degree": 2}, "train": SGD}
    noised = ring_clients(tmp_path / "a", CLIENTS, 1, privacy={"unit": "node", "noise": 50.0, "delta": 1e-3}, **node)
    found = cosines(noised, client=2)
    assert found["upload"] < max(found["of others"], found["mean of others"])
    clipped = {"unit": "client", "noise": 50.0, "clip": 0.01, "delta": 1e-3}
    found = cosines(ring_clients(tmp_path / "b", CLIENTS, 1, privacy=clipped, train=SGD), client=2)
    assert found["upload"] > 99
    assert found["released"] < max(found["of others"], found["mean of others"])


@needs("secure")
def test_two_calls_find_the_same_and_the_smallest_client_is_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEPS", 20)
    run = ring_clients(tmp_path, [[0, 1, 2, 0]] * 3, 2, model={"name": "gcn", "hidden": 8})
    first, second = (inversion(run, 2).csv() for _ in range(2))
    assert first == second
    some = ring_clients(tmp_path / "b", CLIENTS, 5, secure={"kind": "masks"})
    table = inversion(some, 1)
    assert "client 3 in round 1" in table.title
    assert [row[0] for row in table.rows] == ["released", "of others", "mean of others"]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"train": {"batch_size": 2}}, "--kind"),
        ({"algorithm": {"name": "fedprox"}}, "--kind"),
        ({"algorithm": {"name": "local"}}, "--kind"),
        ({"model": {"name": "sage"}}, "--kind"),
        ({"model": {"name": "gcn", "head": "linear", "fanouts": [2, 2]}}, "--kind"),
        ({"participation": {"without": [1]}}, "--client"),
    ],
)
def test_what_the_attack_does_not_know_is_refused(tmp_path: Path, changes: dict[str, Any], place: str) -> None:
    run = ring_clients(tmp_path, CLIENTS, 2, **changes)
    with refused(*([run] if place == "--client" else []), place):
        inversion(run, 1, 1)


def test_large_clients_and_clients_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ring_clients(tmp_path, CLIENTS, 2)
    with refused(run, "--client", says="client 9 is none of them"):
        inversion(run, 1, 9)
    monkeypatch.setattr(module, "MOST", 20)
    with refused("--client", says="name a smaller"):
        inversion(run, 1)
