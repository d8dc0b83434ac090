"""AdaFGL: FedAvg first, then every client for itself, with what the common model knows of its graph."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoal.algorithms.base import Ask, Client, Context, Requests, Trainer, Tree, Upload
from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.adafgl.branch_layers import score_hidden
from shoal.algorithms.methods.adafgl.branch_losses import loss_of_branches
from shoal.algorithms.methods.adafgl.knowledge import Knowledge, Rows, homophily, knowledge, propagate_weighted
from shoal.algorithms.methods.adafgl.signed_messages import signed_messages
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.models.inputs.neighbourhood import kept_rows
from shoal.algorithms.models.layers.dropout import fill_kept, masks, transform
from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.protocol import creating_on
from shoal.algorithms.rng import Stream, seed_default
from shoal.algorithms.training.joint_training import own_optimizer
from shoal.algorithms.training.local_training import bounded_loss, flat_step, without_denormals
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix
from shoal.storage.options.types import NotNegative, Positive, Share, ShareBelowOne
from shoal.storage.shards.view import View

# A client's state has these: the common model of its second phase `[P]`, its branches `[Q]` and its homophily.
COMMON, BRANCHES, HOMOPHILY = "common", "branches", "homophily"
PERSONAL = "personal"


class Scores(NamedTuple):
    """Class scores of nodes, `[N, C]`: of the homophilous branch, and of the three of the heterophilous one."""

    homo: Tensor
    own: Tensor
    smooth: Tensor
    message: Tensor


class Branches(nn.Module):
    """The four MLPs of AdaFGL: `homo`, of two layers, for homophilous graphs, and three of three layers for others.

    These read a node's features alone (`own`), propagated features (`smooth`), and signed messages (`message`). In the
    similarity by which messages have signs, `beta` is the weight of the federated model's predictions.
    """

    def __init__(
        self, features: int, classes: int, steps: int, hidden: int, dropout: float, beta: float, draws: bool
    ) -> None:
        """Draws the parameters from torch's default generator, if it `draws` any."""
        super().__init__()
        self.beta = beta
        wide = (steps + 1) * features
        options: dict[str, Any] = {"activation": "prelu", "draws": draws}
        self.homo = Head(wide, hidden, classes, 2, dropout, **options)
        self.own = Head(features, hidden, classes, 3, dropout, **options)
        self.smooth = Head(wide, hidden, classes, 3, dropout, **options)
        self.message = Head(wide, hidden, classes, 3, dropout, **options)

    def first_weights(self) -> list[nn.Parameter]:
        return [
            weight for branch in (self.homo, self.own, self.smooth, self.message) for weight in branch.first_weights()
        ]

    def propagated_weights(self) -> list[nn.Parameter]:
        """Returns the weights that propagated features are multiplied by."""
        return [branch.first_weights()[0] for branch in (self.homo, self.message, self.smooth)]

    def forward(self, known: Knowledge, x_NF: Features, asked: Rows | None = None) -> Scores:
        """Scores nodes by knowledge and features, `[N, F]`; all but `homo` only for the rows that are asked for.

        Dropout draws for all nodes, so that the rows that are asked for have no say in what is drawn.
        """
        homo_NH, message_NH, smooth_RH = propagate_weighted(known, x_NF, self.propagated_weights(), asked)
        rows, x_RF = (None, x_NF) if asked is None else (asked.rows, asked.x_RF)
        own_RH = transform(x_RF, self.own.first_weights()[0])
        homo_NC = _after(self.homo, homo_NH)
        own_RC, smooth_RC = (
            _after(branch, x_RH, rows, len(x_NF)) for branch, x_RH in ((self.own, own_RH), (self.smooth, smooth_RH))
        )
        message_NC = _after(self.message, message_NH)
        return Scores(homo_NC, own_RC, smooth_RC, signed_messages(message_NC, known, self.beta, rows))


