"""FedSage+ with loops over nodes and dense tables, in one process that holds all clients, by torch's autograd alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.rng import key
from shoal.storage.shards.view import View

Parameters = dict[str, Tensor]
DEFAULTS: dict[str, Any] = {
    "generator_rounds": 2, "hide": 0.5, "most_neighbours": 5, "hidden": 64, "degree": 1.0, "feature": 1.0,
    "label": 1.0, "across": 1.0, "peers": 5, "sampled_nodes": 64,
}  # fmt: skip


def sage(p: Parameters, prefix: str, a: np.ndarray, x: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and embeddings of all nodes: two layers of W_1 mean + W_2 x + b, a classifier."""
    table = torch.from_numpy(a / np.maximum(a.sum(1, keepdims=True), 1)).float()
    for layer in (0, 1):
        x = F.relu(x) if layer else x
        of = f"{prefix}convs.{layer}."
        x = (table @ x) @ p[of + "lin_l.weight"].t() + p[of + "lin_l.bias"] + x @ p[of + "lin_r.weight"].t()
    return x @ p[f"{prefix}head.linears.0.weight"].t() + p[f"{prefix}head.linears.0.bias"], x


def nearest(made: Tensor, candidates: Tensor) -> Tensor:
    """The mean squared difference from the nearest candidate."""
    apart = [((made - x) ** 2).mean() for x in candidates]
    return min(apart, key=Tensor.item)


def augmented(a: np.ndarray, x: Tensor, made: list[list[Tensor]]) -> tuple[np.ndarray, Tensor]:
    owners = [v for v, of_node in enumerate(made) for _ in of_node]
    n = len(a)
    wide = np.zeros((n + len(owners), n + len(owners)))
    wide[:n, :n] = a
    for number, v in enumerate(owners):
        wide[v, n + number] = wide[n + number, v] = 1
    return wide, torch.cat([x, *(one[None] for of_node in made for one in of_node)])


