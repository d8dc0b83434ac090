"""FedGKC: clients of different models teach a common copilot and learn from it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import Ask, Client, Context, Forms, Mix, Output, Requests, Trainer, Tree, Upload, pure
from shoal.algorithms.graphs.graph_views import GraphViews
from shoal.algorithms.losses.distillation import distillation_loss, distilled_from_neighbours, embedding_distance
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.shared.copilot import COPILOT, WithCopilot
from shoal.algorithms.models.inputs.neighbourhood import DrawnInputs
from shoal.algorithms.protocol import MODEL, Reduce, Replies
from shoal.algorithms.training.joint_training import JointLoss, Outputs, label_loss, train_jointly, weighted_sum
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.options.types import Count, NotNegative, ShareBelowOne
from shoal.storage.shards.view import View

# The clarity of a copilot's knowledge (eqs. 7 to 9), see `knowledge`.
Clarity = Literal["literal", "margin_mean"]
Term = Literal["strength", "clarity", "smoothness"]
TERMS: tuple[Term, ...] = ("strength", "clarity", "smoothness")
# Below it the knowledge of a client counts as this much (our choice: the paper's may be negative).
LEAST_KNOWLEDGE = 1e-3


class Shares(NamedTuple):
    """Weights of the terms of equations 2 and 3 in a visit."""

    labels: float
    neighbours: float
    scores: float

    @property
    def taught(self) -> bool:
        return bool(self.neighbours or self.scores)


@dataclass(frozen=True)
class FedGKC(WithCopilot):
    """FedGKC: federated graph knowledge collaboration.

    A client has its own model, of any kind, and a copilot, whose embeddings are equally wide; only copilots are
    sent. In every epoch both answer for all nodes, in training mode; then each takes one step, the copilot first (see
    `copilot_read`), on

        alpha * CE + beta * L_neigh(other -> own) + (1 - alpha - beta) * KL(other || own)        (eqs. 2 and 3)

    CE over the training rows, L_neigh (eq. 1, see `distilled_from_neighbours`) and KL over all nodes; the other is
    detached. The client's own model adds self distillation from a weak to a strong view of its graph (eq. 4, see
    `GraphViews`; drawn anew in every epoch), with weight 1 (eq. 5). The server averages copilots by
    w_k = (N_k / sum N + P_k / sum P) / 2, P_k being what the copilot of k knows after training (KAMA, eqs. 6 to 12, see
    `knowledge`; at least 0.001, see `floor`).

    Up: the copilot's P_c parameters, N_k and P_k, P_c + 2 scalars. Down: P_c. alpha = 1 without self distillation
    trains the own model as Local, to the bit with `engine.trainer: autograd`.

    Attributes:
        alpha, beta: Weights of the labels and of the neighbourhood; the paper recommends 0.6 to 0.7 and 0.1 to 0.2.
        neigh_norm: Over a node and its neighbours: `mean`, or `sum` as equation 1 is written.
        mutual: `full`; `scores`: without the neighbourhood; `none`: there is no copilot and nothing is sent.
        copilot_read: The own model learns from what the copilot answered `before` its step, or `after` it, by one more
            pass, as algorithm 1 has it: both in turn in every epoch, where it does not say how many epochs one takes.
        self_distillation: Equation 4.
        self_mse: Distance of embeddings in equation 4: rows of length one (`unit`), or as they are (`raw`).
        self_detach: The weak view is a teacher: it gets no gradient. Equation 4, as written, trains both views.
        weak, strong: Shares of the edges, and of the features, that the views lack; the paper gives none.
        weights: How the server weighs copilots: `kama`, by size alone (`size`), or all equal (`uniform`).
        kama_terms, clarity, lam: What counts as knowledge, see `knowledge`; lambda is 0.1 in the paper.
        floor: P_k counts as 0.001 at least. As eq. 10 is written, that of a copilot that knows next to nothing may be
            negative: its model is subtracted then, and all are multiplied by much where sum P is near 0.
        ramp: Rounds over which all weights of distillation rise linearly; 0: none.
    """

    # A copilot is taught by the neighbours of what it predicts, and weighed by its agreement with them.
    supports = frozenset({"node", "newcomers"})
    forms: ClassVar[Forms] = {
        "paper": {"neigh_norm": "sum", "self_mse": "raw", "self_detach": False, "floor": False, "copilot_read": "after"}
    }
    alpha: NotNegative = 0.6
    beta: NotNegative = 0.2
    neigh_norm: Literal["mean", "sum"] = "mean"
    mutual: Literal["full", "scores", "none"] = "full"
    copilot_read: Literal["before", "after"] = "before"
    self_distillation: bool = True
    self_mse: Literal["unit", "raw"] = "unit"
    self_detach: bool = True
    weak: tuple[ShareBelowOne, ShareBelowOne] = (0.1, 0.1)
    strong: tuple[ShareBelowOne, ShareBelowOne] = (0.4, 0.4)
    weights: Literal["kama", "size", "uniform"] = "kama"
    kama_terms: tuple[Term, ...] = TERMS
    clarity: Clarity = "literal"
    lam: NotNegative = 0.1
    floor: bool = True
    ramp: Count = 0

    def __post_init__(self) -> None:
        if self.alpha + self.beta > 1:
            raise ValueError("alpha + beta must be at most 1")
        if not self.alpha and self.mutual == "none" and not self.self_distillation:
            raise ValueError("alpha must be positive where there is neither mutual nor self distillation")
        if not self.kama_terms or len(set(self.kama_terms)) < len(self.kama_terms):
            raise ValueError("kama_terms must name at least one term, and each once")

    def models(self) -> Mapping[str, Mapping[str, object] | None]:
        return {MODEL: None} if self.mutual == "none" else super().models()

    def setup(self, ctx: Context) -> Tree:
        if self.mutual == "none":
            return {}
        (copilot,) = ctx.models[COPILOT]
        for number, kind in enumerate(ctx.models[MODEL]):
            if self._shares(1.0).neighbours and kind.width != copilot.width:
                raise ShoalError(
                    "algorithm.copilot",
                    f"its embedding is {copilot.width} wide, that of model {number} ({kind.name}) "
                    f"{kind.width}; give both one width, by heterogeneity.embedding and algorithm.copilot.hidden",
                )
        return super().setup(ctx)

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        if self.mutual == "none":
            yield Ask("train", {})
            return
        shared = {"w": server["w"]}
        if self.ramp:
            shared["ramp"] = torch.tensor(min(ctx.round / self.ramp, 1.0))
        up = {"w": Reduce.MIX, "nodes": Reduce.STACK}
        if self.weights == "kama":
            up["knowledge"] = Reduce.STACK
        got = yield Ask("train", up, shared=shared)
        # Clients without a node have no weight.
        if got.ids and got["nodes"].any():
            server["w"] = (yield Mix("w", self._weights(got, ctx)[None]))[0]

    def _weights(self, got: Replies, ctx: Context) -> Tensor:
        """Computes w_k of every client that answered, float64 (eqs. 6, 10 and 11); they sum to one."""
        volume_B = torch.ones_like(got["nodes"]) if self.weights == "uniform" else got["nodes"]
        weight_B = volume_B.double() / volume_B.sum()
        if self.weights == "kama":
            known_B = got["knowledge"].double()
            counted_B = known_B.clamp_min(LEAST_KNOWLEDGE) if self.floor else known_B
            if not counted_B.sum():
                raise ShoalError("algorithm.floor", "equation 10 divides by the sum of knowledge, which is 0; set true")
            weight_B = (weight_B + counted_B / counted_B.sum()) / 2
            ctx.notes["knowledge"] = float(known_B.mean())
            ctx.notes["clamped"] = float((known_B < LEAST_KNOWLEDGE).double().mean())
        return weight_B

    def receive(self, client: Client, down: Tree) -> Shares:
        super().receive(client, down)
        return self._shares(float(down["ramp"]) if "ramp" in down else 1.0)

    def _shares(self, ramp: float) -> Shares:
        if self.mutual == "none":
            return Shares(self.alpha, 0.0, 0.0)
        neighbours = self.beta if self.mutual == "full" else 0.0
        # Rounding leaves a little of 1 - 0.8 - 0.2, which is no weight.
        rest = round(1 - self.alpha - self.beta, 12)
        return Shares(self.alpha, ramp * neighbours, ramp * rest)

    @pure
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Shares) -> Tensor:
        return received.labels * F.cross_entropy(out.logits_NC, y)

    def train(self, client: Client, received: Shares, trainer: Trainer, phase: str) -> float:
        if not client.info.nodes:
            # A client may have no node to answer for where training sees training nodes alone.
            return float("nan")
        if not received.taught and COPILOT in client.models:
            trainer.fit(client, received, COPILOT)
        if not received.taught and not self.self_distillation:
            return trainer.fit(client, received)
        views = self._views(client) if self.self_distillation else None

        def own_loss(outputs: Outputs) -> Tensor:
            taught = self._taught(client, received, outputs, MODEL, COPILOT)
            return taught if views is None else taught + self._self_distilled(client, *views)

        losses: dict[str, JointLoss] = {}
        if received.taught:
            losses[COPILOT] = pure(lambda outputs: self._taught(client, received, outputs, COPILOT, MODEL))
        losses[MODEL] = pure(own_loss)
        return train_jointly(client, trainer, losses, anew=self.copilot_read == "after")[MODEL]

    def _taught(self, client: Client, received: Shares, outputs: Outputs, learner: str, teacher: str) -> Tensor:
        """Equations 2 and 3."""
        output = outputs[learner]

        def from_neighbours() -> Tensor:
            z_NH = outputs[teacher].embedding_NH
            return distilled_from_neighbours(client.data, z_NH, output.embedding_NH, self.neigh_norm)

        return weighted_sum(
            (received.labels * bool(client.info.train), lambda: label_loss(client, output, "all")),
            (received.neighbours, from_neighbours),
            (received.scores, lambda: distillation_loss(outputs[teacher].logits_NC, output.logits_NC)),
        )

    def _views(self, client: Client) -> tuple[DrawnInputs, DrawnInputs]:
        """Returns the weak and the strong views of a visit."""
        views = GraphViews(client.model, client.rng("views"))
        return DrawnInputs(partial(views.draw, *self.weak)), DrawnInputs(partial(views.draw, *self.strong))

    def _self_distilled(self, client: Client, weak_views: DrawnInputs, strong_views: DrawnInputs) -> Tensor:
        """Computes the loss of equation 4."""
        weak, strong = client.model(weak_views), client.model(strong_views)
        if self.self_detach:
            weak = Output(weak.logits_NC.detach(), weak.embedding_NH.detach())
        distance = embedding_distance(weak.embedding_NH, strong.embedding_NH, self.self_mse)
        return distance + distillation_loss(weak.logits_NC, strong.logits_NC, detach=self.self_detach)

    def upload(self, client: Client, received: Shares, phase: str) -> Upload:
        if self.mutual == "none":
            return Upload({})
        copilot = client.models[COPILOT]
        entries = {"w": copilot.w, "nodes": torch.tensor(client.info.nodes)}
        if self.weights == "kama":
            measured = knowledge(client.data, copilot.logits(), self.lam, self.clarity, self.kama_terms)
            entries["knowledge"] = torch.tensor(measured)
        return Upload(entries)


def knowledge(
    data: View, logits_NC: Tensor, smoothing: float, clarity: Clarity = "literal", terms: Collection[Term] = TERMS
) -> float:
    """Averages strength + clarity - smoothing * smoothness over nodes (Pcal); may be negative, 0 without nodes.

    With p = softmax(logits): the strength is max p (eq. 7). The clarity is by how much it exceeds the others:
    `literal`, as eq. 8 is written, (max p - sum of the others) / (C - 1), or `margin_mean`, max p - mean of the others.
    The smoothness is the mean cosine of a node's p with those of its neighbours, 0 for a node without any; `smoothing`
    is its lambda.
    """
    p_NC = logits_NC.softmax(1)
    others = max(p_NC.shape[1] - 1, 1)
    top_N = p_NC.max(1).values
    total_N = torch.zeros_like(top_N)
    if "strength" in terms:
        total_N += top_N
    if "clarity" in terms:
        total_N += (2 * top_N - 1) / others if clarity == "literal" else top_N - (1 - top_N) / others
    if "smoothness" in terms and smoothing:
        total_N -= smoothing * likeness_to_neighbours(data, p_NC)
    return float(total_N.double().mean()) if len(total_N) else 0.0


def likeness_to_neighbours(data: View, p_NC: Tensor) -> Tensor:
    """Averages the cosines of every node's row with those of its neighbours, `[N]`; 0 without neighbours."""
    direction_NC = unit(p_NC)
    sum_NC = SparseMatrix(data.adjacency) @ direction_NC
    return (direction_NC * sum_NC).sum(1) / (data.degree - 1).clamp_min(1)
