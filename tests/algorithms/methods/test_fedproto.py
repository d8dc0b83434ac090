"""FedProto, FedDistill, FedTGP, ClassMeans and FedProc in whole rounds written out, on clients that lack classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, Make, PlainClients, Start
from torch import Tensor, nn

from shoal.algorithms.base import Client, Output, Received, Upload
from shoal.algorithms.methods.class_means import ClassMeans
from shoal.algorithms.rng import key
from shoal.storage.shards.view import View


def distance(z: Tensor, logits: Tensor, proto: Tensor) -> Tensor:
    """Computes FedProto's term of a row."""
    return (z - proto).square().sum() / 8


def divergence(z: Tensor, logits: Tensor, proto: Tensor) -> Tensor:
    """Computes FedDistill's term of a row, from the class's mean logits to its own."""
    p = proto.softmax(0)
    return (p * (p.log() - logits.log_softmax(0))).sum()


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize(
    ("name", "option", "term"), [("fedproto", "lam", distance), ("feddistill", "gamma", divergence)]
)
def test_personal_models(
    start: Start, patchy: Keys, plain_clients: PlainClients, assert_holds: Check, name: str, option: str, term: Any,
    weight: float,
) -> None:  # fmt: skip
    """Means run over the training rows of the cohort, nothing dropped; a class that is not there keeps its own."""
    batch, model = (100, "mlp") if weight == 1 else (2, "gamlp")
    more = {"algorithm": {"name": name, option: weight}, "train.batch_size": batch, "model.name": model}
    server = start({**patchy, "model.hidden": 8, **more})
    clients, proto, width = plain_clients(server), dict[int, np.ndarray](), 8 if name == "fedproto" else 4

    def loss(out: Output, y: Tensor) -> Tensor:
        plain, rows = F.cross_entropy(out.logits_NC, y), zip(out.embedding_NH, out.logits_NC, y.tolist())
        terms = [term(z, logits, torch.from_numpy(proto[c]).float()) for z, logits, c in rows if c in proto]
        return plain + weight * torch.stack(terms).mean() if terms else plain

    for number in range(1, 8):
        line, rows, up, cohort = server.round(), dict[int, list[np.ndarray]](), 0, server.cohort(number)
        for i in cohort:
            clients[i].train(number, loss, batch)
            answers = clients[i].answers()
            trained = clients[i].by_class(answers.embedding_NH if name == "fedproto" else answers.logits_NC)
            up += 4 * (width * len(trained) + 4)
            for c, of_class in trained.items():
                rows.setdefault(c, []).extend(of_class)
        down = len(cohort) * (4 * width * len(proto) + 1) if number > 1 else 0
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        proto.update({c: np.mean(of_class, 0) for c, of_class in rows.items()})
        held = server.state.server
        assert held["known"].nonzero()[:, 0].tolist() == sorted(proto)
        for c, p in proto.items():
            np.testing.assert_allclose(held["proto"][c], p, rtol=1e-3, atol=1e-5)
        assert_holds(server, clients)


class Anchors(nn.Module):
    """An anchor for each of four classes, of width 8, and the optimizer that goes on from round to round."""

    def __init__(self, seed: int, lr: float, weight_decay: float) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Parameter(torch.randn(4, 8))
        self.network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=lr, weight_decay=weight_decay)

    def forward(self) -> Tensor:
        return self.network(self.table)


def margin_of(uploads: list[tuple[int, Tensor]], cap: float) -> float:
    """The largest distance of a class's mean upload to the nearest mean of another class, at most `cap`."""
    own = {c: torch.stack([p for d, p in uploads if d == c]).mean(0) for c, _ in uploads}
    nearest = [min(float((own[c] - own[d]).norm()) for d in own if d != c) for c in own if len(own) > 1]
    return min(max(nearest, default=0.0), cap)


def server_loss(uploads: list[tuple[int, Tensor]], anchors: Tensor, known: set[int], margin: float) -> Tensor:
    """Every upload is a sample: the softmax over known classes of -distance, its own class's longer by the margin."""
    losses = []
    for c, p in uploads:
        far = {d: (p - anchors[d]).square().sum().sqrt() + margin * (d == c) for d in sorted(known)}
        losses.append(far[c] + torch.stack([-distance for distance in far.values()]).exp().sum().log())
    return torch.stack(losses).mean()


