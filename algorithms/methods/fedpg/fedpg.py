"""FedPG: clients share prototypes of their classes and of the neighbourhoods of these, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import (
    Ask,
    Client,
    Context,
    Forms,
    MappedLoss,
    Output,
    Replies,
    Requests,
    SumTerm,
    Trainer,
    Tree,
    Upload,
    pure,
)
from shoal.algorithms.client import FlatModel
from shoal.algorithms.losses.prototype_generator import PrototypeGenerator, train_generator
from shoal.algorithms.losses.prototype_losses import (
    AnchorLoss,
    MarginCrossEntropy,
    SumAlignment,
    SumOfLevels,
    class_margin,
    contrast,
    cosine_margin,
    largest_cosine,
    literal_contrast,
)
from shoal.algorithms.losses.prototypes import bit_bytes, noisy, pack, unit, unpack
from shoal.algorithms.methods.fedpg.alignment_term import (
    SCORER,
    Alignment,
    Targets,
    attended_weights,
    attention_weights,
    by_node,
    by_prototype,
    reach_of,
    train_scorer,
)
from shoal.algorithms.methods.fedpg.hop_prototypes import (
    CLASS,
    COUNTS,
    MOST_HOPS,
    WEIGHT,
    Annotated,
    annotate,
    hop_prototypes,
    hop_weights,
    keep,
    kept_annotation,
)
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.algorithms.training.joint_training import Outputs, label_loss, train_jointly
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import AboveZero, NotNegative, Positive, Share, is_own

# Pairs of clients whose prototypes are compared at a time.
MOST_PAIRS = 2**16


@dataclass(frozen=True)
class Uploads:
    """The last upload of every client, kept by the server; B clients, L levels, C classes, H width.

    Prototypes are zero where none is `present`; `counts_BC` are nodes of the class, `fresh_B` clients that uploaded in
    the last round.
    """

    proto_BLCH: Tensor
    present_BLC: Tensor
    counts_BC: Tensor
    fresh_B: Tensor


def personal_targets(
    uploads: Uploads,
    receivers: Sequence[int],
    anchor_LCH: Tensor,
    known_LC: Tensor,
    alpha: float,
    lam: float,
    weights: bool = False,
) -> tuple[Tensor, float, Tensor | None]:
    """Computes alpha a + (1 - alpha) sum_j n_j P_j / sum_j n_j over fresh clients j, cos(P_i, P_j) >= lam, and i.

    A receiver i without its own prototype gets the universal one, a; `known_LC` tells which of these mean something.
    With `weights` the mixing weights of clients are summed up, too, quadratic in clients.

    Returns:
        Targets `[receivers, L, C, H]`, the mean number of clients mixed, 0 if no receiver had its own prototype, and
        the weights n_j / sum_j n_j `[receivers, B]`, means over the receiver's own prototypes, or None.
    """
    everyone, device = np.asarray(receivers), uploads.proto_BLCH.device
    target_RLCH = anchor_LCH.repeat(len(everyone), 1, 1, 1)
    mixed = []
    weight_RB = uploads.proto_BLCH.new_zeros(len(everyone), len(uploads.fresh_B)) if weights else None
    present_BLC, fresh_B1 = uploads.present_BLC.cpu().numpy(), uploads.fresh_B.cpu().numpy()[:, None]
    at_a_time = max(MOST_PAIRS // max(len(everyone) * len(fresh_B1), 1), 1)
    for level, c in (some.unbind(1) for some in known_LC.nonzero().split(at_a_time)):
        # S prototypes, of O clients that may be mixed and P receivers.
        has_BS = present_BLC[:, level.cpu().numpy(), c.cpu().numpy()]
        mixes_BS = has_BS & fresh_B1
        received = np.flatnonzero(has_BS[everyone].any(1))
        own_B = np.zeros(len(has_BS), dtype=np.bool_)
        own_B[everyone[received]] = True
        fellows = np.flatnonzero(mixes_BS.any(1) | own_B)
        places = fellows, received, np.searchsorted(fellows, everyone[received])
        others, place, mine = (torch.from_numpy(array).to(device) for array in places)
        masks = mixes_BS[fellows].T, has_BS[everyone[received]].T
        mixes_SO, has_SP = (torch.from_numpy(mask.copy()).to(device) for mask in masks)
        proto_SOH = uploads.proto_BLCH[others, level[:, None], c[:, None]]
        direction_SOH = unit(proto_SOH)
        admitted_SPO = (direction_SOH[:, mine] @ direction_SOH.mT >= lam) & mixes_SO[:, None]
        admitted_SPO[:, torch.arange(len(mine), device=device), mine] = True
        weight_SPO = admitted_SPO * uploads.counts_BC[others, c[:, None]].float()[:, None]
        rows_SPO = weight_SPO / weight_SPO.sum(2, keepdim=True)
        target_SPH = alpha * anchor_LCH[level, c][:, None] + (1 - alpha) * (rows_SPO @ proto_SOH)
        number_S, number_P = has_SP.nonzero().unbind(1)
        target_RLCH[place[number_P], level[number_S], c[number_S]] = target_SPH[has_SP]
        mixed.append(admitted_SPO.sum(2)[has_SP])
        if weight_RB is not None:
            for rows_PO, has_P in zip(rows_SPO, has_SP):
                weight_RB[place[has_P, None], others] += rows_PO[has_P]
    sizes = torch.cat(mixed) if mixed else torch.zeros(0)
    if weight_RB is not None:
        weight_RB /= weight_RB.sum(1, keepdim=True).clamp(min=torch.finfo(weight_RB.dtype).tiny)
    return target_RLCH, float(sizes.float().mean()) if len(sizes) else 0.0, weight_RB


class Queries(NamedTuple):
    """Uploaded prototypes that train the anchors of one level, `own` ones of the level first, and their classes."""

    level: int
    proto_QH: Tensor
    class_Q: Tensor
    own: int


def draw_queries(
    proto_BLCH: Tensor, present_BLC: Tensor, known_LC: Tensor, share: float, generator: torch.Generator
) -> list[Queries]:
    """Collects all present prototypes of every level, and draws for each `share` (d_s) others, without replacement.

    `known_LC` are the anchors that have ever had an upload; a class without one at a level is not drawn for it.
    """
    queries = []
    for level in range(len(known_LC)):
        here_BC = present_BLC[:, level]
        count = int(here_BC.sum())
        if not count:
            continue
        elsewhere_BLC = present_BLC & known_LC[level]
        elsewhere_BLC[:, level] = False
        other = elsewhere_BLC.nonzero()
        drawn = other[torch.randperm(len(other), generator=generator)[: int(share * count)]]
        proto_QH = torch.cat([proto_BLCH[:, level][here_BC], proto_BLCH[tuple(drawn.T)]])
        queries.append(Queries(level, proto_QH, torch.cat([here_BC.nonzero()[:, 1], drawn[:, 2]]), count))
    return queries


class Received(NamedTuple):
    """The last level of the round, and the targets of a visit; None while there are none."""

    hops: int
    targets: Targets | None = None


@dataclass(frozen=True)
class FedPG(MappedLoss):
    """FedPG: personalised federated graph learning by topology-aware prototypes; no parameter is ever sent.

    A client keeps a model of any architecture whose embedding has the common width H. With z the embedding of
    evaluation mode scaled to length one, its prototypes are P_c0, the mean of z over its training nodes of class c, and
    P_ch, the mean over these of the mean of their neighbours at hop h annotated c (eqs. 1 and 2, see
    `hop_prototypes`); a node is annotated by its training label, else by the newest prediction, never by a label of
    another split. A visit begins from the model of the last upload, and so from its annotation, which the client keeps.
    The server trains universal prototypes a_ch on the uploads of the cohort (eq. 4, see `prototype_generator`), and
    mixes them for client i with those of similar clients (eq. 5, see `personal_targets`). From the second round on i
    trains on cross-entropy + mu * alignment with what it was sent (eq. 6). A model that passes messages answers once in
    a step for both, with one draw of dropout.

    Up, L = hops + 1: the prototypes that exist, at most L C H scalars, C counts, L C bits. Down: the targets that
    exist, the same size without counts. The server keeps every client's last upload, so that one that comes back after
    rounds of absence is compared by it; a newcomer is sent the universal prototypes. A prototype that does not exist is
    never read. mu = 0 is Local to the bit.

    With `task: graph` the items are graphs, z is what the readout gives, and the neighbours of a graph are those of the
    client's graphs that are among its `similar` nearest ones by the cosine of z, or have it among theirs, whatever
    their split; similarity reads no labels. They are found from the model at the start of a visit and again
    before its upload, so that they stand still in training; the alignment computes the graphs that have weight in a
    prototype anew in every step, with gradients. A client with one graph has prototypes of hop 0 alone. This stands for
    the tasks of graphs in Tables VIII and IX of the paper; which similarity, how many and when are our choice.

    Where the paper is silent or contradicts itself: a hop averages over the centres that have such neighbours; hop 2
    counts walks; attention weights are not divided once more by their number; the margin makes the server's task
    harder; eq. 5 weighs by the number of training nodes of the class. `form: paper` takes eqs. 1 and 2 by `embedding`
    and `hop_mean`, eq. 4 by its first line, eq. 6 with its sums, attention, annotated centres and `hops: depth`;
    `form: code` is the authors' program but for its choice of two similar clients. In every form the cross-entropy of
    eq. 6 has the minus sign that it lacks there, attention is ours, as eq. 2's network has no fixed input, and noise
    is off: it is in no equation, and Table V has it in a row of its own. The parts that Table X takes out are off with
    `cross_hop: 0` (context), `margin_cap: 0` (margin; it has no say in eq. 4's first line), and `alpha: 1`
    (personalisation).

    Attributes:
        embedding: What prototypes are means of: embeddings of length one (`unit`), or as they are (`raw`), as in eqs. 1
            and 2. Universal prototypes are of length one, or as the generator gives them (eq. 4).
        cross_entropy: Of eq. 6, over the training nodes: their `mean`, or `sum` as it is written.
        hops: 0 (no neighbours) to 4, 2 as in the paper's code, or `depth` as in the paper: the steps from which the
            shallowest model of all clients reads. The default stays 2, so that levels and messages are the same for
            every model; a client learns of another number by one more byte of its download.
        similar: Nearest graphs of a graph, with `task: graph` alone; 5 is our choice.
        mu: Weight of the alignment; the paper tunes it in [0, 1] and recommends 0.5.
        alignment: `node`: mean over the present prototypes of the mean squared distance of their nodes (hop 1: means
            of neighbours; hop 2: the prototype); `prototype`: eq. 6, sum over them of |P - target|, not squared.
        targets: `federated`, or `own`: the self control, a client's own prototypes of its last visit; nothing is sent.
        attention: Neighbours of a centre weigh the same (`none`), or by a learned score of each (`node`, see
            `attention_weights`), which the alignment trains and which therefore needs `alignment: prototype`.
        attention_lr: Learning rate of the scorers' Adam.
        hop_mean: `walks`: the mean over centres with such neighbours, each counted once a walk; `eq2`, to the letter:
            neighbours at the distance h once, softmax weights divided by their number again, and by all centres. The
            default's length does not depend on degrees. `eq2` needs `alignment: prototype`, and holds pairs of nodes.
        alpha: Share of the universal prototype in a target; the paper tunes it in [0, 1], moderate is best.
        lam: Least cosine of two clients' prototypes that are mixed; the paper tunes it in [0, 1], large is best.
        pseudo_centres: Least predicted probability at which other nodes count as nodes of the class too; None: never.
        noise: Share of the dimensions that gets Gaussian noise before the upload; 0.1 and 0.2 in rows of the paper.
        server_loss: `margin`: cross-entropy on distances, as in its code and FedTGP; `contrast`: eq. 4 on cosines, made
            consistent; `eq4`, `eq7`: to the letter, see `literal_contrast`.
        margin_cap: Epsilon, the largest margin; the paper tunes it in [0, 1] and recommends 0.5.
        temperature: Of `contrast`; the paper has none.
        cross_hop: d_s, prototypes of other hops drawn per prototype of a hop; the paper tunes it in [0, 1].
        server_steps: Full-batch steps on the server in a round; 3 to 50 in its code.
        server_lr: Learning rate of the server's AdamW, whose moments are kept between rounds.
        server_weight_decay: Its decoupled weight decay.
    """

    client_models = "heterogeneous"
    reads_embedding = True
    reads_further = True
    only_replaced = frozenset({CLASS, COUNTS, WEIGHT})
    # All items of a client are compared with each other, and pairs are too many.
    supports = frozenset({"node", "graph", "newcomers"})

    forms: ClassVar[Forms] = {
        "paper": {"server_loss": "eq4", "alignment": "prototype", "attention": "node", "pseudo_centres": 0.0}
        | {"hops": "depth", "hop_mean": "eq2", "embedding": "raw", "cross_entropy": "sum"},
        "code": {"margin_cap": 100.0, "mu": 5.0, "cross_hop": 0.0},
    }
    embedding: Literal["unit", "raw"] = "unit"
    cross_entropy: Literal["mean", "sum"] = "mean"
    hops: int | Literal["depth"] = 2
    similar: Positive = 5
    mu: NotNegative = 0.5
    alignment: Literal["node", "prototype"] = "node"
    targets: Literal["federated", "own"] = "federated"
    attention: Literal["none", "node"] = "none"
    attention_lr: AboveZero = 0.01
    hop_mean: Literal["walks", "eq2"] = "walks"
    alpha: Share = 0.5
    lam: float = 0.8
    pseudo_centres: float | None = None
    noise: Share = 0.0
    server_loss: Literal["margin", "contrast", "eq4", "eq7"] = "margin"
    margin_cap: NotNegative = 0.5
    temperature: AboveZero = 1.0
    cross_hop: Share = 0.25
    server_steps: Positive = 10
    server_lr: AboveZero = 0.01
    server_weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        if self.hops != "depth" and not 0 <= self.hops <= MOST_HOPS:
            raise ValueError(f"hops must be 0 to {MOST_HOPS}, or depth")
        chosen = {"attention: node": self.attention == "node", "hop_mean: eq2": self.hop_mean == "eq2"}
        for option, is_chosen in chosen.items():
            if is_chosen and (self.alignment != "prototype" or not self.hops):
                raise ValueError(f"{option} needs alignment: prototype, and hops of at least 1")

    def setup(self, ctx: Context) -> Tree:
        if self.hops != "depth":
            return {}
        kinds = [(info.name, ctx.build(MODEL, number)) for number, info in enumerate(ctx.models[MODEL])]
        depth, name = min((depth_of(name, model), name) for name, model in kinds)
        if depth > MOST_HOPS:
            raise ShoalError(
                "algorithm.hops", f"{name} reads from {depth} steps, and prototypes go {MOST_HOPS} at most; set hops: 2"
            )
        return {"hops": torch.tensor(depth, dtype=torch.uint8)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        shared = {"hops": server["hops"]} if "hops" in server else {}
        if self.targets == "own":
            yield Ask("train", {}, shared=shared)
            return
        up = {"proto": Reduce.STACK, "present": Reduce.STACK, "counts": Reduce.STACK}
        got = yield Ask("train", up, shared=shared, private=self._downloads(server, ctx, cohort))
        self._remember(server, ctx, got)
        ctx.record_prototypes(got.ids, got["proto"][:, 0], got["present"][:, 0])
        known_LC = server["known"]
        queries = draw_queries(got["proto"], got["present"], known_LC, self.cross_hop, ctx.rng("cross-hop"))
        if queries:
            normalized = self.embedding == "unit"
            generator = PrototypeGenerator(known_LC.numel(), got["proto"].shape[-1], normalized)
            loss, steps = self._server_loss(queries, known_LC), (self.server_steps, self.server_lr)
            anchor_SH, ctx.notes["server loss"] = train_generator(
                server, generator, loss, *steps, self.server_weight_decay, ctx.random("generator")
            )
            server["anchor"] = anchor_SH.view(*known_LC.shape, -1)

    def _downloads(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> dict[int, Tree]:
        if "anchor" not in server:
            return {}
        uploads = Uploads(server["proto"], server["present"], server["counts"], server["fresh"])
        known_LC = server["known"]
        target_RLCH, ctx.notes["set size"], weight_RB = personal_targets(
            uploads, cohort, server["anchor"], known_LC, self.alpha, self.lam, weights=ctx.records is not None
        )
        if weight_RB is not None:
            ctx.record_mixing(cohort, range(len(ctx.clients)), weight_RB)
        return {i: pack(target_LCH, known_LC) for i, target_LCH in zip(cohort, target_RLCH)}

    def _remember(self, server: Tree, ctx: Context, got: Replies) -> None:
        for name in ("proto", "present", "counts"):
            new = got[name]
            server.setdefault(name, new.new_zeros(len(ctx.clients), *new.shape[1:]))[got.ids] = new
        server["fresh"] = torch.zeros(len(ctx.clients), dtype=torch.bool)
        server["fresh"][got.ids] = True
        server.setdefault("known", torch.zeros_like(got["present"][0]))
        server["known"] |= got["present"].any(0)

    def _server_loss(self, queries: Sequence[Queries], known_LC: Tensor) -> SumOfLevels:
        """Loss of the anchors `[L * C, H]`, summed over levels."""
        margin_of = {"margin": class_margin, "contrast": cosine_margin}.get(self.server_loss, largest_cosine)
        classes = known_LC.shape[1]
        margins = [margin_of(q.proto_QH[: q.own], q.class_Q[: q.own], classes, self.margin_cap) for q in queries]
        losses = {q.level: self._loss_of_level(q, known_LC[q.level], margin) for q, margin in zip(queries, margins)}
        return SumOfLevels(losses, len(known_LC))

    def _loss_of_level(self, q: Queries, known_C: Tensor, margin: float) -> AnchorLoss:
        """Loss of the anchors `[C, H]` of one level."""
        if self.server_loss == "margin":
            return MarginCrossEntropy(q.proto_QH, q.class_Q, known_C, margin)
        labels, constant = known_C.nonzero()[:, 0], self.server_loss == "eq4"

        def loss(anchor_CH: Tensor) -> Tensor:
            if self.server_loss == "contrast":
                return contrast(anchor_CH[labels], labels, q.proto_QH, q.class_Q, self.temperature, margin)
            return literal_contrast(anchor_CH[labels], labels, q.proto_QH, q.class_Q, margin, constant)

        return loss

    def receive(self, client: Client, down: Tree) -> Received:
        """Nothing is received before an evaluation."""
        hops = int(down["hops"]) if "hops" in down else self.hops
        if not isinstance(hops, int):
            return Received(0)
        if self.targets == "own" and "proto" in client.state:
            return Received(hops, (client.state["proto"], client.state["present"]))
        return Received(hops, unpack(down, hops + 1, client.info.classes))

    @property
    def is_mapped(self) -> bool:
        return self.alignment == "node" and self.cross_entropy == "mean"

    def row_terms(self, client: Client, received: Received) -> Sequence[SumTerm]:
        if (alignment_of_rows := self._alignment(client, received.targets)) is None:
            return ()
        rows, alignment = alignment_of_rows
        assert isinstance(alignment, SumAlignment)
        return (SumTerm(self.mu, client.model.some(rows), *alignment.parts),)

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        loss = self._fit(client, received, trainer)
        # The last step left the scorer a gradient.
        train_scorer(client.state, self.attention_lr)
        return loss

    def _fit(self, client: Client, received: Received, trainer: Trainer) -> float:
        """Trains on the loss and the alignment; where a step reads the whole graph, by one pass over it for both."""
        of_labels = summed_labels if self.cross_entropy == "sum" else None
        if (alignment_of_rows := self._alignment(client, received.targets)) is None:
            return trainer.fit(client, received, loss=of_labels)
        (rows, alignment), model = alignment_of_rows, client.model
        coupled = model.coupled if model.items is None else None
        if coupled is None or coupled.fanouts or trainer.options.batch_size is not None:
            forward, places = model.forward(rows), torch.arange(len(rows), device=rows.device)
            return trainer.fit(
                client, received, loss=of_labels, term=lambda: self.mu * alignment(forward().embedding_NH, places)
            )
        count = client.info.train if self.cross_entropy == "sum" else 1

        def loss(outputs: Outputs) -> Tensor:
            out = outputs[MODEL]
            return count * label_loss(client, out, "all") + self.mu * alignment(out.embedding_NH, rows)

        # A scorer learns in every step.
        learns = self.attention == "node"
        return train_jointly(client, trainer, {MODEL: loss if learns else pure(loss)})[MODEL]

    def _alignment(self, client: Client, targets: Targets | None) -> tuple[Tensor, Alignment] | None:
        """Returns rows, int64 `[R]`, and the alignment of their embeddings; None without a target."""
        if not self.mu or targets is None or not client.info.train:
            return None
        literal, raw, hops = self.hop_mean == "eq2", self.embedding == "raw", len(targets[0]) - 1
        if (kept := kept_annotation(client)) is None:
            nodes = self._annotate(client, hops)
            kept = nodes, hop_weights(nodes.graph, nodes.class_N, nodes.centre_N, hops, literal=literal)
        if (reach := reach_of(*kept, targets, literal, raw)) is None:
            return None
        if self.alignment == "node":
            alignment: Alignment = by_node(reach)
        else:
            scored = self.attention == "node"
            weights = attended_weights(client, reach, self.attention_lr) if scored else lambda: reach.weight_LR
            alignment = by_prototype(client, reach, weights)
        return reach.rows, alignment

    @property
    def _keeps_annotation(self) -> bool:
        """Whether the next visit reads no more of an upload's annotation than classes and weights."""
        return self.mu > 0 and self.attention == "none" and self.pseudo_centres is None

    def _annotate(self, client: Client, hops: int) -> Annotated:
        return annotate(client, self.pseudo_centres, self.similar if hops else 0, self.embedding == "raw")

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        class_N, centre_N, z_NH, graph = self._annotate(client, received.hops)
        scorer = client.state.get(SCORER)
        g_HN = None if scorer is None else attention_weights(scorer.detach(), z_NH)
        weight_LN, counts_LC = hop_weights(graph, class_N, centre_N, received.hops, g_HN, self.hop_mean == "eq2")
        proto_LCH = hop_prototypes(z_NH, class_N, weight_LN, client.info.classes)
        if self._keeps_annotation and client.data.items_are_rows and client.info.train:
            keep(client.state, class_N, weight_LN, counts_LC)
        present_LC = counts_LC > 0
        if self.targets == "own":
            client.state["proto"], client.state["present"] = proto_LCH, present_LC
            return Upload({})
        if self.noise:
            proto_LCH = noisy(proto_LCH, self.noise, client.rng("noise"))
        sent = 4 * proto_LCH.shape[-1] * int(present_LC.sum())
        return Upload(
            {"proto": proto_LCH, "present": present_LC, "counts": counts_LC[0]},
            upload_bytes={"proto": sent, "present": bit_bytes(present_LC)},
        )


def summed_labels(out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
    """Returns the cross-entropy summed over the rows of a batch, a scalar (FedPG, eq. 6)."""
    return F.cross_entropy(out.logits_NC, y, reduction="sum")


def depth_of(name: str, model: FlatModel) -> int:
    """Returns the steps from which a model reads: L of a GNN, K of hops; raises a ShoalError if it does not say."""
    if model.coupled is None:
        return max(model.inputs)
    if is_own(name):
        raise ShoalError("algorithm.hops", f"{name} does not say how many layers it has; set hops to a number")
    return model.coupled.depth
