"""Whole rounds of FedPG against a small version of its own, written from the paper and the method's docstring.

It has plain modules and optimizers of torch, dense adjacencies, and a loop over every level and class: a prototype is
an entry (level, class) of a dictionary, and one that does not exist is not in it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.methods.fedpg.fedpg import FedPG
from algorithms.protocol import Tree
from engine.rounds.pool import Pool
from engine.rounds.server import Server
from engine.wire.cell import Cell, Outcome
from engine.wire.randomness import key
from storage.view import View

# A level (0: nodes of the class, 1 and 2: their neighbours at this hop) and a class.
Slot = tuple[int, int]
Slots = dict[Slot, Tensor]

CLASSES, WIDTH, ROUNDS, EPOCHS, LR, DECAY = 4, 8, 6, 2, 0.02, 0.01


def unit(z: Tensor) -> Tensor:
    return z / z.norm(dim=-1, keepdim=True)


def flat(parameters: Iterable[Tensor]) -> Tensor:
    return nn.utils.parameters_to_vector(parameters).detach()


class PlainClient:
    """A client that keeps its module, its optimizer and its scorers from visit to visit."""

    def __init__(self, number: int, view: View, module: nn.Module, options: SimpleNamespace) -> None:
        self.number, self.view, self.module, self.options = number, view, module, options
        self.optimizer = torch.optim.Adam(module.parameters(), lr=LR, weight_decay=DECAY)
        self.scorers: list[tuple[Tensor, Tensor]] = []
        self.scorer_optimizer: torch.optim.Optimizer | None = None
        self.own: Slots = {}
        near = view.adjacency.to_dense()
        far = near @ near
        self.walks = [torch.eye(view.nodes), near, far - far.diag().diag()][: options.hops + 1]

    def output(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Logits and unit embeddings in the module's present mode."""
        out = self.module([self.view.hop(k)[rows] for k in self.module.inputs])
        return out.logits_NC, unit(out.embedding_NH)

    @torch.no_grad()
    def look(self) -> tuple[Slots, Tensor, Tensor]:
        """What the present model says, without dropout.

        Returns:
            For every slot, how often a walk from a centre (row) ends in a node of its class (column), for the centres
            that have any; embeddings; and the number of centres of every class.
        """
        self.module.eval()
        logits, z = self.output(slice(None))
        best = logits.softmax(1).max(1)
        annotation, centre = best.indices, torch.zeros(self.view.nodes, dtype=torch.bool)
        if self.options.pseudo_centres is not None:
            centre = best.values >= self.options.pseudo_centres
        for v in self.view.train.tolist():
            annotation[v], centre[v] = self.view.label[v], True
        slots = {}
        for level, walks in enumerate(self.walks):
            for c in range(CLASSES):
                ends = walks[centre & (annotation == c)] * (annotation == c)
                if ends.any():
                    slots[level, c] = ends[ends.any(1)]
        return slots, z, torch.bincount(annotation[centre], minlength=CLASSES)

    def means(self, slot: Slot, ends: Tensor, z: Tensor, seen: Tensor) -> Tensor:
        """Mean of the neighbours of every centre of a slot; `seen` are embeddings of the nodes that are scored."""
        score = torch.zeros(len(seen))
        if slot[0] and self.scorers:
            inner, outer = self.scorers[slot[0] - 1]
            score = F.leaky_relu(torch.tanh(seen @ inner.T) @ outer, 0.2)
        return (score + ends.log()).softmax(1) @ z

    def visit(self, number: int, targets: Slots) -> float:
        """Trains; returns the mean loss of the last epoch."""
        options, view = self.options, self.view
        slots, seen, _ = self.look()
        both = [slot for slot in slots if slot in targets]
        if not len(view.train):
            return math.nan
        if options.attention == "node" and both and not self.scorers:
            self.start_scorers(number)
        reached = torch.stack([ends.any(0) for ends in slots.values()]).any(0).nonzero()[:, 0]
        torch.manual_seed(key(0, number, self.number, "train"))
        self.module.train()
        for _ in range(EPOCHS):
            logits, _ = self.output(view.train)
            loss = F.cross_entropy(logits, view.label[view.train])
            if both and options.mu:
                _, z = self.output(reached)
                distances = []
                for slot in both:
                    means = self.means(slot, slots[slot][:, reached], z, seen[reached])
                    if options.alignment == "prototype":
                        distances.append((means.mean(0) - targets[slot]).norm())
                    elif slot[0] == 2:
                        distances.append((means.mean(0) - targets[slot]).square().sum())
                    else:
                        distances.append((means - targets[slot]).square().sum(1).mean())
                share = 1 if options.alignment == "prototype" else 1 / len(both)
                loss = loss + options.mu * share * sum(distances)
            for optimizer in filter(None, (self.optimizer, self.scorer_optimizer)):
                optimizer.zero_grad()
            loss.backward()
            for optimizer in filter(None, (self.optimizer, self.scorer_optimizer)):
                optimizer.step()
        return loss.item()

    def start_scorers(self, number: int) -> None:
        stream = torch.Generator().manual_seed(key(0, number, self.number, "attention"))
        inner = torch.randn(self.options.hops, 16, WIDTH, generator=stream) / math.sqrt(WIDTH)
        self.scorers = [(V.clone().requires_grad_(), torch.zeros(16, requires_grad=True)) for V in inner]
        parts = [part for scorer in self.scorers for part in scorer]
        self.scorer_optimizer = torch.optim.Adam(parts, lr=self.options.attention_lr)

    @torch.no_grad()
    def upload(self, number: int) -> tuple[Slots, Tensor]:
        """Prototypes and counts."""
        slots, z, counts = self.look()
        self.own = {slot: self.means(slot, ends, z, z).mean(0) for slot, ends in slots.items()}
        if not self.options.noise:
            return self.own, counts
        stream = torch.Generator().manual_seed(key(0, number, self.number, "noise"))
        chosen = torch.randperm(WIDTH, generator=stream)[: round(self.options.noise * WIDTH)]
        drawn = torch.randn(self.options.hops + 1, CLASSES, len(chosen), generator=stream)
        sent = {slot: proto.clone() for slot, proto in self.own.items()}
        for slot, proto in sent.items():
            proto[chosen] += self.own[slot].std(correction=0) * drawn[slot]
        return sent, counts


