"""The loops that draw a synthetic twin: places and labels of nodes, edges of a block, features of rows."""

from typing import NamedTuple

import numba
import numpy as np

from shoal.storage.kernels.counter_rng import bits_at, noise_at, permute, uniform_at, unpermute

MAX_LEFT_INSIDE = 1024
MIN_WEIGHT = 0.1
MEAN_WEIGHT = 3 + MIN_WEIGHT


class Table(NamedTuple):
    """The constants of all loops; keys are those of random streams.

    A node's number has `bits` bits. `starts` are the first places of communities and N, int64 `[M + 1]`, `label` their
    classes, int32 `[M]`; a share `label_noise` of nodes has another class. `guide` is the community of every
    2^`guide_shift`-th place, int32. Ids and ages are permutations of places; `degree_key` is of the number of edges a
    node points with, `edge_key` of where they point, `sign_key` of every community's sign on the axis of its class.
    """

    nodes: int
    bits: int
    starts: np.ndarray
    label: np.ndarray
    classes: int
    label_noise: float
    guide: np.ndarray
    guide_shift: int
    id_key: np.uint64
    age_key: np.uint64
    label_noise_key: np.uint64
    degree_key: np.uint64
    edge_key: np.uint64
    sign_key: np.uint64
    noise_key: np.uint64


@numba.njit(cache=True, inline="always")
def _community(table: Table, place: int) -> int:
    community = table.guide[place >> table.guide_shift]
    while table.starts[community + 1] <= place:
        community += 1
    return community


@numba.njit(cache=True, inline="always")
def _label(table: Table, place: int, community: int) -> int:
    label = table.label[community]
    u = uniform_at(table.label_noise_key, np.uint64(place))
    if u < table.label_noise:
        return (label + 1 + int(u / table.label_noise * (table.classes - 1))) % table.classes
    return label


@numba.njit(cache=True, nogil=True)
def labels_of(table: Table, first: int, label: np.ndarray) -> None:
    """Fills the class of every node from id `first` on."""
    for i in range(len(label)):
        place = unpermute(first + i, table.nodes, table.bits, table.id_key)
        label[i] = _label(table, place, _community(table, place))


@numba.njit(cache=True, nogil=True)
def ranks_of(first: int, count: int, bits: int, key: np.uint64, rank: np.ndarray) -> None:
    """Fills the places of ids from `first` on in a random permutation of `count`."""
    for i in range(len(rank)):
        rank[i] = permute(first + i, count, bits, key)


@numba.njit(cache=True, nogil=True)
def degrees_of(table: Table, first: int, edges: int, least: float, degree: np.ndarray) -> None:
    """Fills how many of `edges` each place from `first` on points with.

    Shares follow (u + least)^(-3/4) - 0.9 for uniform u, a tail of exponent 7/3, and round to a sum of `edges`.
    """
    total = 0.0
    share = np.empty(len(degree))
    for i in range(len(degree)):
        u = uniform_at(table.degree_key, np.uint64(first + i)) + least
        total += 1 / (np.sqrt(u) * np.sqrt(np.sqrt(u))) - (1 - MIN_WEIGHT)
        share[i] = total
    before = 0
    for i in range(len(degree)):
        end = edges if i == len(degree) - 1 else int(edges * (share[i] / total))
        degree[i] = end - before
        before = end


@numba.njit(cache=True, nogil=True)
def edges_of(table: Table, first: int, degree: np.ndarray, within: float, edges: np.ndarray) -> int:
    """Fills sources and targets, `[2, e]`, of the edges that places from `first` on point with; how many there are.

    A share `within` goes to the own community, the rest to communities of other classes. Targets of a node are drawn
    from as many equal shares of the unit interval, and raised to the power 5/2 to prefer low numbers: in ascending
    order, so that they are distinct without a search. Edges without a target are left to the next node; the node of
    the highest age comes last.
    """
    nodes = table.nodes
    rows = len(degree)
    oldest, high = 0, -1
    for i in range(rows):
        age = permute(first + i, nodes, table.bits, table.age_key)
        if age > high:
            oldest, high = i, age
    at = left_inside = left_across = 0
    for step in range(rows):
        i = step if step < oldest else (step + 1 if step < rows - 1 else oldest)
        place = first + i
        community = _community(table, place)
        start, label = table.starts[community], table.label[community]
        rank, age = place - start, permute(place, nodes, table.bits, table.age_key)
        key = bits_at(table.edge_key, np.uint64(place))
        source = permute(place, nodes, table.bits, table.id_key)

        inside = int(within * degree[i] + uniform_at(key, np.uint64(0)))
        across = degree[i] - inside + left_across
        inside += left_inside
        taken = min(inside, rank)
        left_inside = inside - taken
        allowed = MAX_LEFT_INSIDE if step < rows - 1 and within > 0 else 0
        if left_inside > allowed:
            across += left_inside - allowed
            left_inside = allowed

        low = -1
        for k in range(taken):
            u = (k + uniform_at(key, np.uint64(1 + k))) / taken
            low = max(low + 1, min(int(rank * (u * u * np.sqrt(u))), rank - taken + k))
            edges[0, at], edges[1, at] = source, permute(start + low, nodes, table.bits, table.id_key)
            at += 1

        wanted = min(across, age // 2)
        left_across = across - wanted
        low = -1
        for k in range(wanted):
            u = (k + uniform_at(key, np.uint64(1 + taken + k))) / wanted
            low = max(low + 1, min(int(age * (u * u * np.sqrt(u))), age - wanted + k))
            other = -1
            while low < age:
                other = unpermute(low, nodes, table.bits, table.age_key)
                if table.label[_community(table, other)] != label:
                    break
                low += 1
            if low >= age:
                left_across += wanted - k
                break
            edges[0, at], edges[1, at] = source, permute(other, nodes, table.bits, table.id_key)
            at += 1
    return at


@numba.njit(cache=True, nogil=True)
def features_of(table: Table, ids: np.ndarray, centre: np.ndarray, axis: np.ndarray, x: np.ndarray) -> None:
    """Fills features: the centre of the class, its axis with the sign of the community, and noise."""
    features = x.shape[1]
    for i in range(len(ids)):
        place = unpermute(ids[i], table.nodes, table.bits, table.id_key)
        community = _community(table, place)
        label = _label(table, place, community)
        sign = np.float32(1.0) if bits_at(table.sign_key, np.uint64(community)) & np.uint64(1) else np.float32(-1.0)
        first = np.uint64(place * features)
        for j in range(features):
            noise = noise_at(table.noise_key, first + np.uint64(j))
            x[i, j] = centre[label, j] + sign * axis[label, j] + noise
