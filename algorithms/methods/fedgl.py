"""FedGL: clients also learn from what is predicted of their unlabelled nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Context, Received, Term, Trainer, Tree
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.feddc import DRIFT, UPDATE, FedDC
from shoal.algorithms.methods.fedgta.fedgta import FedGTA
from shoal.algorithms.methods.moon import MOON, PREVIOUS
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import NotNegative, Share


@dataclass(frozen=True)
class PseudoLabels(Algorithm):
    """FedGL (Chen et al., Information Sciences 657, 2024), without its exchange of predictions: what clients minimise,

        CE + pseudo * CE over the unlabelled nodes that have a pseudo label

    The other base class averages models.

    In the paper the clients' graphs overlap, and the server labels a node by the mean of its owners' confident
    predictions. Here nothing is sent, with `partition.overlap`, too: a client predicts by the parameters that its last
    training left, in evaluation mode. A node outside of the training rows has a pseudo label, the class of its largest
    probability, if that is `threshold` at least; at a client's first visit there is none. All are read in every step.
    Edges between nodes of similar embeddings, which the paper's server adds, are left out, as in OpenFGL. Without a
    node to label, as with `data.inductive`, the method is refused.

    Attributes:
        pseudo: Weight of the pseudo labels; 0.1 in OpenFGL.
        threshold: As above; 0.5 in OpenFGL.
    """

    # Unlabelled nodes belong to the graph that is trained on; small graphs and pairs of the test are not seen there.
    supports = frozenset({"node", "weighted", "newcomers"})
    only_replaced = frozenset({PREVIOUS})
    pseudo: NotNegative = 0.1
    threshold: Share = 0.5

    def setup(self, ctx: Context) -> Tree:
        if self.pseudo and all(info.nodes == info.train for info in ctx.clients):
            raise ShoalError(
                "algorithm.pseudo",
                "all nodes that training sees are training nodes (data.inductive?), so that FedGL "
                "has none to label; set it to 0, or take data with unlabelled nodes",
            )
        return super().setup(ctx)

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        loss = trainer.fit(client, received, term=self._pseudo_term(client))
        if self.pseudo and client.info.train:
            client.state[PREVIOUS] = client.model.w
        return loss

    def _pseudo_term(self, client: Client) -> Term | None:
        if not self.pseudo or PREVIOUS not in client.state:
            return None
        rows, label = self._pseudo_labels(client)
        if not len(rows):
            return None
        answer = client.model.forward(rows)
        return lambda: self.pseudo * F.cross_entropy(answer().logits_NC, label)

    def _pseudo_labels(self, client: Client) -> tuple[Tensor, Tensor]:
        """Selects the rows that have a pseudo-label, int64, and their classes."""
        model, w = client.model, client.model.w.clone()
        model.load(client.state[PREVIOUS])
        certain_N, class_N = model.logits().softmax(1).max(1)
        model.load(w)
        has_N = (certain_N >= self.threshold).index_fill(0, client.data.train, False)
        rows: Tensor = torch.nonzero(has_N)[:, 0]
        return rows, class_N[rows]


@dataclass(frozen=True)
class FedGL(PseudoLabels, FedAvg):
    """FedAvg with pseudo labels (Chen et al., 2024), see `PseudoLabels`; with `pseudo: 0` FedAvg, its messages too."""


@dataclass(frozen=True)
class FedGLFedGTA(PseudoLabels, FedGTA):
    """FedGL whose models are averaged as FedGTA does (Table 5 of its paper), see `PseudoLabels` and `FedGTA`.

    A client that has not trained yet has no pseudo labels, whatever it receives. Messages are FedGTA's; with
    `pseudo: 0` it is FedGTA, to the bit with `engine.trainer: autograd`.
    """


@dataclass(frozen=True)
class FedGLMOON(PseudoLabels, MOON):
    """FedGL whose clients also minimise MOON's contrast (Table 5 of FedGTA's paper), see `PseudoLabels` and `MOON`.

    Both read the parameters of the client's last training, kept once. With `pseudo: 0` it is MOON, with `mu: 0` FedGL.
    """

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        learns = client.info.train > 0 and (self.mu > 0 or self.pseudo > 0)
        received["apart"] = apart_NH = self._apart(client) if self.mu and learns else None
        terms = [term for term in (self._pseudo_term(client), self._contrast_term(client, apart_NH)) if term]
        loss = trainer.fit(client, received, term=sum_of(terms) if terms else None)
        if learns:
            client.state[PREVIOUS] = client.model.w
        return loss


@dataclass(frozen=True)
class FedGLFedDC(PseudoLabels, FedDC):
    """FedGL whose models drift and are averaged as FedDC's (Table 5 of FedGTA's paper), see `PseudoLabels` and `FedDC`.

    With `pseudo: 0` it is FedDC.
    """

    only_replaced = frozenset({PREVIOUS, DRIFT, UPDATE})


def sum_of(terms: Sequence[Term]) -> Term:
    """Builds the term that adds up others, each computed anew in every step."""
    first, *others = terms
    return lambda: sum((term() for term in others), first())