class PlainServer:
    """The server: last uploads, the universal prototypes and what trains them.

    Attributes:
        margins, admitted, others: What was met, to tell whether an option had a say.
    """

    def __init__(self, options: SimpleNamespace) -> None:
        self.options = options
        self.last: dict[int, tuple[Slots, Tensor]] = {}
        self.fresh: list[int] = []
        self.known: set[Slot] = set()
        self.anchors: Slots = {}
        self.network: nn.Sequential | None = None
        self.table = torch.empty(0)
        self.margins: list[float] = []
        self.admitted: list[tuple[int, int]] = []
        self.drawn: list[int] = []

    def targets(self, i: int) -> Slots:
        found = {}
        for slot in self.known if self.anchors else ():
            found[slot] = self.anchors[slot]
            own = self.last[i][0].get(slot) if i in self.last else None
            if own is None:
                continue
            having = {j: (proto[slot], int(n[slot[1]])) for j, (proto, n) in self.last.items() if slot in proto}
            present = {j: row for j, row in having.items() if j == i or j in self.fresh}
            alike = {
                j: (proto, n)
                for j, (proto, n) in present.items()
                if j == i or torch.dot(unit(own), unit(proto)) >= self.options.lam
            }
            self.admitted.append((len(alike), len(present)))
            mean = sum(n * proto for proto, n in alike.values()) / sum(n for _, n in alike.values())
            found[slot] = self.options.alpha * found[slot] + (1 - self.options.alpha) * mean
        return found

    def take(self, number: int, uploads: dict[int, tuple[Slots, Tensor]]) -> float | None:
        """Trains the universal prototypes; returns the loss before the last step."""
        self.last.update(uploads)
        self.fresh = list(uploads)
        self.known |= {slot for proto, _ in uploads.values() for slot in proto}
        sent = [(slot, proto[slot]) for proto, _ in uploads.values() for slot in sorted(proto)]
        if not sent:
            return None
        queries = list(self.queries(sent, number))
        margins = [self.margin([query for query in asked if query[0][0] == level]) for level, asked in queries]
        self.margins += margins
        if self.network is None:
            self.start_network(number)
        assert self.network is not None
        for _ in range(self.options.server_steps):
            self.optimizer.zero_grad()
            anchors = self.generate()
            losses = [self.loss(level, asked, anchors, margin) for (level, asked), margin in zip(queries, margins)]
            sum(losses).backward()
            self.optimizer.step()
        self.anchors = {slot: anchor.detach() for slot, anchor in self.generate().items()}
        return float(sum(losses).detach())

    def start_network(self, number: int) -> None:
        torch.manual_seed(key(0, number, "server", "generator"))
        slots = (self.options.hops + 1) * CLASSES
        self.table = torch.randn(slots, WIDTH).requires_grad_()
        self.network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.optimizer = torch.optim.AdamW(
            [self.table, *self.network.parameters()],
            lr=self.options.server_lr,
            weight_decay=self.options.server_weight_decay,
        )

    def generate(self) -> Slots:
        assert self.network is not None
        rows = unit(self.network(self.table))
        return {divmod(place, CLASSES): row for place, row in enumerate(rows)}

    def queries(self, sent: Sequence[tuple[Slot, Tensor]], number: int) -> Iterator[tuple[int, list[Any]]]:
        """Every level that was uploaded, with what trains it: its own prototypes, and some of other levels."""
        stream = torch.Generator().manual_seed(key(0, number, "server", "cross-hop"))
        for level in range(self.options.hops + 1):
            own = [query for query in sent if query[0][0] == level]
            if not own:
                continue
            others = [query for query in sent if query[0][0] != level and (level, query[0][1]) in self.known]
            order = torch.randperm(len(others), generator=stream).tolist()
            drawn = [others[place] for place in order[: math.floor(self.options.cross_hop * len(own))]]
            self.drawn.append(len(drawn))
            yield level, own + drawn

    def apart(self, a: Tensor, b: Tensor) -> Tensor:
        return (a - b).norm() if self.options.server_loss == "margin" else 1 - torch.dot(unit(a), unit(b))

    def margin(self, own: Sequence[tuple[Slot, Tensor]]) -> float:
        of_class = {c: torch.stack([proto for (_, d), proto in own if d == c]).mean(0) for c in {s[1] for s, _ in own}}
        nearest = [
            min(float(self.apart(mean, other)) for d, other in of_class.items() if d != c)
            for c, mean in of_class.items()
            if len(of_class) > 1
        ]
        return min(max(nearest, default=0.0), self.options.margin_cap)

    def loss(self, level: int, asked: Sequence[tuple[Slot, Tensor]], anchors: Slots, margin: float) -> Tensor:
        classes = sorted(c for h, c in self.known if h == level)
        losses = []
        if self.options.server_loss == "margin":
            for (_, own), query in asked:
                logits = {c: -(query - anchors[level, c]).norm() - margin * (c == own) for c in classes}
                losses.append(torch.stack(list(logits.values())).logsumexp(0) - logits[own])
            return torch.stack(losses).mean()
        for c in classes:
            cosines = [(d, torch.dot(anchors[level, c], query) / query.norm()) for (_, d), query in asked]
            positive = [((cos - margin) / self.options.temperature).exp() for d, cos in cosines if d == c]
            negative = [(cos / self.options.temperature).exp() for d, cos in cosines if d != c]
            if positive and negative:
                losses.append(-(sum(positive) / (sum(positive) + sum(negative))).log())
        return torch.stack(losses).mean() if losses else self.table.sum() * 0


