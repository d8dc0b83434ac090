"""FedLoG in whole rounds against dense graphs, loops over nodes, classes and branches, and plain torch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.dense_clients import DenseClient
from support.fixtures import ModuleOf, Start, Views
from support.plain_clients import DECAY, EPOCHS, LR, sgd
from support.plain_fedavg import row_counts
from support.small_fedgkc import answer
from support.written_rounds import require_counts, require_mean_loss
from torch import Tensor

from shoal.algorithms.models.layers.dropout import fill_kept
from shoal.algorithms.rng import key

CLASSES, FEATURES, MOMENTUM, HIDDEN = 4, 5, 0.9, 8
DEFAULTS = {"nodes": 20, "degree": 3, "spread": 1.0, "generalize": 1.0, "pre_epochs": 100, "mastered": 0.8}
DEFAULTS["pace"] = 0.001


def stream(number: int, client: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(key(0, number, client, purpose))


def made_generators(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Draws the three layers of generators of all classes, `[C, inputs, outputs]`, and their biases."""
    rng, layers = torch.Generator().manual_seed(seed), []
    for inputs, outputs in ((FEATURES, 256), (256, 512), (512, FEATURES)):
        drawn = [torch.empty(CLASSES, rows, outputs).uniform_(-1, 1, generator=rng) for rows in (inputs, 1)]
        layers.append((drawn[0] / math.sqrt(inputs), drawn[1] / math.sqrt(inputs)))
    return layers


