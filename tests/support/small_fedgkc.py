"""A small FedGKC of its own, written from the paper and the method's docstring: dense matrices and loops over nodes."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.rng import key
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import View

# As the config of `unequal` has it.
EPOCHS, LR, MOMENTUM, DECAY = 2, 0.05, 0.9, 0.01


def dense_operator(kind: str, a_NN: Tensor) -> Tensor:
    """What a layer of this kind multiplies by, from the adjacency, float64."""
    with_loops = a_NN + torch.eye(len(a_NN))
    if kind == "sum":
        return a_NN
    if kind == "mean":
        return a_NN / a_NN.sum(1, keepdim=True).clamp_min(1)
    if kind == "attention":
        return with_loops
    root = with_loops.sum(1).rsqrt()
    return root[:, None] * with_loops * root


def as_sparse(matrix: Tensor) -> SparseMatrix:
    csr = matrix.float().to_sparse_csr()
    parts = csr.crow_indices().int(), csr.col_indices().int(), csr.values()
    return SparseMatrix.of(*parts, matrix.shape[1])


def answer(module: nn.Module, a_NN: Tensor, x_NF: Tensor) -> Output:
    """What a model says of a graph, in its present mode."""
    if hasattr(module, "convs"):
        return module(Neighbourhood(x_NF, (as_sparse(dense_operator(module.operator, a_NN)),) * len(module.convs)))
    hops = [x_NF.double()]
    for _ in range(max(module.inputs)):
        hops.append(dense_operator("symmetric", a_NN) @ hops[-1])
    return module([hops[k].float() for k in module.inputs])


def kl(p_C: Tensor, q_C: Tensor) -> Tensor:
    return (p_C * (p_C.log() - q_C.log())).sum()


class PlainModel:
    """A module with its optimizer, and the random stream that its dropout draws from within a visit."""

    def __init__(self, module: nn.Module, reset: bool) -> None:
        self.module, self.reset = module, reset
        self.new_optimizer()

    def new_optimizer(self) -> None:
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)

    def receive(self, seed: int) -> None:
        self.draws = torch.Generator().manual_seed(seed).get_state()
        self.module.train()
        if self.reset:
            self.new_optimizer()

    def answer(self, a_NN: Tensor, x_NF: Tensor) -> Output:
        torch.set_rng_state(self.draws)
        out = answer(self.module, a_NN, x_NF)
        self.draws = torch.get_rng_state()
        return out

    def step(self, loss: Tensor) -> float:
        # Weight decay and momentum move parameters without a gradient, too.
        for p in self.module.parameters():
            p.grad = torch.zeros_like(p)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    @property
    def w(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.module.parameters()).detach()


class PlainClient:
    """A client with both of its models."""

    def __init__(
        self, number: int, view: View, own: nn.Module, copilot: nn.Module, options: SimpleNamespace, reset: bool
    ) -> None:
        self.number, self.options = number, options
        self.own, self.copilot = PlainModel(own, reset), PlainModel(copilot, reset)
        self.a_NN = view.adjacency.to_dense().double()
        self.x_NF = view.whole(0)
        self.train, self.y = view.train.tolist(), view.label.tolist()
        self.edges = np.argwhere(np.triu(self.a_NN.numpy(), 1))

    def labels(self, out: Output) -> Tensor:
        losses = [-out.logits_NC[i].log_softmax(0)[self.y[i]] for i in self.train]
        return sum(losses) / len(losses) if losses else torch.zeros(())

    def neighbourhood(self, teacher: Output, student: Output) -> Tensor:
        """Equation 1, pair by pair."""
        z, h = teacher.embedding_NH.detach().softmax(1), student.embedding_NH.softmax(1)
        total = torch.zeros(())
        for i, row in enumerate(self.a_NN):
            near = [i, *row.nonzero()[:, 0].tolist()]
            found = sum(kl(z[j], h[i]) for j in near)
            total = total + found / (len(near) if self.options.neigh_norm == "mean" else 1)
        return total / len(z)

    def scores(self, teacher: Output, student: Output, detach: bool = True) -> Tensor:
        p = teacher.logits_NC.softmax(1)
        p = p.detach() if detach else p
        return sum(kl(a, b) for a, b in zip(p, student.logits_NC.softmax(1))) / len(p)

    def taught(self, learner: Output, teacher: Output, ramp: float) -> Tensor:
        """Equations 2 and 3."""
        o = self.options
        total = o.alpha * self.labels(learner)
        if o.mutual == "full" and o.beta:
            total = total + ramp * o.beta * self.neighbourhood(teacher, learner)
        if o.mutual != "none" and o.alpha + o.beta < 1:
            total = total + ramp * (1 - o.alpha - o.beta) * self.scores(teacher, learner)
        return total

    def view(self, shares: Sequence[float]) -> Output:
        """What the own model says of a graph without some edges and columns."""
        kept_F = torch.rand(self.x_NF.shape[1], generator=self.rng) >= shares[1]
        kept_M = torch.rand(len(self.edges), generator=self.rng) >= shares[0]
        a_NN = torch.zeros_like(self.a_NN)
        for i, j in self.edges[kept_M.numpy()]:
            a_NN[i, j] = a_NN[j, i] = 1
        return self.own.answer(a_NN, self.x_NF * kept_F)

    def self_distilled(self) -> Tensor:
        """Equation 4."""
        o = self.options
        weak, strong = self.view(o.weak), self.view(o.strong)
        a, b = weak.embedding_NH, strong.embedding_NH
        if o.self_mse == "unit":
            a, b = (z / z.norm(dim=1, keepdim=True).clamp_min(1e-12) for z in (a, b))
        a = a.detach() if o.self_detach else a
        count = len(a) if o.self_mse == "unit" else a.numel()
        return ((a - b) ** 2).sum() / count + self.scores(weak, strong, o.self_detach)

    def visit(self, round_number: int, copilot: Tensor, ramp: float) -> float:
        """Trains both models; returns the own one's loss."""
        o, seed = self.options, lambda purpose: key(0, round_number, self.number, purpose)
        if o.mutual != "none":
            nn.utils.vector_to_parameters(copilot.clone(), self.copilot.module.parameters())
        self.own.receive(seed("train"))
        self.copilot.receive(seed("copilot/train"))
        self.rng = torch.Generator().manual_seed(seed("views"))
        loss = float("nan")
        for _ in range(EPOCHS):
            own = self.own.answer(self.a_NN, self.x_NF)
            if o.mutual != "none":
                other = self.copilot.answer(self.a_NN, self.x_NF)
                self.copilot.step(self.taught(other, own, ramp))
                if o.copilot_read == "after":
                    # Algorithm 1: line 8 reads what line 7 has optimized.
                    other = self.copilot.answer(self.a_NN, self.x_NF)
            total = self.taught(own, other if o.mutual != "none" else own, ramp)
            if o.self_distillation:
                total = total + self.self_distilled()
            loss = self.own.step(total)
        return loss

    @torch.no_grad()
    def knows(self) -> float:
        """Equations 7 to 9, node by node."""
        o = self.options
        self.copilot.module.eval()
        p = answer(self.copilot.module, self.a_NN, self.x_NF).logits_NC.double().softmax(1)
        total = 0.0
        for own, row in zip(p, self.a_NN):
            top, near = float(own.max()), row.nonzero()[:, 0]
            others = 1 - top
            if "strength" in o.kama_terms:
                total += top
            if "clarity" in o.kama_terms:
                total += (top - others) / (len(own) - 1) if o.clarity == "literal" else top - others / (len(own) - 1)
            if "smoothness" in o.kama_terms and len(near):
                total -= o.lam * float(torch.stack([F.cosine_similarity(own, p[j], dim=0) for j in near]).mean())
        return total / len(p)


def mixed(clients: Sequence[PlainClient], known: Sequence[float], how: str) -> Tensor:
    """Equations 6, 10, 11 and 12."""
    sizes = [len(client.a_NN) for client in clients]
    weights = []
    for size, knows in zip(sizes, known):
        by_size, by_knowledge = size / sum(sizes), knows / sum(known)
        of_kind = {"kama": (by_size + by_knowledge) / 2, "size": by_size, "uniform": 1 / len(clients)}
        weights.append(of_kind[how])
    return sum(weight * client.copilot.w.double() for weight, client in zip(weights, clients)).float()
