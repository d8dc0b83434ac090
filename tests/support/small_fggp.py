"""A small FGGP of its own, written from the paper and the method's docstring: dense matrices and loops over nodes."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from support.plain_fedavg import row_counts
from support.small_fedgkc import DECAY, EPOCHS, LR, MOMENTUM, dense_operator
from support.written_rounds import require_counts, require_mean_loss
from torch import Tensor, nn

from shoal.algorithms.models.inputs.neighbourhood import GraphBatch, Neighbourhood
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.rng import key
from shoal.engine.rounds.server import Server
from shoal.storage.shards.view import View

# Vectors with their classes.
Entries = list[tuple[int, Tensor]]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.norm().clamp_min(1e-8) * b.norm().clamp_min(1e-8))


def merged(points: Sequence[Tensor], groups: list[list[int]]) -> list[list[int]]:
    """Groups that are each other's first neighbours, or have the same one, become one."""
    means = [sum(points[i] for i in group) / len(group) for group in groups]
    first = []
    for i, mean in enumerate(means):
        others = [(round(float(cosine(mean, other)), 12), -j) for j, other in enumerate(means) if j != i]
        first.append(-max(others)[1])
    owner = list(range(len(groups)))
    for i in range(len(groups)):
        for j in range(len(groups)):
            if first[i] == j or first[j] == i or first[i] == first[j]:
                owner = [owner[i] if o == owner[j] else o for o in owner]
    found: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        found.setdefault(owner[number], []).extend(group)
    return sorted((sorted(group) for group in found.values()), key=min)


def finch(points: Sequence[Tensor], least: int) -> list[list[int]]:
    groups = [[i] for i in range(len(points))]
    if len(points) < max(least, 2):
        return groups
    coarsest = [list(range(len(points)))]
    while len(groups) > 1:
        # Every group has a first neighbour, so that there are at most half as many then.
        groups = merged(points, groups)
        if len(groups) > 1:
            coarsest = groups
    return coarsest


def summed_up(sent: Entries, o: SimpleNamespace, classes: int) -> Entries:
    """Equation 5."""
    bank: Entries = []
    for c in range(classes):
        points = [vector for label, vector in sent if label == c]
        groups = [list(range(len(points)))] if points else []
        if points and o.cluster != "mean":
            groups = finch(points, o.finch_min) if o.cluster == "finch" else [[i] for i in range(len(points))]
        bank += [(c, sum(points[i] for i in group) / len(group)) for group in groups]
    return bank


def newest(old: Entries, fresh: Entries, slots: int) -> Entries:
    every: Entries = []
    for c in sorted({c for c, _ in old + fresh}):
        every += [entry for entry in old + fresh if entry[0] == c][-slots:]
    return every


def voted(cosines: Sequence[float], bank: Entries, o: SimpleNamespace) -> int:
    """Equations 2 and 3, for one node."""
    near = sorted(((cos, -i, c) for i, (cos, (c, _)) in enumerate(zip(cosines, bank))), reverse=True)[: o.k]
    shares = [math.exp(cos / o.vote_temperature) for cos, _, _ in near]
    score: dict[int, list[float]] = {}
    for (cos, _, c), share in zip(near, shares):
        score.setdefault(c, []).append(share / sum(shares) if o.vote in ("softmax_sum", "class_avg") else cos)
    how = {"class_nearest": max, "class_avg": lambda s: sum(s) / len(s)}.get(o.vote, sum)
    return max(sorted(score), key=lambda c: how(score[c]))


def nearest_rows(z_NH: Tensor, k: int) -> list[list[int]]:
    """Finds the k rows of the largest cosine to each; a row of zeros has none, and is none's."""
    # Ties are those of directions in float32.
    towards = [(row / row.norm()).float().double() if row.any() else None for row in z_NH.double()]
    near = []
    for i, own in enumerate(towards):
        cos = {
            j: float(own @ other) for j, other in enumerate(towards) if j != i and other is not None and own is not None
        }
        near.append(sorted(cos, key=lambda j: (-cos[j], j))[:k])
    return near


