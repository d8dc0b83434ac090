"""Condensed graphs: nodes and edges on which SGC has the gradients that it has on a client's training nodes (GCond).

Axes: T training nodes, M condensed ones, both ordered by class, C classes, F features.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import View

# SGC smooths features so often.
HOPS = 2
# Width of both hidden layers of the network that makes edges, as in the authors' code.
HIDDEN = 128
EPS = 1e-5


class Condensed(NamedTuple):
    """A client's condensed graph.

    Attributes:
        x_MF: Features.
        weight_MM: Symmetric weights of edges between 0 and 1, none from a node to itself.
        loss: What was left between the gradients.
    """

    x_MF: Tensor
    weight_MM: Tensor
    loss: float


class Matching(NamedTuple):
    """Options of a client's condensation, see `FedGM`."""

    steps: int
    lr: float
    edge_steps: int
    node_steps: int


class EdgeMaker(nn.Module):
    """Weights of edges, sigmoid((s_ij + s_ji) / 2), where s_ij is an MLP of x_i and x_j (Jin et al., ICLR 2022, eq. 8).

    Hidden layers are normalised over all pairs, with the numbers of the batch at hand, and then go through ReLU.
    """

    def __init__(self, features: int, rng: torch.Generator, device: torch.device) -> None:
        """Draws weights and biases of a layer of n inputs uniformly between -1 / sqrt(n) and 1 / sqrt(n)."""
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in ((2 * features, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1)):
            drawn = torch.empty(inputs + 1, outputs, device=rng.device)
            drawn = drawn.uniform_(-(inputs**-0.5), inputs**-0.5, generator=rng).to(device)
            self.weights.append(drawn[:-1].clone())
            self.biases.append(drawn[-1].clone())
            if outputs == HIDDEN:
                self.scales.append(torch.ones_like(drawn[-1]))
                self.shifts.append(torch.zeros_like(drawn[-1]))

    def forward(self, x_MF: Tensor) -> Tensor:
        """Computes the weights, `[M, M]`, zero from a node to itself."""
        count = len(x_MF)
        if count < 2:
            # Nothing is normalised over one pair.
            return x_MF.new_zeros(count, count)
        first, second, last = self.weights
        sender, receiver = first.chunk(2)
        # The product with both ends' features is the sum of those with each.
        h = (x_MF @ sender)[:, None] + (x_MF @ receiver)[None] + self.biases[0]
        h = self._normalised(h.view(count * count, HIDDEN), 0)
        h = self._normalised(torch.addmm(self.biases[1], h, second), 1)
        score_MM = torch.addmm(self.biases[2], h, last).view(count, count)
        return torch.sigmoid((score_MM + score_MM.T) / 2) * (1 - torch.eye(count, device=x_MF.device))

    def _normalised(self, h: Tensor, layer: int) -> Tensor:
        return F.batch_norm(h, None, None, self.scales[layer], self.shifts[layer], training=True, eps=EPS).relu()


def condensed_counts(y_T: Tensor, classes: int, ratio: float) -> Tensor:
    """Counts condensed nodes of every class, int64 `[C]`: a share of its training nodes, at least one if it has any."""
    counts_C = torch.bincount(y_T, minlength=classes)
    # In float64 0.1 of 30 nodes are 3.
    return (counts_C.double() * ratio).long().clamp_min(1).minimum(counts_C)


def smoothed_training_rows(data: View) -> tuple[Tensor, Tensor]:
    """Returns what SGC reads of the training nodes, `[T, F + 1]`, and their features, `[T, F]`, ordered by class."""

    def make() -> tuple[Tensor, Tensor]:
        x = data.whole(0)
        x_NF = x.to_dense() if isinstance(x, SparseMatrix) else x
        z_NF = x_NF
        for _ in range(HOPS):
            z_NF = data.smooth(z_NF)
        rows_T = data.train[data.train_label.argsort(stable=True)]
        return with_ones(z_NF[rows_T]), x_NF[rows_T]

    rows: tuple[Tensor, Tensor] = data.cache("smoothed training rows", make)
    return rows


def with_ones(z_NF: Tensor) -> Tensor:
    """Appends a one to each row, by which a bias is a weight."""
    return F.pad(z_NF, (0, 1), value=1.0)


