"""FedSpray: GNNs of the clients' own, regularised by targets from features and aligned structure proxies."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from shoal.algorithms.base import Algorithm, Ask, Client, Context, Received, Requests, Trainer, Tree, Upload, pure
from shoal.algorithms.client import FlatModel
from shoal.algorithms.losses.distillation import distillation_loss, distilled_by_class
from shoal.algorithms.losses.prototypes import class_means
from shoal.algorithms.methods.fedspray.structure_encoder import StructureEncoder
from shoal.algorithms.methods.shared.class_prototypes import rows_upload, take_rows
from shoal.algorithms.models.inputs.neighbourhood import kept_rows
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.algorithms.training.joint_training import (
    Outputs,
    label_loss,
    own_moments,
    own_optimizer,
    require_whole_steps,
    train_jointly,
    weighted_sum,
)
from shoal.algorithms.training.local_training import bounded_loss
from shoal.storage.options.types import AboveZero, NotNegative, Share

# A client's state holds proxies of its training rows under the first name, and moments of the encoder by the second.
PROXY, ENCODER = "proxy", "encoder"
# The first proxy of a training row, and the first one of class c over c, as in the authors' code.
FIRST_OF_ROW, FIRST_BY_CLASS = 0.1, 0.01


class Message(NamedTuple):
    """The message to a client: the averaged encoder, and the aligned proxies, `[C, H]`."""

    encoder: FlatModel
    proxy_CH: Tensor


@dataclass(frozen=True)
class FedSpray(Algorithm):
    """FedSpray (Fu et al., KDD 2024), structure proxy alignment.

    A client's GNN, of any kind, never leaves it. What is averaged, weighted by training nodes, is an encoder
    h_v = ReLU(W x_v + b) that reads no edges, with two classifiers: a(h_v), and g(h_v + s_v) with a structure proxy s_v
    in place of neighbours. A training node keeps a proxy of its own; any other node has the mean of the proxies S_c
    of classes, weighted by a's probabilities. A visit trains, each for the epochs of the config, first the GNN on

        CE(train) + lam * mean KL(g(h_v + s_v) || GNN(v))

    with the received encoder, over training nodes and all that a is surer of than `threshold`; then encoder and own
    proxies, over training nodes alone, on CE(a) + mean KL(GNN(v) || g(h_v + s_v)), the GNN being that of now, frozen.
    Proxies take steps of the config's optimizer at `proxy_lr`, without weight decay; nothing is dropped in the encoder.
    The server aligns S_c = sum_i r_ic s_ic / sum_i r_ic over the cohort, s_ic the mean of client i's proxies of class c
    and r_ic the share of c among its training nodes; a class that no client has keeps S_c. At first own proxies are 0.1
    and S_c is 0.01 c in all dimensions.

    A client without a training node learns from targets alone, and has weight 0. `lam: 0` trains the GNN as Local.

    Written from the abstract and the authors' code; the paper's text was not at hand. That code begins a client's
    training of a with the averaged parameters of g, and divides by zero for a class that nobody has; ours does neither.

    Down: P_s parameters of encoder and classifiers, and S, P_s + C H. Up: P_s parameters, the count of training nodes,
    s_ic of the C_i classes that the client has, and all r_ic, P_s + 1 + C_i H + C scalars.

    Attributes:
        lam: Weight of the targets.
        threshold: Probability from which on a node without a label is taught.
        hidden: Width H of encoder and proxies.
        proxy_lr: Learning rate of proxies.
    """

    client_models = "heterogeneous"
    # The encoder is for the nodes that are predicted.
    supports = frozenset({"node", "weighted", "newcomers"})

    lam: NotNegative = 1.0
    threshold: Share = 0.7
    hidden: Annotated[int, Field(ge=1, le=4096)] = 64
    proxy_lr: AboveZero = 0.02

    # The server.

    def setup(self, ctx: Context) -> Tree:
        require_whole_steps(ctx.train)
        encoder = FlatModel(StructureEncoder(ctx.features, self.hidden, ctx.classes))
        first_C = FIRST_BY_CLASS * torch.arange(ctx.classes, device=ctx.device)
        return {"w": encoder.initial(ctx.random(ENCODER)), "proto": first_C[:, None].expand(-1, self.hidden).clone()}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        shared = {"w": server["w"], "proto": server["proto"]}
        got = yield Ask("train", {"w": Reduce.MEAN, "proto": Reduce.MEAN}, shared=shared)
        if got.weights["w"] > 0:
            server["w"] = got["w"]
        take_rows(server, got)

    # The clients.

    def receive(self, client: Client, down: Tree) -> Message | None:
        if "w" not in down:
            return None
        encoder = FlatModel(StructureEncoder(client.data.features, self.hidden, client.info.classes))
        encoder.load(down["w"])
        return Message(encoder, down["proto"])

    def train(self, client: Client, received: Message, trainer: Trainer, phase: str) -> float:
        loss = self._train_gnn(client, received, trainer)
        if client.info.train:
            self._train_encoder(client, received.encoder, trainer)
        return loss

    def _train_gnn(self, client: Client, received: Message, trainer: Trainer) -> float:
        """Trains the client's GNN on its labels and on targets that stay as they are."""
        if not self.lam:
            return trainer.fit(client, received)
        data, encoder = client.data, received.encoder.module
        assert isinstance(encoder, StructureEncoder)
        with torch.no_grad():
            out = encoder(data.whole(0))
            p_NC = out.logits_NC.softmax(1)
            proxy_NH = p_NC @ received.proxy_CH
            proxy_NH[data.train] = self._own_proxies(client)
            target_NC = encoder.classify(out.embedding_NH, proxy_NH)
        taught_N = p_NC.max(1).values > self.threshold
        taught_N[data.train] = True
        if not bool(taught_N.any()):
            return float("nan")
        node_N = torch.arange(len(taught_N), device=taught_N.device)

        def loss(outputs: Outputs) -> Tensor:
            out = outputs[MODEL]
            return weighted_sum(
                (float(bool(client.info.train)), lambda: label_loss(client, out, "all")),
                (self.lam, lambda: distilled_by_class(target_NC, taught_N, node_N, out.logits_NC)),
            )

        return train_jointly(client, trainer, {MODEL: pure(loss)})[MODEL]

    def _train_encoder(self, client: Client, flat: FlatModel, trainer: Trainer) -> None:
        """Trains the encoder in place, and the proxies of training nodes in the client's state."""
        data, encoder = client.data, flat.module
        assert isinstance(encoder, StructureEncoder)
        x_TF = data.cache(("train", 0), partial(kept_rows, data, 0, data.train))
        taught_TC = client.model.output(client.model.gathered("train")).logits_NC
        proxy = torch.nn.Parameter(self._own_proxies(client).clone())
        optimizers = own_moments(client, trainer, ENCODER, flat.w), own_optimizer(client, trainer, PROXY, proxy)
        with optimizers[0] as of_encoder, optimizers[1] as of_proxy:
            of_proxy.param_groups[0].update(lr=self.proxy_lr, weight_decay=0.0)
            first = loss = torch.zeros(())
            for epoch in range(trainer.options.epochs):
                of_encoder.zero_grad(set_to_none=False)
                of_proxy.zero_grad()
                out = encoder(x_TF)
                scored_TC = encoder.classify(out.embedding_NH, proxy)
                loss = F.cross_entropy(out.logits_NC, data.train_label) + distillation_loss(taught_TC, scored_TC)
                loss.backward()
                of_encoder.step()
                of_proxy.step()
                first = first if epoch else loss
        bounded_loss(float(loss.detach()), float(first.detach()))

    def _own_proxies(self, client: Client) -> Tensor:
        """Returns the proxies of the client's training nodes, `[T, H]`, which at first are all the same."""
        kept = client.state.get(PROXY)
        if kept is None:
            return torch.full((client.info.train, self.hidden), FIRST_OF_ROW, device=client.data.device)
        return kept

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        proxy_CH, counts_C = class_means(self._own_proxies(client), client.data.train_label, client.info.classes)
        rows = rows_upload(proxy_CH, counts_C / max(client.info.train, 1))
        weight = {"w": float(client.info.train), **rows.weight}
        return Upload({"w": received.encoder.w.detach(), **rows.entries}, weight, rows.upload_bytes)
