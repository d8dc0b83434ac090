"""LG-FedAvg: private bodies, one classifier for all."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.algorithms.base import Client, Context, Received, Tree, Upload
from shoal.algorithms.client import FlatModel
from shoal.algorithms.context import ModelInfo
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.requirements import require_body
from shoal.algorithms.protocol import MODEL
from shoal.storage.errors import ShoalError


@dataclass(frozen=True)
class LGFedAvg(FedAvg):
    """LG-FedAvg (Liang et al., 2020): FedAvg of the classifiers; what lies below them never leaves a client.

    A client keeps its own model, of any architecture whose embedding has the common width H, and trains it end to end
    on cross-entropy. Only the last linear layer is shared: c <- sum_i n_i c_i / sum_i n_i over the cohort. All start
    from the classifier of client 0's model. An absent client keeps all that it has. The paper starts from a model that
    some rounds of FedAvg trained, which clients of different models cannot have: here bodies start as `model.init`
    says.

    Down: c `[C H + C]`, weight row by row, then bias; with `head: conv` also what else that layer has. Up: c_i and n_i.
    Scores as `trained` are from before the download of a round, as `served` from after it.

    Attributes:
        weight: n_i, as FedAvg has it.
    """

    reads_embedding = True
    client_models = "heterogeneous"

    def setup(self, ctx: Context) -> Tree:
        models = [ctx.build(MODEL, number) for number in range(len(ctx.models[MODEL]))]
        for model, kind in zip(models, ctx.models[MODEL]):
            require_body(model, kind, f"{type(self).__name__} shares the classifier")
        _require_same_size(models, ctx.models[MODEL])
        first = models[ctx.clients[0].model]
        return {"w": first.w.detach()[first.classifier].clone()}

    def global_model(self, server: Tree) -> Tree:
        return {"classifier": server["w"]}

    def receive(self, client: Client, down: Tree) -> Received:
        if "classifier" in down:
            w = client.model.w.clone()
            w[client.model.flat.classifier] = down["classifier"]
            client.model.load(w)
        return down

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"w": client.model.w[client.model.flat.classifier]}, {"w": self.weight_of(client)})


def _require_same_size(models: Sequence[FlatModel], kinds: Sequence[ModelInfo]) -> None:
    sizes = [model.classifier.stop - model.classifier.start for model in models]
    for size, kind in zip(sizes, kinds):
        if size != sizes[0]:
            raise ShoalError(
                "model.head",
                f"classifiers are averaged, but that of {kinds[0].name} has {sizes[0]} parameters and that "
                f"of {kind.name} {size}; give all models head: linear",
            )
