"""The sums of nodes that FedPG draws to targets one by one: centres, means of their neighbours, and prototypes of hops.

Axes: N nodes, R of them with weight in any prototype, L levels, C classes; K sums.
"""

from typing import NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.methods.fedpg.hop_prototypes import Annotated
from shoal.storage.graph.sparse_matrix import SparseMatrix


class AlignedSums(NamedTuple):
    """Sums of rows, and which prototype each is one of.

    Attributes:
        sums_KR: Weights of rows in every sum.
        weight_K: Weights of sums, float32: those of a prototype's add up to one over the number of prototypes.
        slot_K: The level of a sum times C, and its class, int64.
    """

    sums_KR: SparseMatrix
    weight_K: Tensor
    slot_K: Tensor


def aligned_sums(nodes: Annotated, rows: Tensor, weight_LR: Tensor, present_LC: Tensor) -> AlignedSums:
    """Collects all centres, the means of their neighbours of the same class, and prototypes from hop 2 on.

    `rows` are all nodes of weight, ascending, int64, with their weights by `hop_weights`. Sums of prototypes that are
    not present weigh nothing.
    """
    tensors = *nodes.graph.edges, nodes.class_N, nodes.centre_N, rows, weight_LR, present_LC
    arrays = _collect(*(t.contiguous().cpu().numpy() for t in tensors))
    starts, columns, values, weight_K, slot_K = (torch.from_numpy(array).to(rows.device) for array in arrays)
    return AlignedSums(SparseMatrix.of(starts, columns, values, len(rows)), weight_K, slot_K)


@numba.njit(cache=True, nogil=True)
def _collect(
    starts: np.ndarray, columns: np.ndarray, class_of: np.ndarray, is_centre: np.ndarray, rows: np.ndarray,
    weight: np.ndarray, present: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """See `AlignedSums`; the matrix as starts, columns and values."""
    (levels, classes), place = present.shape, np.zeros(len(class_of), np.int32)
    centres, most = 0, len(rows) * max(levels - 2, 0)
    for r in range(len(rows)):
        place[rows[r]] = r
        if is_centre[rows[r]]:
            centres += 1
            most += 1 + (starts[rows[r] + 1] - starts[rows[r]] if levels > 1 else 0)
    sums = centres * min(levels, 2) + classes * max(levels - 2, 0)
    ends, slot = np.zeros(sums + 1, np.int32), np.empty(sums, np.int64)
    column, value = np.empty(most, np.int32), np.empty(most, np.float32)
    of_slot, k, entries = np.zeros(levels * classes, np.int64), 0, 0
    for level in range(levels):
        for r in range(len(rows) if level < 2 else 0):
            node, first = rows[r], entries
            if not is_centre[node]:
                continue
            if level == 0:
                column[entries], value[entries] = r, 1
                entries += 1
            else:
                for entry in range(starts[node], starts[node + 1]):
                    if class_of[columns[entry]] == class_of[node]:
                        column[entries] = place[columns[entry]]
                        entries += 1
                value[first:entries] = np.float32(1) / np.float32(max(entries - first, 1))
            if entries > first:
                slot[k] = level * classes + class_of[node]
                of_slot[slot[k]] += 1
                k += 1
                ends[k] = entries
        for c in range(classes if level > 1 else 0):
            for r in range(len(rows)):
                if class_of[rows[r]] == c and weight[level, r] != 0:
                    column[entries], value[entries] = r, weight[level, r]
                    entries += 1
            slot[k], of_slot[level * classes + c] = level * classes + c, 1
            k += 1
            ends[k] = entries
    share = np.zeros(levels * classes, np.float32)
    for number in range(len(share)):
        if present[number // classes, number % classes]:
            share[number] = np.float32(1) / np.float32(max(of_slot[number], 1)) / np.float32(present.sum())
    return ends[: k + 1], column[:entries], value[:entries], share[slot[:k]], slot[:k]
