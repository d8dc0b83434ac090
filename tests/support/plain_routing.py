"""A layer of DisenGCN, node by node and factor by factor."""

import torch
from torch import Tensor


def directions(part: Tensor) -> Tensor:
    return part / part.norm() if part.any() else part


def route(a_NN: Tensor, x_NH: Tensor, factors: int, routing: int) -> Tensor:
    """Computes the output before its activation, float64 `[N, H]`."""
    z = [[directions(part) for part in row.chunk(factors)] for row in x_NH.double()]
    rows = []
    for i, own in enumerate(z):
        near, u = a_NN[i].nonzero()[:, 0].tolist(), own
        for _ in range(routing):
            shares = [torch.stack([z[j][k] @ u[k] for k in range(factors)]).softmax(0) for j in near]
            sums = [own[k] + sum(p[k] * z[j][k] for p, j in zip(shares, near)) for k in range(factors)]
            u = [directions(part) for part in sums]
        rows.append(torch.cat(u))
    return torch.stack(rows)
