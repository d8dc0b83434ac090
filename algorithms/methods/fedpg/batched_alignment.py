"""FedPG's alignment of several clients that are trained in one batch.

Axes: B clients, V nodes of all of them side by side, R of them in reach of a prototype (in `[B, R, …]` those of the
client that has most), L levels, C classes, P = B C prototypes of a level, H width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.algorithms.base import BatchedTerm, Output
from shoal.algorithms.client import Client
from shoal.algorithms.losses.alignment import NodeAlignment
from shoal.algorithms.losses.prototypes import EPS, unit
from shoal.algorithms.methods.fedpg.alignment_term import Targets
from shoal.algorithms.methods.fedpg.batched_annotation import SideBySide, at_once, side_by_side
from shoal.algorithms.methods.fedpg.hop_prototypes import hop_prototypes, neighbour_means


def alignment_of_several(
    clients: Sequence[Client],
    w_BP: Tensor,
    targets: Sequence[Targets],
    by_prototype: bool,
    confident: float | None,
    mu: float,
) -> BatchedTerm | None:
    """mu times the alignment of every client; None if no prototype of any has a target.

    Args:
        clients: Clients of one kind.
        w_BP: Their parameters.
        targets: What each was sent.
        by_prototype: As `alignment_term.by_prototype` has it, with weights that stand still; else as `by_node` has it.
        confident: For `annotate`.
        mu: Weight.
    """
    groups = at_once(clients, len(targets[0].known_LC))
    reaches = []
    for group in groups:
        nodes = side_by_side([clients[i] for i in group], [w_BP[i] for i in group], confident)
        reaches.append(ReachOfSeveral(nodes, [targets[i] for i in group], by_prototype))
    rows = _in_order(groups, [reach.rows for reach in reaches])
    if not any(map(len, rows)):
        return None

    def term(out: Output) -> Tensor:
        z_BRH = unit(out.embedding_NH)
        if len(groups) == 1:
            return mu * reaches[0](z_BRH)
        terms = [reach(torch.stack([z_BRH[i] for i in group])).unbind() for group, reach in zip(groups, reaches)]
        return mu * torch.stack(_in_order(groups, terms))

    return BatchedTerm(rows, term)


def _in_order(groups: Sequence[Sequence[int]], found: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """What was found of the clients of every group, by client."""
    by_client = {i: one for group, of_group in zip(groups, found) for i, one in zip(group, of_group)}
    return [by_client[i] for i in range(len(by_client))]


class ReachOfSeveral:
    """What `alignment_term.Reach` is of one client, and its terms, of clients that were annotated together.

    Attributes:
        rows: Of every client the nodes with weight in any prototype, ascending, int64; none, if none has a target.
    """

    def __init__(self, nodes: SideBySide, targets: Sequence[Targets], by_prototype: bool) -> None:
        """Chooses once what is the same in every step.

        Args:
            nodes: The annotation of all nodes.
            targets: Of every client.
            by_prototype: As for `alignment_of_several`.
        """
        self._by_prototype, self._nodes = by_prototype, nodes
        self._target_LPH = torch.stack([one.proto_LCH for one in targets], 1).flatten(1, 2)
        known_LP = torch.stack([one.known_LC for one in targets], 1).flatten(1, 2)
        weight_LV, counts_LP = nodes.weights(len(known_LP) - 1)
        self._present_LP = (counts_LP > 0) & known_LP
        self._total_B = self._of_clients(self._present_LP.sum(0))
        most = len(nodes.class_V) // nodes.clients
        # A client without a target has no term: it draws nothing for one, either.
        has_V = (self._total_B > 0).repeat_interleave(most, output_size=len(nodes.class_V))
        reached_V = (weight_LV > 0).any(0) & has_V
        row_R = reached_V.nonzero()[:, 0]
        count_B = reached_V.view(nodes.clients, most).sum(1)
        self._client_R = row_R // most
        before_R = (count_B.cumsum(0) - count_B)[self._client_R]
        self._within_R = torch.arange(len(row_R), device=row_R.device) - before_R
        self.rows = (row_R - most * self._client_R).split(count_B.tolist())
        self._place_R, self._weight_LR = nodes.place_V[row_R], weight_LV[:, row_R]
        if by_prototype:
            return
        centre_V = nodes.centre_V & has_V
        self._centres = centre_V[row_R].nonzero()[:, 0]
        self._of_centres = self._aligned(0, self._place_R[self._centres])
        if len(known_LP) > 1:
            # A place is a class of one client, and neighbours are of one client.
            self._means, place_S = neighbour_means(nodes.graph, nodes.place_V, centre_V, row_R)
            self._of_means = self._aligned(1, place_S)

    def _aligned(self, level: int, place_S: Tensor) -> tuple[NodeAlignment, Tensor]:
        """How rows of these prototypes are measured, and whose they are."""
        target_PH, present_P = self._target_LPH[level], self._present_LP[level]
        return NodeAlignment(place_S, target_PH, present_P), place_S // self._nodes.graph.classes

    def __call__(self, z_BRH: Tensor) -> Tensor:
        """The alignment of every client, `[B]`, differentiable, for the unit embeddings of their rows."""
        z_RH = z_BRH.flatten(0, 1)[self._client_R * z_BRH.shape[1] + self._within_R]
        if self._by_prototype:
            return self._of_prototypes(z_RH, 0, squared=False)
        total_B = self._of_rows(*self._of_centres, z_RH[self._centres])
        if len(self._target_LPH) > 1:
            total_B = total_B + self._of_rows(*self._of_means, torch.sparse.mm(self._means, z_RH))
        if len(self._target_LPH) > 2:
            total_B = total_B + self._of_prototypes(z_RH, 2, squared=True)
        return total_B / self._total_B.clamp_min(1)

    def _of_rows(self, alignment: NodeAlignment, client_S: Tensor, z_SH: Tensor) -> Tensor:
        return z_SH.new_zeros(len(self._total_B)).index_add(0, client_S, alignment.by_row(z_SH))

    def _of_prototypes(self, z_RH: Tensor, first: int, squared: bool) -> Tensor:
        """Sums over every client's present prototypes, from a level on, of the distance from the target."""
        proto_LPH = hop_prototypes(z_RH, self._place_R, self._weight_LR[first:], self._nodes.prototypes)
        square_LP = (proto_LPH - self._target_LPH[first:]).square().sum(-1)
        distance_LP = square_LP if squared else (square_LP + EPS).sqrt()
        return self._of_clients((self._present_LP[first:] * distance_LP).sum(0))

    def _of_clients(self, x_P: Tensor) -> Tensor:
        """Sums over the prototypes of every client, `[B]`."""
        return x_P.view(self._nodes.clients, -1).sum(1)
