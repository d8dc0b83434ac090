"""FINCH: clusters of points by their first neighbours, without a number of clusters to choose."""

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.losses.prototypes import class_means

EPS = 1e-8
ROWS = 1024
# Cosines that agree to so many decimals are equal: their last bits depend on the order of a sum.
DECIMALS = 12


def finch(points_NH: Tensor, least: int = 4) -> Tensor:
    """Clusters points by FINCH (Sarfraz, Sharma and Stiefelhagen, CVPR 2019) with cosine distance.

    Every point is linked to its first neighbour: the other point of the largest cosine, of the lowest index among
    equals. The connected components are the first partition. The next one comes in the same way from the means of the
    clusters' points, and so on. The result is the last partition of more than one cluster, or else the first. A zero
    point has cosine 0 to all. All pairs are compared, in blocks of rows, on the processor in float64.

    Fewer than `least` points are each their own cluster; 1 clusters any number, as published, by which two or three
    points are one cluster however far apart they lie.

    Returns:
        The cluster of every point, int64 `[N]`, numbered from 0 in the order of their first points.
    """
    if len(points_NH) < max(least, 1):
        return torch.arange(len(points_NH), device=points_NH.device)
    points = points_NH.detach().cpu().double().numpy()
    partition = _merge(points, np.arange(len(points)))
    while partition.any():
        coarser = _merge(points, partition)
        if not coarser.any():
            break
        partition = coarser
    return torch.from_numpy(partition).to(points_NH.device)


def class_clusters(proto_PH: Tensor, class_P: Tensor, classes: int, least: int = 4) -> tuple[Tensor, Tensor]:
    """Clusters the prototypes of every class by itself with `finch`, and gives the clusters with their classes.

    Returns:
        Centres `[B, H]`, unweighted means of their members, and their classes, int64 `[B]`, ascending; within a class
        in the order of their first members.
    """
    centres, owners = [proto_PH[:0]], [class_P[:0]]
    sizes = torch.bincount(class_P, minlength=classes).tolist()
    for c, members_MH in enumerate(proto_PH[class_P.argsort(stable=True)].split(sizes)):
        cluster_M = finch(members_MH, least)
        count = int(cluster_M.max()) + 1 if len(cluster_M) else 0
        centres.append(class_means(members_MH, cluster_M, count)[0])
        owners.append(class_P.new_full((count,), c))
    return torch.cat(centres), torch.cat(owners)


def _merge(points: np.ndarray, partition: np.ndarray) -> np.ndarray:
    """Merges the clusters that link to each other; numbers the next partition by first points, as before."""
    # A cosine does not depend on length, so sums serve as means.
    sums = torch.zeros(partition.max() + 1, points.shape[1], dtype=torch.float64, device="cpu")
    sums.index_add_(0, torch.from_numpy(partition), torch.from_numpy(points))
    component = _components(_first_neighbours(sums.numpy()))
    _, lowest, number = np.unique(component, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(lowest))[number][partition]


def _components(first: np.ndarray) -> np.ndarray:
    """Finds the point by which all points name their component, where every point is linked to its first neighbour.

    Every component has one circle of such links. Each step follows twice as many links as all before, so that at last
    every point is at its circle, and knows the lowest point on it.
    """
    lowest, at = np.minimum(np.arange(len(first)), first), first
    for _ in range(len(first).bit_length()):
        lowest, at = np.minimum(lowest, lowest[at]), at[at]
    return lowest[at]


def _first_neighbours(points: np.ndarray) -> np.ndarray:
    """Finds for every point the other one of the largest cosine, the lowest index among equals."""
    unit = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), EPS)
    neighbours = []
    for start in range(0, len(points), ROWS):
        cosine = unit[start : start + ROWS] @ unit.T
        rows = np.arange(len(cosine))
        cosine[rows, start + rows] = -np.inf
        largest = cosine.max(1)
        # What is further below the largest is not equal to it. Where the first that is not further differs, all count.
        first = (cosine >= (largest - 2 * 10.0**-DECIMALS)[:, None]).argmax(1)
        differs = np.round(cosine[rows, first], DECIMALS) != np.round(largest, DECIMALS)
        first[differs] = np.round(cosine[differs], DECIMALS).argmax(1)
        neighbours.append(first)
    return np.concatenate(neighbours)
