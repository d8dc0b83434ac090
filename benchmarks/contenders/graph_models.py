"""The models of the bare loop over graphs: of each a function that gives every client's forward pass.

A forward pass gives the logits of the client's training rows. All layers have the width of the task's shapes.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from graph_products import DENSE_FROM, Attention, Matrix, features
from graph_weights import Weights
from torch import Tensor

from shoal.storage.store.view import View

Forward = Callable[[], Tensor]
ALPHA, THETA = 0.1, 0.5


def gcn(weights: Weights, views: list[View]) -> list[Forward]:
    """Twice P (H W) + b, P being the adjacency with loops, normalised by both degrees."""
    first, second = weights.across("convs.0.lin.weight"), weights.across("convs.1.lin.weight")
    bias, bias2, head = weights.plain("convs.0.bias"), weights.plain("convs.1.bias"), linear(weights, "head.linears.0")

    def client(view: View) -> Forward:
        train = view.train
        x, sums = Matrix(features(view.x)), Matrix(normalised(view), symmetric=True)

        def forward() -> Tensor:
            h = F.relu(sums @ (x @ first) + bias)
            return head((sums @ (h @ second) + bias2).index_select(0, train))

        return forward

    return [client(view) for view in views]


def sage(weights: Weights, views: list[View]) -> list[Forward]:
    """Twice M (H W) + H V + b, M taking means over neighbours."""
    neighbour, own = (weights.across(f"convs.0.lin_{side}.weight") for side in "lr")
    heard2, own2 = (weights.across(f"convs.1.lin_{side}.weight") for side in "lr")
    bias, bias2 = (weights.plain(f"convs.{n}.lin_l.bias") for n in (0, 1))
    head = linear(weights, "head.linears.0")

    def client(view: View) -> Forward:
        train = view.train
        adjacency = adjacency_of(view)
        means = Matrix((sp.diags_array(1 / np.maximum(adjacency.sum(1), 1)) @ adjacency).tocsr())
        x = Matrix(features(view.x))

        def forward() -> Tensor:
            h = F.relu(means @ (x @ neighbour) + x @ own + bias)
            return head((means @ (h @ heard2) + torch.addmm(bias2, h, own2)).index_select(0, train))

        return forward

    return [client(view) for view in views]


def gin(weights: Weights, views: list[View]) -> list[Forward]:
    """Twice LayerNorm(ReLU(A (H W) + (1 + e) H W + b) V + c)."""
    first, second = weights.across("convs.0.nn.0.weight"), weights.across("convs.1.nn.0.weight")
    bias, bias2 = (weights.plain(f"convs.{n}.nn.0.bias") for n in (0, 1))
    more, more2 = (weights.plain(f"convs.{n}.eps") for n in (0, 1))
    then, then2 = (linear(weights, f"convs.{n}.nn.2") for n in (0, 1))
    scale, scale2 = (weights.plain(f"convs.{n}.nn.3.weight") for n in (0, 1))
    shift, shift2 = (weights.plain(f"convs.{n}.nn.3.bias") for n in (0, 1))
    head = linear(weights, "head.linears.0")

    def client(view: View) -> Forward:
        train = view.train
        x, sums = Matrix(features(view.x)), Matrix(adjacency_of(view), symmetric=True)

        def layer(h: Tensor, more: Tensor, bias: Tensor, then: Callable[[Tensor], Tensor]) -> Tensor:
            return then(F.relu(sums @ h + torch.addcmul(bias, h, more + 1)))

        def forward() -> Tensor:
            h = F.relu(F.layer_norm(layer(x @ first, more, bias, then), shift.shape, scale, shift))
            h = F.layer_norm(layer(h @ second, more2, bias2, then2), shift2.shape, scale2, shift2)
            return head(h.index_select(0, train))

        return forward

    return [client(view) for view in views]


def gat(weights: Weights, views: list[View]) -> list[Forward]:
    """Twice sums over neighbours and the node itself, weighed by attention; several heads, then one."""
    first, second = (weights.across(f"convs.{n}.lin.weight") for n in (0, 1))
    bias, bias2 = (weights.plain(f"convs.{n}.bias") for n in (0, 1))
    source, source2 = (weights.plain(f"convs.{n}.att_src") for n in (0, 1))
    target, target2 = (weights.plain(f"convs.{n}.att_dst") for n in (0, 1))
    head = linear(weights, "head.linears.0")

    def client(view: View) -> Forward:
        train = view.train
        x, pattern = Matrix(features(view.x)), with_loops(view)
        many, one = Attention(pattern, *source.shape[1:]), Attention(pattern, *source2.shape[1:])

        def layer(h: Tensor, source: Tensor, target: Tensor, attention: Attention, bias: Tensor) -> Tensor:
            heads, width = source.shape[1:]
            # Scores of all heads, of a node as source and as target, are one product.
            scores = h @ torch.cat([attention.own * part.view(-1, 1) for part in (source, target)], 1)
            by_head = [part.reshape(-1) for part in scores.split(heads, 1)]
            return attention(h.view(-1, width), *by_head).view_as(h) + bias

        def forward() -> Tensor:
            h = F.relu(layer(x @ first, source, target, many, bias))
            return head(layer(h @ second, source2, target2, one, bias2).index_select(0, train))

        return forward

    return [client(view) for view in views]


def gcnii(weights: Weights, views: list[View]) -> list[Forward]:
    """Twice ReLU(S ((1 - beta) I + beta W)), S = (1 - alpha) P H + alpha H_0, on H_0 = ReLU(X W_0 + b)."""
    lift, bias = weights.across("lift.weight"), weights.plain("lift.bias")
    first, second, head = (
        weights.plain("convs.0.weight1"),
        weights.plain("convs.1.weight1"),
        linear(weights, "head.linears.0"),
    )
    beta, beta2 = math.log(THETA + 1), math.log(THETA / 2 + 1)

    def client(view: View) -> Forward:
        train = view.train
        share = (1 - ALPHA) * normalised(view)
        # In the first layer H is H_0 itself.
        once = Matrix(share + ALPHA * sp.eye_array(view.nodes), symmetric=True)
        x, sums = Matrix(features(view.x)), Matrix(share, symmetric=True)

        def forward() -> Tensor:
            initial = F.relu(x @ lift + bias)
            h = once @ initial
            h = F.relu(torch.addmm(h, h, first, beta=1 - beta, alpha=beta))
            h = torch.add(sums @ h, initial, alpha=ALPHA)
            h = torch.addmm(h, h, second, beta=1 - beta2, alpha=beta2).index_select(0, train)
            return head(F.relu(h))

        return forward

    return [client(view) for view in views]


def sgc(weights: Weights, views: list[View]) -> list[Forward]:
    """An MLP of one hidden layer on the training rows of hop 2."""
    first, bias, head = (
        weights.across("head.linears.0.weight"),
        weights.plain("head.linears.0.bias"),
        linear(weights, "head.linears.1"),
    )

    def client(view: View) -> Forward:
        x = Matrix(features(view.rows(2, view.train)))
        return lambda: head(F.relu(x @ first + bias))

    return [client(view) for view in views]


def gamlp(weights: Weights, views: list[View]) -> list[Forward]:
    """An MLP of one hidden layer on the sum of the hops 0 to 2, weighed by softmax(sigmoid(scores)).

    Where hops are sparse, one product gives the hidden layer of every hop and its share of the scores, and what is
    summed is `hidden` wide; where they are dense, hops are summed before they are multiplied.
    """
    hops = [[features(view.rows(k, view.train)) for k in range(3)] for view in views]
    blocks = [x for client in hops for x in client]
    density = sum(x.nnz for x in blocks) / sum(math.prod(x.shape) for x in blocks)
    width = weights.shapes["head.linears.0.weight"][1]
    bias, slope, offset = (weights.plain(name) for name in ("head.linears.0.bias", "head.prelu.weight", "score.bias"))
    head = linear(weights, "head.linears.1")

    def weighed(score: Tensor) -> Tensor:
        return (score + offset).sigmoid().softmax(1)

    def sparse(client: list[sp.csr_array]) -> Forward:
        xs = [Matrix(x) for x in client]

        def forward() -> Tensor:
            products = torch.stack([x @ all_of for x in xs], 1)
            hidden, parts = products[:, :, : len(bias)], products[:, :, len(bias) :]
            score = parts[:, :, -1] + parts.diagonal(0, 1, 2).sum(1, keepdim=True)
            return head(F.prelu(torch.bmm(weighed(score).unsqueeze(1), hidden).squeeze(1) + bias, slope))

        return forward

    def dense(client: list[sp.csr_array]) -> Forward:
        x_NKF = torch.from_numpy(np.stack([x.toarray() for x in client], 1))
        n, k, f = x_NKF.shape

        def forward() -> Tensor:
            reference, own = score_w[0].split((k * f, f))
            score = (x_NKF.view(n * k, f) @ own).view(n, k) + (x_NKF.view(n, k * f) @ reference).unsqueeze(1)
            u = torch.bmm(weighed(score).unsqueeze(1), x_NKF).squeeze(1)
            return head(F.prelu(torch.addmm(bias, u, first), slope))

        return forward

    if density < DENSE_FROM:
        all_of = weights.across("head.linears.0.weight", "score.weight", width=width)
        return [sparse(client) for client in hops]
    first, score_w = weights.across("head.linears.0.weight"), weights.plain("score.weight")
    return [dense(client) for client in hops]


MODELS = {"gcn": gcn, "sage": sage, "gin": gin, "gat": gat, "gcnii": gcnii, "sgc": sgc, "gamlp": gamlp}


def linear(weights: Weights, name: str) -> Callable[[Tensor], Tensor]:
    """A linear layer."""
    w, b = weights.across(f"{name}.weight"), weights.plain(f"{name}.bias")
    return lambda x: torch.addmm(b, x, w)


def adjacency_of(view: View) -> sp.csr_array:
    """The client's adjacency without loops."""
    starts, columns = view.csr
    return sp.csr_array((np.ones(len(columns), np.float32), columns, starts), shape=(view.nodes, view.nodes))


def with_loops(view: View) -> sp.csr_array:
    return (adjacency_of(view) + sp.eye_array(view.nodes, dtype=np.float32)).tocsr()


def normalised(view: View) -> sp.csr_array:
    """D^-1/2 (A + I) D^-1/2."""
    whole = with_loops(view)
    root = sp.diags_array(1 / np.sqrt(whole.sum(1).astype(np.float64)))
    return (root @ whole @ root).tocsr()
