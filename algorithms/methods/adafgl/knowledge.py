"""What the common model knows of a client's graph, and what the client's own labels say of it (AdaFGL, phase 2).

Axes: N nodes, C classes, F features, K steps of propagation.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses.label_propagation import propagate_labels
from shoal.algorithms.losses.prototypes import unit
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix
from shoal.storage.store.view import View

# Of the label propagation that measures homophily, as in the authors' code.
LP_STEPS, LP_SEED_WEIGHT = 10, 0.5
UNKNOWN = 0.5


class Knowledge(NamedTuple):
    """Constants of a client's second phase.

    Attributes:
        p_NC: P^, class probabilities by the common model.
        similar_NN: S, how similar these are, see `likeness`.
        mixed_NN: P~; empty where features are written out.
        hops_NG: X, P~ X, …, P~^K X concatenated, `[N, (K + 1) F]`; empty where they are not written out.
    """

    p_NC: Tensor
    similar_NN: Tensor
    mixed_NN: Tensor
    hops_NG: Tensor


def knowledge(data: View, p_NC: Tensor, alpha: float, steps: int, cut: float) -> Knowledge:
    """P~ = D^-1/2 (alpha A + (1 - alpha) S + I) D^-1/2, D the sums of the rows in between, or what it makes of X.

    P~^k X is written out for k up to K, but where X is sparse and so wide that it is cheaper to multiply a product of X
    by P~ K times, `[N, N]`, than all that is written out by a weight. S is the `likeness` of P^; K are the steps.
    """
    similar_NN = likeness(p_NC, cut)
    starts, columns = data.edges
    rows = torch.arange(data.nodes, device=data.device).repeat_interleave(starts.diff())
    mixed_NN = (1 - alpha) * similar_NN
    mixed_NN[rows, columns.long()] += alpha * data.adjacency.values()
    mixed_NN.diagonal().add_(1)
    root_N = mixed_NN.sum(1).rsqrt()
    mixed_NN.mul_(root_N[:, None]).mul_(root_N)
    x_NF, none = data.whole(0), p_NC.new_empty(0, 0)
    if isinstance(x_NF, SparseMatrix) and steps * data.nodes < (steps + 1) * data.features:
        return Knowledge(p_NC, similar_NN, mixed_NN, none)
    hops = [x_NF.to_dense() if isinstance(x_NF, SparseMatrix) else x_NF]
    for _ in range(steps):
        hops.append(mixed_NN @ hops[-1])
    return Knowledge(p_NC, similar_NN, none, torch.cat(hops, dim=1))


def propagated(known: Knowledge, x_NF: Features, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """[X, P~ X, …, P~^K X] W^T of weights W `[H, (K + 1) F]`, all of one H: `[N, H]` each."""
    if known.hops_NG.numel():
        product = known.hops_NG @ torch.cat(tuple(weights)).t()
        return product.chunk(len(weights), dim=1)
    of_hops = [torch.cat(parts, dim=1) for parts in zip(*(w.t().split(x_NF.shape[1]) for w in weights))]
    *nearer, product = (x_NF @ torch.cat(of_hops, dim=1)).chunk(len(of_hops), dim=1)
    for of_hop in reversed(nearer):
        product = of_hop + known.mixed_NN @ product
    return product.chunk(len(weights), dim=1)


def likeness(p_NC: Tensor, cut: float = 0.0) -> Tensor:
    """Cosines of the probabilities of all pairs of nodes, `[N, N]`, zero on the diagonal.

    With a `cut` above 0, pairs of a larger cosine count 1 and others 0.
    """
    direction_NC = unit(p_NC)
    cos_NN = direction_NC @ direction_NC.T
    if cut:
        cos_NN = (cos_NN > cut).to(cos_NN.dtype)
    return cos_NN * (1 - torch.eye(len(p_NC), dtype=cos_NN.dtype, device=cos_NN.device))


def homophily(data: View, rng: torch.Generator) -> float:
    """HCS: how often half of the training labels, propagated over the edges, tell the other half, in [0, 1].

    Nodes of unknown label start as 1 / C for every class. A node whose largest class is not unique has no
    prediction, which counts as wrong. `UNKNOWN` without two training nodes. The half that propagates is the smaller.
    """
    n = len(data.train)
    if n < 2:
        return UNKNOWN
    order = torch.randperm(n, generator=rng, device=data.train.device)
    known, asked = order[: n // 2], order[n // 2 :]
    seed_NC = torch.full((data.nodes, data.classes), 1 / data.classes, device=data.device)
    seed_NC[data.train[known]] = F.one_hot(data.train_label[known], data.classes).float()
    *_, label_NC = propagate_labels(data, seed_NC, LP_STEPS, LP_SEED_WEIGHT)
    found, truth = label_NC[data.train[asked]], data.train_label[asked]
    own = found.gather(1, truth[:, None])
    others = found.scatter(1, truth[:, None], -torch.inf)
    return float((own[:, 0] > others.max(1).values).float().mean())
