"""FGSSL: FedAvg whose clients learn from the received model which nodes, and which neighbours, are alike."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.base import Client, Context, Given, Output, Term, Tree
from algorithms.graph_views import GraphViews
from algorithms.losses.contrast import contrast_by_class
from algorithms.losses.neighbour_likeness import likeness_distilled
from algorithms.methods.fedavg import FedAvg
from algorithms.methods.lg_fedavg import require_body
from algorithms.protocol import MODEL
from algorithms.training.together import weighted_sum
from storage.errors import ShoalError


@dataclass(frozen=True)
class FGSSL(FedAvg):
    """FGSSL (Huang et al., IJCAI 2023), federated graph semantic and structural learning: FedAvg with the loss

        CE + contrast * L_semantic + structure * L_structure

    The received model, frozen and in evaluation mode, answers for a weak view of the client's graph, drawn once a
    visit; the client's model, in training mode, for a strong view, drawn anew in every step (see `GraphViews`).

    L_semantic draws embeddings of training nodes in the strong view to those of their class in the weak one and away
    from other classes' (see `contrast_by_class`): of `anchors` nodes at most, drawn anew in every step, which are the
    queries and what they are compared with. L_structure is the KL divergence, over the neighbours of a node in the
    client's graph, of softmax(cos(y_i, y_j) / omega) by the client's scores y from that by the received model's
    (see `likeness_distilled`). The paper compares all nodes in n x n tables, and its code, and OpenFGL's, throw both
    terms away for another one; here memory grows with the edges times C.

    Both terms are added in every step, whatever rows its cross-entropy has. Messages are FedAvg's; with both weights 0
    it is FedAvg, to the bit with `engine.path: loop`.

    Attributes:
        contrast: Weight of L_semantic.
        structure: Weight of L_structure.
        tau: Temperature of the contrast; 0.1 in the authors' code.
        omega: Temperature of the neighbours; our choice.
        anchors: M, training nodes of a contrast at most; our choice.
        weak: Share of the edges, and of the features, that the weak view lacks.
        strong: The same of the strong view.
    """

    reads_embedding: ClassVar[bool] = True

    # Views lack edges between what is predicted, and neighbours are compared by what is predicted of them.
    tasks: ClassVar[frozenset[str]] = frozenset({"node"})
    weighs_edges: ClassVar[bool] = False
    contrast: float = 1.0
    structure: float = 0.1
    tau: float = 0.1
    omega: float = 0.5
    anchors: int = 1024
    weak: tuple[float, float] = (0.3, 0.3)
    strong: tuple[float, float] = (0.8, 0.5)

    def __post_init__(self) -> None:
        if min(self.contrast, self.structure) < 0:
            raise ValueError("contrast and structure must not be negative")
        if min(self.tau, self.omega) <= 0 or self.anchors < 2:
            raise ValueError("tau and omega must be positive and anchors at least 2")
        if not all(0 <= share < 1 for share in (*self.weak, *self.strong)):
            raise ValueError("weak and strong must be two shares each, at least 0 and below 1")

    def setup(self, ctx: Context) -> Tree:
        if not self.contrast and not self.structure:
            return super().setup(ctx)
        model, (kind,) = ctx.build(MODEL, 0), ctx.models[MODEL]
        if self.contrast:
            require_body(model, kind, "FGSSL contrasts what is below the classifier")
        if model.coupled is not None and model.coupled.fanouts:
            raise ShoalError("model.fanouts: FGSSL's views of the graph are read whole; leave it out")
        return super().setup(ctx)

    def regularizer(self, client: Client, given: Given) -> Term | None:
        if not self.contrast and not self.structure:
            return None
        model, views, drawn = client.model, GraphViews(client.model, client.rng("views")), client.rng("anchors")
        sent = model.output(views.draw(*self.weak))

        def term() -> Tensor:
            own = model(views.draw(*self.strong))
            return weighted_sum(
                (self.contrast, lambda: self._semantic(client, sent, own, drawn)),
                (self.structure, lambda: likeness_distilled(client.data, sent.logits_NC, own.logits_NC, self.omega)),
            )

        return term

    def _semantic(self, client: Client, sent: Output, own: Output, drawn: torch.Generator) -> Tensor:
        rows, y = client.data.train, client.data.train_label
        if len(rows) > self.anchors:
            chosen = torch.randperm(len(rows), generator=drawn, device=rows.device)[: self.anchors]
            rows, y = rows[chosen], y[chosen]
        return contrast_by_class(own.embedding_NH[rows], y, sent.embedding_NH[rows], y, self.tau)