def _after(branch: Head, x_RH: Tensor, rows: Tensor | None = None, nodes: int = 0) -> Tensor:
    """Computes the scores of a branch whose first weight is multiplied already; some rows are among so many nodes."""

    def mask_of(x: Tensor, p: float) -> Tensor:
        return fill_kept(x.new_empty(nodes, x.shape[1]), p).div_(1 - p)[rows]

    if not branch.training or not x_RH.is_cpu:
        with nullcontext() if rows is None else masks(mask_of):
            return branch.after_first(x_RH + branch.linears[0].get_parameter("bias")).logits_NC
    assert branch.prelu is not None
    biases, weights = ([layer.get_parameter(name) for layer in branch.linears] for name in ("bias", "weight"))
    # Without rows they are all.
    count = len(x_RH) if rows is None else nodes
    return score_hidden(x_RH, biases, weights[1:], branch.prelu.weight, branch.dropout, rows, count)


# Features, classes, K, width, dropout and beta of `Branches`.
Sizes = tuple[int, int, int, int, float, float]


@lru_cache(maxsize=4)
def _kept_branches(sizes: Sizes, sparse: bool, device: torch.device) -> FlatModel:
    """Makes branches that the clients of a host, one after another, load their parameters into."""
    with creating_on(device):
        return FlatModel(Branches(*sizes, draws=False), sparse=sparse)


@dataclass
class Received:
    """The predictions of the branches for all nodes; None until needed."""

    scores_NC: Tensor | None = None


