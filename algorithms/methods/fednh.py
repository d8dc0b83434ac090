"""FedNH: the classifier is a set of directions far apart, which move with the classes but are not trained."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.algorithms.base import Ask, Client, Context, Output, Received, Requests, Tree, Upload, pure
from shoal.algorithms.losses.prototype_losses import contrast
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.body import as_layer, body_of, join_body
from shoal.algorithms.methods.shared.class_prototypes import rows_upload, training_embeddings, training_means
from shoal.algorithms.methods.shared.requirements import require_body, require_weight
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.storage.options.types import AboveZero, Share


def spread(classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Makes unit vectors, `[C, H]`, one a class, turned at random.

    For C <= H + 1 they are a simplex, all cosines -1 / (C - 1), for C <= 2 H an orthonormal basis and its opposites:
    the largest cosine is the smallest there is (Rankin, 1955). For more classes further bases follow, each turned by
    itself; what is best there has no closed form.
    """
    if classes <= width + 1:
        corners = _simplex(classes, generator.device)
        return unit(corners @ _random_basis(width, generator)[: corners.shape[1]]).float()
    bases: list[Tensor] = []
    for _ in range(0, classes, 2 * width):
        basis_HH = _random_basis(width, generator)
        bases += [basis_HH, -basis_HH]
    return torch.cat(bases)[:classes].float()


def _simplex(classes: int, device: torch.device) -> Tensor:
    """Corners of a simplex around the origin, float64 `[C, C - 1]`: an orthonormal frame without its mean (Helmert)."""
    if classes == 1:
        return torch.ones(1, 1, dtype=torch.float64, device=device)
    k = torch.arange(1, classes, dtype=torch.float64, device=device)
    corners = torch.ones(classes, classes - 1, dtype=torch.float64, device=device).triu()
    corners[range(1, classes), range(classes - 1)] = -k
    return corners / (k * (k + 1)).sqrt()


def _random_basis(width: int, generator: torch.Generator) -> Tensor:
    """Draws an orthonormal basis, rows of float64 `[H, H]`."""
    drawn = torch.randn(width, width, dtype=torch.float64, device=generator.device, generator=generator)
    return torch.linalg.qr(drawn)[0].t()


@dataclass(frozen=True)
class FedNH(FedAvg):
    """FedNH (Dai et al., AAAI 2023): bodies are averaged, and the classifier W, `[C, H]`, has rows of length one.

    W starts by `spread`, where the paper searches for the best directions. Scores of an embedding z are
    scale * cos(z, W_c); a client trains its body on their cross-entropy, W held fixed. Then it sends
    mu_ic = unit(mean of unit(z_v)) over its n_ic training rows of class c, in evaluation mode, and

        W_c <- unit(rho W_c + (1 - rho) unit(sum_i n_ic mu_ic / sum_i n_ic))

    over the cohort; a class that no client has keeps its W_c. W without bias replaces the model's own classifier, so
    that the model alone predicts the same class.

    Down: the body, `[P - P_h]`, and W. Up: the body, n_i, the mu_ic of the C_i classes that the client trains on, and
    all counts: P - P_h + 1 + C_i H + C scalars. The paper has rho = 0.9, and its code `weight: uniform` for bodies.
    """

    reads_embedding = True

    scale: AboveZero = 20.0
    rho: Share = 0.9

    def setup(self, ctx: Context) -> Tree:
        kind = ctx.models[MODEL][0]
        model = ctx.build(MODEL, 0)
        require_body(model, kind, "FedNH has a classifier that is not trained")
        require_weight(model, kind, "FedNH replaces the classifier's weight by directions")
        return {"w": body_of(model, ctx.initial), "classes": spread(ctx.classes, kind.width, ctx.rng("classifier"))}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MEAN, "proto": Reduce.MEAN}, shared=self.global_model(server))
        if got.weights["w"] > 0:
            server["w"] = got["w"]
        seen_C1 = got.weights["proto"] > 0
        moved_CH = unit(self.rho * server["classes"] + (1 - self.rho) * unit(got["proto"]))
        server["classes"] = moved_CH.where(seen_C1, server["classes"])

    def global_model(self, server: Tree) -> Tree:
        return {"w": server["w"], "classes": server["classes"]}

    def receive(self, client: Client, down: Tree) -> Tensor | None:
        """Loads the body, and W in the classifier's place; gives W, `[C, H]`."""
        if "w" not in down:
            return None
        classes_CH = down["classes"]
        classifier = torch.cat([classes_CH.flatten(), classes_CH.new_zeros(len(classes_CH))])
        client.model.load(join_body(client.model.flat, down["w"], classifier))
        return classes_CH

    @pure
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Tensor) -> Tensor:
        # The cross-entropy of scale * cosines.
        return contrast(out.embedding_NH, y, received, torch.arange(len(received), device=y.device), 1 / self.scale)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        means_CH, counts_C = training_means(client, unit(training_embeddings(client)))
        rows = rows_upload(unit(means_CH), counts_C)
        entries = {"w": body_of(client.model.flat), **rows.entries}
        return Upload(entries, {"w": self.weight_of(client), **rows.weight}, rows.upload_bytes)

    def predict(self, client: Client, received: Tensor | None, part: str) -> Tensor:
        model = client.model
        if received is None:
            received, _ = as_layer(model.w[model.flat.classifier], client.info.classes)
        if part == "all":
            return torch.cat([self._scores(out.embedding_NH, received) for out in model.outputs()])
        return self._scores(model.output(model.gathered(part)).embedding_NH, received)

    def _scores(self, z_NH: Tensor, classes_CH: Tensor) -> Tensor:
        return self.scale * unit(z_NH) @ unit(classes_CH).t()
