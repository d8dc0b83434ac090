"""HAN: attention to nodes along every meta-path, and to meta-paths."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.edges.node_kinds import one_hot_kinds, require_linear_head
from shoal.algorithms.models.gnn.gat import require_heads
from shoal.algorithms.models.inputs.neighbourhood import Operator
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.edge_attention import attend_to_messages
from shoal.algorithms.models.layers.message_layers import HANConv
from shoal.storage.errors import ShoalError
from shoal.storage.graph.edges.edge_matrix import EdgeMatrix
from shoal.storage.graph.edges.kinds import Kinds
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix

SLOPE = 0.2


class HAN(Coupled):
    """Heterogeneous Graph Attention Network (Wang et al., WWW 2019, eqs. 1-9): with h = W x + b,

        z_i^P = ReLU(sum over the nodes j that a path P joins to i of w_ij^P h_j),
        h'_i = sum_P beta_P z_i^P,  beta = softmax over P of mean_i <q, tanh(W' z_i^P + b')>,

    w of every head as in `gat`, with vectors of the path. A path goes through kinds of nodes, by any edge between two
    that follow each other; it starts and ends at the kind that has labels, over whose nodes at the client the mean is.
    What clients lose are the paths through nodes of others. Without kinds of nodes each relation is a path. The paper
    has ELU where ReLU stands here, as in PyG's layer.
    """

    operator: ClassVar[Operator] = "edges"
    first = ("convs.0.lin.weight",)

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        kinds: Kinds,
        *,
        metapaths: list[list[str]] | None = None,
        hidden: int = 64,
        heads: int = 8,
        layers: int = 1,
        fanouts: None = None,
        **options: Any,
    ) -> None:
        """Takes the arguments of `Coupled`, and kinds of nodes and edges.

        Args:
            kinds: Of nodes, which paths name, and of edges.
            metapaths: Kinds of nodes of each path, such as [[paper, author, paper]]; null: relations, where all nodes
                are of one kind.
            heads: Attention heads, which share the width of a layer.
            layers: Number of layers.
            fanouts: Only null: paths are of the whole graph of a client.
        """
        self.heads = require_heads(heads, hidden)
        require_linear_head("han", options)
        self.kinds, self.edge_features = kinds, kinds.edges
        self.paths = _require_paths(kinds, metapaths)
        super().__init__(features, classes, hops, dropout, hidden=hidden, layers=layers, **options)

    @property
    def row_by_row(self) -> bool:
        return False

    def layer(self, number: int, width: int, out: int, last: bool) -> HANConv:
        return HANConv(width, out, self.heads, len(self.paths) or self.edge_features)

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix]) -> Tensor:
        operator = operators[0]
        assert isinstance(operator, EdgeMatrix)
        assert operator.shape[0] == operator.shape[1], "paths are of a whole graph"
        kind_NT = one_hot_kinds(x_NF, self.kinds)
        patterns = self._patterns(operator, kind_NT)
        end = self.paths[0][-1] if self.paths else 0
        rows = kind_NT[:, end].nonzero().flatten()
        x: Any = x_NF
        for number, conv in enumerate(self.convs):
            x = self._convolve(conv, patterns, self.drop(x) if number else x, rows)
        return x

    def _convolve(self, conv: Any, patterns: Sequence[SparseMatrix], x: Features, rows: Tensor) -> Tensor:
        message_NH = transform(x, conv.lin.weight, conv.lin.bias)
        outputs = [
            F.relu(attend_to_messages(pattern, message_NH, of_senders, of_receivers, SLOPE))
            for pattern, of_senders, of_receivers in zip(patterns, conv.att_src, conv.att_dst)
        ]
        scores = []
        for z_NH in outputs:
            of_rows = torch.tanh(transform(z_NH.index_select(0, rows), conv.k_lin.weight, conv.k_lin.bias))
            scores.append((conv.q * (of_rows.sum(0) / max(len(rows), 1))).sum())
        shares = torch.stack(scores).softmax(0)
        out = shares[0] * outputs[0]
        for share, z_NH in zip(shares[1:], outputs[1:]):
            out = out + share * z_NH
        return out

    def _patterns(self, operator: EdgeMatrix, kind_NT: Tensor) -> list[SparseMatrix]:
        """Returns who reaches whom by every path, or by every relation, `[N, N]` each."""
        if not self.paths:

            def step(relation: int) -> list[np.ndarray]:
                return [operator.kinds("han", self.edge_features)[:, relation]]

            return [operator.path(("relation", r), partial(step, r)) for r in range(self.edge_features)]

        def steps(path: tuple[int, ...]) -> list[np.ndarray]:
            of_kind = kind_NT.bool().cpu().numpy()
            receiver, sender = operator.receiver.cpu().numpy(), operator.parts()[1].cpu().numpy()
            return [of_kind[sender, here] & of_kind[receiver, there] for here, there in pairwise(path)]

        return [operator.path(path, partial(steps, path)) for path in self.paths]


def _require_paths(kinds: Kinds, metapaths: list[list[str]] | None) -> tuple[tuple[int, ...], ...]:
    """Returns paths by numbers of kinds of nodes. Raises ShoalError: they are none, or name what there is not."""
    if metapaths is None:
        if len(kinds.columns) > 1:
            assert kinds.nodes is not None
            first, other = kinds.nodes[:2]
            raise ShoalError(
                "model.metapaths",
                f"han reads paths of kinds of nodes ({', '.join(kinds.nodes)}); name them, such as "
                f"[[{first}, {other}, {first}]]",
            )
        return ()
    if not metapaths or any(len(path) < 2 for path in metapaths):
        raise ShoalError("model.metapaths", f"must be paths of two kinds of nodes or more, found {metapaths}")
    ends = {end for path in metapaths for end in (path[0], path[-1])}
    if len(ends) > 1:
        raise ShoalError(
            "model.metapaths", f"all paths start and end at one kind, that with labels, found {', '.join(sorted(ends))}"
        )
    if kinds.nodes is None:
        return tuple((0,) * len(path) for path in metapaths)
    for kind in (kind for path in metapaths for kind in path):
        if kind not in kinds.nodes:
            there = f"choose of {', '.join(kinds.nodes)}" if kinds.nodes else "nodes here are of one; leave it out"
            raise ShoalError("model.metapaths", f"there is no kind of nodes {kind!r}; {there}")
    return tuple(tuple(map(kinds.nodes.index, path)) for path in metapaths)
