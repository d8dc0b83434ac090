"""GCFL+: clusters of clients with a model each; a cluster is divided where its clients' gradients go apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.base import Ask, Client, Context, Mix, Received, Replies, Requests, Trainer, Tree, Upload
from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.body import body_of, classifier_of, join_body
from shoal.algorithms.methods.shared.requirements import require_body
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.storage.options.types import Count, NotNegative

# A client's state holds its classifier under this name, `[C H + C]`, if it is not shared.
CLASSIFIER = "classifier"
LONGEST = 1000


@dataclass(frozen=True)
class GCFLPlus(FedAvg):
    """GCFL+ (Xie et al., NeurIPS 2021): FedAvg in clusters, which divide by the series of their gradients' norms.

    All clients start as one cluster K with the model W_K. A client trains from its cluster's model and sends the
    change dW_i, its norm, n_i, and the norm g_i of its last step's gradient, all of the shared parameters. The server
    keeps the last `window` of the g_i of every client, and divides a cluster after round `warmup` if

        |sum_i n_i dW_i / sum_i n_i| < eps1 and max_i |dW_i| > eps2 over the cohort's clients in K,

    it has more than two clients, and the series of all of them are full: by the minimum cut of the graph whose edges
    weigh max d - d_ij, d_ij the distance of two series by dynamic time warping. Both halves go on from W_K, series of
    their clients start anew, and then W_K <- W_K + sum_i n_i dW_i / sum_i n_i in every cluster, halves included.

    Decided here: the mean change of the test is the weighted one that moves the model (the authors' code takes the
    plain mean); a division empties the series of that cluster alone (there: of all). A client that was away has a
    shorter series and puts off the division of its cluster; the series skips rounds that it missed. Clients without
    training rows have no gradient: they do not count in all of the above, and stay with the larger half. A cluster
    whose series are all equal is not divided. The authors share the layers of a GIN and leave all that is before and
    behind them at the client; here it is all but the classifier (`share: body`), of any model.

    Down: W_K. Up: dW_i and three scalars. Scores as `deployed` are of the cluster's model after the client's last
    round, with its own classifier. The round's notes say how many clusters there are, and what the test of `eps1` and
    `eps2` saw. With `share: all` and no division it is FedAvg.

    Attributes:
        weight: n_i, as FedAvg has it.
        share: `body`: all but the classifier, which stays at its client; or `all`.
        eps1: The mean change is smaller than this where a cluster is as far as one model can go.
        eps2: The largest change of a client is larger than this where somebody would go on.
        window: Length L of the series; the FedGTA paper tunes it in 2..10.
        warmup: Rounds before the first division.
    """

    reads_embedding = True
    supports = frozenset({"node", "edge", "graph", "weighted", "newcomers", "targets"})
    share: Literal["body", "all"] = "body"
    eps1: NotNegative = 0.05
    eps2: NotNegative = 0.1
    window: Annotated[int, Field(ge=1, le=LONGEST)] = 5
    warmup: Count = 20

    # The server.

    def setup(self, ctx: Context) -> Tree:
        model = ctx.build(MODEL, 0)
        if self.share == "body":
            require_body(model, ctx.models[MODEL][0], "GCFLPlus shares what lies below the classifier")
        clients = len(ctx.clients)
        return {
            "models": self._shared_part(model, ctx.initial)[None].clone(),
            "cluster": torch.zeros(clients, dtype=torch.int64),
            "norms": torch.zeros(clients, self.window),
            "known": torch.zeros(clients, dtype=torch.int64),
        }

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        sent = [{"w": w.clone()} for w in server["models"]]
        private = {i: sent[server["cluster"][i]] for i in cohort}
        up = {"change": Reduce.MIX, "n": Reduce.STACK, "moved": Reduce.STACK, "gradient": Reduce.STACK}
        got = yield Ask("train", up, private=private)
        # The norms of the round are appended to the series of the clients that trained.
        trained = got["n"] > 0
        ids = torch.tensor(got.ids)[trained]
        server["norms"][ids] = torch.cat([server["norms"][ids, 1:], got["gradient"][trained, None]], dim=1)
        server["known"][ids] += 1
        change_KP = yield Mix("change", shares(server["cluster"][got.ids], got["n"], len(sent)))
        moved_K = change_KP.norm(dim=1)
        if ctx.round > self.warmup and self._divide(server, ctx, got, moved_K):
            change_KP = yield Mix("change", shares(server["cluster"][got.ids], got["n"], len(server["models"])))
        server["models"] = server["models"] + change_KP
        ctx.notes["clusters"] = float(len(server["models"]))
        ctx.notes["least mean change"] = float(moved_K.min())
        ctx.notes["largest change"] = float(got["moved"].max())

    def _divide(self, server: Tree, ctx: Context, got: Replies, moved_K: Tensor) -> bool:
        """Divides all clusters that are to be, by the norms of their mean changes, and says whether there was one.

        A half gets the next number, and the model that both had.
        """
        trains = torch.tensor([info.train > 0 for info in ctx.clients])
        of_reply = server["cluster"][got.ids]
        divided = False
        for k, moved in enumerate(moved_K.tolist()):
            members = ((server["cluster"] == k) & trains).nonzero().flatten()
            full = len(members) > 2 and bool((server["known"][members] >= self.window).all())
            # The last of these is above eps2 only if a client of the cluster took part.
            if not (full and moved < self.eps1 and (got["moved"] * (of_reply == k)).max() > self.eps2):
                continue
            leaving = leaving_half(server["norms"][members])
            if leaving.any():
                server["cluster"][members[leaving]] = len(server["models"])
                server["models"] = torch.cat([server["models"], server["models"][k : k + 1]])
                server["known"][members] = 0
                divided = True
        return divided

    def global_model(self, server: Tree) -> Tree:
        return {"models": server["models"], "cluster": server["cluster"]}

    # The clients.

    def receive(self, client: Client, down: Tree) -> Received:
        """Loads the model of the client's cluster, sent alone or, before an evaluation, with those of all clusters."""
        if not down:
            return down
        w = down["w"] if "w" in down else down["models"][down["cluster"][client.info.client]]
        if self.share == "body":
            classifier = client.state.get(CLASSIFIER)
            client.model.load(
                join_body(client.model.flat, w, classifier_of(client.model.flat) if classifier is None else classifier)
            )
        else:
            client.model.load(w)
        return {"w": w}

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        loss, flat = trainer.fit(client, received), client.model.flat
        if client.info.train:
            # The last step's gradient is in the model until the next client trains.
            assert flat.w.grad is not None
            received["gradient"] = self._shared_part(flat, flat.w.grad).norm()
        return loss

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        flat = client.model.flat
        if self.share == "body":
            client.state[CLASSIFIER] = classifier_of(flat)
        change = self._shared_part(flat, client.model.w) - received["w"]
        n, none = change.new_tensor(self.weight_of(client)), change.new_zeros(())
        return Upload({"change": change, "n": n, "moved": change.norm(), "gradient": received.get("gradient", none)})

    def _shared_part(self, flat: FlatModel, w: Tensor) -> Tensor:
        """Selects, from parameters `[P]` or their gradient, those that clients of a cluster share."""
        return body_of(flat, w) if self.share == "body" else w


