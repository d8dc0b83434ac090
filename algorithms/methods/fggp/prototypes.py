"""Prototypes in which a node counts as much as its class is certain, their clusters, and the bank, which votes (FGGP).

Axes: N nodes, C classes, H width of features, J classes that have a prototype, P prototypes of all clients, B entries
of the bank.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses.finch import class_clusters
from shoal.algorithms.losses.prototypes import class_means, unit
from shoal.algorithms.protocol import Tree

Vote = Literal["class_nearest", "class_avg", "softmax_sum", "sum_cos"]
Clusters = Literal["finch", "none", "mean", "kmeans", "dbscan"]
# `dbscan` takes a prototype within `eps` of another into its cluster.
MEMBERS = 2


def certain_classes(
    logits_NC: Tensor, train: Tensor, train_label: Tensor, by_logit: bool = False
) -> tuple[Tensor, Tensor]:
    """Class of every node, int64 `[N]`, and certainty, `[N]`: label and 1 in training, else largest probability.

    `by_logit` takes the largest logit, as equation 4 is written, which may be negative.
    """
    score_NC = logits_NC.detach() if by_logit else logits_NC.detach().softmax(1)
    certain_N, class_N = score_NC.max(1)
    return class_N.index_copy(0, train, train_label), certain_N.index_fill(0, train, 1.0)


def certain_prototypes(z_NH: Tensor, class_N: Tensor, certain_N: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Computes c_j = sum of w_i z_i / W_j over nodes of class j, `[C, H]`, and W_j = sum of w_i, `[C]` (equation 4).

    Which of them count says `existing`; a row without any node is zero.
    """
    mass_C = certain_N.new_zeros(classes).index_add(0, class_N, certain_N)
    sum_CH = z_NH.new_zeros(classes, z_NH.shape[1]).index_add(0, class_N, certain_N[:, None] * z_NH)
    return sum_CH / torch.where(mass_C != 0, mass_C, 1)[:, None], mass_C


def existing(class_N: Tensor, mass_C: Tensor, least: float) -> Tensor:
    """Returns whether a class has a prototype, bool `[C]`: of a mass of `least`; with 0, of any node and a mass."""
    if least:
        return mass_C >= least
    return (torch.bincount(class_N, minlength=len(mass_C)) > 0) & (mass_C != 0)


class Bank(NamedTuple):
    """Prototypes, float32, and the class of each, int64, ascending."""

    proto_BH: Tensor
    class_B: Tensor

    def to_download(self) -> Tree:
        """Returns the bank's part of a download: 4 (H + 1) bytes an entry."""
        return {"bank": self.proto_BH, "bank.class": self.class_B.int()}

    @classmethod
    def from_download(cls, tree: Tree) -> "Bank | None":
        """Reads the result of `to_download`; None if a download has none."""
        return cls(tree["bank"], tree["bank.class"].long()) if "bank" in tree else None


def last_of_clients(server: Tree, sent: Bank, ids: Sequence[int], counts: Sequence[int]) -> Bank:
    """Returns the prototypes that each client sent last, ordered by clients; `server` keeps them as `proto...`.

    Args:
        server: Has those of earlier rounds, which stay for clients that sent none now.
        sent: This round's, one client's behind another's.
        ids: The clients that sent them.
        counts: How many each of these sent.
    """
    device = sent.class_B.device
    client_P = torch.repeat_interleave(torch.tensor(ids, device=device), torch.tensor(counts, device=device))
    if "proto" in server:
        stays_P = ~torch.isin(server["proto.client"], client_P)
        proto_PH = torch.cat([server["proto"][stays_P], sent.proto_BH])
        class_P = torch.cat([server["proto.class"][stays_P].long(), sent.class_B])
        client_P = torch.cat([server["proto.client"][stays_P].long(), client_P])
        order = client_P.argsort(stable=True)
        sent, client_P = Bank(proto_PH[order], class_P[order]), client_P[order]
    kept = {"proto": sent.proto_BH, "proto.class": sent.class_B.int(), "proto.client": client_P.int()}
    server.update(kept)
    return sent


def newest(old: Bank | None, fresh: Bank, slots: int) -> Bank:
    """Keeps the newest `slots` entries of every class, old ones first."""
    if old is None:
        old = Bank(fresh.proto_BH[:0], fresh.class_B[:0])
    proto_BH, class_B = torch.cat([old.proto_BH, fresh.proto_BH]), torch.cat([old.class_B, fresh.class_B])
    order = class_B.argsort(stable=True)
    last_C = torch.bincount(class_B).cumsum(0)
    places = torch.arange(len(order), device=order.device)
    order = order[places >= last_C[class_B[order]] - slots]
    return Bank(proto_BH[order], class_B[order])


