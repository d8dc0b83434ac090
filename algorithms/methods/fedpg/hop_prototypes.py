"""Prototypes of a class's own nodes and of their neighbours, without any product of two adjacencies (FedPG, eqs. 1, 2).

Every node has one annotation: its class if it is a centre, else the class it is taken for. The prototype of class c at
hop h >= 1 is the mean over the centres v of c of the mean of their neighbours u that are annotated c as well,

    P_ch = 1/|S| sum_{v in S} 1/M_v sum_u W_h[v, u] 1[a_u = c] g_u z_u,    M_v = sum_u W_h[v, u] 1[a_u = c] g_u,

where W_1 = A, W_h = A^h - diag(A^h) counts walks of h steps that do not end where they began, g_u is an attention
weight or 1, and S holds just the centres with M_v > 0. As a sum over nodes this is sum_u v_hu 1[a_u = c] z_u with one
weight v_hu for every node, computed once a round. Walks are counted by way of pairs (w, c), w on a walk from a centre
of c: of the entries of w's row in the last step just those matter that end in c, and none of these is held; of a step
before it at most C times as many as the adjacency has.

Equation 2 as it is written (`literal`) has for W_h the nodes at a distance of h steps, each once, divides the mean of a
centre by their number L = sum_u W_h[v, u] 1[a_u = c] once more, though g_u / M_v sums to one, and the sum over centres
by the number of all nodes of c. Then every pair of a centre and such a node is held.

Where items are not nodes, nodes here are items, and A is that of `item_graph`. No label outside the training rows is
read.

Axes: N nodes, C classes, H width, L = hops + 1 levels, level 0 being the centres themselves; S centres.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.graphs.completed_graph import complete_graph
from shoal.algorithms.graphs.nearest import nearest
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.protocol import Tree
from shoal.storage.shards.view import View

MOST_HOPS = 4
# The walks of so many centres are counted at a time.
ROWS_AT_A_TIME = 256


class ItemGraph(NamedTuple):
    """The numbers of classes and of a client's items, and the symmetric adjacency without loops, CSR int32."""

    classes: int
    items: int
    edges: tuple[Tensor, Tensor]


def item_graph(data: View, z_NH: Tensor, similar: int) -> ItemGraph:
    """Builds the graph of nodes, or edges from every other item to each of its most similar ones and back.

    It is symmetric because an item that is near many, but has nearer ones itself, is their neighbour all the same, and
    because walks of two steps are then counted as they are in a graph of nodes. N^2 H operations: a client has tens to
    thousands of graphs. `similar` items are the nearest ones by the cosine of embeddings; with 0 none has a neighbour.
    """
    if data.items_are_rows:
        return ItemGraph(data.classes, data.items, data.edges)
    no_edges = np.zeros(data.items + 1, dtype=np.int32), np.empty(0, dtype=np.int32)
    indptr, indices, _ = complete_graph(*no_edges, nearest(z_NH, min(similar, data.items - 1)), data.device)
    return ItemGraph(data.classes, data.items, (indptr.to(data.device), indices.to(data.device)))


class Annotated(NamedTuple):
    """Predictions of a client's current model for its nodes, in evaluation mode, and their neighbours.

    Attributes:
        class_N: The label of a training row, else the predicted class, int64.
        centre_N: Nodes whose class is trusted, bool.
        z_NH: Embeddings, of length one unless they are `raw`; of a kept annotation there are none.
    """

    class_N: Tensor
    centre_N: Tensor
    z_NH: Tensor
    graph: ItemGraph


def annotate(client: Client, confident: float | None = None, similar: int = 0, raw: bool = False) -> Annotated:
    """Annotates all nodes; the training rows are centres, and nodes predicted with probability `confident` or more."""
    classes, certain, z = [], [], []
    for out in client.model.outputs():
        if confident is None:
            class_B, certain_B = out.logits_NC.argmax(1), torch.zeros(len(out.logits_NC), dtype=torch.bool)
        else:
            best_B, class_B = out.logits_NC.softmax(1).max(1)
            certain_B = best_B >= confident
        classes.append(class_B)
        certain.append(certain_B)
        z.append(out.embedding_NH if raw else unit(out.embedding_NH))
    class_N, centre_N = torch.cat(classes), torch.cat(certain)
    train = client.data.train
    class_N[train] = client.data.label[train]
    centre_N[train] = True
    z_NH = torch.cat(z)
    return Annotated(class_N, centre_N, z_NH, item_graph(client.data, z_NH, similar))


CLASS, WEIGHT, COUNTS = "annotation.class", "annotation.weight", "annotation.counts"


def keep(state: Tree, class_N: Tensor, weight_LN: Tensor, counts_LC: Tensor) -> None:
    """Keeps the annotation and weights of an upload, 4 + 4 L bytes a node, for the next visit, of the same model."""
    state.update({CLASS: class_N.int(), WEIGHT: weight_LN, COUNTS: counts_LC})