def draw_weights(features: int, classes: int, rng: torch.Generator, device: torch.device) -> Tensor:
    """Draws weights and, last, biases of an SGC, `[C, F + 1]`, uniformly between -1 / sqrt(F) and 1 / sqrt(F)."""
    bound = features**-0.5
    return torch.empty(classes, features + 1, device=rng.device).uniform_(-bound, bound, generator=rng).to(device)


def class_gradients(z_NG: Tensor, counts_C: list[int], w_CG: Tensor) -> Tensor:
    """Computes gradients of the mean cross-entropy of every class by SGC's weights and biases, `[C, C, F + 1]`.

    Smoothed features Z_c of c's nodes, `counts_C` of them, with a one behind each, lie below those of the classes
    before it. The gradient is (softmax(Z_c W') - 1_c)' Z_c / n_c, that of a class without a node zero.
    """
    classes = torch.arange(len(counts_C), device=z_NG.device)
    y_N = classes.repeat_interleave(torch.tensor(counts_C, device=z_NG.device))
    error_NC = (z_NG @ w_CG.T).softmax(1) - F.one_hot(y_N, len(counts_C))
    parts = zip(z_NG.split(counts_C), error_NC.split(counts_C), counts_C)
    # Products of this form take a third of the time that those of their transposes do.
    return torch.stack([(error_nC / max(count, 1)).T @ z_nG for z_nG, error_nC, count in parts])


def matching_loss(found_CCG: Tensor, wanted_CCG: Tensor, counts_C: Tensor) -> Tensor:
    """Sums |found - wanted|^2 over classes, each weighted by its condensed nodes over the most that a class has."""
    share_C = counts_C / counts_C.max().clamp_min(1)
    return (share_C * (found_CCG - wanted_CCG).square().sum((1, 2))).sum()


def normalised(weight_MM: Tensor) -> Tensor:
    """Computes D^-1/2 (A + I) D^-1/2, D being the sums of rows of A + I."""
    looped_MM = weight_MM + torch.eye(len(weight_MM), device=weight_MM.device)
    root_M = looped_MM.sum(1).rsqrt()
    return root_M[:, None] * looped_MM * root_M


def condense(
    z_TG: Tensor, x_TF: Tensor, real_C: list[int], counts_C: Tensor, options: Matching, rng: torch.Generator
) -> Condensed:
    """Condenses a graph by matching gradients of an SGC that is drawn anew in each step.

    Nodes begin as training nodes drawn from their class, and are trained in turns with the network that makes edges.
    The graph is kept that had the least loss.

    Args:
        z_TG: Smoothed features of the training nodes, with ones.
        x_TF: Their features.
        real_C: Training nodes of each class.
        counts_C: Condensed nodes of each, int64; one at least.
        options: Steps and learning rate.
        rng: Draws all numbers.
    """
    counts, classes = counts_C.tolist(), len(real_C)
    places = torch.arange(len(x_TF), device=x_TF.device).split(real_C)
    drawn = [
        rows[torch.randperm(len(rows), generator=rng, device=x_TF.device)[:count]]
        for rows, count in zip(places, counts)
    ]
    x_MF = nn.Parameter(x_TF[torch.cat(drawn)].clone())
    maker = EdgeMaker(x_TF.shape[1], rng, x_TF.device)
    of_edges, of_nodes = list(maker.parameters()), [x_MF]
    learners = [(torch.optim.Adam(turn, lr=options.lr, fused=True), turn) for turn in (of_edges, of_nodes)]
    best = Condensed(x_MF.detach().clone(), torch.zeros(len(x_MF), len(x_MF), device=x_MF.device), float("inf"))
    for step in range(options.steps):
        w_CG = draw_weights(x_TF.shape[1], classes, rng, x_TF.device)
        wanted_CCG = class_gradients(z_TG, real_C, w_CG)
        optimizer, turn = learners[step % (options.edge_steps + options.node_steps) >= options.edge_steps]
        weight_MM = maker(x_MF)
        smoothing_MM = normalised(weight_MM)
        z_MF: Tensor = x_MF
        for _ in range(HOPS):
            z_MF = smoothing_MM @ z_MF
        loss = matching_loss(class_gradients(with_ones(z_MF), counts, w_CG), wanted_CCG, counts_C)
        if (value := float(loss.detach())) < best.loss:
            best = Condensed(x_MF.detach().clone(), weight_MM.detach(), value)
        # One node has no edge.
        gradients = torch.autograd.grad(loss, turn, allow_unused=True)
        for parameter, gradient in zip(turn, gradients):
            parameter.grad = gradient
        optimizer.step()
    return best
