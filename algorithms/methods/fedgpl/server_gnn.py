"""The GNN of the server: answers for graphs that clients send, and learns from the gradients of the answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.items.plain_graphs import PlainGraphs
from shoal.algorithms.protocol import Tree, moments_key
from shoal.algorithms.rng import seed_default
from shoal.algorithms.training.local_training import keep_moments, kept_moments

GNN = "gnn"


@dataclass
class _Pass:
    """Graphs of some clients that went through the GNN in one batch, behind one another.

    `rows` and `answers` have the first node and the first graph of every client, and the end of the last; `seed` is
    that of dropout. `answer_GH` is the output with its autograd graph; None: it is recomputed for the gradient.
    """

    clients: list[int]
    rows: list[int]
    answers: list[int]
    graphs: PlainGraphs
    seed: int
    answer_GH: Tensor | None = None


@dataclass
class ServerGNN:
    """The server's part of a split model, as some clients are answered by it in one round.

    Its parameters, float32 `[P - Q]`, are `gnn` in `tree`, beside the moments of its optimizer. Of the whole model,
    `flat`, only these are used: those that are not of the clients' `own`, bool `[P]`. Clients' graphs are put behind
    one another up to `most_rows` nodes a pass. With `recompute` the output of a pass is not kept for its gradient but
    computed again, to the same bits. `count` is how many batches of clients were added up since the last step.
    """

    tree: Tree
    clients: Sequence[int]
    flat: FlatModel
    own: Tensor
    most_rows: int
    recompute: bool
    count: int = 0
    _passes: list[_Pass] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flat.w.data[~self.own] = self.tree[GNN]

    def forward(self, sent: Mapping[int, PlainGraphs], seed: int) -> dict[int, Tensor]:
        """Embeds every client's graphs, `[B, H]`, in training mode; its context lives until `backward`.

        The seed is that of dropout in the first pass; the next ones count on.
        """
        groups = _groups(sent, self.most_rows)
        self._passes = [_join(sent, clients, seed + number) for number, clients in enumerate(groups)]
        answers: dict[int, Tensor] = {}
        for group in self._passes:
            with torch.set_grad_enabled(not self.recompute):
                answer_GH = self._answer(group)
            group.answer_GH = None if self.recompute else answer_GH
            answers.update(zip(group.clients, answer_GH.detach().tensor_split(group.answers[1:-1])))
        return answers

    def backward(self, gradients: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Computes gradients of the features that clients sent, `[nodes, F]`, from those of the answers, `[B, H]`.

        The gradient of the GNN is added to the ones before. Clients without a gradient have none to come back.
        """
        of_clients: dict[int, Tensor] = {}
        passes, self._passes = self._passes, []
        for group in passes:
            answer_GH = self._answer(group) if group.answer_GH is None else group.answer_GH
            gradient_GH = torch.zeros_like(answer_GH)
            for client, (a, b) in zip(group.clients, pairwise(group.answers)):
                if client in gradients:
                    gradient_GH[a:b] = gradients[client]
            answer_GH.backward(gradient_GH)
            of_x_NF = group.graphs.x_NF.grad
            assert of_x_NF is not None
            parts = zip(group.clients, of_x_NF.tensor_split(group.rows[1:-1]))
            of_clients.update({client: part for client, part in parts if client in gradients})
        self.count += len(of_clients)
        return of_clients

    def step(self, lr: float) -> None:
        """Takes a step of Adam on the mean gradient over batches since the last step; none without a batch."""
        if not self.count:
            return
        of_w = self.flat.w.grad
        assert of_w is not None
        w = nn.Parameter(self.tree[GNN].clone())
        w.grad = of_w[~self.own] / self.count
        optimizer = torch.optim.Adam([w], lr=lr)
        if moments := kept_moments(self.tree, moments_key(GNN)):
            optimizer.state[w] = {name: t.clone() for name, t in moments.items()}
        optimizer.step()
        self.tree[GNN] = w.detach()
        keep_moments(self.tree, moments_key(GNN), optimizer.state[w])
        of_w.zero_()
        self.count = 0
        self.flat.w.data[~self.own] = self.tree[GNN]

    def _answer(self, one: _Pass) -> Tensor:
        self.flat.module.train()
        seed_default(one.graphs.x_NF.device, one.seed)
        return self.flat.module.answer(one.graphs)  # type: ignore[operator]


def _groups(sent: Mapping[int, PlainGraphs], most_rows: int) -> Iterator[list[int]]:
    """Groups clients in order, as many at a time as have so many nodes, at least one."""
    group: list[int] = []
    rows = 0
    for client, graphs in sent.items():
        if group and rows + len(graphs.x_NF) > most_rows:
            yield group
            group, rows = [], 0
        group.append(client)
        rows += len(graphs.x_NF)
    if group:
        yield group


def _join(sent: Mapping[int, PlainGraphs], clients: list[int], seed: int) -> _Pass:
    """Joins the graphs of some clients behind one another."""
    parts = [sent[client] for client in clients]
    rows = [*accumulate((len(part.x_NF) for part in parts), initial=0)]
    answers = [*accumulate((len(part.first) - 1 for part in parts), initial=0)]
    arrows = [part.arrows_2E + start for part, start in zip(parts, rows) if part.arrows_2E is not None]
    graphs = PlainGraphs(
        torch.cat([part.x_NF for part in parts]).requires_grad_(),
        torch.cat([part.pairs_2E + start for part, start in zip(parts, rows)], dim=1),
        torch.cat([parts[0].first[:1], *(part.first[1:] + start for part, start in zip(parts, rows))]),
        torch.cat(arrows, dim=1) if arrows else None,
    )
    return _Pass(clients, rows, answers, graphs, seed)
