"""FedTAD: the average learns on pseudo graphs from each client what that client knows reliably."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from shoal.algorithms.base import Ask, Client, Context, Received, Requests, Tree, Upload
from shoal.algorithms.client import FlatModel
from shoal.algorithms.losses.prototype_generator import train_kept
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.fedgen import sameness
from shoal.algorithms.methods.fedtad.pseudo_graph import NodeGenerator, even_labels, pseudo_inputs
from shoal.algorithms.methods.fedtad.reliability import class_reliability
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.storage.options.types import AboveZero, Count, NotNegative, Positive

# Bounds the nodes of a pseudo graph, all pairs of which are compared, and the width of the noise.
MOST = 4096


@dataclass(frozen=True)
class FedTAD(FedAvg):
    """FedTAD (Zhu et al., IJCAI 2024), topology-aware data-free distillation: FedAvg, then training on the server.

    Client i sends w_i and its reliability r_ic of every class (see `class_reliability`), which depends on its data
    alone. With shares s_ic = r_ic / sum_j r_jc over the cohort, G makes features of `nodes` pseudo nodes, even over the
    classes that some client of the cohort has; each is joined to its `neighbours` of the largest cosine. f is the
    averaged model, f_i a client's, and means run over the pseudo nodes v of a class:

        D = sum_i sum_c s_ic mean_v mean |f(v) - f_i(v)|
        L_G = semantic * sum_i sum_c s_ic mean_v CE(f_i(v), c) - D + diversity * sameness

    In each of `server_epochs` noise is drawn, G takes `generator_steps` down L_G, f_i having no gradient in D, and f
    `distil_steps` down D, by Adam, whose moments the server keeps with G. The sameness is that of FedGen. Nothing is
    dropped on the server; where less than two clients know a class, the average stays as it is. `server_epochs: 0` is
    FedAvg, to the bit.

    Written from the abstract and the authors' code; the paper's text was not at hand. Ours are: walks are of
    P = A D^-1 (those of the code stay where they begin), the sameness counts once (there once a client) and takes
    lengths of differences of noise (there their mean square), weights do not decay, and no pseudo node has a class that
    nobody has.

    Down: w. Up: w_i, n_i and r_i, P + 1 + C scalars.

    Attributes:
        server_epochs: Pseudo graphs of a round.
        generator_steps, distil_steps: Steps of G and of f on each.
        generator_lr, distil_lr: Their learning rates.
        nodes, neighbours: Pseudo nodes, and those that each is joined to.
        noise: Width of the noise.
        walks: Steps of random walks, whose chances to be back tell where a node lies.
        semantic, diversity: Weights in L_G.
    """

    supports = frozenset({"node", "newcomers"})

    server_epochs: Count = 5
    generator_steps: Positive = 1
    distil_steps: Positive = 5
    generator_lr: AboveZero = 1e-3
    distil_lr: AboveZero = 1e-3
    nodes: Annotated[int, Field(ge=1, le=MOST)] = 100
    neighbours: Positive = 5
    noise: Annotated[int, Field(ge=1, le=MOST)] = 32
    walks: Annotated[int, Field(ge=1, le=16)] = 5
    semantic: NotNegative = 1.0
    diversity: NotNegative = 1.0

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        if not self.server_epochs:
            yield from super().round(server, ctx, cohort)
            return
        up = {"w": Reduce.MEAN, "models": Reduce.STACK, "reliability": Reduce.STACK}
        got = yield Ask("train", up, shared=self.global_model(server))
        if got.weights["w"] > 0:
            server["w"] = got["w"]
        reliability_BC = got["reliability"]
        total_C = reliability_BC.sum(0)
        class_Q, knows_B = total_C.nonzero()[:, 0], reliability_BC.any(1)
        # The average of one model is that model, and signs of roundings would be the gradient.
        if int(knows_B.sum()) > 1:
            share_BC = reliability_BC[knows_B] / total_C.where(total_C > 0, 1)
            self._distil(server, ctx, got["models"][knows_B], share_BC, even_labels(class_Q, self.nodes))

    def _distil(self, server: Tree, ctx: Context, w_BP: Tensor, share_BC: Tensor, y_N: Tensor) -> None:
        """Trains G and the server's w on pseudo graphs, and notes their losses."""
        student, teacher = ctx.build(MODEL, 0), ctx.build(MODEL, 0)
        student.set_training(False)
        teacher.set_training(False)
        generator = NodeGenerator(self.noise, ctx.classes, ctx.features).to(ctx.device)
        # The nodes of a class count once together.
        weight_BN = share_BC[:, y_N] / torch.bincount(y_N)[y_N]
        rng, seed = ctx.rng("noise"), ctx.random("generator")
        for _ in range(self.server_epochs):
            noise_NZ = torch.randn(len(y_N), self.noise, generator=rng, device=y_N.device)
            student.load(server["w"])

            def misleading(noise_NZ: Tensor = noise_NZ) -> Tensor:
                x_NF = generator(noise_NZ, y_N)
                loss = self._loss_of_nodes(student, teacher, w_BP, x_NF, y_N, weight_BN)
                return loss + self.diversity * sameness(noise_NZ, x_NF) if self.diversity else loss

            ctx.notes["generator loss"] = train_kept(
                server, generator, misleading, self.generator_steps, self.generator_lr, 0.0, seed
            )
            with torch.no_grad():
                inputs = pseudo_inputs(student, generator(noise_NZ, y_N), self.neighbours)
                taught_BNC = torch.stack([_logits(teacher, inputs, w_P) for w_P in w_BP])

            def apart(inputs: Inputs = inputs, taught_BNC: Tensor = taught_BNC) -> Tensor:
                return _distance(_logits(student, inputs), taught_BNC, weight_BN)

            ctx.notes["distance"] = train_kept(
                server, student, apart, self.distil_steps, self.distil_lr, 0.0, seed, "w"
            )

    def _loss_of_nodes(
        self, student: FlatModel, teacher: FlatModel, w_BP: Tensor, x_NF: Tensor, y_N: Tensor, weight_BN: Tensor
    ) -> Tensor:
        """Computes L_G without the sameness; clients' models take turns in the memory of `teacher`."""
        rows_NF = x_NF.detach().requires_grad_()
        inputs = pseudo_inputs(student, rows_NF, self.neighbours)
        loss, gradient_NF, taught = x_NF.new_zeros(()), torch.zeros_like(rows_NF), []
        for w_P, weight_N in zip(w_BP, weight_BN):
            logits_NC = _logits(teacher, inputs, w_P)
            taught.append(logits_NC.detach())
            entropy = self.semantic * (weight_N * F.cross_entropy(logits_NC, y_N, reduction="none")).sum()
            gradient_NF += torch.autograd.grad(entropy, rows_NF)[0]
            loss += entropy.detach()
        distance = _distance(_logits(student, inputs), torch.stack(taught), weight_BN)
        gradient_NF -= torch.autograd.grad(distance, rows_NF)[0]
        # Has the value of the loss, and the gradient that was added up.
        along = (x_NF * gradient_NF).sum()
        return along - along.detach() + loss - distance.detach()

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        sent = super().upload(client, received, phase)
        if not self.server_epochs:
            return sent
        data = client.data
        known_C = data.cache(("reliability", self.walks), lambda: class_reliability(data, self.walks).to(data.device))
        # The parameters that are averaged are those of a teacher: they are sent once.
        return Upload({**sent.entries, "models": sent.entries["w"], "reliability": known_C}, sent.weight, {"models": 0})


def _logits(model: FlatModel, inputs: Inputs, w_P: Tensor | None = None) -> Tensor:
    """Scores pseudo nodes, `[N, C]`, by a model, or by parameters that replace its own."""
    if w_P is not None:
        model.load(w_P)
    with model.precision():
        logits_NC: Tensor = model.module(inputs).logits_NC
    return logits_NC.float()


def _distance(logits_NC: Tensor, taught_BNC: Tensor, weight_BN: Tensor) -> Tensor:
    """Computes D from the scores of the averaged model and of clients' models."""
    return (weight_BN * (logits_NC - taught_BNC).abs().mean(2)).sum()
