"""GIN, GCNII, GAT and SIGN as bare loops: logits for autograd alone, over all nodes, in plain torch.

Axes: T training rows, N nodes, E entries, H hidden width, C classes.
"""

import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from bare_models import FIRST, Client, Gcn, adjacency_of
from bare_products import Matrix, features
from bare_weights import Weights
from torch import Tensor

from shoal.storage.shards.view import View

ALPHA, THETA, SLOPE = 0.1, 0.5, 0.2


class ByAutograd(Client):
    """A client whose gradients are not written out."""

    def write_gradients(self) -> None:
        raise NotImplementedError("gradients by autograd alone")


class OnGraph(ByAutograd):
    """Features and a matrix of all nodes, the training rows first."""

    def __init__(self, weights: Weights, view: View, form: str) -> None:
        super().__init__(weights, view.train_label)
        train = view.train.numpy()
        nodes = np.concatenate([train, np.setdiff1d(np.arange(view.nodes), train)])
        self.x = Matrix(features(view.x)[nodes], False)
        matrix = self.operator(view)[nodes][:, nodes]
        self.sums = Matrix(matrix, False)
        self.products = [(self.x, weights.values[0].shape[1]), *[(self.sums, 64)] * 2]
        starts = np.diff(matrix.indptr)
        self.receiver_E = torch.from_numpy(np.repeat(np.arange(view.nodes), starts))
        self.sender_E = torch.from_numpy(matrix.indices.astype(np.int64))

    def operator(self, view: View) -> sp.csr_array:
        raise NotImplementedError


class Gin(OnGraph):
    """Two layers LayerNorm(relu(A z + (1 + e) z + b) V + c), z = x W; ReLU between them, and a linear classifier."""

    blocks = tuple(
        (f"convs.{layer}.{name}",)
        for layer in (0, 1)
        for name in ("nn.0.weight", "nn.0.bias", "nn.2.weight", "nn.2.bias", "nn.3.weight", "nn.3.bias", "eps")
    ) + tuple((name,) for name in FIRST)

    def operator(self, view: View) -> sp.csr_array:
        return adjacency_of(view)

    def logits(self, leaves: Sequence[Tensor]) -> Tensor:
        h: Tensor | None = None
        for w, b, v, c, scale, shift, share in (leaves[:7], leaves[7:14]):
            z = self.x @ w if h is None else F.relu(h) @ w
            mixed = F.relu(self.sums @ z + (1 + share) * z + b)
            h = F.layer_norm(torch.addmm(c, mixed, v), scale.shape, scale, shift)
        assert h is not None
        return torch.addmm(leaves[-1], h[: len(self.label_T)], leaves[-2])


class Gcnii(OnGraph):
    """relu((1 - b_l) y + b_l y W_l), y = (1 - a) P h + a x_0, from x_0 = relu(X W_0 + b_0); a linear classifier."""

    blocks = (("lift.weight",), ("lift.bias",), ("convs.0.weight1",), ("convs.1.weight1",), *((n,) for n in FIRST))

    def operator(self, view: View) -> sp.csr_array:
        return Gcn.operator(self, view)  # type: ignore[arg-type]

    def logits(self, leaves: Sequence[Tensor]) -> Tensor:
        lift, bias, *layers, v, c = leaves
        h = first = F.relu(self.x @ lift + bias)
        for number, turned in enumerate(layers, 1):
            beta = math.log(THETA / number + 1)
            y = torch.lerp(self.sums @ h, first, ALPHA)
            h = F.relu(torch.addmm(y, y, turned.t(), beta=1 - beta, alpha=beta))
        return torch.addmm(c, h[: len(self.label_T)], v)


class Gat(OnGraph):
    """Attention of eight heads over nodes and themselves, ReLU, and a classifier of one head of attention."""

    blocks = tuple(
        (name,)
        for name in (
            *(f"convs.0.{part}" for part in ("lin.weight", "att_src", "att_dst", "bias")),
            *(FIRST[0], "head.messages.att_src", "head.messages.att_dst", FIRST[1]),
        )
    )

    def operator(self, view: View) -> sp.csr_array:
        return (adjacency_of(view) + sp.eye_array(view.nodes, dtype=np.float32)).tocsr()

    def attend(self, x_NF: Tensor, sends_DH: Tensor, receives_DH: Tensor) -> Tensor:
        """Sums over senders, weighted by a softmax of scores of every entry."""
        x_NHD = x_NF.view(len(x_NF), sends_DH.shape[1], -1)
        sends_NH, receives_NH = ((x_NHD * vector.t()).sum(-1) for vector in (sends_DH, receives_DH))
        score_EH = F.leaky_relu(receives_NH[self.receiver_E] + sends_NH[self.sender_E], SLOPE)
        place_EH = self.receiver_E[:, None].expand_as(score_EH)
        most_NH = torch.full_like(sends_NH, -torch.inf).scatter_reduce(0, place_EH, score_EH.detach(), "amax")
        weight_EH = (score_EH - most_NH[self.receiver_E]).exp()
        total_NH = torch.zeros_like(sends_NH).index_add(0, self.receiver_E, weight_EH)
        message_EHD = (weight_EH / total_NH[self.receiver_E])[..., None] * x_NHD[self.sender_E]
        return torch.zeros_like(x_NHD).index_add(0, self.receiver_E, message_EHD).flatten(1)

    def logits(self, leaves: Sequence[Tensor]) -> Tensor:
        w, sends, receives, b, v, last_sends, last_receives, c = leaves
        h = F.relu(self.attend(self.x @ w, sends, receives) + b)
        return self.attend(h @ v, last_sends.t(), last_receives.t())[: len(self.label_T)] + c


class Sign(ByAutograd):
    """prelu of the three hops' own linear layers, side by side, and a linear classifier."""

    blocks = (
        *((f"of_hops.{hop}.{part}",) for hop in range(3) for part in ("weight", "bias")),
        ("prelu.weight",),
        *((name,) for name in FIRST),
    )

    def __init__(self, weights: Weights, view: View, form: str) -> None:
        super().__init__(weights, view.train_label)
        self.hops = [Matrix(features(view.rows(k, view.train)), False) for k in range(3)]
        self.products = [(hop, weights.values[0].shape[1]) for hop in self.hops]

    def logits(self, leaves: Sequence[Tensor]) -> Tensor:
        *layers, slope, v, c = leaves
        z = torch.cat([hop @ w + b for hop, w, b in zip(self.hops, layers[::2], layers[1::2])], dim=1)
        return torch.addmm(c, F.prelu(z, slope), v)


LAYERED: dict[str, type[Client]] = {"gin": Gin, "gcnii": Gcnii, "gat": Gat, "sign": Sign}
