"""FGSSL: FedAvg whose clients learn from the received model which nodes, and which neighbours, are similar."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.base import Client, Context, Output, Received, Trainer, Tree, pure
from shoal.algorithms.graphs.graph_views import GraphViews, pairs
from shoal.algorithms.graphs.pairs import PairDots
from shoal.algorithms.losses.prototype_losses import contrast_by_class
from shoal.algorithms.losses.prototypes import direction
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.requirements import require_body
from shoal.algorithms.models.compiled.row_losses import is_compiled, likeness_divergences, row_loss
from shoal.algorithms.models.inputs.neighbourhood import DrawnInputs
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.training.joint_training import weighted_sum
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import AboveZero, NotNegative, ShareBelowOne
from shoal.storage.shards.view import View


def likeness_distilled(data: View, teacher_NC: Tensor, student_NC: Tensor, temperature: float) -> Tensor:
    """Averages KL(q_i || p_i) over nodes i with neighbours j, p_ij = softmax over j of cos(y_i, y_j) / omega.

    q is of the teacher, which gets no gradient, p of the student. Zero for a graph without edges. Nothing is larger
    than the edges or the rows.
    """
    if not data.entries:
        return student_NC.new_zeros(())
    if is_compiled(student_NC, teacher_NC):
        return row_loss(likeness_divergences, student_NC, teacher_NC, *data.edges, float(temperature))
    ends_2S, pair_E, degree_N = data.cache("neighbours in pairs", lambda: _in_pairs(data))
    with torch.no_grad():
        log_q_E = _log_shares(teacher_NC, ends_2S, pair_E, degree_N, temperature)
    log_p_E = _log_shares(student_NC, ends_2S, pair_E, degree_N, temperature)
    return (log_q_E.exp() * (log_q_E - log_p_E)).sum() / (degree_N > 0).sum()


def _in_pairs(data: View) -> tuple[Tensor, Tensor, Tensor]:
    """Lists ends of undirected edges, int32 `[2, S]`, every entry's edge, int64 `[E]`, and degrees, int64 `[N]`."""
    indptr, indices = data.csr
    degree = np.diff(indptr).astype(np.int64)
    row = np.repeat(np.arange(data.nodes, dtype=np.int32), degree)
    upper = indices > row
    arrays = np.stack([row[upper], indices[upper]]), pairs(indptr, indices).astype(np.int64), degree
    ends_2S, pair_E, degree_N = (torch.from_numpy(part).to(data.device) for part in arrays)
    return ends_2S, pair_E, degree_N


def _log_shares(y_NC: Tensor, ends_2S: Tensor, pair_E: Tensor, degree_N: Tensor, temperature: float) -> Tensor:
    """Computes log p_ij of every entry, float32 `[E]`, row by row."""
    # A cosine is at most one, so that no exponential exceeds one.
    score_S = (PairDots.apply(direction(y_NC), ends_2S) - 1) / temperature
    score_E = score_S[pair_E]
    highest_N = torch.segment_reduce(score_E.detach(), "max", lengths=degree_N, unsafe=True)
    score_E = score_E - highest_N.repeat_interleave(degree_N)
    total_N = torch.segment_reduce(score_E.exp(), "sum", lengths=degree_N, unsafe=True)
    return score_E - total_N.log().repeat_interleave(degree_N)


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
    (see `likeness_distilled`). Both terms are added in every step. Messages are FedAvg's; with both weights 0 it is
    FedAvg, to the bit with `engine.trainer: autograd`.

    Attributes:
        contrast, structure: Weights of L_semantic and L_structure.
        tau, omega: Temperatures of the contrast, 0.1 in the authors' code, and of the neighbours, our choice.
        anchors: M, training nodes of a contrast at most; our choice.
        weak, strong: Shares of the edges, and of the features, that the views lack.
    """

    reads_embedding = True

    # Views lack edges between what is predicted, and neighbours are compared by what is predicted of them.
    supports = frozenset({"node", "newcomers"})
    contrast: NotNegative = 1.0
    structure: NotNegative = 0.1
    tau: AboveZero = 0.1
    omega: AboveZero = 0.5
    anchors: Annotated[int, Field(ge=2)] = 1024
    weak: tuple[ShareBelowOne, ShareBelowOne] = (0.3, 0.3)
    strong: tuple[ShareBelowOne, ShareBelowOne] = (0.8, 0.5)

    def setup(self, ctx: Context) -> Tree:
        if not self.contrast and not self.structure:
            return super().setup(ctx)
        model, (kind,) = ctx.build(MODEL, 0), ctx.models[MODEL]
        if self.contrast:
            require_body(model, kind, "FGSSL contrasts what is below the classifier")
        if model.coupled is not None and model.coupled.fanouts:
            raise ShoalError("model.fanouts", "FGSSL's views of the graph are read whole; leave it out")
        return super().setup(ctx)

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        if not client.info.train or not (self.contrast or self.structure):
            return trainer.fit(client, received)
        model, views, drawn = client.model, GraphViews(client.model, client.rng("views")), client.rng("anchors")
        sent = model.output(views.draw(*self.weak))
        strong_views = DrawnInputs(partial(views.draw, *self.strong))

        def term() -> Tensor:
            strong = model(strong_views)
            return weighted_sum(
                (self.contrast, lambda: self._semantic(client, sent, strong, drawn)),
                (self.structure, lambda: likeness_distilled(client.data, sent.logits_NC, strong.logits_NC, self.omega)),
            )

        # Anchors are the same in all steps unless they are drawn.
        return trainer.fit(client, received, term=pure(term) if client.info.train <= self.anchors else term)

    def _semantic(self, client: Client, sent: Output, own: Output, drawn: torch.Generator) -> Tensor:
        rows, y = client.data.train, client.data.train_label
        if len(rows) > self.anchors:
            chosen = torch.randperm(len(rows), generator=drawn, device=rows.device)[: self.anchors]
            rows, y = rows[chosen], y[chosen]
        return contrast_by_class(own.embedding_NH, y, sent.embedding_NH[rows], y, self.tau, rows)