class Listening:
    """A pool that keeps what is sent to the clients of a round."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.down: dict[int, Tree] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterable[tuple[int, Outcome]]:
        for cell in cells:
            if cell.phase:
                self.down.update(cell.private)
        assert not shared
        return self.pool.run_cells(cells, shared)


def padded(slots: Slots, levels: int) -> tuple[Tensor, Tensor]:
    proto, present = torch.zeros(levels, CLASSES, WIDTH), torch.zeros(levels, CLASSES, dtype=torch.bool)
    for slot, row in slots.items():
        proto[slot], present[slot] = row, True
    return proto, present


def assert_close(found: Tensor, expected: Tensor, what: Any, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=atol, msg=lambda text: f"{what}: {text}")


def assert_same_client(kept: Tree, client: PlainClient, what: Any) -> None:
    """What a client keeps; the attention of one whose loss has a small gradient has its rounding, scaled by Adam."""
    assert_close(kept["model.w"], flat(client.module.parameters()), (*what, "parameters"))
    assert ("attention" in kept) == bool(client.scorers)
    if client.scorers:
        scorers = torch.stack([torch.cat([inner, outer[:, None]], 1) for inner, outer in client.scorers])
        assert_close(kept["attention"], scorers.detach(), (*what, "scorers"), atol=1e-4)
    assert ("proto" in kept) == (client.options.targets == "own")
    if "proto" in kept:
        proto, present = padded(client.own, client.options.hops + 1)
        assert_close(kept["proto"], proto, (*what, "own prototypes"))
        assert torch.equal(kept["present"], present)


def assert_same_server(held: Tree, plain: PlainServer, what: Any) -> None:
    levels = plain.options.hops + 1
    for i, (proto, counts) in plain.last.items():
        expected, present = padded(proto, levels)
        assert_close(held["proto"][i], expected, (*what, i, "upload"))
        assert torch.equal(held["present"][i], present)
        assert held["counts"][i].tolist() == counts.tolist()
    assert held["fresh"].nonzero()[:, 0].tolist() == plain.fresh
    assert sorted(map(tuple, held["known"].nonzero().tolist())) == sorted(plain.known)
    assert ("anchor" in held) == (plain.network is not None)
    if plain.network is not None:
        assert_close(held["anchor"], padded(plain.anchors, levels)[0], (*what, "anchors"))
        parameters = flat([plain.table, *plain.network.parameters()])
        assert_close(held["generator"], parameters, (*what, "generator"))


# What the paper recommends or its code has; no noise, no attention and no pseudo-centres unless asked for.
DEFAULTS: dict[str, Any] = {
    "hops": 2,
    "mu": 0.5,
    "alignment": "node",
    "targets": "federated",
    "attention": "none",
    "attention_lr": 0.01,
    "alpha": 0.5,
    "lam": 0.8,
    "pseudo_centres": None,
    "noise": 0.0,
    "server_loss": "margin",
    "margin_cap": 0.5,
    "temperature": 1.0,
    "cross_hop": 0.25,
    "server_steps": 10,
    "server_lr": 0.01,
    "server_weight_decay": 5e-4,
}
# Every option is somewhere another one than by default.
OPTIONS: dict[str, dict[str, Any]] = {
    "by default": {},
    "node, a margin that is capped": {
        "mu": 0.7,
        "alpha": 0.3,
        "lam": 0.8,
        "margin_cap": 0.05,
        "cross_hop": 0.5,
        "server_steps": 4,
        "server_lr": 0.03,
        "server_weight_decay": 0.1,
    },
    "node, one hop, a margin below the cap": {
        "hops": 1,
        "mu": 1.5,
        "alpha": 0.6,
        "lam": 0.9,
        "pseudo_centres": 0.5,
        "noise": 0.25,
        "margin_cap": 5.0,
        "cross_hop": 0.3,
        "server_steps": 3,
        "server_lr": 0.05,
    },
    "attention, contrast": {
        "mu": 0.6,
        "alignment": "prototype",
        "attention": "node",
        "attention_lr": 0.1,
        "alpha": 0.7,
        "lam": 0.3,
        "pseudo_centres": 0.6,
        "noise": 0.5,
        "server_loss": "contrast",
        "margin_cap": 0.02,
        "temperature": 0.4,
        "cross_hop": 0.7,
        "server_steps": 5,
        "server_lr": 0.02,
        "server_weight_decay": 0.05,
    },
    "contrast of classes alone": {
        "hops": 0,
        "alignment": "prototype",
        "alpha": 0.2,
        "lam": 0.8,
        "server_loss": "contrast",
        "margin_cap": 3.0,
        "server_steps": 2,
    },
    "own, node": {"mu": 0.8, "targets": "own"},
    "own, attention": {
        "mu": 0.3,
        "targets": "own",
        "alignment": "prototype",
        "attention": "node",
        "noise": 0.5,
    },
}


def test_defaults() -> None:
    assert asdict(FedPG()) == DEFAULTS


@pytest.fixture
def begun(
    start: Callable[..., Server], views: Callable[..., list[View]], module_of: Callable[..., nn.Module]
) -> Callable[[dict[str, Any]], tuple[Server, Listening, PlainServer, list[PlainClient]]]:
    """Starts the engine and the small version with some options; half of the clients take part in a round."""

    def begun(chosen: dict[str, Any]) -> tuple[Server, Listening, PlainServer, list[PlainClient]]:
        pools: list[Listening] = []

        def listen(pool: Pool) -> Listening:
            pools.append(Listening(pool))
            return pools[0]

        train = {"epochs": EPOCHS, "lr": LR, "weight_decay": DECAY, "dropout": 0.4}
        keys = {
            "algorithm.name": "fedpg",
            **{f"train.{name}": value for name, value in train.items()},
            **{f"algorithm.{name}": value for name, value in chosen.items()},
            "participation.ratio": 0.5,
            "rounds": ROUNDS,
        }
        server = start(keys, pool=listen)
        options = SimpleNamespace(**{**DEFAULTS, **chosen})
        clients = [
            PlainClient(i, view, module_of(server, server._initial), options) for i, view in enumerate(views(server))
        ]
        return server, pools[0], PlainServer(options), clients

    return begun


SHARED = [name for name, chosen in OPTIONS.items() if "targets" not in chosen]


@pytest.mark.parametrize("name", SHARED)
def test_rounds(name: str, begun: Callable[..., tuple[Server, Listening, PlainServer, list[PlainClient]]]) -> None:
    """Stale uploads, newcomers, a client without training nodes, a class that only the predictions know."""
    server, pool, plain, clients = begun(OPTIONS[name])
    options, levels = plain.options, plain.options.hops + 1
    returning = []
    for number in range(1, ROUNDS + 1):
        pool.down.clear()
        before, line, cohort = len(plain.admitted), server.round(), server.cohort(number)
        returning += [i for i in cohort if i in plain.last and i not in plain.fresh and len(clients[i].view.train)]
        uploads, losses = {}, {}
        for i in cohort:
            targets = plain.targets(i)
            assert (i in pool.down) == bool(targets)
            if targets:
                proto, present = padded(targets, levels)
                assert_close(pool.down[i]["proto.rows"], proto[present], (number, i, "targets"))
            losses[i] = clients[i].visit(number, targets)
            uploads[i] = clients[i].upload(number)
            assert_same_client(server.state.clients[i], clients[i], (number, i))
        assert line["loss"] == pytest.approx(mean_loss(losses, clients), rel=1e-4)
        bits = math.ceil(levels * CLASSES / 8)
        sent = [4 * WIDTH * len(proto) + 4 * CLASSES + bits for proto, _ in uploads.values()]
        received = [4 * WIDTH * len(plain.known) + bits for _ in pool.down]
        assert (line["bytes_up"], line["bytes_down"]) == (sum(sent), sum(received))
        met, notes = plain.admitted[before:], line.get("notes", {})
        if met:
            assert notes["set size"] == pytest.approx(sum(size for size, _ in met) / len(met))
        if (loss := plain.take(number, uploads)) is not None:
            assert notes["server loss"] == pytest.approx(loss, rel=1e-4)
        assert_same_server(server.state.server, plain, (number,))
    # An option without a say would be tested by nothing.
    assert returning
    assert any(size > 1 for size, _ in plain.admitted)
    assert any(size < having for size, having in plain.admitted)
    assert max(plain.margins) > 0
    assert (max(plain.margins) == options.margin_cap) == (options.margin_cap < 1)
    assert any(plain.drawn) == bool(options.hops)
    if options.attention == "node":
        assert any(float(outer.detach().abs().max()) > 0.1 for client in clients for _, outer in client.scorers)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in SHARED])
def test_rounds_of_the_self_control(
    name: str, begun: Callable[..., tuple[Server, Listening, PlainServer, list[PlainClient]]]
) -> None:
    server, pool, _, clients = begun(OPTIONS[name])
    for number in range(1, ROUNDS + 1):
        line, losses = server.round(), {}
        for i in server.cohort(number):
            losses[i] = clients[i].visit(number, clients[i].own)
            clients[i].upload(number)
            assert_same_client(server.state.clients[i], clients[i], (number, i))
        assert line["loss"] == pytest.approx(mean_loss(losses, clients), rel=1e-4)
        assert (server.state.server, pool.down, line["bytes_up"], line["bytes_down"]) == ({}, {}, 0, 0)


def mean_loss(losses: dict[int, float], clients: Sequence[PlainClient]) -> float:
    rows = {i: len(clients[i].view.train) for i in losses if len(clients[i].view.train)}
    return sum(n * losses[i] for i, n in rows.items()) / sum(rows.values())