DEFAULTS = {"lam": 1.0, "server_lr": 0.01, "server_weight_decay": 5e-4, "margin_cap": 100.0}
OWN = [
    {"server_steps": 6},
    {"server_steps": 5, "lam": 2.0, "server_lr": 0.03, "server_weight_decay": 0.2, "margin_cap": 0.4},
    {"server_steps": 1, "margin_cap": 0.0},
]


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("own", OWN)
def test_fedtgp(start: Start, patchy: Keys, plain_clients: PlainClients, assert_holds: Check, own: Keys) -> None:
    """The server's network learns from the cohort's uploads alone; clients train towards all classes known by then."""
    more = {"model.hidden": 8, **{f"algorithm.{name}": value for name, value in own.items()}}
    server = start({**patchy, "algorithm.name": "fedtgp", **more})
    own, clients, known, margins = {**DEFAULTS, **own}, plain_clients(server), set[int](), []
    generator = Anchors(key(0, 1, "server", "generator"), own["server_lr"], own["server_weight_decay"])

    def loss(out: Output, y: Tensor) -> Tensor:
        pairs = [(z - anchors[c]).square().sum() for z, c in zip(out.embedding_NH, y.tolist()) if c in sent]
        plain = F.cross_entropy(out.logits_NC, y)
        return plain + own["lam"] / 8 * torch.stack(pairs).mean() if pairs else plain

    anchors = torch.zeros(4, 8)
    for number in range(1, 8):
        line = server.round()
        uploads, sent = [], set(known)
        for i in server.cohort(number):
            clients[i].train(number, loss)
            means = {c: torch.from_numpy(z.mean(0)).float() for c, z in clients[i].embeddings().items()}
            uploads += means.items()
        counted = {"bytes_up": 4 * (8 * len(uploads) + 4 * len(server.cohort(number)))}
        counted["bytes_down"] = len(server.cohort(number)) * (4 * 8 * len(sent) + 1) if number > 1 else 0
        assert counted.items() <= line.items()
        known |= {c for c, _ in uploads}
        margin = margin_of(uploads, own["margin_cap"])
        for _ in range(own["server_steps"] if uploads else 0):
            generator.optimizer.zero_grad()
            value = server_loss(uploads, generator(), known, margin)
            value.backward()
            generator.optimizer.step()
        anchors = generator().detach()
        margins.append(margin)
        notes = {"server loss": value.item(), "margin": margin} if uploads else {}
        assert line.get("notes", {}) == pytest.approx(notes, rel=1e-3)
        assert server.state.server["known"].nonzero()[:, 0].tolist() == sorted(known)
        np.testing.assert_allclose(server.state.server["proto"].numpy(), anchors.numpy(), rtol=1e-3, atol=1e-4)
        assert_holds(server, clients)
    assert margins[2:4] == [0, 0]
    assert (max(margins) == own["margin_cap"]) == (own["margin_cap"] < 1)


ME = {"algorithm.name": "class_means"}


@dataclass(frozen=True)
class Failing(ClassMeans):
    """Client 4 fails when it has to send its means in round 2, client 0 at the end of round 6."""

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if client.random("noise") in (key(0, 2, 4, "noise"), key(0, 6, 0, "noise")):
            raise RuntimeError("no power")
        return super().upload(client, received, phase)


def own_means(view: View, hop: int, at_least: int, share: float, seed: int) -> dict[int, tuple[np.ndarray, int]]:
    """Mean rows of a client's classes that have enough nodes, and their numbers; noise from the client's stream."""
    random = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(5, generator=random)[: round(share * 5)].numpy()
    noise = torch.randn(4, len(chosen), generator=random).double().numpy()
    label, means = view.label[view.train].tolist(), {}
    for c in sorted(set(label)):
        mean = np.mean([view.hop(hop)[row].double().numpy() for row, y in zip(view.train, label) if y == c], 0)
        mean[chosen] += np.sqrt(np.mean((mean - mean.mean()) ** 2)) * noise[c]
        if label.count(c) >= at_least:
            means[c] = mean, label.count(c)
    return means


def train(client: Any, round_number: int, means: dict[int, Tensor], weight: float) -> None:
    """Every mean is a node of its class that counts for `weight` of the client's own."""
    rows, label = torch.stack(list(means.values())), torch.tensor(list(means))

    def loss(out: Output, y: Tensor) -> Tensor:
        logits = client.module([rows] * len(client.module.inputs)).logits_NC
        every = F.cross_entropy(logits, label, reduction="sum")
        return F.cross_entropy(out.logits_NC, y) + weight / len(client.y) * every

    client.train(round_number, loss)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("own", "failing"),
    [
        ({}, False),
        ({"at_least": 1, "noise": 1.0, "hops": 0}, False),
        ({"weight": 2.5, "at_least": 3, "noise": 0.4}, True),
        ({"weight": 0.5, "at_least": 1, "noise": 0.6, "hops": 1, "model": "gamlp"}, True),
    ],
)
def test_class_means(
    start: Start, patchy: Keys, plain_clients: PlainClients, assert_holds: Check, own: Keys, failing: bool
) -> None:
    """Newcomers bring their means once; who takes part learns from those of all who came, sent again if they changed.

    A client that fails brings nothing, and is as it was before.
    """
    more = {"model.name" if name == "model" else f"algorithm.{name}": value for name, value in own.items()}
    method = {"algorithm.name": f"{__file__}:Failing", "engine.on_client_error": "skip"} if failing else ME
    server = start({**patchy, **more, **method})
    fails = {(2, 4), (6, 0)} if failing else set()
    clients, weight = plain_clients(server), own.get("weight", 1.0)
    met: set[int] = set()
    told: dict[int, list[int]] = {}
    brought: dict[int, dict[int, tuple[np.ndarray, int]]] = {}
    for number in range(1, 8):
        line, up, down = server.round(), 0, 0
        cohort = set(server.cohort(number))
        for i in sorted(cohort - met):
            if (number, i) in fails:
                cohort.remove(i)
                continue
            met.add(i)
            options = own.get("hops", 2), own.get("at_least", 2), own.get("noise", 0.0)
            if found := own_means(clients[i].view, *options, key(0, number, i, "noise")):
                brought[i] = found
            up += 4 * (5 * len(found) + 4)
        sums = {c: [found[c] for found in brought.values() if c in found] for c in range(4)}
        means = {
            c: torch.from_numpy(np.average([mean for mean, _ in pairs], 0, [n for _, n in pairs])).float()
            for c, pairs in sums.items()
            if pairs
        }
        for i in sorted(cohort):
            if told.get(i, []) != sorted(brought):
                down += 4 * 5 * len(means) + 1
            if (number, i) in fails:
                continue
            told[i] = sorted(brought)
            train(clients[i], number, means, weight)
            held = server.state.clients[i]
            torch.testing.assert_close(held["means"], torch.stack(list(means.values())), rtol=1e-5, atol=1e-6)
            assert held["means.class"].tolist() == list(means)
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        assert_holds(server, clients)
    assert met == {0, 1, 2, 3, 4, 5}


