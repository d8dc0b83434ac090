"""FedGTA: personalised averaging among clients whose soft labels spread similarly over their graphs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from shoal.algorithms.base import Algorithm, Ask, Client, Context, Forms, Mix, Received, Requests, Tree, Upload
from shoal.algorithms.methods.fedgta.label_sketch import Sketch, SketchForm, sketch_labels
from shoal.algorithms.protocol import Reduce
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import Positive, Share
from shoal.storage.shards.view import View

# Bounds the steps of propagation and the orders of moments: each that is kept is a row of an upload.
MOST_STEPS = 1000
# Least confidence, also of a client without a training node.
LEAST = 1e-12


@dataclass(frozen=True)
class FedGTA(Algorithm):
    """FedGTA (Li et al., PVLDB 17(1), 2023): topology-aware averaging.

    After local training a client propagates its soft labels over its graph (eq. 3) and uploads its parameters w
    `[P]`, the confidence h (eq. 4) and the moments m `[steps * orders * C]` of the propagated labels (eq. 5). The
    server admits to the set of client i every j of the cohort with cos(m_i, m_j) >= eps, and i itself (eq. 6), and
    returns sum_j h_j w_j / sum_j h_j over the set (eq. 7, numerator j). eps <= -1 gives one model for all, eps > 1
    gives Local; with less than full participation only from `cold_start: init`.

    A client that takes part for the first time starts from the initial parameters in round 1 and later from the mean
    of the last cohort, weighted by h (`cold_start`). A client without a training node receives but does not count.

    Where the defaults depart from equations 3 to 5: Y^0 of eq. 3 is the prediction everywhere in the paper, here it is
    one-hot at training rows, as in its code (`lp_seed`); the rows of Y^s do not sum to one, as those of A~ do not, and
    are rescaled to do so before eqs. 4 and 5 (`rows`); the moments of eq. 5 are central there, here raw ones stand
    beside them (`moments`). `form: paper` undoes all three. In all of them the mean of eq. 5 runs over nodes, class by
    class, which gives the size that the paper states; as printed it runs over classes. `form: code` is the authors'
    program (`rows: softmax`), with its orders and eps for most graphs.

    Cosines have another scale in every form, so that each has its own eps; with other options choose it anew. The
    program has 0.65. The paper tunes eps in [0, 1] and prints none: 0.6 in `form: paper` is ours, with which, as with
    0.5 by default, a third of all pairs are admitted (ten Louvain clients of Cora, GAMLP, rounds 5 and 25, two seeds:
    0.31 to 0.38, and 0.31 to 0.33).

    With `rows: raw` an entry of a hub among nodes of low degree may exceed one. Its powers then outweigh those of all
    other nodes in moments of high order, and its term of eq. 4, which is no entropy any more, has no upper bound. No
    term of eq. 4 is negative for any row (see `confidence`), so that h still is a weight.

    With `cross_edges`, which the paper does not have, A of eq. 3 has the edges to clients of the cohort, too, and so
    does the degree of eqs. 3 and 4. In each of the k steps a client sends, for every row of another client with
    neighbours here, the sum over these of d^{-1/2} y; the server adds up what a row gets. Edges to other clients are
    left out in that round. One that fails after it was asked sends zeros from then on, and its edges still count.

    Attributes:
        eps: Threshold of the similarity; the paper tunes it in [0, 1].
        lp_steps: k of eq. 3.
        lp_seed_weight: alpha of eq. 3, the weight of the seed.
        lp_seed: Y^0 of eq. 3: `labels`: one-hot at training rows, the prediction elsewhere; or `predictions`: the
            prediction everywhere.
        rows: What eqs. 4 and 5 read: rows of Y^s rescaled to sum to one (`stochastic`), as they are (`raw`), or what
            the authors' program makes of them (`softmax`, see `sketch_by_softmax`).
        orders: Highest moment K, tuned by the paper in 2..20.
        moments: `raw`, `central`, or both (`hybrid`).
        moment_steps: Moments of `all` propagation steps as in the paper, or of the `last` one as in its code.
        confidence: `paper` (eq. 4), `normalized` (1 - entropy / log C, our ablation, for stochastic rows only), or
            `uniform` (the ablation "w/o Conf.").
        cold_start: Where a newcomer starts after round 1: `warm` or `init`.
        cross_edges: Labels also propagate over edges between clients of the cohort, by one exchange a step, see below.
        sketch_every: r: labels are propagated at the first and then every r-th time that a client takes part; in
            between it sends h and m as they were.
    """

    # Clients are compared by labels that spread along the edges between what is predicted.
    supports = frozenset({"node", "weighted", "newcomers"})
    forms: ClassVar[Forms] = {
        "paper": {"lp_seed": "predictions", "rows": "raw", "moments": "central", "eps": 0.6},
        "code": {"rows": "softmax", "moments": "raw", "moment_steps": "last", "orders": 13, "eps": 0.65},
    }
    eps: float = 0.5
    lp_steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 5
    lp_seed_weight: Share = 0.5
    lp_seed: Literal["labels", "predictions"] = "labels"
    rows: Literal["stochastic", "raw", "softmax"] = "stochastic"
    orders: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 6
    moments: Literal["raw", "central", "hybrid"] = "hybrid"
    moment_steps: Literal["all", "last"] = "all"
    confidence: Literal["paper", "normalized", "uniform"] = "paper"
    cold_start: Literal["warm", "init"] = "warm"
    sketch_every: Positive = 1
    cross_edges: bool = False

    def __post_init__(self) -> None:
        if self.cross_edges and (self.rows == "softmax" or self.sketch_every > 1):
            raise ValueError("cross_edges: true is for rows: stochastic or raw, and for sketch_every: 1")
        if self.rows == "raw" and self.confidence == "normalized":
            raise ValueError("confidence: normalized is of entropies, which raw rows have not; set rows: stochastic")

    @property
    def edges_read(self) -> str | None:
        """The value that `data.cross_edges` must have; None: any."""
        return "hops" if self.cross_edges else None

    def norms(self) -> Mapping[str, float | None]:
        """Bounds each row of moments, of every step and order, by an l2 norm of 1; h is left out.

        A row y of Y^s sums to one, so that |y^k| <= 1; of y less the mean m, |(y - m)^k| <= |y - m|, and the mean of
        these norms is at most the root of the mean of |y - m|^2, which is that of |y|^2 less |m|^2.
        """
        for key, kept, other in (
            ("confidence", self.confidence == "uniform", "uniform"),
            ("rows", self.rows != "raw", "stochastic"),
        ):
            if not kept:
                raise ShoalError(
                    f"algorithm.{key}",
                    f"{getattr(self, key)} has no largest norm, which privacy.where=client needs; take {other}",
                )
        return {"w": None, "h": 0.0, "m": math.sqrt(self._form.moment_rows)}

    def setup(self, ctx: Context) -> Tree:
        return {"warm": ctx.initial, "met": torch.zeros(len(ctx.clients), dtype=torch.bool)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        newcomers = {i: {"w": server["warm"]} for i in cohort if not server["met"][i]}
        if self.cross_edges:
            from shoal.algorithms.methods.fedgta.cross_labels import exchange

            trained, got = yield from exchange(cohort, newcomers, self.lp_steps)
        else:
            got = yield Ask("train", {"w": Reduce.MIX, "h": Reduce.STACK, "m": Reduce.STACK}, private=newcomers)
            trained = got.ids
        rows = mixing_rows(got["m"], got["h"], self.eps)
        ctx.notes["set size"] = float((rows > 0).sum(1).float().mean())
        # A set of ten in which one weighs nearly all counts as one.
        ctx.notes["contributors"] = float((1 / rows.square().sum(1)).mean())
        ctx.notes["own weight"] = float(rows.diagonal().mean())
        ctx.record_mixing(got.ids, got.ids, rows)
        server["met"][got.ids] = True
        if self.cold_start == "warm":
            server["warm"] = yield Mix("w", spread_to_trained((got["h"] / got["h"].sum()).float(), got.ids, trained))
        yield Mix("w", spread_to_trained(rows, got.ids, trained), dst=got.ids)

    def receive(self, client: Client, down: Tree) -> Received:
        if "w" not in client.inbox:
            return super().receive(client, down)
        client.model.borrow(client.inbox["w"])
        return down

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if self.cross_edges:
            return self._upload_across(client, received, phase)
        if self.sketch_every == 1:
            h, m = self._sketch(client)
            return Upload({"w": client.model.w, "h": h, "m": m})
        state = client.state
        age = state.get("age", torch.zeros((), dtype=torch.int64))
        if age % self.sketch_every == 0:
            state["h"], state["m"] = self._sketch(client)
        state["age"] = age + 1
        return Upload({"w": client.model.w, "h": state["h"], "m": state["m"]})

    def _sketch(self, client: Client) -> tuple[Tensor, Tensor]:
        """Computes confidence h and moments m of the client's present predictions."""
        return self._pack(client, sketch_labels(client.data, self._label_seed(client), self._form))

    def _upload_across(self, client: Client, received: Received, phase: str) -> Upload:
        from shoal.algorithms.methods.fedgta.cross_labels import first_sums, next_sums

        if phase == "train":
            return Upload({"w": client.model.w, **first_sums(client, received, self._label_seed(client))})
        result = next_sums(client, received, phase, self._form)
        return result if isinstance(result, Upload) else Upload(dict(zip("hm", self._pack(client, result))))

    @property
    def _form(self) -> SketchForm:
        return SketchForm(*(getattr(self, name) for name in SketchForm._fields))

    def _label_seed(self, client: Client) -> Tensor:
        seed_NC = F.softmax(client.model.logits(), dim=1)
        return with_training_labels(client.data, seed_NC) if self.lp_seed == "labels" else seed_NC

    @staticmethod
    def _pack(client: Client, sketch: Sketch) -> tuple[Tensor, Tensor]:
        h = sketch.confidence if client.info.train else 0.0
        # The confidence stays on the device: reading it would synchronise.
        h = h.clamp_min(LEAST).float() if isinstance(h, Tensor) else torch.tensor(max(h, LEAST))
        return h, sketch.moments_SC.flatten()


