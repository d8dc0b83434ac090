"""Losses by which a model learns from the answers of another one, or of itself, for the same nodes.

Axes: N nodes, C classes, H width of the embeddings.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.models.compiled.projected_losses import (
    squares_by_projection,
    squares_of_projected,
    squares_to_projected,
)
from shoal.algorithms.models.compiled.row_losses import (
    divergences,
    is_compiled,
    is_constant,
    neighbour_divergences,
    row_loss,
    squares_of_directions,
)
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import View


def distillation_loss(teacher_NC: Tensor, student_NC: Tensor, detach: bool = True) -> Tensor:
    """Averages KL(softmax(teacher) || softmax(student)) over rows, from logits; a detached teacher gets no gradient."""
    teacher_alone_NC = teacher_NC.detach()
    if detach and teacher_NC.shape == student_NC.shape and is_compiled(student_NC, teacher_alone_NC):
        return row_loss(divergences, student_NC, teacher_alone_NC, torch.arange(len(teacher_NC)))
    log_p_NC = (teacher_alone_NC if detach else teacher_NC).log_softmax(1)
    return F.kl_div(student_NC.log_softmax(1), log_p_NC, reduction="batchmean", log_target=True)


def distilled_by_class(teacher_CC: Tensor, known_C: Tensor, y_N: Tensor, student_NC: Tensor) -> Tensor:
    """Computes `distillation_loss` of the rows whose class has a teacher, its row of `teacher_CC`; zero without any."""
    row_N = y_N.where(known_C[y_N], -1)
    if len(y_N) == len(student_NC) and is_compiled(student_NC, teacher_CC):
        return row_loss(divergences, student_NC, teacher_CC, row_N)
    taught_N = row_N >= 0
    if not bool(taught_N.any()):
        return student_NC.sum() * 0
    return distillation_loss(teacher_CC[y_N[taught_N]], student_NC[taught_N])


def distilled_from_neighbours(
    data: View, teacher_NH: Tensor, student_NH: Tensor, norm: Literal["mean", "sum"]
) -> Tensor:
    """Averages KL(softmax(z_j) || softmax(h_i)) over nodes i, for i itself and its neighbours j (FedGKC, eq. 1).

    Over j it is a `sum`, as eq. 1 is written, or a `mean`, so that a hub weighs as much as any node. The teacher's z
    get no gradient. One product with A + I: the sum over j is t_i - <S_i, log softmax(h_i)>, with S = (A + I)
    softmax(z) and t the same sum of negative entropies.
    """
    teacher_NH = teacher_NH.detach()
    if teacher_NH.shape == student_NH.shape and len(student_NH) == data.nodes and is_compiled(student_NH, teacher_NH):
        count_N = data.degree.float() if norm == "mean" else torch.ones(data.nodes)
        return row_loss(neighbour_divergences, student_NH, teacher_NH, *SparseMatrix(data.adjacency).parts(), count_N)
    with torch.no_grad():
        log_q_NH = teacher_NH.log_softmax(1)
        q_NH = log_q_NH.exp()
        sent = torch.cat([q_NH, (q_NH * log_q_NH).sum(1, keepdim=True)], dim=1)
        received = SparseMatrix(data.adjacency) @ sent + sent
        if norm == "mean":
            received /= data.degree[:, None]
    sum_NH, negative_entropy_N = received[:, :-1], received[:, -1]
    return (negative_entropy_N - (sum_NH * student_NH.log_softmax(1)).sum(1)).mean()


def distance_of_projected(mentor_NM: Tensor, mentee_NS: Tensor, w_MS: Tensor) -> Tensor:
    """Averages (z_m - W z_s)^2 over rows and the width of z_m, a scalar; one of the three at most has a gradient."""
    rows, (outputs, width) = len(mentor_NM), w_MS.shape
    if mentor_NM.shape == (rows, outputs) and mentee_NS.shape == (rows, width):
        if is_compiled(mentor_NM) and is_constant(mentee_NS, w_MS):
            return row_loss(squares_to_projected, mentor_NM, mentee_NS, w_MS, float(width))
        if is_compiled(mentee_NS) and is_constant(mentor_NM, w_MS):
            return row_loss(squares_of_projected, mentee_NS, mentor_NM, w_MS)
        if is_compiled(w_MS) and is_constant(mentor_NM, mentee_NS):
            return row_loss(squares_by_projection, w_MS, mentee_NS, mentor_NM)
    return F.mse_loss(mentor_NM, mentee_NS @ w_MS.t())


def embedding_distance(teacher_NH: Tensor, student_NH: Tensor, rows: Literal["unit", "raw"]) -> Tensor:
    """Averages the squared difference over all entries (`raw`), or over rows that are scaled to length one (`unit`).

    Raw distances to a teacher that is not trained let embeddings grow without bound (FedGKC's eq. 4). Those of `unit`
    lie in [0, 4] at every width: their mean over entries would be 1 / H of that, and weigh next to nothing.
    """
    if rows == "raw":
        return F.mse_loss(student_NH, teacher_NH)
    if student_NH.shape == teacher_NH.shape and is_compiled(student_NH, teacher_NH):
        return row_loss(squares_of_directions, student_NH, teacher_NH)
    return (unit(student_NH) - unit(teacher_NH)).square().sum(1).mean()
