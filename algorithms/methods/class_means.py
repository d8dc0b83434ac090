"""Class means: a baseline of our own. Every client learns from a few rows that stand for the others' training nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import Ask, Client, Context, Received, Requests, Trainer, Tree, Upload, pure
from shoal.algorithms.losses.prototypes import noisy, pack, unpack
from shoal.algorithms.methods.local import Local
from shoal.algorithms.methods.shared.class_prototypes import rows_upload, training_means
from shoal.algorithms.protocol import Reduce
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import Count, NotNegative, Positive, Share


@dataclass(frozen=True)
class ClassMeans(Local):
    """Class means, not from a paper: Local, with the smoothed features of an average node of every class to learn from.

    When a client first takes part, it uploads the mean of A~^K X over its training nodes of every class that has
    `at_least` of them, and their number, by which the server weighs the mean over clients. From then on a client trains
    on cross-entropy + weight * C' / n * mean cross-entropy of the C' class means, n its training nodes: every mean
    counts as `weight` nodes. A model reads such a row as a node whose neighbours are all like it.

    Up, once: C_i F scalars of the classes that are sent and C counts. Down, when a newcomer changed them: C' F scalars
    and a bit for every class. weight = 0 trains as Local.

    Attributes:
        hops: K, the stored hop to average; at most `propagation.hops`.
        at_least: Training nodes that a class needs at a client to be sent; one would lay its features open.
        noise: Share of the features that gets Gaussian noise before the upload, of the deviation of the mean's entries.
        weight: Training nodes that a class mean counts for.
    """

    # The method hands on a node with the features of an average one; there is no average graph.
    supports = frozenset({"node", "weighted", "newcomers"})
    sends_once = True
    hops: Count = 2
    at_least: Positive = 2
    noise: Share = 0.0
    weight: NotNegative = 1.0

    def setup(self, ctx: Context) -> Tree:
        if ctx.hops < self.hops:
            raise ShoalError("algorithm.hops", f"{self.hops} needs propagation.hops of at least as many")
        everyone = torch.zeros(len(ctx.clients), dtype=torch.int64)
        return {"met": everyone.bool(), "version": torch.zeros((), dtype=torch.int64), "sent": everyone}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        if newcomers := [i for i in cohort if not server["met"][i]]:
            got = yield Ask("means", {"mean": Reduce.MEAN}, train=False, to=newcomers)
            server["met"][got.ids] = True
            count_C1 = got.weights["mean"]
            if bool((count_C1 > 0).any()):
                for name, new in (("sum", count_C1 * got["mean"]), ("count", count_C1)):
                    server[name] = server[name] + new if name in server else new
                server["version"] += 1
        behind = [i for i in cohort if server["sent"][i] < server["version"]]
        down: Tree = {}
        if behind:
            mean_CF = server["sum"] / server["count"].clamp_min(1)
            down = pack(mean_CF.float(), server["count"][:, 0] > 0)
        got = yield Ask("train", {}, private=dict.fromkeys(behind, down))
        server["sent"][got.ids] = server["version"]

    def receive(self, client: Client, down: Tree) -> tuple[Tensor, Tensor] | None:
        """The means, `[C', F]`, and their classes; None while there are none."""
        if (received := unpack(down, client.info.classes)) is not None:
            mean_CF, present_C = received
            client.state["means"], client.state["means.class"] = mean_CF[present_C], present_C.nonzero()[:, 0]
        if not self.weight or "means" not in client.state:
            return None
        return client.state["means"], client.state["means.class"]

    def train(self, client: Client, received: tuple[Tensor, Tensor] | None, trainer: Trainer, phase: str) -> float:
        if received is None or not client.info.train:
            return trainer.fit(client, received)
        mean_QF, class_Q = received
        rows, share = client.model.standalone(mean_QF), self.weight * len(class_Q) / client.info.train
        term = pure(lambda: share * F.cross_entropy(client.model(rows).logits_NC, class_Q))
        return trainer.fit(client, received, term=term)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if phase == "train":
            return Upload({})
        x_NF = client.data.rows(self.hops, client.data.train)
        mean_CF, counts_C = training_means(client, x_NF)
        counts_C = counts_C * (counts_C >= self.at_least)
        if self.noise:
            mean_CF = noisy(mean_CF, self.noise, client.rng("noise"))
        return rows_upload(mean_CF, counts_C, "mean")
