"""FedGCN: FedAvg of a GCN that reads sums over neighbours at all clients, exchanged once before training."""

from dataclasses import dataclass
from typing import Literal

from shoal.algorithms.base import Context, Tree
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import MODEL
from shoal.storage.errors import ShoalError


@dataclass(frozen=True)
class FedGCN(FedAvg):
    """FedGCN (Yao et al., NeurIPS 2023): FedAvg after one exchange of sums of neighbours' features.

    Before training each client sends, for nodes of others, the sum of its own nodes' features next to them, normalised
    by degrees of the whole graph; the server adds these up. `shoal prepare` makes this exchange and keeps its result,
    by `data.cross_edges`. Messages of rounds are those of FedAvg.

    - 0 hops (`drop`): clients' own edges; this is FedAvg.
    - 1 hop (`one_hop`): a client gets the sums of its nodes. The first layer is that of the whole graph; further ones
      sum over the client's own edges, by degrees among these.
    - 2 hops (`two_hop`): it also gets the sums of its nodes' neighbours at other clients. The second layer reads these
      neighbours' first layer, too, by degrees of the whole graph: a GCN of two layers is that of the whole graph.

    Not built: the paper's homomorphic form, in which clients encrypt their sums and the server adds the ciphers and
    reads none. The sums that clients decrypt are the same. The authors' program copies features of neighbours instead
    of sums, and counts degrees within such a subgraph.

    Attributes:
        hops: 0, 1 or 2; `data.cross_edges` has to be as above.
    """

    supports = frozenset({"node", "weighted", "newcomers", "targets"})

    hops: Literal[0, 1, 2] = 2

    @property
    def edges_read(self) -> str:
        """The value that `data.cross_edges` must have."""
        return ("drop", "one_hop", "two_hop")[self.hops]

    def setup(self, ctx: Context) -> Tree:
        if any(kind.name != "gcn" for kind in ctx.models[MODEL]):
            raise ShoalError("model.name", "FedGCN trains a GCN; take gcn, or algorithm fedavg")
        return super().setup(ctx)