@dataclass
class Person:
    """A client: `p` are parameters of its generator, `graph` is its adjacency and features, mended in the end."""

    view: View
    options: dict[str, Any]
    epochs: int
    rounds: int = 0
    p: Parameters = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.number = self.view.client
        self.a = self.view.adjacency.to_dense().double().numpy()
        self.x = self.view.x.float()
        self.graph: tuple[np.ndarray, Tensor] | None = None
        # What MOON keeps, and FedDC.
        self.previous: Parameters | None = None
        self.drift = self.update = torch.zeros(())

    def meet(self, round_number: int, initial: Parameters) -> None:
        """The first visit."""
        self.p = {name: t.clone().requires_grad_() for name, t in initial.items()}
        for p in self.p.values():
            p.grad = torch.zeros_like(p)
        self.optimizer = torch.optim.SGD(self.p.values(), lr=0.05, momentum=0.9, weight_decay=0.01)
        n = self.view.nodes
        order = np.random.default_rng(key(0, round_number, self.number, "hidden")).permutation(n)
        self.hidden = sorted(order[: int(self.options["hide"] * n)].tolist())
        self.shown = [v for v in range(n) if v not in self.hidden]

    def guess(self, a: np.ndarray, x: Tensor) -> tuple[Tensor, list[int], Tensor]:
        score, z = sage(self.p, "encoder.", a, x)
        rounded = [min(max(round(s), 0), self.options["most_neighbours"]) for s in score[:, 0].tolist()]
        return score[:, 0], rounded, z

    def guess_shown(self) -> tuple[Tensor, list[int], Tensor]:
        return self.guess(self.a[np.ix_(self.shown, self.shown)], self.x[self.shown])

    def show(self, round_number: int) -> tuple[Tensor, list[int]]:
        with torch.no_grad():
            _, count, z = self.guess_shown()
        rng = torch.Generator().manual_seed(key(0, round_number, self.number, "nodes for others"))
        chosen = torch.randperm(len(z), generator=rng)[: self.options["sampled_nodes"]]
        rng = torch.Generator().manual_seed(key(0, round_number, self.number, "noise for others"))
        return z[chosen] + torch.randn(len(chosen), z.shape[1], generator=rng), [count[v] for v in chosen.tolist()]

    def learn(self, round_number: int, steps: int, of_others: list[Tensor] | None = None) -> float:
        """Steps; `of_others` are gradients of all parameters of the maker."""
        rng = torch.Generator().manual_seed(key(0, round_number, self.number, "noise"))
        loss = torch.zeros(())
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=False)
            loss = self.objective(rng)
            loss.backward()
            for p, gradient in zip(self.maker, of_others or []):
                p.grad += self.options["across"] * gradient  # type: ignore
            self.optimizer.step()
        return float(loss.detach())

    def made(self, noisy: Tensor, count: list[int]) -> list[list[Tensor]]:
        """Generated neighbours of every node."""
        p, features = self.p, self.view.features
        deep = F.relu(noisy @ p["maker.linears.0.weight"].t() + p["maker.linears.0.bias"])
        wide = deep @ p["maker.linears.1.weight"].t() + p["maker.linears.1.bias"]
        return [[wide[v, features * n : features * (n + 1)] for n in range(c)] for v, c in enumerate(count)]

    @property
    def maker(self) -> list[Tensor]:
        return [p for name, p in self.p.items() if name.startswith("maker.")]

    def objective(self, rng: torch.Generator) -> Tensor:
        options, shown = self.options, self.shown
        missing, count, z = self.guess_shown()
        made = self.made(z + torch.randn(z.shape, generator=rng), count)
        degree, feature = torch.zeros(()), torch.zeros(())
        for place, v in enumerate(shown):
            lost = [u for u in self.hidden if self.a[v, u]]
            gap = (missing[place] - len(lost)).abs()
            degree = degree + (gap**2 / 2 if gap < 1 else gap - 0.5)
            for one in made[place] if lost else []:
                feature = feature + nearest(one, self.x[lost])
        loss = options["degree"] * degree / len(shown) + options["feature"] * feature / len(shown)
        train = [v for v in self.view.train.tolist() if v in shown]
        if train:
            a, x = augmented(self.a[np.ix_(shown, shown)], self.x[shown], made)
            logits, _ = sage(self.p, "classifier.", a, x)
            y = self.view.label[train]
            loss = loss + options["label"] * F.cross_entropy(logits[[shown.index(v) for v in train]], y)
        return loss

    def repair(self, round_number: int) -> None:
        with torch.no_grad():
            _, count, z = self.guess(self.a, self.x)
            rng = torch.Generator().manual_seed(key(0, round_number, self.number, "mended"))
            made = self.made(z + torch.randn(z.shape, generator=rng), count)
        self.graph = augmented(self.a, self.x, made)

    def logits(self, w: Parameters, augmented: bool = True) -> Tensor:
        a, x = (self.a, self.x) if self.graph is None or not augmented else self.graph
        return sage(w, "", a, x)[0][: self.view.nodes]

    def embeddings(self, w: Parameters) -> Tensor:
        """Computes embeddings of the training rows on the augmented graph, at length one."""
        assert self.graph is not None
        return F.normalize(sage(w, "", *self.graph)[1][self.view.train])

    def contrast(self, w: Parameters, mu: float = 1.0, tau: float = 0.5) -> Callable[[Parameters], Tensor]:
        """Makes MOON's term of the parameters sent and those of the last training; there is none at first."""
        if self.previous is None:
            return lambda p: torch.zeros(())
        sent, previous = self.embeddings(w).detach(), self.embeddings(self.previous).detach()

        def term(p: Parameters) -> Tensor:
            near, far = ((self.embeddings(p) * z).sum(1) / tau for z in (sent, previous))
            return -mu * (near.exp() / (near.exp() + far.exp())).log().mean()

        return term

    def correction(self, w: Parameters, g: Tensor, alpha: float = 0.005) -> Callable[[Parameters], Tensor]:
        """Makes FedDC's penalty of the drift and its linear term, of the last mean gradients with the sign turned."""
        sent = torch.cat([t.flatten() for t in w.values()])

        def term(p: Parameters) -> Tensor:
            theta = torch.cat([t.flatten() for t in p.values()])
            return alpha / 2 * ((self.drift + theta - sent) ** 2).sum() + (theta * (self.update - g)).sum()

        return term

    def train(self, w: Parameters, momentum: Any, term: Callable[[Parameters], Tensor] | None = None) -> Parameters:
        """Plain training of a model of its own, from w; notes the mean gradient of the loss without the term."""
        p = {name: t.clone().requires_grad_() for name, t in w.items()}
        optimizer = torch.optim.SGD(p.values(), lr=0.05, momentum=0.9, weight_decay=0.01)
        for mine, before in zip(p.values(), momentum or []):
            optimizer.state[mine]["momentum_buffer"] = before
        self.loss, gradients = float("nan"), []
        if len(self.view.train):
            for _ in range(self.epochs):
                optimizer.zero_grad()
                plain = F.cross_entropy(self.logits(p)[self.view.train], self.view.label[self.view.train])
                alone = torch.autograd.grad(plain, list(p.values()), retain_graph=True)
                gradients.append(torch.cat([t.flatten() for t in alone]))
                loss = plain if term is None else plain + term(p)
                loss.backward()
                optimizer.step()
                self.loss = float(loss.detach())
            self.mean_gradient = torch.stack(gradients).mean(0)
            self.momentum = [optimizer.state[mine]["momentum_buffer"] for mine in p.values()]
        return {name: t.detach() for name, t in p.items()}


def of_others(people: dict[int, Person], cohort: list[int], round_number: int) -> dict[int, list[Tensor]]:
    """For every client the gradient of its maker by the hidden nodes of those that judge it, end to end."""
    options = people[cohort[0]].options
    rng = torch.Generator().manual_seed(key(0, round_number, "server", "peers"))
    ring = [cohort[place] for place in torch.randperm(len(cohort), generator=rng).tolist()]
    k = min(options["peers"], len(cohort) - 1)
    found = {}
    for place, i in enumerate(ring):
        if not k:
            continue
        noisy, count = people[i].show(round_number)
        # It judges those that follow it, so that those before it judge it.
        judges = [ring[(place - step) % len(ring)] for step in range(1, k + 1)]
        made = people[i].made(noisy, count)
        total = torch.zeros(()) + 0 * sum(p.sum() for p in people[i].maker)
        for j in judges:
            for of_node in made:
                for one in of_node:
                    total = total + nearest(one, people[j].x[people[j].hidden]) / len(noisy) / k
        found[i] = list(torch.autograd.grad(total, people[i].maker))
    return found