def shares(cluster_B: Tensor, n_B: Tensor, clusters: int) -> Tensor:
    """Computes weights `[K, B]` of B clients, with n_i, in the mean of each of K clusters; 0 where no client counts."""
    weight_KB = (cluster_B == torch.arange(clusters)[:, None]) * n_B.double()
    return (weight_KB / weight_KB.sum(1, keepdim=True).clamp_min(1)).float()


def leaving_half(norms_BL: Tensor) -> Tensor:
    """Marks the clients that leave a cluster, bool `[B]`: the smaller side of the cut.

    Of two equal sides that one leaves which is without the first client. No client leaves if all series are equal.
    """
    apart_BB = warping_distances(norms_BL.cpu().numpy())
    most = apart_BB.max()
    if not most:
        return norms_BL.new_zeros(len(norms_BL), dtype=torch.bool)
    side = minimum_cut(most - apart_BB)
    if 2 * side.sum() > len(side):
        side = ~side
    return torch.from_numpy(side).to(norms_BL.device)


def minimum_cut(weight_NN: np.ndarray) -> np.ndarray:
    """Finds a cut of least weight: the side without node 0, bool `[N]`, neither side empty (Stoer and Wagner).

    N - 1 phases each add all nodes to a set, always the one with most weight to it; what the last one weighs is a cut,
    and the last two become one node (Journal of the ACM 44(4), 1997). Of equal choices the first is taken, so that each
    set begins with node 0. N^3 steps, N at a time: about a second for 500 nodes. Weights are symmetric and not
    negative, and the diagonal is not read. There are at least two nodes.
    """
    weight_NN = weight_NN.astype(np.float64)
    np.fill_diagonal(weight_NN, 0)
    count = len(weight_NN)
    # Row i marks the nodes that were merged into node i.
    merged_NN = np.eye(count, dtype=bool)
    there_N = np.ones(count, dtype=bool)
    least, side_N = np.inf, merged_NN[0]
    for left in range(count, 1, -1):
        # Every node has its weight to the set; those in the set are out of the question.
        reach_N = np.where(there_N, 0.0, -np.inf)
        last = 0
        for _ in range(left):
            before, last = last, int(reach_N.argmax())
            cut = reach_N[last]
            reach_N[last] = -np.inf
            reach_N += weight_NN[last]
        if cut < least:
            least, side_N = cut, merged_NN[last].copy()
        merged_NN[before] |= merged_NN[last]
        weight_NN[before] += weight_NN[last]
        weight_NN[:, before] = weight_NN[before]
        weight_NN[before, before] = 0
        there_N[last] = False
    return side_N


def warping_distances(series_NL: np.ndarray) -> np.ndarray:
    """Computes distances of all pairs of series, float64 `[N, N]`, symmetric and 0 from a series to itself.

    A path leads from the first numbers of both series to the last ones, and each step goes on by one in either or in
    both (Sakoe and Chiba, 1978, without a band). The distance is the root of the least sum of squared differences
    along a path, so that it is at most the Euclidean one. All pairs are computed in one pass, in 2 L matrices.
    """
    count, length = series_NL.shape
    x_LN = series_NL.astype(np.float64).T
    nowhere_NN = np.full((count, count), np.inf)
    # least[j] is the least cost of the paths that end before number j of the second series.
    least = [np.zeros((count, count)), *[nowhere_NN] * length]
    for x_N in x_LN:
        row = [nowhere_NN]
        for y_N, both_NN, first_NN in zip(x_LN, least, least[1:]):
            before_NN = np.minimum(np.minimum(both_NN, first_NN), row[-1])
            row.append((x_N[:, None] - y_N) ** 2 + before_NN)
        least = row
    return np.sqrt(least[-1])
