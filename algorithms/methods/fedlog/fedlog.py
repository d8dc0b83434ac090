"""FedLoG: clients condense nodes of high and of low degree, and train on what all have condensed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from shoal.algorithms.base import Algorithm, Ask, Client, Context, Received, Requests, Trainer, Tree, Upload
from shoal.algorithms.client import FlatModel
from shoal.algorithms.losses.prototypes import unpack
from shoal.algorithms.methods.fedlog.prompts import drawn_generators, prompted, prompts
from shoal.algorithms.methods.shared.class_prototypes import known_rows, rows_upload, take_rows
from shoal.algorithms.methods.shared.requirements import require_body
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.algorithms.rng import Stream
from shoal.algorithms.training.joint_training import adding, label_loss, own_optimizer, require_whole_steps
from shoal.algorithms.training.local_training import bounded_loss, make_optimizer
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import Count, NotNegative, Share

# What a client's state holds: synthetic nodes, `[2, C, K, F]`, both normalisations, `[2, 2, H]`, and gamma, `[C]`. The
# first of two branches is for nodes of high degree.
NODES, NORMS, SCALE = "nodes", "norms", "scale"
HIGH = 0


class Message(NamedTuple):
    """The message to a client: both normalisations, the seed of the generators, and the global nodes.

    Of these there are the numbers `[C, K F]` and a mask of the classes that have some, `[C]`; None: there are none yet.
    """

    norms_2BH: Tensor
    seed: int
    rows: tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class FedLoG(Algorithm):
    """FedLoG (Kim et al., ICLR 2025), local generalization: GNNs that learn from nodes that all clients condense.

    Classes have prototypes instead of a classifier, in two branches b, of high and of low degree. A client keeps
    `nodes` synthetic nodes X_bck of each class and branch, at first Xavier-uniform, which are trained, too. With z the
    embedding by the GNN below its classifier (X are nodes alone), LN_b a normalisation with weight and bias, and
    a_v = sigmoid(degree - `degree` - 1) with the degree of v, loops apart,

        P_bc = mean over k of z(X_bck),   L_bv = CE(-|LN_b(z_v) - P_bc|^2),
        loss = mean over training nodes of a_v L_0v + (1 - a_v) L_1v
             + spread * (|X_0|_F + |X_1|_F) / 2 + generalize * mean over global nodes of (L_0 + L_1) / 2.

    The server mixes what clients condensed of high degree, G_ck = sum_i r_ic X_i0ck / sum_i r_ic, r_ic the share of c
    among i's training nodes; k is in a new random order at every client and round. A class that none of the cohort has
    keeps its G_c. From the second round on a client trains on x = G_ck + gamma_c (mean G - G_ck), each beside one
    neighbour, a prompt that a generator of the class makes of x. gamma_c is 0 at first, grows by `pace` in a step where
    more than `mastered` of a class's global nodes are recognised, falls by it elsewhere, and stays in [0, 1].

    GNN and normalisations are averaged over clients with a training node, each counting once; clients are scored by
    what they have trained, and predict by sum_b a_bv softmax. A client's first visit begins with `pre_epochs` of plain
    cross-entropy, which alone reads the classifier. Synthetic nodes take the config's steps without weight decay.

    Written from the abstract and the authors' code; the paper's text was not at hand. Two parts of it change nothing in
    that code, and are left out: messages of synthetic nodes to embeddings, which it gathers at the senders' places and
    reads at the receivers', so that zeros are added; and generators that clients train on features and gradients of
    neighbours and the server averages by class, which no client loads. Prompts are made, in the code and here, by
    untrained generators, the same for all clients. The code also stops `pre_epochs` early by accuracy on test nodes,
    takes batches of 64 training nodes, starts all clients from the same X, and trains on classes that nobody has; ours
    does not. Its GNN is a `sage` of two layers with `head: linear`, its moments begin anew in each round.

    Down: P + 4 H numbers, the seed, G of known classes, K F each, and a bit for every class. Up: P + 4 H numbers, 1,
    X_i0 of the C_i classes that the client has, and all r_ic, P + 4 H + 1 + C_i K F + C scalars.

    Attributes:
        nodes: Synthetic nodes K of a class in each branch.
        degree: Degree from which on a node counts as one of high degree.
        spread, generalize: Weights of the norm of synthetic nodes, and of the loss of global ones.
        pre_epochs: Epochs of a client's first visit before its others.
        mastered, pace: Share of recognised nodes, and step of gamma.
    """

    client_models = "personal"
    reads_embedding = True
    supports = frozenset({"node"})

    nodes: Annotated[int, Field(ge=1, le=1024)] = 20
    degree: Count = 3
    spread: NotNegative = 1.0
    generalize: NotNegative = 1.0
    pre_epochs: Count = 100
    mastered: Share = 0.8
    pace: Share = 0.001

    # The server.

    def setup(self, ctx: Context) -> Tree:
        require_whole_steps(ctx.train)
        model, (kind,) = ctx.build(MODEL, 0), ctx.models[MODEL]
        require_body(model, kind, "FedLoG puts prototypes in the classifier's place")
        if model.coupled is not None and model.coupled.fanouts:
            raise ShoalError("model.fanouts", "FedLoG embeds all training nodes in one step; leave it out")
        first_2H = torch.stack([torch.ones(kind.width), torch.zeros(kind.width)])
        seed = torch.tensor([ctx.random("generators")])
        return {"w": ctx.initial, NORMS: first_2H.expand(2, -1, -1).clone(), "seed": seed}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        shared = {name: server[name] for name in ("w", NORMS, "seed")}
        up = dict.fromkeys(("w", NORMS, "proto"), Reduce.MEAN)
        got = yield Ask("train", up, shared={**shared, **known_rows(server)})
        if got.weights["w"] > 0:
            server["w"], server[NORMS] = got["w"], got[NORMS]
        take_rows(server, got)

    # The clients.

    def receive(self, client: Client, down: Tree) -> Message | None:
        if "w" not in down:
            return None
        client.model.borrow(down["w"])
        return Message(down[NORMS], int(down["seed"]), unpack(down, client.info.classes))

    def train(self, client: Client, received: Message, trainer: Trainer, phase: str) -> float:
        trains = bool(client.info.train)
        model, state, classes = client.model, client.state, client.info.classes
        stream = Stream(client.data.device, model.random("train"))
        if NODES not in state:
            state[NODES] = self._first_nodes(client)
            state[SCALE] = torch.zeros(classes, device=client.data.device)
            if trains:
                self._pretrain(client, trainer, stream)
        scale_C = state[SCALE].clone()
        nodes, norms = (torch.nn.Parameter(t.clone()) for t in (state[NODES], received.norms_2BH))
        inputs = model.gathered("train")
        share_T = self._share_of_high(client)[client.data.train]
        with (
            trainer.optimizer(client) as of_model,
            own_optimizer(client, trainer, NORMS, norms) as of_norms,
            own_optimizer(client, trainer, NODES, nodes) as of_nodes,
        ):
            of_nodes.param_groups[0].update(weight_decay=0.0)
            model.flat.set_training(True)
            first = loss = torch.zeros(())
            for epoch in range(trainer.options.epochs):
                of_model.zero_grad(set_to_none=False)
                of_norms.zero_grad()
                of_nodes.zero_grad()
                with stream, adding(model):
                    proto_2CH = self._prototypes(model.flat, model.standalone(nodes.flatten(0, 2)), classes)
                    loss = self.spread * (nodes[0].norm() + nodes[1].norm()) / 2
                    if trains:
                        by_branch = _score(model(inputs).embedding_NH, norms, proto_2CH)
                        loss_2T = _losses(by_branch, client.data.train_label)
                        loss = loss + (share_T * loss_2T[0] + (1 - share_T) * loss_2T[1]).mean()
                    if self.generalize and received.rows is not None:
                        loss = loss + self.generalize * self._of_global(
                            client, received, received.rows, norms, proto_2CH, scale_C
                        )
                    loss.backward()
                of_model.step()
                of_norms.step()
                of_nodes.step()
                first = first if epoch else loss
        state[SCALE] = scale_C
        return bounded_loss(float(loss.detach()), float(first.detach()))

    def _first_nodes(self, client: Client) -> Tensor:
        """Draws synthetic nodes as Xavier-uniform matrices of a branch, `[2, C, K, F]`."""
        shape = 2, client.info.classes, self.nodes, client.data.features
        bound = (6 / (shape[1] * shape[2] + shape[3])) ** 0.5
        return torch.empty(shape, device=client.data.device).uniform_(-bound, bound, generator=client.rng(NODES))

    def _pretrain(self, client: Client, trainer: Trainer, stream: Stream) -> None:
        """Trains GNN and classifier on labels, by an optimizer of its own."""
        model, inputs = client.model, client.model.gathered("train")
        optimizer = make_optimizer([model.flat.w], trainer.options)
        model.flat.set_training(True)
        for _ in range(self.pre_epochs):
            optimizer.zero_grad(set_to_none=False)
            with stream:
                label_loss(client, model(inputs), "train").backward()
            optimizer.step()

    def _prototypes(self, flat: FlatModel, inputs: Inputs, classes: int) -> Tensor:
        """Averages the embeddings of synthetic nodes, `[2, C, H]`."""
        return _embed(flat, inputs).view(2, classes, self.nodes, -1).mean(2)

    def _share_of_high(self, client: Client) -> Tensor:
        """Computes how far each node counts as one of high degree, `[N]`."""
        # The degree of a view counts a loop.
        return torch.sigmoid(client.data.degree - (self.degree + 2))

    def _of_global(
        self,
        client: Client,
        received: Message,
        rows: tuple[Tensor, Tensor],
        norms_2BH: Tensor,
        proto_2CH: Tensor,
        scale_C: Tensor,
    ) -> Tensor:
        """Computes the loss of the global nodes; moves gamma in place."""
        node_CG, known_C = rows
        x_QKF = node_CG[known_C].view(-1, self.nodes, client.data.features)
        x_QKF = x_QKF + scale_C[known_C, None, None] * (x_QKF.mean((0, 1)) - x_QKF)
        layers = drawn_generators(received.seed, len(known_C), client.data.features, x_QKF.device)
        with torch.no_grad():
            prompt_QKF = prompts(layers, known_C, x_QKF)
        flat, y_M = client.model.flat, known_C.nonzero()[:, 0].repeat_interleave(self.nodes)
        inputs = prompted(flat, x_QKF.flatten(0, 1), prompt_QKF.flatten(0, 1))
        score_2MC = _score(_embed(flat, inputs)[: len(y_M)], norms_2BH, proto_2CH)
        both_MC = score_2MC.detach().log_softmax(2).mean(0)
        right_QK = (both_MC.argmax(1) == y_M).view(-1, self.nodes)
        up_Q = right_QK.float().mean(1) > self.mastered
        scale_C[known_C] = (scale_C[known_C] + self.pace * (2.0 * up_Q - 1)).clamp(0, 1)
        return _losses(score_2MC, y_M).mean()

    def upload(self, client: Client, received: Message, phase: str) -> Upload:
        info = client.info
        counts_C = torch.bincount(client.data.train_label, minlength=info.classes)
        order = torch.randperm(self.nodes, generator=client.rng("order"), device=client.data.device)
        nodes_CKF, counts = client.state[NODES][HIGH][:, order], float(bool(info.train))
        rows = rows_upload(nodes_CKF.flatten(1), counts_C / max(info.train, 1))
        norms = client.state[NORMS]
        entries = {"w": client.model.w, NORMS: norms, **rows.entries}
        return Upload(
            entries, {"w": counts, NORMS: counts, **rows.weight}, {NORMS: 4 * norms.numel(), **rows.upload_bytes}
        )

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        model, state = client.model, client.state
        if NODES not in state:
            return super().predict(client, received, part)
        share_N = self._share_of_high(client)
        if part == "all":
            z_NH = torch.cat([out.embedding_NH for out in model.outputs()])
        else:
            z_NH = model.output(model.gathered(part)).embedding_NH
            share_N = share_N[getattr(client.data, part)]
        model.flat.set_training(False)
        with torch.no_grad():
            inputs = model.standalone(state[NODES].flatten(0, 2))
            proto_2CH = self._prototypes(model.flat, inputs, client.info.classes)
            p_2NC = _score(z_NH, state[NORMS], proto_2CH).softmax(2)
        return torch.lerp(p_2NC[1], p_2NC[0], share_N[:, None]).log()


def _embed(flat: FlatModel, inputs: Inputs) -> Tensor:
    """Embeds nodes that a method makes, `[N, H]`; compiled passes have no gradient to their features."""
    with flat.precision():
        z_NH: Tensor = flat.module(inputs).embedding_NH
    return z_NH.float()


def _score(z_NH: Tensor, norms_2BH: Tensor, proto_2CH: Tensor) -> Tensor:
    """Computes |LN_b(z)|^2 - |LN_b(z) - P_bc|^2 of both branches, `[2, N, C]`: what is the same for all c cancels."""
    normed = torch.stack([F.layer_norm(z_NH, z_NH.shape[1:], weight, bias) for weight, bias in norms_2BH])
    return 2 * normed @ proto_2CH.mT - proto_2CH.square().sum(2)[:, None]


def _losses(score_2NC: Tensor, y_N: Tensor) -> Tensor:
    """Computes the cross-entropy of every node in both branches, `[2, N]`."""
    return torch.stack([F.cross_entropy(score_NC, y_N, reduction="none") for score_NC in score_2NC])
