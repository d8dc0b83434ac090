"""S2FGL: FedAvg whose clients stay near the received model in likeness to classes and in frequencies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from shoal.algorithms.base import Ask, Client, Context, Received, Requests, Trainer, Tree, Upload
from shoal.algorithms.losses.distillation import distillation_loss
from shoal.algorithms.losses.prototypes import class_means, direction, pack, row_bytes, unit, unpack
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.s2fgl.bands import likeness_bands
from shoal.algorithms.methods.s2fgl.centrality import central_nodes
from shoal.algorithms.methods.shared.requirements import require_body
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.algorithms.training.joint_training import weighted_sum
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import AboveZero, Chance, NotNegative, Part, Positive

# A client of more nodes would follow walks from each of its training nodes over all of them.
MOST_NODES = 50_000


class Repository(NamedTuple):
    """The message to a client once there are prototypes: the known ones of all slots, `[K, H]`."""

    proto_KH: Tensor


@dataclass(frozen=True)
class S2FGL(FedAvg):
    """S2FGL (Tan et al., ICML 2025), spatial spectral federated graph learning: FedAvg with the loss

        CE + semantic * KL(t || s) + spectral * (MSE(low, low_w) + MSE(high, high_w))

    The server keeps a repository of `slots` prototypes of every class, each the mean over a share `sampled` of the
    cohort, drawn anew, weighted by counts; one that nobody drawn has stays. A client's prototypes are mean embeddings
    of its training nodes among the `central` share of its nodes, by centrality to labels (see `label_centrality`).

    From the second round on, t and s are softmax over all prototypes p of cos(z, p) / tau, averaged over all nodes, by
    the received model, frozen and in evaluation mode, and by the client's model in training. The second term compares
    the lowest and the highest frequencies (see `likeness_bands`) of both models' embeddings of the `aligned` share of
    nodes, the most central ones, `most_aligned` at most. Terms are added in every step. With both weights 0 it is
    FedAvg, to the bit with `engine.trainer: autograd`.

    Written from the abstract and the authors' code; the paper's text was not at hand. That code takes labels outside
    the training rows into prototypes, which are left out here; zero vectors of classes that nobody has; and sums over
    single eigenvectors, whose choice is free where eigenvalues repeat, of a matrix that is not symmetric. Its weight 60
    of `semantic` is the default, and its backbone the model of the config.

    Down: w, the known prototypes, and a bit for each; w alone in the first round. Up: w_i, n_i, prototypes of the C_i
    classes that the client has, and all counts, P + 1 + C_i H + C scalars.

    Attributes:
        semantic, spectral: Weights of the terms.
        slots, sampled: Prototypes of a class, and the share of the cohort that each is of.
        central, aligned: Shares of nodes that make prototypes, and that are compared.
        restart: Chance that a walk goes back to its beginning.
        tau: Temperature.
        neighbours, vectors: Nearest nodes of the graph of likeness, and its eigenvectors at either end.
        most_aligned: Bounds the size of its matrix; ours.
    """

    reads_embedding = True
    supports = frozenset({"node", "newcomers"})

    semantic: NotNegative = 60.0
    spectral: NotNegative = 1.0
    slots: Positive = 4
    sampled: Part = 0.7
    central: Part = 1 / 3
    aligned: Part = 0.2
    restart: Chance = 0.85
    tau: AboveZero = 1.0
    neighbours: Positive = 3
    vectors: Positive = 10
    most_aligned: Annotated[int, Field(ge=2)] = 1024

    @property
    def _aligns(self) -> bool:
        return bool(self.semantic or self.spectral)

    def setup(self, ctx: Context) -> Tree:
        server = super().setup(ctx)
        if not self._aligns:
            return server
        model, (kind,) = ctx.build(MODEL, 0), ctx.models[MODEL]
        require_body(model, kind, "S2FGL compares what is below the classifier")
        known_CS = torch.zeros(ctx.classes, self.slots, dtype=torch.bool)
        return {**server, "proto": torch.zeros(*known_CS.shape, ctx.width), "known": known_CS}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        if not self._aligns:
            yield from super().round(server, ctx, cohort)
            return
        repository = pack(server["proto"], server["known"]) if bool(server["known"].any()) else {}
        up = {"w": Reduce.MEAN, "proto": Reduce.STACK, "counts": Reduce.STACK}
        got = yield Ask("train", up, shared={"w": server["w"], **repository})
        if got.weights["w"] > 0:
            server["w"] = got["w"]
        rng, counts_BC = ctx.rng("repository"), got["counts"].float()
        for slot in range(self.slots):
            drawn = torch.randperm(len(counts_BC), generator=rng, device=counts_BC.device)
            drawn = drawn[: max(int(self.sampled * len(counts_BC)), 1)].sort().values
            count_C = counts_BC[drawn].sum(0)
            sum_CH = (counts_BC[drawn, :, None] * got["proto"][drawn]).sum(0)
            fresh_C = count_C > 0
            server["proto"][fresh_C, slot] = sum_CH[fresh_C] / count_C[fresh_C, None]
            server["known"][:, slot] |= fresh_C

    def receive(self, client: Client, down: Tree) -> Repository | None:
        super().receive(client, down)
        sent = unpack(down, client.info.classes, self.slots)
        if sent is None:
            return None
        proto_CSH, present_CS = sent
        return Repository(proto_CSH[present_CS])

    def train(self, client: Client, received: Repository | None, trainer: Trainer, phase: str) -> float:
        if not client.info.train or received is None or not self._aligns:
            return trainer.fit(client, received)
        model, inputs = client.model, client.model.gathered("all")
        aligned = self._nodes(client, "aligned", self.aligned, self.most_aligned)
        sent_NH = model.output(inputs).embedding_NH
        direction_KH = unit(received.proto_KH) / self.tau
        teacher_NK = unit(sent_NH) @ direction_KH.t()
        sent_bands = likeness_bands(sent_NH[aligned], self.neighbours, self.vectors)

        def term() -> Tensor:
            own_NH = model(inputs).embedding_NH

            def spectral() -> Tensor:
                own_bands = likeness_bands(own_NH[aligned], self.neighbours, self.vectors)
                return torch.stack([F.mse_loss(*pair) for pair in zip(own_bands, sent_bands)]).sum()

            return weighted_sum(
                (self.semantic, lambda: distillation_loss(teacher_NK, direction(own_NH) @ direction_KH.t())),
                (self.spectral, spectral),
            )

        return trainer.fit(client, received, term=term)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        sent = super().upload(client, received, phase)
        if not self._aligns:
            return sent
        data, classes = client.data, client.info.classes
        chosen = torch.isin(data.train, self._nodes(client, "central", self.central))
        embedding_NH = client.model.output(client.model.gathered("train")).embedding_NH
        proto_CH, counts_C = class_means(embedding_NH[chosen], data.train_label[chosen], classes)
        entries = {**sent.entries, "proto": proto_CH, "counts": counts_C}
        return Upload(entries, sent.weight, {"proto": row_bytes(counts_C > 0, proto_CH.shape[1])})

    def _nodes(self, client: Client, name: str, share: float, most: int | None = None) -> Tensor:
        """Lists the most central nodes of a client."""
        data = client.data
        if data.nodes > MOST_NODES:
            raise ShoalError(
                f"client {client.info.client} has {data.nodes:,} nodes, S2FGL follows walks over {MOST_NODES:,} at "
                "most; take more clients, or fgssl"
            )
        key = (name, self.restart, share, most)
        train = data.train.cpu().numpy()
        chosen: Tensor = data.cache(
            key, lambda: central_nodes(*data.csr, train, self.restart, share, most).to(data.device)
        )
        return chosen
