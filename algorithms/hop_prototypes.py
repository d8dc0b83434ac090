"""Prototypes of a class's own nodes and of their neighbours, without any product of two adjacencies (FedPG, eqs. 1, 2).

Every node has one annotation: its class if it is a centre, else the class it is taken for. The prototype of class c at
hop h >= 1 is the mean over the centres v of c of the mean of their neighbours u that are annotated c as well,

    P_ch = 1/|S| sum_{v in S} 1/M_v sum_u W_h[v, u] 1[a_u = c] g_u z_u,    M_v = sum_u W_h[v, u] 1[a_u = c] g_u,

where W_1 = A, W_2 = A^2 - diag(A^2) counts walks of two steps that do not end where they began, g_u is an attention
weight or 1, and S holds just the centres with M_v > 0. As sums over nodes this is P_ch = sum_u v_hu 1[a_u = c] z_u with
one weight v_hu for every node: two sparse products with class indicators, a block of classes at a time, once a round.

Axes: N nodes, C classes, H width, L = hops + 1 levels, level 0 being the centres themselves.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from algorithms.prototypes import class_sums
from storage.view import View

CLASSES_AT_A_TIME = 16
HOPS = 2


def walks(data: View, x_NB: Tensor, hops: int) -> Iterator[Tensor]:
    """Yields W_1 x and W_2 x, as many as `hops`; both matrices are symmetric. `[N, B]` each."""
    x_1 = torch.sparse.mm(data.adjacency, x_NB) if data.entries else x_NB * 0
    if hops >= 1:
        yield x_1
    if hops >= 2:
        returning = (data.degree - 1)[:, None] * x_NB
        yield (torch.sparse.mm(data.adjacency, x_1) if data.entries else x_1) - returning


def hop_weights(
    data: View, annotation_N: Tensor, centre_N: Tensor, hops: int, attention_HN: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weight of every node in the prototypes of its annotation, and how many centres each prototype rests on.

    Args:
        data: The client's graph.
        annotation_N: Class of every node, int64; at centres their own.
        centre_N: Nodes whose class is trusted, bool.
        hops: 0, 1 or 2.
        attention_HN: g of every hop, positive, differentiable, `[hops, N]`; 1 if left out.

    Returns:
        Weights, float32 `[L, N]`, and counts, int32 `[L, C]`; a prototype without a centre has count 0.
    """
    counts_LC = torch.zeros(hops + 1, data.classes, dtype=torch.int32)
    counts_LC[0] = torch.bincount(annotation_N[centre_N], minlength=data.classes)
    weights = [centre_N / counts_LC[0].clamp_min(1)[annotation_N]]
    weights += [torch.zeros(data.nodes)] * hops
    centred = annotation_N[centre_N].unique()
    for start in range(0, len(centred) if hops else 0, CLASSES_AT_A_TIME):
        classes = centred[start : start + CLASSES_AT_A_TIME]
        member_NB = (annotation_N[:, None] == classes).float()
        centre_NB = member_NB * centre_N[:, None]
        reached = [centre_NB * walk_NB for walk_NB in walks(data, member_NB, hops)]
        for hop, reached_NB in enumerate(reached, start=1):
            found_B = (reached_NB > 0).sum(0)
            counts_LC[hop, classes] = found_B.int()
            mass_NB = member_NB
            if attention_HN is not None:
                mass_NB = member_NB * attention_HN[hop - 1][:, None]
                reached_NB = (reached_NB > 0) * list(walks(data, mass_NB, hop))[-1]
            share_NB = torch.where(reached_NB > 0, reached_NB, 1).reciprocal() * (reached_NB > 0)
            spread_NB = list(walks(data, share_NB / found_B.clamp_min(1), hop))[-1]
            weights[hop] = weights[hop] + (spread_NB * mass_NB).sum(1)
    return torch.stack(weights).clamp_min(0), counts_LC


def hop_prototypes(z_NH: Tensor, annotation_N: Tensor, weight_LN: Tensor, classes: int) -> Tensor:
    """Prototypes `[L, C, H]` from embeddings, differentiable in both; rows may be any that hold all weight."""
    return torch.stack([class_sums(weight_N[:, None] * z_NH, annotation_N, classes)[0] for weight_N in weight_LN])


def neighbour_means(data: View, annotation_N: Tensor, centre_N: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The means that hop 1 averages, one for every centre with a neighbour of its class.

    Args:
        data: The client's graph.
        annotation_N: As for `hop_weights`.
        centre_N: As for `hop_weights`.
        rows: Ascending nodes, R in number, all neighbours of weight among them.

    Returns:
        Weights of the rows in the means, float32 CSR `[centres, R]`, and the classes of the centres, int64.
    """
    first, column = data.adjacency.crow_indices().long(), data.adjacency.col_indices().long()
    centre = centre_N.nonzero()[:, 0]
    degree = first[centre + 1] - first[centre]
    owner = torch.arange(len(centre)).repeat_interleave(degree)
    entry = torch.arange(len(owner)) + (first[centre] - (degree.cumsum(0) - degree))[owner]
    neighbour = column[entry]
    alike = annotation_N[neighbour] == annotation_N[centre[owner]]
    owner, neighbour = owner[alike], neighbour[alike]
    count = torch.bincount(owner, minlength=len(centre))
    kept = count > 0
    starts = torch.cat([torch.zeros(1, dtype=torch.long), count[kept].cumsum(0)])
    shape = int(kept.sum()), len(rows)
    column = torch.searchsorted(rows, neighbour)
    share = count[owner].float().reciprocal()
    return torch.sparse_csr_tensor(starts, column, share, size=shape, check_invariants=False), annotation_N[
        centre[kept]
    ]
