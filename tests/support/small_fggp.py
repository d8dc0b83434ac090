"""A small FGGP of its own, written from the paper and the method's docstring: dense matrices and loops over nodes."""

import math
from collections.abc import Sequence
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import torch
from support.plain_fedavg import row_counts
from support.small_fedgkc import DECAY, EPOCHS, LR, MOMENTUM, dense_operator
from torch import Tensor, nn

from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.rng import key
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


class PlainClient:
    """A client with its model, its generator, and what it keeps."""

    def __init__(
        self, number: int, view: View, module: nn.Module, generator: nn.Module, o: SimpleNamespace, reset: bool
    ) -> None:
        self.number, self.view, self.o, self.reset = number, view, o, reset
        self.module, self.generator = module, generator
        self.a_NN, self.x_NF = view.adjacency.to_dense(), view.whole(0)
        self.train, self.y = view.train.tolist(), view.label.tolist()
        self.first_head = [p.detach().clone() for p in module.head.parameters()]
        self.near: tuple[int, list[list[int]]] | None = None
        self.head: list[Tensor] | None = None
        self.new_optimizer()

    def new_optimizer(self) -> None:
        every = [*self.module.parameters(), *self.generator.parameters()]
        self.optimizer = torch.optim.SGD(every, lr=LR, momentum=MOMENTUM, weight_decay=DECAY)

    def body(self) -> list[nn.Parameter]:
        """What is averaged."""
        named = self.module.named_parameters()
        return [p for name, p in named if self.o.head_mode == "average" or not name.startswith("head.")]

    @property
    def w(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.body()).detach().double()

    @property
    def generator_w(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.generator.parameters()).detach().double()

    def receive(self, w: Tensor, generator_w: Tensor, kept_head: bool = True) -> None:
        nn.utils.vector_to_parameters(w.float().clone(), self.body())
        nn.utils.vector_to_parameters(generator_w.float().clone(), self.generator.parameters())
        if self.o.head_mode != "average":
            head = self.head if kept_head and self.head is not None else self.first_head
            for p, value in zip(self.module.head.parameters(), head):
                p.data = value.clone()

    def answer(self, operator: Tensor | None, rows: list[int] | None = None) -> Output:
        """What the model says, in its present mode."""
        if not hasattr(self.module, "convs"):
            found = slice(None) if rows is None else rows
            return self.module([self.view.hop(k)[found] for k in self.module.inputs])
        if operator is None:
            operator = dense_operator(self.module.operator, self.a_NN)
        asked = None if rows is None else torch.tensor(rows)
        return self.module(Neighbourhood(self.x_NF, (operator,) * self.module.depth, asked))

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
            z = self.features().double()
            # Ties are those of directions in float32.
            towards = [(row / row.norm()).float().double() if row.any() else None for row in z]
            near = []
            for i, own in enumerate(towards):
                cos = {
                    j: float(own @ other)
                    for j, other in enumerate(towards)
                    if j != i and other is not None and own is not None
                }
                near.append(sorted(cos, key=lambda j: (-cos[j], j))[: self.o.neighbours])
            self.near = round_number, near
        a_NN = self.a_NN.clone()
        for i, row in enumerate(self.near[1]):
            for j in row:
                a_NN[i, j] = a_NN[j, i] = 1
        return a_NN

    def generated(self, a_NN: Tensor) -> tuple[Tensor, Tensor]:
        """Equation 7 and L_reg; who is a candidate, and what is drawn, are the draws of a host."""
        n, r, o = len(a_NN), self.o.random_pairs, self.o
        p_NN = dense_operator("symmetric", a_NN)
        w1, w2 = self.generator.parameters()
        f_NH = (p_NN @ (p_NN @ (self.x_NF @ w1.T) @ w2.T)).relu()
        pairs = set(combinations(range(n), 2))
        if r != "all":
            drawn = torch.randint(n - 1, (r * n,), generator=self.rng).tolist()
            pairs = {tuple(sorted((i // r, j + (j >= i // r)))) for i, j in enumerate(drawn)}
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
        return dense_operator("symmetric", edge_NN), sum(means) / len(means)

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
                operator = dense_operator(self.module.operator, a_NN)
                if o.gkic != "knn_only":
                    operator, term = self.generated(a_NN)
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
