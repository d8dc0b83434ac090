"""MOON: embeddings are drawn towards those of the received model and away from those of the client's last one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from shoal.algorithms.base import (
    Client,
    Context,
    MappedLoss,
    Output,
    Pull,
    Received,
    RowTerm,
    Term,
    Trainer,
    Tree,
    pure,
)
from shoal.algorithms.losses.prototype_losses import softplus_of_cosines, softplus_of_rows
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.requirements import require_nodes
from shoal.algorithms.methods.shared.row_method import RowMethod
from shoal.algorithms.train_options import TrainOptions
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import AboveZero, NotNegative

# A client's state holds the parameters of its last training under this name, `[P]`.
PREVIOUS = "previous"


@dataclass(frozen=True)
class MOON(MappedLoss, RowMethod, FedAvg):
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
        received["apart"] = self._apart(client) if self.mu and client.info.train else None
        return trainer.fit(client, received, term=self._contrast_term(client, received["apart"]))

    def kept_rows(self, options: TrainOptions) -> tuple[str, ...]:
        return (PREVIOUS,) if self.mu else ()

    def pull_rows(self, kept: Tree, down: Tree, options: TrainOptions, steps: int) -> Pull | None:
        return None

    def send_rows(
        self, kept: Tree, down: Tree, w: Tensor, total: Tensor | None, options: TrainOptions, steps: int
    ) -> tuple[Tree, Tree]:
        return {"w": w}, dict.fromkeys(kept, w)

    @property
    def is_mapped(self) -> bool:
        return self.rows == "train"

    def row_terms(self, client: Client, received: Received) -> Sequence[RowTerm]:
        apart_NH = self._apart(client) if self.mu else None
        return () if apart_NH is None else self._terms(apart_NH)

    def terms_of_rows(self, kept: Tree, down: Tree, embed: Callable[..., Sequence[Tensor]]) -> Sequence[RowTerm]:
        if not self.mu:
            return ()
        previous, sent = embed(kept[PREVIOUS], down["w"])
        return self._terms(unit(previous) - unit(sent))

    def _terms(self, apart: Tensor) -> Sequence[RowTerm]:
        return (RowTerm(self.mu, softplus_of_rows, (self.tau,), apart),)

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
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
        plain, apart_NH = super().loss(out, y, w, received), received["apart"]
        return plain if apart_NH is None or self.rows == "all" else plain + self._contrast(out, apart_NH)

    def _contrast_term(self, client: Client, apart_NH: Tensor | None) -> Term | None:
        """Computes the contrast of all rows, which no batch holds."""
        if apart_NH is None or self.rows == "train":
            return None
        inputs = client.model.gathered("all")
        return pure(lambda: self._contrast(client.model(inputs), apart_NH))

    def _contrast(self, out: Output, apart_NH: Tensor) -> Tensor:
        return self.mu * softplus_of_cosines(out.embedding_NH, apart_NH, self.tau)