def votes(z_NH: Tensor, bank: Bank, classes: int, how: Vote, k: int, temperature: float) -> Tensor:
    """Scores every node, `[N, C]`; -inf for a class without an entry among those that vote.

    The k entries of the largest cosine to a node vote, of equal ones the first: with their cosine (`sum_cos`, equation
    3), or with the softmax of cosine / temperature (`softmax_sum`, the authors' code), added up by class. A class with
    more entries than others then wins nearly everywhere. `class_avg` is the mean by class instead of the sum, and
    `class_nearest` the largest cosine. The bank has an entry.
    """
    cos_NB = unit(z_NH) @ unit(bank.proto_BH).T
    votes_NB = torch.ones_like(cos_NB, dtype=torch.bool)
    if k < len(bank.class_B):
        first_NK = cos_NB.sort(dim=1, descending=True, stable=True).indices[:, :k]
        votes_NB = torch.zeros_like(votes_NB).scatter(1, first_NK, True)
    if how == "class_nearest":
        nearest_NB = cos_NB.masked_fill(~votes_NB, -torch.inf)
        score_NC = cos_NB.new_full((len(z_NH), classes), -torch.inf)
        for c in bank.class_B.unique().tolist():
            score_NC[:, c] = nearest_NB[:, bank.class_B == c].amax(1)
        return score_NC
    weight_NB = cos_NB
    if how != "sum_cos":
        weight_NB = (cos_NB / temperature).masked_fill(~votes_NB, -torch.inf).softmax(1)
    class_BC = F.one_hot(bank.class_B, classes).to(cos_NB.dtype)
    number_NC = votes_NB.to(cos_NB.dtype) @ class_BC
    score_NC = weight_NB.masked_fill(~votes_NB, 0) @ class_BC
    if how == "class_avg":
        score_NC = score_NC / number_NC.clamp_min(1)
    return score_NC.masked_fill(number_NC == 0, -torch.inf)


def summed_up(
    proto_PH: Tensor, class_P: Tensor, classes: int, how: Clusters, least: int, domains: int, eps: float, seed: int
) -> Bank:
    """Computes the bank's entries for prototypes: means of clusters, all members weighing the same.

    `finch` leaves fewer than `least` prototypes of a class as they are; `none` every prototype; `mean` has one entry a
    class; `kmeans`, with `seed`, as many as there are domains; `dbscan` goes by density, with the cosine distance
    `eps`, a prototype that belongs nowhere standing for itself.
    """
    if how == "finch":
        return Bank(*class_clusters(proto_PH, class_P, classes, least))
    if how == "none":
        order = class_P.argsort(stable=True)
        return Bank(proto_PH[order], class_P[order])
    if how == "mean":
        means_CH, counts_C = class_means(proto_PH, class_P, classes)
        return Bank(means_CH[counts_C > 0], counts_C.nonzero()[:, 0])
    centres, labels = [proto_PH[:0]], [class_P[:0]]
    for c in class_P.unique().tolist():
        own_PH = proto_PH[class_P == c]
        found_P = _by_kmeans(own_PH, domains, seed) if how == "kmeans" else _by_density(own_PH, eps)
        means_BH, _ = class_means(own_PH, found_P, int(found_P.max()) + 1)
        centres.append(means_BH)
        labels.append(torch.full((len(means_BH),), c, device=class_P.device))
    return Bank(torch.cat(centres), torch.cat(labels))


def _by_kmeans(proto_PH: Tensor, clusters: int, seed: int) -> Tensor:
    """Clusters every prototype by k-means, numbered without gaps."""
    # The import takes half a second of every process that has it.
    from sklearn.cluster import KMeans

    points = proto_PH.cpu().double().numpy()
    distinct = len(np.unique(points, axis=0))
    cluster_P = KMeans(min(distinct, clusters), n_init=10, random_state=seed % 2**32).fit_predict(points)
    return torch.from_numpy(np.unique(cluster_P, return_inverse=True)[1]).to(proto_PH.device)


def _by_density(proto_PH: Tensor, eps: float) -> Tensor:
    from sklearn.cluster import DBSCAN

    direction = unit(proto_PH).cpu().double().numpy()
    apart = np.clip(1 - direction @ direction.T, 0, None)
    cluster_P = DBSCAN(eps=eps, min_samples=MEMBERS, metric="precomputed").fit_predict(apart)
    alone = cluster_P < 0
    cluster_P[alone] = cluster_P.max() + 1 + np.arange(alone.sum())
    return torch.from_numpy(cluster_P).to(proto_PH.device)
