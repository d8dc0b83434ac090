"""MOON: embeddings are drawn towards those of the received model and away from those of the client's last one."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from shoal.algorithms.base import Client, Context, Output, Received, Term, Trainer, Tree, pure
from shoal.algorithms.losses.prototype_losses import softplus_of_cosines
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.requirements import require_nodes
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import AboveZero, NotNegative

# A client's state holds the parameters of its last training under this name, `[P]`.
PREVIOUS = "previous"


@dataclass(frozen=True)
class MOON(FedAvg):
    """MOON (Li, He and Song, CVPR 2021): FedAvg with the loss cross-entropy + mu * mean over `rows` of

        -log(e^(cos(z, z_sent) / tau) / (e^(cos(z, z_sent) / tau) + e^(cos(z, z_previous) / tau)))

    A client keeps the parameters that its last training left; at its first visit it has none, and trains on
    cross-entropy alone. Embeddings are those before the classifier, without the paper's projection; the constant ones
    are of evaluation mode. All rows are taken in one step. Messages are FedAvg's; mu = 0 trains as FedAvg.

    Attributes:
        mu: Weight of the contrast; the paper tries 0.1 to 10, OpenFGL has 1, FGGP 5.
        tau: Temperature; 0.5 in the paper.
        rows: Which nodes are contrasted: the training rows (`train`), as in FGGP, or `all` that training sees, as in
            OpenFGL.
    """

    reads_embedding = True
    supports = frozenset({"node", "edge", "graph", "weighted", "newcomers", "targets"})
    only_replaced = frozenset({PREVIOUS})

    mu: NotNegative = 1.0
    tau: AboveZero = 0.5
    rows: Literal["train", "all"] = "train"

    def setup(self, ctx: Context) -> Tree:
        if ctx.train.batch_size is not None:
            raise ShoalError("train.batch_size", "MOON takes all rows in one step; leave it out")
        if self.rows == "all":
            require_nodes(ctx)
        return super().setup(ctx)

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        if not self.mu or not client.info.train:
            return trainer.fit(client, None)
        apart_NH = self._apart(client)
        loss = trainer.fit(client, apart_NH, term=self._contrast_term(client, apart_NH))
        client.state[PREVIOUS] = client.model.w
        return loss

    def _apart(self, client: Client) -> Tensor | None:
        """Computes how far directions of embeddings by the last training's model lie from those by the sent one."""
        if PREVIOUS not in client.state:
            return None
        model, w, inputs = client.model, client.model.w.clone(), client.model.gathered(self.rows)
        sent_NH = unit(model.output(inputs).embedding_NH)
        model.load(client.state[PREVIOUS])
        previous_NH = unit(model.output(inputs).embedding_NH)
        model.load(w)
        return previous_NH - sent_NH

    @pure
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Tensor | None) -> Tensor:
        plain = super().loss(out, y, w, received)
        return plain if received is None or self.rows == "all" else plain + self._contrast(out, received)

    def _contrast_term(self, client: Client, apart_NH: Tensor | None) -> Term | None:
        """Computes the contrast of all rows, which no batch holds."""
        if apart_NH is None or self.rows == "train":
            return None
        inputs = client.model.gathered("all")
        return pure(lambda: self._contrast(client.model(inputs), apart_NH))

    def _contrast(self, out: Output, apart_NH: Tensor) -> Tensor:
        return self.mu * softplus_of_cosines(out.embedding_NH, apart_NH, self.tau)
