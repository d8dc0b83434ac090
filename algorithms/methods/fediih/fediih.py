"""FedIIH: averages of disentangled models, each latent factor among the clients that are like in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Ask, Client, Context, Mix, Received, Requests, Tree, Upload
from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.fediih.likeness import mixing_rows
from shoal.algorithms.models.gnn.disengcn import DisenGCN
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import NotNegative, Positive

# Entries of messages: parameters of a factor, and those of none.
FACTOR, REST = "factor", "rest"


@dataclass(frozen=True)
class FedIIH(Algorithm):
    """FedIIH (Yu et al., AAAI 2025), inter- and intra-heterogeneity: personalised averages, factor by factor.

    Clients train a DisenGCN of K factors (`model: disengcn`) on cross-entropy. In evaluation mode `encoder_layers` more
    such layers follow its embedding; l_i^k `[D]` is the mean over all nodes of their part k. The server takes it for
    mean and log-variance of a normal distribution, compares these by their Jensen-Shannon divergence, and client i
    receives, of the parameters of factor k, sum_j a_ij^k w_j^k over the cohort, with

        a_ij^k = exp(scale (1 - JS(l_i^k, l_j^k) / ln 2)) / sum_j ...

    The parameters of a factor are the rows of the first layer, and the columns of the classifier, that it has; the
    classifier's bias is the plain mean. A client without a training node receives but does not count. One that takes
    part for the first time starts from the initial parameters.

    Written from the abstract and the authors' code; the paper's text was not at hand. There a hierarchical variational
    model infers l. In that code its encoder has no parameters of its own, and its bound moves two vectors alone, which
    nothing that is sent or predicts depends on: it is left out here. Mean and log-variance come from layers that are
    the same there, too, and differ by what is dropped; here they are sent as one. Its JS takes a normal distribution
    in place of the mixture, and is not bounded. It tunes width, K and layers to each graph.

    Down: the mix, P scalars, to a newcomer the initial parameters. Up: w_i and l_i, P + K D. scale = 0 is the plain
    mean of the cohort.

    Attributes:
        scale: How much likeness counts.
        encoder_layers: Layers behind the embedding; 2 in the authors' code where the model has several.
    """

    reads_embedding = True
    supports = frozenset({"node", "weighted", "newcomers"})

    scale: NotNegative = 10.0
    encoder_layers: Positive = 1

    # The server.

    def setup(self, ctx: Context) -> Tree:
        if not isinstance(ctx.build(MODEL, 0).backbone, DisenGCN):
            (kind,) = ctx.models[MODEL]
            raise ShoalError(
                "model.name",
                f"FedIIH mixes parameters by latent factors, expected disengcn, got {kind.name}; take disengcn, or "
                "fedpub",
            )
        return {"initial": ctx.initial, "met": torch.zeros(len(ctx.clients), dtype=torch.bool)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        backbone = ctx.build(MODEL, 0).backbone
        assert isinstance(backbone, DisenGCN)
        entries = [f"{FACTOR}.{k}" for k in range(backbone.factors)]
        newcomers = {i: {"w": server["initial"]} for i in cohort if not server["met"][i]}
        up = {**dict.fromkeys([*entries, REST], Reduce.MIX), "latent": Reduce.STACK}
        got = yield Ask("train", up, private=newcomers)
        if not got.ids:
            return
        counts_B = torch.tensor([ctx.clients[i].train > 0 for i in got.ids], device=ctx.device)
        rows_KBB = [mixing_rows(latent_BD, counts_B, self.scale) for latent_BD in got["latent"].unbind(1)]
        plain_BB = mixing_rows(torch.zeros_like(got["latent"][:, 0]), counts_B, 0.0)
        for entry, rows_BB in zip([*entries, REST], [*rows_KBB, plain_BB]):
            yield Mix(entry, rows_BB, dst=got.ids)
        mean_BB = torch.stack(rows_KBB).mean(0)
        ctx.notes["contributors"] = float(torch.stack([1 / rows.square().sum(1) for rows in rows_KBB]).mean())
        ctx.notes["own weight"] = float(mean_BB.diagonal().mean())
        ctx.record_mixing(got.ids, got.ids, mean_BB)
        server["met"][got.ids] = True

    # The clients.

    def receive(self, client: Client, down: Tree) -> Received:
        if REST in client.inbox:
            place_P = factor_of_parameters(client.model.flat)
            w = torch.empty_like(client.model.w)
            for k in range(int(place_P.max()) + 1):
                w[place_P == k] = client.inbox[f"{FACTOR}.{k}"]
            w[place_P < 0] = client.inbox[REST]
            client.model.load(w)
        elif "w" in down:
            client.model.borrow(down["w"])
        return down

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        place_P, w = factor_of_parameters(client.model.flat), client.model.w
        latent_KD = self._latent(client)
        factors = {f"{FACTOR}.{k}": w[place_P == k] for k in range(len(latent_KD))}
        return Upload({**factors, REST: w[place_P < 0], "latent": latent_KD})

    def _latent(self, client: Client) -> Tensor:
        """Computes l_i, `[K, D]`; zero without a node."""
        model, backbone = client.model, client.model.flat.backbone
        around = model.gathered("all")
        assert isinstance(backbone, DisenGCN)
        assert isinstance(around, Neighbourhood)
        x_NH = model.output(around).embedding_NH
        with torch.no_grad():
            for _ in range(self.encoder_layers):
                x_NH = backbone.disentangle(around.operators[0], x_NH)
        return (x_NH.sum(0) / max(len(x_NH), 1)).unflatten(0, (backbone.factors, -1))


def factor_of_parameters(flat: FlatModel) -> Tensor:
    """Numbers the factor that each parameter of a DisenGCN is of, int64 `[P]`; -1: of none."""
    backbone = flat.backbone
    assert isinstance(backbone, DisenGCN)
    width = backbone.head.linears[-1].get_parameter("weight").shape[1]
    factor_H = torch.arange(width, device=flat.w.device) // (width // backbone.factors)
    place_P = torch.full_like(flat.w, -1, dtype=torch.int64)
    for name, part in zip(dict(flat.module.named_parameters()), flat.parts(place_P)):
        if name == "lift.bias":
            part.copy_(factor_H)
        elif part.dim() == 2:
            part.copy_(factor_H[:, None] if name == "lift.weight" else factor_H)
    return place_P