@dataclass(frozen=True)
class AdaFGL(FedAvg):
    """AdaFGL (Li et al., ICDE 2024), in two phases.

    In the first `shared_rounds` rounds it is FedAvg. Then nothing is averaged any more: the model w stays as it is, and
    a client that takes part is sent it once, whenever that is. By its probabilities P^ the client measures how similar
    all its nodes are (S, see `Likeness`), propagates its features over edges and likeness (P~, see `knowledge`), and
    trains, in steps of all rows, the branches of `Branches` on

        CE(homo) + preserve MSE(softmax(homo), P^) + CE(own) + CE(smooth) + CE(message)

    It predicts HCS (softmax(homo) + P^) / 2 + (1 - HCS) (softmax(own) + softmax(smooth) + softmax(message)) / 3, where
    HCS tells how similar its neighbours are (see `homophily`; the authors' code chooses one of the two by a
    threshold), measured once. A client without a training node predicts by w. A step compares all pairs of nodes, for
    which a client may be too large. Propagated features are written out, (K + 1) F numbers a node, unless they are
    sparse (see `knowledge`).

    Down: in the first phase w `[P]`, in the second w once a client. Up: in the first w_i `[P]` and n_i, in the second
    nothing. Scope `global` is w. With `shared_rounds` of all rounds it is FedAvg, to the bit by autograd.

    Attributes:
        shared_rounds: Rounds of the first phase; None: half of the run's.
        most_nodes: Of a client, for comparing n x n pairs of nodes in every step.
        alpha: Share of the edges in P~; 0.5 in OpenFGL.
        beta: Share of the common model in the similarity for messages; 0.2 in the authors' code.
        cut: Of S in P~ and messages; 0.999 in the authors' code, 0 is the paper's.
        steps: K; 3 in the paper.
        hidden: Width of the branches.
        preserve: Weight of the distance to P^.
    """

    # Likeness and propagation are of the nodes that are predicted.
    supports = frozenset({"node", "weighted", "newcomers"})
    only_replaced = frozenset({COMMON, BRANCHES})
    shared_rounds: Positive | None = None
    most_nodes: Positive = 10_000
    alpha: Share = 0.5
    beta: Share = 0.2
    cut: ShareBelowOne = 0.999
    steps: Positive = 3
    hidden: Positive = 64
    preserve: NotNegative = 1.0

    # The server.

    def _shared_rounds(self, ctx: Context) -> int:
        return ctx.rounds - ctx.rounds // 2 if self.shared_rounds is None else self.shared_rounds

    def setup(self, ctx: Context) -> Tree:
        state = super().setup(ctx)
        if self._shared_rounds(ctx) >= ctx.rounds:
            return state
        if ctx.train.batch_size is not None:
            raise ShoalError("train.batch_size", "AdaFGL's second phase takes all rows in one step; leave it out")
        largest = max(ctx.scored, key=lambda info: info.nodes)
        if largest.nodes > self.most_nodes:
            raise ShoalError(
                "algorithm.most_nodes",
                f"client {largest.client} has {largest.nodes:,} nodes, and AdaFGL's second phase compares all pairs of "
                f"{self.most_nodes:,} nodes at most in every step; raise it if there is time for "
                f"{largest.nodes**2:,} pairs, or take more clients",
            )
        return {**state, "switched": torch.zeros(len(ctx.clients), dtype=torch.bool)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        if ctx.round <= self._shared_rounds(ctx):
            yield from super().round(server, ctx, cohort)
            return
        late = {i: {COMMON: server["w"]} for i in cohort if not server["switched"][i]}
        got = yield Ask(PERSONAL, {}, private=late)
        server["switched"][got.ids] = True

    # The clients.

    def receive(self, client: Client, down: Tree) -> Received:
        super().receive(client, down)
        if COMMON in down:
            client.state[COMMON] = down[COMMON].clone()
        if COMMON in client.state:
            client.model.load(client.state[COMMON])
        return Received()

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        if phase != PERSONAL or not client.info.train:
            return trainer.fit(client, received)
        state, options = client.state, trainer.options
        if HOMOPHILY not in state:
            state[HOMOPHILY] = torch.tensor(homophily(client.data, client.rng(HOMOPHILY)))
        received.scores_NC = None
        info, flat = self._knowledge(client), self._branches(client, options.dropout)
        asked = _training_rows(client.data, info)
        module, loss = flat.module, torch.zeros(())
        assert isinstance(module, Branches)
        # A step overwrites the gradients of these, which are nearly all.
        overwritten = {id(weight) for weight in module.propagated_weights()}
        added = [p.grad for p in module.parameters() if p.grad is not None and id(p) not in overwritten]
        seed_default(client.data.device, client.random("train branches"))
        module.train()
        with own_optimizer(client, trainer, BRANCHES, flat.w) as optimizer, without_denormals():
            step = flat_step(optimizer, flat.w)
            for _ in range(options.epochs):
                torch._foreach_zero_(added)
                scores = module(info, client.data.whole(0), asked)
                loss = loss_of_branches(
                    scores.homo, scores[1:], asked.rows, client.data.train_label, info.p_NC, self.preserve
                )
                loss.backward()
                step()
        return bounded_loss(float(loss.detach()))

    def _knowledge(self, client: Client) -> Knowledge:
        """Computes predictions and propagation by w on the client's graph; the host caches them."""
        options = self.alpha, self.steps, self.cut
        # A host may keep data of several runs, whose models differ.
        key = "knowledge", hash(client.model.w.cpu().numpy().tobytes()), *options
        cached: Knowledge = client.data.cache(
            key, lambda: knowledge(client.data, client.model.logits().softmax(1), *options)
        )
        return cached

    def _branches(self, client: Client, dropout: float = 0.0) -> FlatModel:
        """Returns the host's branches with the client's parameters, which at first are drawn from its own stream."""
        data = client.data
        sizes = data.features, data.classes, self.steps, self.hidden, dropout, self.beta
        by_column = isinstance(data.x, SparseMatrix) and not self._knowledge(client).hops_NG.numel()
        branches, kept = _kept_branches(sizes, by_column, data.device), client.state.get(BRANCHES)
        if kept is None:
            with Stream(data.device, client.random(BRANCHES)):
                kept = FlatModel(Branches(*sizes, draws=True), sparse=by_column).w.detach()
        branches.load(kept)
        return branches

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({}) if phase == PERSONAL else super().upload(client, received, phase)

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        if BRANCHES not in client.state:
            return super().predict(client, received, part)
        if received.scores_NC is None:
            info, module = self._knowledge(client), self._branches(client).module
            with torch.no_grad(), without_denormals():
                homo, *hetero = (of_branch.softmax(1) for of_branch in module.eval()(info, client.data.whole(0)))
            share = float(client.state[HOMOPHILY])
            received.scores_NC = share * (homo + info.p_NC) / 2 + (1 - share) * torch.stack(hetero).mean(0)
        return received.scores_NC if part == "all" else received.scores_NC[getattr(client.data, part)]


def _training_rows(data: View, known: Knowledge) -> Rows:
    """Gathers the training rows, as the steps of a visit read them."""
    x_RF = data.cache(("train", 0), partial(kept_rows, data, 0, data.train))
    return Rows(data.train, x_RF, known.hops_NG[data.train] if known.hops_NG.numel() else known.hops_NG)
