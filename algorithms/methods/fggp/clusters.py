"""Clustering of the prototypes that clients sent of a class (FGGP, equation 5 and Table 3)."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.losses.finch import class_clusters
from shoal.algorithms.losses.prototypes import class_means, unit
from shoal.algorithms.methods.fggp.bank import Bank

Clusters = Literal["finch", "none", "mean", "kmeans", "dbscan"]
# A prototype within `eps` of another is in its cluster.
MEMBERS = 2


def summed_up(
    proto_PH: Tensor, class_P: Tensor, classes: int, how: Clusters, least: int, domains: int, eps: float, seed: int
) -> Bank:
    """The entries of the bank that stand for prototypes: means of clusters, all members weighing the same.

    Args:
        proto_PH: Prototypes of all clients, float32.
        class_P: Their classes, int64.
        classes: Number of classes C.
        how: `finch`; `none`: every prototype; `mean`: one a class; `kmeans`: as many as there are domains; `dbscan`: by
            density, a prototype that belongs nowhere standing for itself.
        least: Of `finch`: fewer prototypes of a class stay as they are.
        domains: Of `kmeans`.
        eps: Of `dbscan`, a cosine distance.
        seed: Of `kmeans`.
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
    """The cluster of every prototype, numbered without gaps."""
    # Half a second of every process that imports it.
    from sklearn.cluster import KMeans

    points = proto_PH.cpu().double().numpy()
    distinct = len(np.unique(points, axis=0))
    found = KMeans(min(distinct, clusters), n_init=10, random_state=seed % 2**32).fit_predict(points)
    return torch.from_numpy(np.unique(found, return_inverse=True)[1]).to(proto_PH.device)


def _by_density(proto_PH: Tensor, eps: float) -> Tensor:
    from sklearn.cluster import DBSCAN

    direction = unit(proto_PH).cpu().double().numpy()
    apart = np.clip(1 - direction @ direction.T, 0, None)
    found = DBSCAN(eps=eps, min_samples=MEMBERS, metric="precomputed").fit_predict(apart)
    alone = found < 0
    found[alone] = found.max() + 1 + np.arange(alone.sum())
    return torch.from_numpy(found).to(proto_PH.device)