def kept_annotation(client: Client) -> tuple[Annotated, tuple[Tensor, Tensor]] | None:
    """Returns what `keep` kept, training rows being centres; None at a first visit."""
    state, data = client.state, client.data
    if CLASS not in state:
        return None
    class_N = state[CLASS].long()
    centre_N = torch.zeros_like(class_N, dtype=torch.bool)
    centre_N[data.train] = True
    no_z_NH = torch.empty(data.items, 0)
    return Annotated(class_N, centre_N, no_z_NH, item_graph(data, no_z_NH, 0)), (state[WEIGHT], state[COUNTS])


class Step(NamedTuple):
    """A step of walks from rows to columns: the places of the ones in a matrix, and its numbers of rows and columns."""

    row: np.ndarray
    column: np.ndarray
    rows: int
    columns: int

    def gather(self, x: np.ndarray) -> np.ndarray:
        """Sums float64 numbers of columns for each row."""
        return np.bincount(self.row, x[self.column], self.rows)

    def spread(self, y: np.ndarray) -> np.ndarray:
        """Sums float64 numbers of rows for each column."""
        return np.bincount(self.column, y[self.row], self.columns)


class LastStep(NamedTuple):
    """The last step of walks, from pairs of a node and a class to those of its neighbours with this annotation.

    Attributes:
        starts, columns: The adjacency.
        first: The first pair of each node, and the end, int64 `[N + 1]`.
        class_P: The classes of pairs, int64, ascending at each node.
        class_N: Annotations.
        classes: C.
    """

    starts: np.ndarray
    columns: np.ndarray
    first: np.ndarray
    class_P: np.ndarray
    class_N: np.ndarray
    classes: int

    def gather(self, x_N: np.ndarray) -> np.ndarray:
        """Sums float64 numbers of nodes for each pair."""
        sums: np.ndarray = _gather(*self, x_N)
        return sums

    def spread(self, y_P: np.ndarray) -> np.ndarray:
        """Sums float64 numbers of pairs for each node."""
        sums: np.ndarray = _spread(*self, y_P)
        return sums


class Walks(NamedTuple):
    """The walks of one length from every centre to nodes annotated like it.

    Attributes:
        steps: Steps from the centres, by pairs, to nodes.
        centres: Nodes from which they start, int64 `[S]`.
        returning_S: Walks that end at their centre, which do not count, float64.
    """

    steps: Sequence[Step | LastStep]
    centres: np.ndarray
    returning_S: np.ndarray

    def mass(self, g_N: np.ndarray) -> np.ndarray:
        """Sums float64 numbers of nodes over the ends of each centre's walks, but those that return to it, `[S]`."""
        x = g_N
        for step in reversed(self.steps):
            x = step.gather(x)
        return x - self.returning_S * g_N[self.centres]

    def spread(self, share_S: np.ndarray) -> np.ndarray:
        """Sums, for each node, shares of centres over their walks that end in it and do not return, `[N]`."""
        y = share_S
        for step in self.steps:
            y = step.spread(y)
        return y - np.bincount(self.centres, self.returning_S * share_S, len(y))


Sums = Callable[[np.ndarray], np.ndarray]


class _AlongWalks(torch.autograd.Function):
    """Sums along walks, `Walks.mass` or `Walks.spread`; the gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sums: Sums, back: Sums) -> Tensor:
        ctx.sums, ctx.back = sums, back
        return torch.from_numpy(sums(x.cpu().contiguous().numpy())).to(x.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _AlongWalks.apply(gradients[0], ctx.back, ctx.sums), None, None


def hop_weights(
    graph: ItemGraph,
    annotation_N: Tensor,
    centre_N: Tensor,
    hops: int,
    attention_HN: Tensor | None = None,
    literal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Computes every node's weight in the prototypes of its annotation, float32 `[L, N]`, and centres, int32 `[L, C]`.

    `annotation_N` is the class of every node, int64, at centres their own; `centre_N` are nodes whose class is trusted,
    bool. `attention_HN` has g of every hop, positive, differentiable, `[hops, N]`; None: 1. With `literal`, neighbours
    and divisors are those of equation 2 as it is written.
    """
    device, class_N, centre = centre_N.device, annotation_N.cpu().numpy(), centre_N.cpu().numpy()
    centres = np.flatnonzero(centre)
    class_S = class_N[centres]
    counts = [np.bincount(class_S, minlength=graph.classes)]
    own_N = (centre / np.maximum(counts[0], 1).astype(np.float32)[class_N]).astype(np.float32)
    weights = [torch.from_numpy(own_N).to(device)]
    # These are differences of sums: in float64 counts are exact, and terms that should vanish do.
    ones_N = np.ones(graph.items)
    ways = _at_distance if literal else _walks
    for hop, walks in enumerate(ways(graph, class_N, centres, hops)):
        count_S = walks.mass(ones_N)
        found_S = count_S > 0.5
        counts.append(np.bincount(class_S[found_S], minlength=graph.classes))
        others_S = np.maximum(count_S, 1) if literal else np.ones_like(count_S)
        of_class_S = np.maximum(counts[0 if literal else -1], 1)[class_S]
        if attention_HN is None:
            share_S = found_S / (np.where(found_S, count_S, 1) * others_S * of_class_S)
            weight_N = np.maximum(walks.spread(share_S), 0).astype(np.float32)
            weights.append(torch.from_numpy(weight_N).to(device))
        else:
            exists, others, of_class = (torch.from_numpy(t).to(device) for t in (found_S, others_S, of_class_S))
            g_N = attention_HN[hop].double()
            mass = torch.where(exists, _AlongWalks.apply(g_N, walks.mass, walks.spread), 1)
            share = exists / (mass * others * of_class)
            weights.append((g_N * _AlongWalks.apply(share, walks.spread, walks.mass)).clamp_min(0).float())
    return torch.stack(weights), torch.from_numpy(np.stack(counts).astype(np.int32)).to(device)