def with_training_labels(data: View, soft_NC: Tensor) -> Tensor:
    """Writes one-hot labels into the training rows of a prediction: a seed `[N, C]`; no other label is read."""
    soft_NC[data.train] = F.one_hot(data.label[data.train], data.classes).to(soft_NC.dtype)
    return soft_NC


def spread_to_trained(rows: Tensor, ids: Sequence[int], trained: Sequence[int]) -> Tensor:
    """Spreads rows over the clients that trained, `[…, trained]`; zero at those that failed later, not in `ids`."""
    if len(ids) == len(trained):
        return rows
    there = torch.isin(torch.tensor(trained), torch.tensor(ids))
    spread = rows.new_zeros(*rows.shape[:-1], len(trained))
    spread[..., there] = rows
    return spread


def mixing_rows(m_BQ: Tensor, h_B: Tensor, eps: float) -> Tensor:
    """Computes the mixing matrix `[B, B]`: row i is h_j / sum h over cos(m_i, m_j) >= eps and i (eqs. 6 and 7)."""
    unit = F.normalize(m_BQ, dim=1, eps=1e-12)
    admitted = (unit @ unit.T).clamp(-1, 1) >= eps
    admitted.fill_diagonal_(True)
    weight = admitted * h_B.double()
    return (weight / weight.sum(1, keepdim=True)).float()
