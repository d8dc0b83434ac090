"""FedGTA's label propagation over edges between clients, too: one exchange of sums of soft labels a step."""

from collections.abc import Generator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import Ask, Client, Tree, Upload
from shoal.algorithms.losses.label_propagation import row_stochastic
from shoal.algorithms.methods.fedgta.label_sketch import Sketch, SketchForm, confidence, moments
from shoal.algorithms.protocol import Reduce, Replies
from shoal.storage.graph.edge_weights import degrees
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import View

# Entries of the exchange, and of the state that a client keeps from one step to the next.
SUMS, PLACE, RECEIVED = "sums", "place", "received"
SEED, LABELS, MOMENTS = "seed", "labels", "moments"
SKETCH = {"h": Reduce.STACK, "m": Reduce.STACK}


def exchange(
    cohort: Sequence[int], newcomers: Mapping[int, Tree], steps: int
) -> Generator[Ask, Replies, tuple[list[int], Replies]]:
    """Trains, propagates labels, and gives the clients that trained and the sketches of those that answered to the end.

    Each client sends sums of its rows for rows of others, and gets those for its own, which the server adds up.
    """
    shared = {"cohort": torch.tensor(cohort, dtype=torch.int32)}
    up = {"w": Reduce.MIX, SUMS: Reduce.GATHER, PLACE: Reduce.GATHER}
    got = yield Ask("train", up, shared, newcomers)
    trained, place = got.ids, dict(zip(got.ids, got.lists[PLACE]))
    for step in range(1, steps + 1):
        private = added_up(torch.cat([place[i] for i in got.ids]), torch.cat(got.lists[SUMS]))
        private = {client: tree for client, tree in private.items() if client in got.ids}
        phase, up = ("sketch", SKETCH) if step == steps else ("spread", {SUMS: Reduce.GATHER})
        got = yield Ask(phase, up, shared, private, train=False, to=got.ids)
    return trained, got


def added_up(place_S2: Tensor, sums_SC: Tensor) -> dict[int, Tree]:
    """Adds up sums for every client that gets any: its rows, int32 ascending, and the sums, in the order given."""
    if not len(place_S2):
        return {}
    width = int(place_S2[:, 1].max()) + 1
    key_S = place_S2[:, 0].long() * width + place_S2[:, 1]
    order_S = key_S.argsort(stable=True)
    found_M, count_M = key_S[order_S].unique_consecutive(return_counts=True)
    starts = torch.cat([count_M.new_zeros(1), count_M.cumsum(0)]).int()
    total_MC = SparseMatrix.of(starts, order_S.int(), torch.ones_like(sums_SC[:, 0]), len(sums_SC)) @ sums_SC
    clients, rows = (found_M // width).unique_consecutive(return_counts=True)
    ends = [0, *rows.cumsum(0).tolist()]
    # A part of a tensor would be sent with the whole of it.
    return {
        client: {"row": (found_M[low:high] % width).int(), RECEIVED: total_MC[low:high].clone()}
        for client, (low, high) in zip(clients.tolist(), pairwise(ends))
    }


class CrossGraph:
    """A client's graph and its edges to clients of a cohort.

    Attributes:
        degree_N: Over both and the node itself, float32.
        place_S2: The client and the row there of every sum that this client sends, int32, ascending.
    """

    def __init__(self, data: View, cohort_B: Tensor) -> None:
        edges, self._data = data.boundary, data
        seen = np.isin(edges.client, cohort_B.cpu().numpy())
        row, client, other = (part[seen] for part in (edges.row, edges.client, edges.other))
        weight = np.ones(len(row), np.float32) if edges.weight is None else edges.weight[seen]
        degree = degrees(data.csr[0], data.edge_weight) + np.bincount(row, weight, data.nodes)
        self.degree_N = torch.from_numpy(degree).float().to(data.device)
        order = np.lexsort((row, other, client))
        place = np.stack([client, other], axis=1)[order]
        first = np.flatnonzero((np.diff(place, axis=0, prepend=-1) != 0).any(1))
        self.place_S2 = torch.from_numpy(place[first]).to(data.device)
        starts = np.append(first, len(order)).astype(np.int32)
        self._sent = SparseMatrix.of(starts, row[order], weight[order], data.nodes).to(data.device)

    def sums(self, y_NC: Tensor) -> Tensor:
        """Sums the client's labels over its neighbours, for each row of others: float32 `[S, C]`, which are sent."""
        return self._sent @ (y_NC * self.degree_N.rsqrt()[:, None])

    def smooth(self, y_NC: Tensor, received: Tree) -> Tensor:
        """Computes D^{-1/2} (A + I) D^{-1/2} y with the sums that came from others, float32 `[N, C]`."""
        root_N1, own_N1 = self.degree_N.rsqrt()[:, None], self._data.degree.sqrt()[:, None]
        found_NC = own_N1 * self._data.smooth(own_N1 * (root_N1 * y_NC))
        if RECEIVED in received:
            found_NC.index_add_(0, received["row"], received[RECEIVED])
        return root_N1 * found_NC


def first_sums(client: Client, received: Tree, seed_NC: Tensor) -> Tree:
    """Computes the sums of Y^0 and their places; the client keeps Y^0."""
    graph = CrossGraph(client.data, received["cohort"])
    client.state[SEED] = client.state[LABELS] = seed_NC
    return {SUMS: graph.sums(seed_NC), PLACE: graph.place_S2}


def next_sums(client: Client, received: Tree, phase: str, form: SketchForm) -> Upload | Sketch:
    """Takes a step of eq. 3 with the sums that came; gives the next sums, or after the last step the sketch."""
    graph, state = CrossGraph(client.data, received["cohort"]), client.state
    y_NC = graph.smooth(state.pop(LABELS), received).lerp_(state[SEED], form.lp_seed_weight)
    rows_NC = row_stochastic(y_NC) if form.rows == "stochastic" else y_NC
    before = [state.pop(MOMENTS)] if MOMENTS in state and form.moment_steps == "all" else []
    moments_SC = torch.cat([*before, moments(rows_NC[None], form.orders, form.moments)[0]])
    if phase == "sketch":
        state.pop(SEED)
        return Sketch(moments_SC, confidence(rows_NC, graph.degree_N, form.confidence))
    state[LABELS] = y_NC
    if form.moment_steps == "all":
        state[MOMENTS] = moments_SC
    return Upload({SUMS: graph.sums(y_NC)})
