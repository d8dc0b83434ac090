"""FedStar: an encoder of structure for all; what is learnt of features stays at home."""

from dataclasses import dataclass
from itertools import takewhile

from shoal.algorithms.base import Client, Context, Received, Tree, Upload
from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import MODEL
from shoal.storage.errors import ShoalError

STAR = "star"


@dataclass(frozen=True)
class FedStar(FedAvg):
    """FedStar (Tan et al., AAAI 2023), for graph tasks: FedAvg of the structure encoders s of `star` models.

    s <- sum_i n_i s_i / sum_i n_i over the cohort. A client trains both of its encoders and its classifier end to end
    on cross-entropy; structure codes are fixed numbers, from its graphs alone. The feature encoder and the classifier
    never leave it. All structure encoders start as client 0's. Down: s `[P_s]`. Up: s_i and n_i, which counts graphs.
    """

    client_models = "personal"
    supports = frozenset({"graph", "newcomers", "targets"})

    def setup(self, ctx: Context) -> Tree:
        (kind,) = ctx.models[MODEL]
        if kind.name != STAR:
            raise ShoalError("model.name", f"FedStar shares the structure encoder of {STAR}, found {kind.name}")
        return {"w": ctx.initial[structure_of(ctx.build(MODEL, 0))].clone()}

    def global_model(self, server: Tree) -> Tree:
        return {"structure": server["w"]}

    def receive(self, client: Client, down: Tree) -> Received:
        if "structure" in down:
            w = client.model.w.clone()
            w[structure_of(client.model.flat)] = down["structure"]
            client.model.load(w)
        return down

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"w": client.model.w[structure_of(client.model.flat)]}, {"w": self.weight_of(client)})


def structure_of(flat: FlatModel) -> slice:
    """Finds the parameters of a model's structure encoder, which are neighbours, in `w`."""
    sizes = [(".structure." in f".{name}", p.numel()) for name, p in flat.module.named_parameters()]
    start = sum(size for _, size in takewhile(lambda named: not named[0], sizes))
    return slice(start, start + sum(size for is_inside, size in sizes if is_inside))