def test_a_class_of_few_nodes_stays_at_home(start: Start) -> None:
    server = start({**ME, "algorithm.at_least": 1000})
    for _ in range(2):
        line = server.round()
        assert line["bytes_down"] == 0
    assert "sum" not in server.state.server
    assert "means" not in server.state.clients[0]


Prototypes = dict[int, Tensor]


def pulled(out: Output, y: Tensor, proto: Prototypes, options: Keys, share: float) -> Tensor:
    """FedProto's loss: cross-entropy and the mean square to the class's prototype, of rows that have one."""
    plain = F.cross_entropy(out.logits_NC, y)
    squares = [(z - proto[c]).square().mean() for z, c in zip(out.embedding_NH, y.tolist()) if c in proto]
    return plain + options.get("lam", 1.0) * torch.stack(squares).mean() if squares else plain


def contrasted(out: Output, y: Tensor, proto: Prototypes, options: Keys, share: float) -> Tensor:
    """FedProc's loss: cross-entropy, and -log of the own prototype's share, of rows that have one, from two on."""
    plain, terms = F.cross_entropy(out.logits_NC, y), []
    for z, c in zip(out.embedding_NH, y.tolist()):
        if c in proto and len(proto) > 1:
            cosines = {k: (z @ row) / (z @ z).sqrt() / (row @ row).sqrt() for k, row in proto.items()}
            exps = {k: torch.exp(cosine / options.get("temperature", 1.0)) for k, cosine in cosines.items()}
            terms.append(-torch.log(exps[c] / sum(exps.values())))
    return share * torch.stack(terms).mean() + (1 - share) * plain if terms else plain


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("name", "options", "batch"),
    [
        ("fedproto_averaged", {}, 100),
        ("fedproto_averaged", {"lam": 3.0, "weight": "train"}, 2),
        ("fedproc", {}, 100),
        ("fedproc", {"alpha": 0.6, "temperature": 0.3, "weight": "train"}, 2),
        ("fedproc", {"alpha": 0.4, "schedule": "constant"}, 100),
    ],
)
def test_averaged_rows(
    start: Start, patchy: Keys, plain_average: Make, assert_averaged: Check, name: str, options: Keys, batch: int
) -> None:
    keys = {**patchy, "model.hidden": 8, "algorithm": {"name": name, **options}}
    server = start({**keys, "train.batch_size": batch})
    plain = plain_average(server, options.get("weight", "nodes"))
    proto: Prototypes = {}
    for number in range(1, 8):
        share = options.get("alpha", 1.0) * (1 if "schedule" in options else 1 - (number - 1) / 7)

        def loss(module: nn.Module, out: Output, y: Tensor, share: float = share) -> Tensor:
            return (contrasted if name == "fedproc" else pulled)(out, y, proto, options, share)

        line, cohort = server.round(), server.cohort(number)
        plain.round(number, cohort, loss, batch)
        p, up, known = len(plain.w), 0, len(proto)
        rows: dict[int, list[np.ndarray]] = {}
        for i in cohort:
            embeddings = plain.clients[i].embeddings()
            up += 4 * (p + 1 + 8 * len(embeddings) + 4)
            for c, found in embeddings.items():
                rows.setdefault(c, []).extend(found)
        proto.update({c: torch.from_numpy(np.mean(found, 0)).float() for c, found in rows.items()})
        down = 4 * p + 4 * (name == "fedproc") + (4 * 8 * known + 1 if number > 1 else 0)
        assert (line["bytes_up"], line["bytes_down"]) == (up, len(cohort) * down)
        assert_averaged(server, plain)
        assert server.state.server["known"].nonzero()[:, 0].tolist() == sorted(proto)
        for c, row in proto.items():
            torch.testing.assert_close(server.state.server["proto"][c], row, rtol=2e-3, atol=1e-5)