class Condensing(DenseClient):
    """A client with its GNN, synthetic nodes of two branches, and two normalisations."""

    options: dict[str, Any]

    def begin(self, number: int) -> None:
        """Draws synthetic nodes at the first visit, and trains GNN and classifier on labels."""
        k = self.options["nodes"]
        bound = math.sqrt(6 / (CLASSES * k + FEATURES))
        first = torch.empty(2, CLASSES, k, FEATURES).uniform_(-1, 1, generator=stream(number, self.number, "nodes"))
        self.nodes, self.scale = bound * first, [0.0] * CLASSES
        self.velocities: list[Tensor] | None = None
        optimizer = sgd(self.module.parameters())
        for _ in range(self.options["pre_epochs"] if len(self.y) else 0):
            optimizer.zero_grad()
            F.cross_entropy(self.output().logits_NC[self.view.train], self.y).backward()
            optimizer.step()

    def share(self, v: int) -> float:
        return 1 / (1 + math.exp(self.options["degree"] + 1 - float((self.a_NN[v] > 0).sum())))

    def prototypes(self, nodes: Tensor) -> Tensor:
        """Averages embeddings of nodes that send to themselves alone, `[2, C, H]`."""
        x = nodes.reshape(-1, FEATURES)
        loops = hasattr(self.module, "convs") and self.module.operator in ("mean", "sum")
        z = answer(self.module, torch.eye(len(x)).double() if loops else torch.zeros(len(x), len(x)).double(), x)
        return z.embedding_NH.reshape(2, CLASSES, -1, HIDDEN).mean(2)

    def logs(self, z: Tensor, norms: Tensor, proto: Tensor) -> list[Tensor]:
        """Scores a node in both branches: logarithms of probabilities, `[C]` each."""
        found = []
        for b in range(2):
            normed = (z - z.mean()) / (z.var(correction=0) + 1e-5).sqrt() * norms[b, 0] + norms[b, 1]
            found.append((-torch.stack([(normed - p).square().sum() for p in proto[b]])).log_softmax(0))
        return found

    def prompted(self, rows: Tensor, known: list[int], layers: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Embeds global nodes beside their prompts, `[Q K, H]`; rows are `[Q, K, F]`."""
        kept = fill_kept(torch.empty(len(known), rows.shape[1], 512), 0.5) * 2
        made = []
        for place, c in enumerate(known):
            (w1, b1), (w2, b2), (w3, b3) = [(weight[c], bias[c]) for weight, bias in layers]
            hidden = ((rows[place] @ w1 + b1).relu() @ w2 + b2).relu()
            made.append(((hidden * kept[place]) @ w3 + b3).tanh())
        x, count = torch.cat([*rows, *made]), rows.shape[0] * rows.shape[1]
        a = torch.zeros(2 * count, 2 * count).double()
        for i in range(count):
            a[i, count + i] = a[count + i, i] = 1
        return answer(self.module, a, x).embedding_NH[:count]

    def learn(self, number: int, norms: Tensor, rows: dict[int, Tensor], seed: int) -> float:
        """Takes the steps of a visit; `rows` are global nodes by class, `[K, F]` each."""
        torch.manual_seed(key(0, number, self.number, "train"))
        parts = [norms.clone().requires_grad_(), self.nodes.clone().requires_grad_()]
        self.velocities = self.velocities or [torch.zeros_like(part) for part in parts]
        known, layers, loss = sorted(rows), made_generators(seed), torch.zeros(())
        for _ in range(EPOCHS):
            self.optimizer.zero_grad()
            proto = self.prototypes(parts[1])
            loss = self.options["spread"] * sum(half.square().sum().sqrt() for half in parts[1]) / 2
            z = self.output().embedding_NH
            for v, y in zip(self.view.train.tolist(), self.y.tolist()):
                high, low = self.logs(z[v], parts[0], proto)
                a = self.share(v)
                loss = loss - (a * high[y] + (1 - a) * low[y]) / len(self.y)
            if known and self.options["generalize"]:
                given = torch.stack([rows[c] for c in known])
                middle = given.reshape(-1, FEATURES).mean(0)
                moved = torch.stack([x + self.scale[c] * (middle - x) for c, x in zip(known, given)])
                k, right = moved.shape[1], dict.fromkeys(known, 0)
                for place, z_v in enumerate(self.prompted(moved, known, layers)):
                    c, both = known[place // k], self.logs(z_v, parts[0], proto)
                    loss = loss - self.options["generalize"] * sum(log[c] for log in both) / 2 / (k * len(known))
                    right[c] += int(sum(both).argmax()) == c
                for c in known:
                    step = self.options["pace"] * (1 if right[c] / k > self.options["mastered"] else -1)
                    self.scale[c] = min(max(self.scale[c] + step, 0.0), 1.0)
            # A classifier that has no part in the loss is moved by decay and momentum.
            for p in self.module.parameters():
                p.grad = torch.zeros_like(p)
            for part in parts:
                part.grad = None
            loss.backward()
            self.optimizer.step()
            for part, velocity, decay in zip(parts, self.velocities, (DECAY, 0.0)):
                # Normalisations without a node to normalise take no step.
                if part.grad is not None:
                    velocity.mul_(MOMENTUM).add_(part.grad + decay * part.detach())
                    part.data -= LR * velocity
        self.norms, self.nodes = (part.detach() for part in parts)
        return float(loss.detach())

    def guesses(self) -> list[int]:
        with torch.no_grad():
            z, proto = self.output().embedding_NH, self.prototypes(self.nodes)
            found = []
            for v in range(len(z)):
                high, low = self.logs(z[v], self.norms, proto)
                a = self.share(v)
                found.append(int((a * high.exp() + (1 - a) * low.exp()).argmax()))
        return found


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (
            {"name": "gcn", "hidden": HIDDEN, "head": "linear"},
            {"nodes": 3, "degree": 1, "pre_epochs": 2, "pace": 0.2, "mastered": 0.5, "spread": 0.3},
        ),
        ({"name": "sage", "hidden": HIDDEN, "head": "linear"}, {"nodes": 2, "pre_epochs": 0, "generalize": 3.0}),
        ({"name": "gamlp", "hidden": HIDDEN}, {"nodes": 2, "pre_epochs": 1, "mastered": 0.0, "pace": 0.3}),
        ({"name": "gat", "hidden": HIDDEN, "head": "linear"}, {"nodes": 1, "degree": 0, "pre_epochs": 1}),
        ({"name": "gcn", "hidden": HIDDEN, "head": "linear"}, {"nodes": 2, "pre_epochs": 1, "generalize": 0.0}),
    ],
    ids=["gcn", "sage", "gamlp", "gat", "no global nodes"],
)
def test_rounds_written_out(
    start: Start,
    views: Views,
    module_of: ModuleOf,
    unequal: dict[str, Any],
    model: dict[str, Any],
    options: dict[str, Any],
) -> None:
    algorithm = {"algorithm.name": "fedlog", **{f"algorithm.{name}": value for name, value in options.items()}}
    server = start({**unequal, **algorithm, "model": model, "train.dropout": 0.0, "evaluation.every": 1})
    options = {**DEFAULTS, **options}
    clients = [Condensing(i, view, module_of(server, server._initial)) for i, view in enumerate(views(server))]
    held, width, k = server.state.server, server._initial.numel() + 4 * HIDDEN, options["nodes"]
    w, norms = held["w"].clone(), torch.stack([torch.stack([torch.ones(HIDDEN), torch.zeros(HIDDEN)])] * 2)
    torch.testing.assert_close(held["norms"], norms)
    seed, rows, met = int(held["seed"]), dict[int, Tensor](), set[int]()
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        losses, down = {}, dict(rows)
        for i in cohort:
            client = clients[i]
            client.options = options
            client.load(w)
            if i not in met:
                client.begin(number)
            losses[i] = client.learn(number, norms, down, seed)
        met |= set(cohort)
        require_mean_loss(line, losses, [client.view for client in clients])
        counted = [clients[i] for i in cohort if len(clients[i].y)]
        if counted:
            w = sum(client.w for client in counted).float() / len(counted)
            norms = sum(client.norms for client in counted) / len(counted)
        shares = {i: np.bincount(clients[i].y, minlength=CLASSES) / max(len(clients[i].y), 1) for i in cohort}
        for c in range(CLASSES):
            if total := sum(shares[i][c] for i in cohort):
                orders = {i: torch.randperm(k, generator=stream(number, i, "order")) for i in cohort}
                rows[c] = sum(float(shares[i][c] / total) * clients[i].nodes[0, c, orders[i]] for i in cohort)
        held = server.state.server
        near = {"rtol": 1e-3, "atol": 1e-4}
        torch.testing.assert_close(held["w"], w, **near)
        torch.testing.assert_close(held["norms"], norms, **near)
        assert held["known"].nonzero()[:, 0].tolist() == sorted(rows)
        for c, row in rows.items():
            torch.testing.assert_close(held["proto"][c], row.flatten(), **near)
        for i in cohort:
            kept, client = server.state.clients[i], clients[i]
            torch.testing.assert_close(kept["model.w"].double(), client.w, **near)
            torch.testing.assert_close(kept["nodes"], client.nodes, **near)
            torch.testing.assert_close(kept["norms"], client.norms, **near)
            torch.testing.assert_close(kept["scale"], torch.tensor(client.scale), **near)
        require_counts(server, "deployed", {i: row_counts(clients[i].view, clients[i].guesses()) for i in met})
        sent = k * FEATURES * sum(int((share > 0).sum()) for share in shares.values())
        assert line["bytes_up"] == 4 * (len(cohort) * (width + 1 + CLASSES) + sent)
        global_nodes = 4 * k * FEATURES * len(down) + 1 if down else 0
        assert line["bytes_down"] == len(cohort) * (4 * width + 8 + global_nodes)
