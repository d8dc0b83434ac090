"""A small FedPG of its own, written from the paper and the method's docstring.

It has plain modules and optimizers of torch, dense adjacencies, and a loop over every level and class: a prototype is
an entry (level, class) of a dictionary, and one that does not exist is not in it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from support import pyg_clients
from support.plain_dropout import dropped
from torch import Tensor, nn

from shoal.algorithms.rng import key
from shoal.storage.shards.view import View

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

    def near(self, z: Tensor) -> Tensor:
        """Which items are neighbours, `[N, N]`."""
        return self.view.adjacency.to_dense()

    def ours(self, w: Tensor) -> Tensor:
        """Parameters as the engine keeps them, in the order of the module's."""
        return w

    def output(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Logits and embeddings in the module's present mode."""
        out = self.module([self.view.hop(k)[rows] for k in self.module.inputs])
        return out.logits_NC, self.scaled(out.embedding_NH)

    def scaled(self, z: Tensor) -> Tensor:
        """Returns what prototypes are means of: f(x) in equations 1 and 2."""
        return z if self.options.embedding == "raw" else unit(z)

    @torch.no_grad()
    def look(self) -> tuple[Slots, Tensor, Tensor]:
        """What the present model says, without dropout: ends of walks, embeddings, and centres of every class.

        For every slot, how often a walk from a centre (row) ends in a node of its class (column), where any does; once
        for a node at the distance itself with `hop_mean: eq2`.
        """
        self.module.eval()
        logits, z = self.output(slice(None))
        best = logits.softmax(1).max(1)
        annotation, centre = best.indices, torch.zeros(self.view.items, dtype=torch.bool)
        if self.options.pseudo_centres is not None:
            centre = best.values >= self.options.pseudo_centres
        for v in self.view.train.tolist():
            annotation[v], centre[v] = self.view.label[v], True
        near, slots = self.near(z), {}
        closer = torch.zeros_like(near, dtype=torch.bool)
        for level in range(self.options.hops + 1):
            walks = torch.linalg.matrix_power(near, level)
            walks = walks - walks.diag().diag() if level else walks
            if self.options.hop_mean == "eq2":
                walks = (walks > 0) & ~closer
                closer = closer | walks
            for c in range(CLASSES):
                ends = walks[centre & (annotation == c)] * (annotation == c)
                if ends.any():
                    slots[level, c] = ends[ends.any(1)].float()
        return slots, z, torch.bincount(annotation[centre], minlength=CLASSES)

    def means(self, slot: Slot, ends: Tensor, z: Tensor, seen: Tensor) -> Tensor:
        """Mean of the neighbours of every centre of a slot; `seen` are embeddings of the nodes that are scored."""
        score = torch.zeros(len(seen))
        if slot[0] and self.scorers:
            inner, outer = self.scorers[slot[0] - 1]
            score = F.leaky_relu(torch.tanh(seen @ inner.T) @ outer, 0.2)
        return (score + ends.log()).softmax(1) @ z

    def prototype(self, slot: Slot, ends: Tensor, means: Tensor, counts: Tensor) -> Tensor:
        """Equation 2; to the letter it divides by the number of neighbours, too, and by all centres."""
        if self.options.hop_mean == "walks":
            return means.mean(0)
        return (means / ends.sum(1, keepdim=True)).sum(0) / counts[slot[1]]

    def visit(self, number: int, targets: Slots) -> float:
        """Trains; returns the mean loss of the last epoch."""
        options, view = self.options, self.view
        slots, seen, counts = self.look()
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
            if options.cross_entropy == "sum":
                loss = -sum(row.log_softmax(0)[view.label[v]] for row, v in zip(logits, view.train.tolist()))
            if both and options.mu:
                _, z = self.output(reached)
                distances = []
                for slot in both:
                    means = self.means(slot, slots[slot][:, reached], z, seen[reached])
                    if options.alignment == "prototype":
                        distances.append((self.prototype(slot, slots[slot], means, counts) - targets[slot]).norm())
                    elif slot[0] >= 2:
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
        self.own = {
            slot: self.prototype(slot, ends, self.means(slot, ends, z, z), counts) for slot, ends in slots.items()
        }
        if not self.options.noise:
            return self.own, counts
        stream = torch.Generator().manual_seed(key(0, number, self.number, "noise"))
        chosen = torch.randperm(WIDTH, generator=stream)[: round(self.options.noise * WIDTH)]
        drawn = torch.randn(self.options.hops + 1, CLASSES, len(chosen), generator=stream)
        sent = {slot: proto.clone() for slot, proto in self.own.items()}
        for slot, proto in sent.items():
            proto[chosen] += self.own[slot].std(correction=0) * drawn[slot]
        return sent, counts


class GraphClient(PlainClient):
    """A client of small graphs, which are batches of PyG's; their neighbours are found graph by graph."""

    def __init__(self, number: int, view: View, pyg: pyg_clients.PlainClient, options: SimpleNamespace) -> None:
        super().__init__(number, view, pyg.module, options)
        self.batch = pyg.batch

    def near(self, z: Tensor) -> Tensor:
        """Each graph and the others of the largest cosine, both ways."""
        found = torch.zeros(len(z), len(z))
        towards = unit(z.double())
        for i, row in enumerate(towards):
            cosine = {j: float(row @ other) for j, other in enumerate(towards) if j != i}
            for j in sorted(cosine, key=lambda j: -cosine[j])[: self.options.similar]:
                found[i, j] = found[j, i] = 1
        return found

    def ours(self, w: Tensor) -> Tensor:
        module = pyg_clients.Net()
        module.load(w)
        return flat(module.parameters())

    def output(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        batch = self.batch(torch.arange(self.view.items)[rows].numpy())
        z, head = self.module.embed(batch), self.module.backbone.head.linears[0]
        return head(dropped(z, pyg_clients.DROPOUT, self.module.training)), self.scaled(z)


class PlainServer:
    """The server: last uploads, the universal prototypes and what trains them.

    `margins`, `admitted` and `drawn` are what was met, to tell whether an option had a say.
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
        parameters, decay = [self.table, *self.network.parameters()], self.options.server_weight_decay
        self.optimizer = torch.optim.AdamW(parameters, lr=self.options.server_lr, weight_decay=decay)

    def generate(self) -> Slots:
        assert self.network is not None
        rows = self.network(self.table)
        rows = rows if self.options.embedding == "raw" else unit(rows)
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
        if self.options.server_loss in ("eq4", "eq7"):
            cosines = [float(torch.dot(unit(a), unit(b))) for a, b in combinations(of_class.values(), 2)]
            return min(max(cosines), self.options.margin_cap) if cosines else 0.0
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
        if self.options.server_loss in ("eq4", "eq7"):
            for c in classes:
                cosines = [(d, torch.dot(unit(anchors[level, c]), unit(query))) for (_, d), query in asked]
                positive = [(cos + margin).exp() for d, cos in cosines if d == c]
                held = [torch.tensor(margin) if self.options.server_loss == "eq4" else cos for _, cos in cosines]
                negative = [value.exp() for (d, _), value in zip(cosines, held) if d != c]
                if positive and negative:
                    losses.append(-(sum(positive) / (sum(positive) + sum(negative))).log())
            return torch.stack(losses).sum() if losses else self.table.sum() * 0
        for c in classes:
            cosines = [(d, torch.dot(unit(anchors[level, c]), unit(query))) for (_, d), query in asked]
            positive = [((cos - margin) / self.options.temperature).exp() for d, cos in cosines if d == c]
            negative = [(cos / self.options.temperature).exp() for d, cos in cosines if d != c]
            if positive and negative:
                losses.append(-(sum(positive) / (sum(positive) + sum(negative))).log())
        return torch.stack(losses).mean() if losses else self.table.sum() * 0