def _walks(graph: ItemGraph, class_N: np.ndarray, centres: np.ndarray, hops: int) -> Iterator[Walks]:
    """Yields walks of one step, then of two, as many as `hops`."""
    starts, columns = (t.cpu().numpy() for t in graph.edges)
    # All centres are pairs with their own class.
    first = np.searchsorted(centres, np.arange(graph.items + 1))
    last = LastStep(starts, columns, first, class_N[centres], class_N, graph.classes)
    degree_S = (starts[centres + 1] - starts[centres]).astype(np.float64)
    steps: list[Step] = []
    for hop in range(1, hops + 1):
        if hop > 1:
            first, class_P, row, column = _pairs_ahead(*last)
            steps.append(Step(row, column, len(last.class_P), len(class_P)))
            last = last._replace(first=first, class_P=class_P)
        yield Walks([*steps, last], centres, degree_S * (hop - 1) if hop < 3 else _count_returns(graph, centres, hop))


@numba.njit(cache=True, nogil=True)
def _pairs_ahead(
    starts: np.ndarray, columns: np.ndarray, first: np.ndarray, class_P: np.ndarray, class_N: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pairs every node with the classes in its neighbours' pairs.

    Gives the first pair of each node, the classes of pairs, and the places of a pair and of one ahead for every step.
    """
    nodes, steps = len(first) - 1, 0
    for node in range(nodes):
        steps += (first[node + 1] - first[node]) * (starts[node + 1] - starts[node])
    ahead, reached, count = np.zeros_like(first), np.empty(steps, np.int64), 0
    seen = np.full(classes, -1)
    for node in range(nodes):
        for entry in range(starts[node], starts[node + 1]):
            for pair in range(first[columns[entry]], first[columns[entry] + 1]):
                seen[class_P[pair]] = node
        for c in range(classes):
            if seen[c] == node:
                reached[count] = c
                count += 1
        ahead[node + 1] = count
    row, column = np.empty(steps, np.int64), np.empty(steps, np.int64)
    steps = 0
    for node in range(nodes):
        for pair in range(first[node], first[node + 1]):
            for entry in range(starts[node], starts[node + 1]):
                place = ahead[columns[entry]]
                while reached[place] != class_P[pair]:
                    place += 1
                row[steps], column[steps] = pair, place
                steps += 1
    return ahead, reached[:count].copy(), row, column


@numba.njit(cache=True, nogil=True)
def _gather(
    starts: np.ndarray, columns: np.ndarray, first: np.ndarray, class_P: np.ndarray, class_N: np.ndarray, classes: int,
    x_N: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """See `LastStep.gather`."""
    sums, of_class = np.empty(len(class_P)), np.zeros(classes)
    for node in range(len(first) - 1):
        if first[node] == first[node + 1]:
            continue
        of_class[:] = 0
        for entry in range(starts[node], starts[node + 1]):
            of_class[class_N[columns[entry]]] += x_N[columns[entry]]
        for pair in range(first[node], first[node + 1]):
            sums[pair] = of_class[class_P[pair]]
    return sums


@numba.njit(cache=True, nogil=True)
def _spread(
    starts: np.ndarray, columns: np.ndarray, first: np.ndarray, class_P: np.ndarray, class_N: np.ndarray, classes: int,
    y_P: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """See `LastStep.spread`."""
    sums, of_class = np.zeros(len(first) - 1), np.zeros(classes)
    for node in range(len(first) - 1):
        if first[node] == first[node + 1]:
            continue
        of_class[:] = 0
        for pair in range(first[node], first[node + 1]):
            of_class[class_P[pair]] = y_P[pair]
        for entry in range(starts[node], starts[node + 1]):
            sums[columns[entry]] += of_class[class_N[columns[entry]]]
    return sums


def _at_distance(graph: ItemGraph, class_N: np.ndarray, centres: np.ndarray, hops: int) -> Iterator[Walks]:
    """Yields nodes at a distance of one step, then of two, up to `hops`, that are annotated like their centre."""
    starts, columns = (t.cpu().numpy() for t in graph.edges)
    for first_S, column in zip(*_search(starts, columns, class_N, centres, hops), strict=True):
        row = np.repeat(np.arange(len(centres)), np.diff(first_S))
        yield Walks([Step(row, column, len(centres), graph.items)], centres, np.zeros(len(centres)))


@numba.njit(cache=True, nogil=True)
def _search(
    starts: np.ndarray, columns: np.ndarray, class_N: np.ndarray, centres: np.ndarray, hops: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Searches breadth first from every centre for the nodes annotated like it.

    Gives, for each distance, the first place of every centre, and the end, int64 `[hops, S + 1]`, and nodes in order of
    finding, int64.
    """
    nodes = len(starts) - 1
    first_HS = np.zeros((hops, len(centres) + 1), np.int64)
    nodes_H = [np.empty(len(centres), np.int64) for _ in range(hops)]
    seen_from, queue = np.full(nodes, -1), np.empty(nodes, np.int64)
    for s in range(len(centres)):
        queue[0], first, end = centres[s], 0, 1
        seen_from[centres[s]] = s
        for hop in range(hops):
            last, count = end, first_HS[hop, s]
            for place in range(first, last):
                for entry in range(starts[queue[place]], starts[queue[place] + 1]):
                    node = columns[entry]
                    if seen_from[node] != s:
                        seen_from[node] = s
                        queue[end] = node
                        end += 1
            first = last
            if count + end - first > len(nodes_H[hop]):
                longer = np.empty(2 * (count + end - first), np.int64)
                longer[:count] = nodes_H[hop][:count]
                nodes_H[hop] = longer
            for place in range(first, end):
                if class_N[queue[place]] == class_N[centres[s]]:
                    nodes_H[hop][count] = queue[place]
                    count += 1
            first_HS[hop, s + 1] = count
    return first_HS, [nodes_H[hop][: first_HS[hop, -1]] for hop in range(hops)]


def _adjacency(graph: ItemGraph) -> csr_matrix:
    starts, columns = (t.cpu().numpy() for t in graph.edges)
    return csr_matrix((np.ones(len(columns), np.bool_), columns, starts), shape=(graph.items, graph.items))


def _count_returns(graph: ItemGraph, centres: np.ndarray, steps: int) -> np.ndarray:
    """Counts the walks of so many steps, two at least, that lead from every centre back to it, float64 `[S]`."""
    adjacency, walks = _adjacency(graph).astype(np.float64), [np.zeros(0)]
    for first in range(0, len(centres), ROWS_AT_A_TIME):
        near = ends = adjacency[centres[first : first + ROWS_AT_A_TIME]]
        for _ in range(steps - 2):
            ends = ends @ adjacency
        walks.append(np.asarray(ends.multiply(near).sum(1)).ravel())
    return np.concatenate(walks)


def hop_prototypes(z_NH: Tensor, annotation_N: Tensor, weight_LN: Tensor, classes: int) -> Tensor:
    """Computes prototypes `[L, C, H]` from embeddings, differentiable in both; rows are any that hold all weight."""
    tensors = z_NH, weight_LN, annotation_N
    if all(t.is_cpu and not t.requires_grad and t.dtype != torch.float64 for t in tensors):
        return torch.from_numpy(_sum_by_class(*(t.contiguous().numpy() for t in tensors), classes))
    sums = []
    for weight in weight_LN:
        z, annotation = z_NH, annotation_N
        reached = weight.nonzero()[:, 0]
        # Few nodes are centres or next to one; where most are reached, gathering them costs more than it saves.
        if 2 * len(reached) < len(weight):
            z, annotation, weight = z[reached], annotation[reached], weight[reached]
        sums.append(z.new_zeros(classes, z.shape[1]).index_add(0, annotation, weight[:, None] * z))
    return torch.stack(sums)


@numba.njit(cache=True, nogil=True)
def _sum_by_class(z: np.ndarray, weight: np.ndarray, class_of: np.ndarray, classes: int) -> np.ndarray:
    """See `hop_prototypes`; the bits of torch's sums."""
    sums = np.zeros((len(weight), classes, z.shape[1]), np.float32)
    for level in range(len(weight)):
        for n in range(len(z)):
            if weight[level, n] != 0:
                for h in range(z.shape[1]):
                    sums[level, class_of[n], h] += weight[level, n] * z[n, h]
    return sums