def classifier_of(module: nn.Module) -> list[nn.Parameter]:
    """Lists the parameters of the last layer, with those of its messages if it passes any."""
    messages = [] if module.head.messages is None else [*module.head.messages.parameters()]
    return [*module.head.linears[-1].parameters(), *messages]


class PlainClient:
    """A client with its model, its generator, and what it keeps."""

    def __init__(
        self, number: int, view: View, module: nn.Module, generator: nn.Module, o: SimpleNamespace, reset: bool
    ) -> None:
        self.number, self.view, self.o, self.reset = number, view, o, reset
        self.module, self.generator = module, generator
        self.a_NN, self.x_NF = view.adjacency.to_dense(), view.whole(0)
        self.train, self.y = view.train.tolist(), view.label.tolist()
        self.first_head = [p.detach().clone() for p in classifier_of(module)]
        self.items = len(self.y)
        self.near: tuple[int, list[list[int]]] | None = None
        self.head: list[Tensor] | None = None
        self.new_optimizer()

    def new_optimizer(self) -> None:
        every = [*self.module.parameters(), *self.generator.parameters()]
        self.optimizer = torch.optim.SGD(every, lr=LR, momentum=MOMENTUM, weight_decay=DECAY)

    def body(self) -> list[nn.Parameter]:
        """What is averaged."""
        of_head = set() if self.o.head_mode == "average" else set(map(id, classifier_of(self.module)))
        return [p for p in self.module.parameters() if id(p) not in of_head]

    @property
    def w(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.body()).detach().double()

    @property
    def generator_w(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.generator.parameters()).detach().double()

    def receive(self, w: Tensor, generator_w: Tensor, kept_head: bool = True) -> None:
        nn.utils.vector_to_parameters(w.float().clone(), self.body())
        if self.o.gkic in ("both", "gen_only"):
            nn.utils.vector_to_parameters(generator_w.float().clone(), self.generator.parameters())
        if self.o.head_mode != "average":
            head = self.head if kept_head and self.head is not None else self.first_head
            for p, value in zip(classifier_of(self.module), head):
                p.data = value.clone()

    @property
    def inner(self) -> nn.Module:
        """The backbone below an adapter to the common width, and below a readout."""
        module = self.module
        while hasattr(module, "backbone"):
            module = module.backbone
        return module

    def answer(self, operator: Tensor | None, rows: list[int] | None = None) -> Output:
        """What the model says, in its present mode."""
        inner = self.inner
        if not hasattr(inner, "convs"):
            found = slice(None) if rows is None else rows
            return self.module([self.view.hop(k)[found] for k in inner.inputs])
        if operator is None:
            operator = dense_operator(inner.operator, self.a_NN)
        asked = None if rows is None else torch.tensor(rows)
        return self.module(Neighbourhood(self.x_NF, (operator,) * inner.depth, asked))

    @torch.no_grad()
    def evaluated(self) -> Output:
        self.module.eval()
        return self.answer(None)

    def z(self, out: Output) -> Tensor:
        """Returns Z, which the equations have without a ReLU."""
        return out.embedding_NH if self.o.feature == "embedding" else out.embedding_NH.relu()

    def features(self) -> Tensor:
        return self.z(self.evaluated())

    def completed(self, round_number: int) -> Tensor:
        """Equation 6."""
        if self.o.gkic == "gen_only":
            return self.a_NN
        every = self.o.knn_every
        if self.near is None or round_number % every == 0 or round_number - self.near[0] > 2 * every:
            self.near = round_number, self.neighbours()
        a_NN = self.a_NN.clone()
        for i, row in enumerate(self.near[1]):
            for j in row:
                a_NN[i, j] = a_NN[j, i] = 1
        return a_NN

    def neighbours(self) -> list[list[int]]:
        """Finds the nodes nearest to each."""
        return nearest_rows(self.features(), self.o.neighbours)

    def pairs(self, n: int) -> set[tuple[int, ...]]:
        """Draws pairs that may become edges beside those of A'; of n nodes."""
        r = self.o.random_pairs
        if r == "all":
            return set(combinations(range(n), 2))
        drawn = torch.randint(n - 1, (r * n,), generator=self.rng).tolist()
        return {tuple(sorted((i // r, j + (j >= i // r)))) for i, j in enumerate(drawn)}

    def generated(self, a_NN: Tensor, x_NF: Tensor) -> tuple[Tensor, Tensor]:
        """Equation 7 and L_reg; who is a candidate, and what is drawn, are the draws of a host."""
        n, o = len(a_NN), self.o
        p_NN = dense_operator("symmetric", a_NN)
        w1, w2 = self.generator.parameters()
        f_NH = (p_NN @ (p_NN @ (x_NF @ w1.T) @ w2.T)).relu()
        pairs = self.pairs(n)
        pairs = sorted(pairs | {(int(i), int(j)) for i, j in a_NN.triu(1).nonzero()})
        u = torch.rand(len(pairs), generator=self.rng)
        i, j = torch.tensor(pairs).T
        dot = (f_NH[i] * f_NH[j]).sum(1)
        length = f_NH.norm(dim=1).clamp_min(1e-8)
        omega = {
            "cosine": lambda: (dot / (length[i] * length[j])).relu(),
            "max": lambda: dot / dot.max().clamp_min(1e-8),
            "sigmoid": lambda: 1 / (1 + (-dot).exp()),
        }[o.similarity]()
        known = a_NN[i, j] > 0
        chance = (o.lam * known + (1 - o.lam) * omega).clamp(1e-6, 1 - 1e-6)
        score = (chance / (1 - chance)).log() + (u / (1 - u)).log()
        if o.draw == "gumbel":
            score = chance.log() - (-u.log()).log()
        soft = (score / o.edge_temperature).sigmoid()
        edge_NN = torch.zeros(n, n).index_put((i, j), (score >= 0).float() + soft - soft.detach())
        edge_NN = edge_NN + edge_NN.T
        told = (dot / math.sqrt(f_NH.shape[1])).sigmoid()
        if o.reg_form == "literal":
            told = (score.double() / o.edge_temperature).sigmoid()
        terms = [-told[known].log(), -(1 - told[~known]).log()]
        means = [found.mean() for found in ([torch.cat(terms)] if o.reg_form == "literal" else terms) if len(found)]
        kind = "sum" if self.inner.operator == "sum" else "symmetric"
        return dense_operator(kind, edge_NN), sum(means) / len(means) if means else torch.zeros(())

    def certain(self, logits_NC: Tensor) -> list[tuple[int, float]]:
        p_NC = logits_NC.detach()
        if self.o.certainty == "probability":
            p_NC = p_NC.softmax(1)
        found = [(int(p.argmax()), float(p.max())) for p in p_NC]
        for i in self.train:
            found[i] = (self.y[i], 1.0)
        return found

    def prototypes(self, z_NH: Tensor, certain: list[tuple[int, float]]) -> dict[int, tuple[Tensor, float]]:
        """Equation 4, for classes that have a node, or a mass of one at least."""
        found = {}
        for c in sorted({c for c, _ in certain}):
            mass = sum(w for label, w in certain if label == c)
            total = sum(w * z for z, (label, w) in zip(z_NH, certain) if label == c)
            if mass >= self.o.least_mass or not self.o.least_mass:
                found[c] = (total / mass, mass)
        return found

    def contrast(self, own: Output, other: Output) -> Tensor:
        """Equation 8, or the form whose denominators have all classes."""
        certain, tau = self.certain(own.logits_NC), self.o.tau
        c = [v for v, _ in self.prototypes(self.z(own), certain).values()]
        g = [v for v, _ in self.prototypes(self.z(other), certain).values()]
        count, total = len(c), torch.zeros(())
        if count < 2:
            return total
        for j in range(count):
            among = [m for m in range(count) if m != j or self.o.contrast_form == "infonce"]
            s = [[(cosine(a, b) / tau).exp() for b in g] for a in c]
            total = total - torch.log(s[j][j] / sum(s[j][m] for m in among))
            total = total - torch.log(s[j][j] / sum(s[m][j] for m in among))
        return total / (2 * count)

    def labels(self, out: Output, rows: list[int]) -> Tensor:
        return sum(-out.logits_NC[row].log_softmax(0)[self.y[i]] for row, i in zip(rows, self.train)) / len(rows)

    def visit(self, round_number: int) -> float:
        """Trains, and gives the loss."""
        if not self.train:
            return float("nan")
        if self.reset:
            self.new_optimizer()
        o = self.o
        a_NN = self.completed(round_number) if o.gkic != "off" else self.a_NN
        self.rng = torch.Generator().manual_seed(key(0, round_number, self.number, "generated graph"))
        torch.manual_seed(key(0, round_number, self.number, "train"))
        self.module.train()
        for _ in range(EPOCHS):
            # Weight decay and momentum move parameters without a gradient, too; where there is no generator, nothing.
            for p in self.module.parameters():
                p.grad = torch.zeros_like(p)
            if o.gkic == "off":
                loss = self.labels(self.answer(None, self.train), list(range(len(self.train))))
            else:
                term = torch.zeros(())
                operator = dense_operator(self.inner.operator, a_NN)
                if o.gkic != "knn_only":
                    operator, term = self.generated(a_NN, self.x_NF)
                own, other = self.answer(None), self.answer(operator)
                loss = self.labels(own, self.train) + self.labels(other, self.train)
                loss = loss + o.beta * self.contrast(own, other) + o.gamma * term
            for p in self.generator.parameters():
                p.grad = torch.zeros_like(p) if o.gkic in ("both", "gen_only") else None
            loss.backward()
            self.optimizer.step()
        return float(loss.detach())

    def sent(self) -> dict[int, tuple[Tensor, float]]:
        out = self.evaluated()
        found = self.prototypes(self.z(out), self.certain(out.logits_NC))
        own = {self.y[i] for i in self.train}
        return {c: entry for c, entry in found.items() if c in own or not self.o.need_label}

    def predicted(self, bank: Entries) -> list[int]:
        out = self.evaluated()
        if not self.o.fcpp:
            return out.logits_NC.argmax(1).tolist()
        z = self.z(out)
        if not bank:
            for c in sorted({self.y[i] for i in self.train}):
                rows = [z[i] for i in self.train if self.y[i] == c]
                bank = [*bank, (c, sum(rows) / len(rows))]
        if not bank:
            return [0] * len(z)
        vectors = torch.stack([vector for _, vector in bank])
        cos_NB = z @ vectors.T / z.norm(dim=1, keepdim=True).clamp_min(1e-8) / vectors.norm(dim=1).clamp_min(1e-8)
        return [voted(row, bank, self.o) for row in cos_NB.tolist()]

    def counts(self, bank: Entries, classes: int) -> np.ndarray:
        return row_counts(self.view, self.predicted(bank), classes)


class PlainGraphClient(PlainClient):
    """A client whose small graphs are classified: those of the training alone are learnt from, some in a step."""

    size: int | None = None

    @property
    def rows_of(self) -> list[list[int]]:
        first = self.view.graph_ptr.tolist()
        return [list(range(*ends)) for ends in pairwise(first)]

    def answer_for(self, graphs: list[int], a_NN: Tensor | None = None) -> Output:
        """What the model says of some graphs, of the adjacency among them."""
        rows = [row for g in graphs for row in self.rows_of[g]]
        first = torch.tensor([0, *np.cumsum([len(self.rows_of[g]) for g in graphs])])
        inner = self.inner
        if not hasattr(inner, "convs"):
            return self.module(GraphBatch([self.view.hop(k)[rows] for k in inner.inputs], (), first))
        operator = dense_operator(inner.operator, self.a_NN[rows][:, rows]) if a_NN is None else a_NN
        return self.module(GraphBatch([self.x_NF[rows]], (operator,) * inner.depth, first))

    def answer(self, operator: Tensor | None, rows: list[int] | None = None) -> Output:
        return self.answer_for(list(range(self.items)))

    @torch.no_grad()
    def neighbours(self) -> list[list[int]]:
        """Finds the nodes nearest to each of a training graph within it, by embeddings of nodes."""
        self.module.eval()
        near: list[list[int]] = [[] for _ in self.a_NN]
        for g in self.train:
            rows = self.rows_of[g]
            operator = dense_operator(self.inner.operator, self.a_NN[rows][:, rows])
            z = self.inner.embed(self.x_NF[rows], (operator,) * self.inner.depth)
            z = z if self.o.feature == "embedding" else z.relu()
            for row, found in zip(rows, nearest_rows(z, self.o.neighbours)):
                near[row] = [rows[j] for j in found]
        return near

    def pairs(self, n: int) -> set[tuple[int, ...]]:
        found: set[tuple[int, ...]] = set()
        if self.o.random_pairs == "all":
            for start, size in self.drawn_in:
                found |= set(combinations(range(start, start + size), 2))
            return found
        own = [(start, size, start + i) for start, size in self.drawn_in for i in range(size) if size > 1]
        own = [each for each in own for _ in range(self.o.random_pairs)]
        u = torch.rand(len(own), dtype=torch.float64, generator=self.rng).tolist()
        for (start, size, i), share in zip(own, u):
            others = [j for j in range(start, start + size) if j != i]
            found.add(tuple(sorted((i, others[int(share * (size - 1))]))))
        return found

    def visit(self, round_number: int) -> float:
        if not self.train:
            return float("nan")
        if self.reset:
            self.new_optimizer()
        o, train, total = self.o, np.array(self.train), 0.0
        a_NN = self.completed(round_number) if o.gkic != "off" else self.a_NN
        self.rng = torch.Generator().manual_seed(key(0, round_number, self.number, "generated graph"))
        torch.manual_seed(key(0, round_number, self.number, "train"))
        self.module.train()
        size = self.size or len(train)
        for _ in range(EPOCHS):
            order = train[torch.randperm(len(train)).numpy()] if size < len(train) else train
            total = 0.0
            for start in range(0, len(train), size):
                graphs = order[start : start + size].tolist()
                for p in self.module.parameters():
                    p.grad = torch.zeros_like(p)
                loss = self.loss_of(graphs, a_NN)
                for p in self.generator.parameters():
                    p.grad = torch.zeros_like(p) if o.gkic in ("both", "gen_only") else None
                loss.backward()
                self.optimizer.step()
                total += float(loss.detach()) * len(graphs) / len(train)
        return total

    def loss_of(self, graphs: list[int], a_NN: Tensor) -> Tensor:
        """Equation 9 on some training graphs, all of which have a label."""
        o, labels = self.o, torch.tensor([self.y[g] for g in graphs])
        if o.gkic == "off":
            return F.cross_entropy(self.answer_for(graphs).logits_NC, labels)
        rows = [row for g in graphs for row in self.rows_of[g]]
        a_NN, term = a_NN[rows][:, rows], torch.zeros(())
        sizes = [len(self.rows_of[g]) for g in graphs]
        self.drawn_in = list(zip(np.cumsum([0, *sizes]).tolist(), sizes))
        operator = dense_operator(self.inner.operator, a_NN)
        if o.gkic != "knn_only":
            operator, term = self.generated(a_NN, self.x_NF[rows])
        own, other = self.answer_for(graphs), self.answer_for(graphs, operator)
        loss = F.cross_entropy(own.logits_NC, labels) + F.cross_entropy(other.logits_NC, labels) + o.gamma * term
        classes = sorted(set(labels.tolist()))
        c, g = ([self.z(out)[labels == j].mean(0) for j in classes] for out in (own, other))
        if len(classes) < 2:
            return loss
        cos = torch.stack([torch.stack([cosine(a, b) for b in g]) for a in c]) / o.tau
        if o.contrast_form == "literal":
            cos_off = cos.masked_fill(torch.eye(len(classes), dtype=torch.bool), -torch.inf)
            return loss + o.beta * ((cos_off.logsumexp(1) + cos_off.logsumexp(0)) / 2 - cos.diagonal()).mean()
        target = torch.arange(len(classes))
        return loss + o.beta * (F.cross_entropy(cos, target) + F.cross_entropy(cos.T, target)) / 2

    def sent(self) -> dict[int, tuple[Tensor, float]]:
        z = self.features()
        found = {}
        for c in sorted({self.y[g] for g in self.train}):
            own = [z[g] for g in self.train if self.y[g] == c]
            found[c] = (sum(own) / len(own), float(len(own)))
        return found


def require_rounds(server: Server, clients: Sequence[PlainClient], o: SimpleNamespace, classes: int) -> None:
    """Runs all rounds of a server, and compares what they have with what these clients and a server here do."""
    views, kinds = [client.view for client in clients], [info.model for info in server.infos]
    first_of = {kind: kinds.index(kind) for kind in sorted(set(kinds))}
    several = len(first_of) > 1
    w = {kind: clients[first].w for kind, first in first_of.items()}
    generator_w, bank = max((client.generator_w for client in clients), key=len), list[Any]()
    kept_of: dict[int, Entries] = {}
    deployed: dict[int, Any] = {}
    of_head = sum(p.numel() for p in clients[0].first_head) if several and o.head_mode != "average" else 0
    generates = [client.o.gkic in ("both", "gen_only") for client in clients]

    def require_server(rtol: float, atol: float) -> None:
        found = server.state.server
        torch.testing.assert_close(found["w"].double(), torch.cat([*w.values()]), rtol=rtol, atol=atol)
        if any(generates):
            torch.testing.assert_close(found["generator"].double(), generator_w, rtol=rtol, atol=atol)

    require_server(0, 0)
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        of_bank = sum(4 * (len(vector) + 1) for _, vector in bank)
        losses, sent, up, down = {}, list[Any](), 0, 0
        totals, weights, generators, weight = dict[int, Any](), dict[int, int](), 0, 0
        for i in cohort:
            client, kind = clients[i], kinds[i]
            client.receive(w[kind], generator_w)
            losses[i] = client.visit(number)
            n = {"nodes": client.items, "train": len(client.train), "uniform": 1}[o.weight] * bool(client.train)
            totals[kind], weights[kind] = totals.get(kind, 0) + n * client.w, weights.get(kind, 0) + n
            if generates[i]:
                generators, weight = generators + n * client.generator_w, weight + n
            entries = client.sent() if o.fcpp else {}
            own = [(c, vector) for c, (vector, _) in entries.items()]
            kept_of[i] = own or kept_of.get(i, [])
            sent += own
            each = 4 * (len(w[kind]) + generates[i] * len(generator_w))
            up += each + 4 + sum(4 * len(v) + 8 for v, _ in entries.values())
            down += each + 4 * of_head + 4 * (client.o.gkic in ("both", "knn_only")) + of_bank
            if o.head_mode == "personal":
                client.head = [p.detach().clone() for p in classifier_of(client.module)]
            require_counts(server, "trained", {i: client.counts(bank, classes)})
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        if any(clients[i].train for i in cohort):
            require_mean_loss(line, losses, views)
        w |= {kind: totals[kind] / weights[kind] for kind in totals if weights[kind]}
        if weight:
            generator_w = generators / weight
        if sent and o.bank == "ring":
            bank = newest(bank, summed_up(sent, o, classes), o.slots)
        elif sent:
            bank = summed_up([entry for i in sorted(kept_of) for entry in kept_of[i]], o, classes)
        # Who took part is given the new model.
        deployed.update({i: (w[kinds[i]], generator_w, bank) for i in cohort})
        require_server(1e-4, 1e-5)
        if o.fcpp and bank:
            assert server.state.server["bank.class"].tolist() == [c for c, _ in bank]
            vectors = torch.stack([vector for _, vector in bank])
            torch.testing.assert_close(server.state.server["bank"], vectors, rtol=1e-4, atol=1e-5)
            assert line["notes"]["bank"] == len(bank)
        for i, client in enumerate(clients):
            kept = server.state.clients.get(i, {})
            assert ("knn" in kept) == (client.near is not None)
            if client.near is not None:
                assert int(kept["knn.round"]) == client.near[0]
                padded = [[*near, *[-1] * (o.neighbours - len(near))] for near in client.near[1]]
                assert kept["knn"].dtype == torch.int32
                assert kept["knn"].tolist() == padded
            assert ("head" in kept) == (client.head is not None)
            if client.head is not None:
                head = torch.cat([p.flatten() for p in client.head])
                torch.testing.assert_close(kept["head"], head, rtol=1e-4, atol=1e-5)
            if i in deployed:
                client.receive(*deployed[i][:2])
                require_counts(server, "deployed", {i: client.counts(deployed[i][2], classes)})
            client.receive(w[kinds[i]], generator_w, kept_head=False)
            require_counts(server, "global", {i: client.counts(bank, classes)})
