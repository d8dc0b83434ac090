"""LG-FedAvg: private bodies, one classifier for all."""

from dataclasses import dataclass

from shoal.algorithms.base import Client, Context, Received, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.body import classifier_of
from shoal.algorithms.methods.shared.requirements import require_body
from shoal.algorithms.protocol import MODEL
from shoal.storage.errors import ShoalError


@dataclass(frozen=True)
class LGFedAvg(FedAvg):
    """LG-FedAvg (Liang et al., 2020): FedAvg of the classifiers; what lies below them never leaves a client.

    A client keeps its own model, of any architecture whose embedding has the common width H, and trains it end to end
    on cross-entropy. Only the last linear layer is shared: c <- sum_i n_i c_i / sum_i n_i over the cohort. All start
    from the classifier of client 0's model, bodies as `model.init` says; the paper starts from some rounds of FedAvg,
    which clients of different models cannot have. An absent client keeps all that it has.

    Down: c `[C H + C]`, weight row by row, then bias; with `head: conv` also what else that layer has. Up: c_i and n_i.
    """

    reads_embedding = True
    client_models = "heterogeneous"

    def setup(self, ctx: Context) -> Tree:
        kinds = ctx.models[MODEL]
        models = [ctx.build(MODEL, number) for number in range(len(kinds))]
        for model, kind in zip(models, kinds):
            require_body(model, kind, f"{type(self).__name__} shares the classifier")
        first_size, *sizes = [model.classifier.stop - model.classifier.start for model in models]
        for size, kind in zip(sizes, kinds[1:]):
            if size != first_size:
                raise ShoalError(
                    "model.head",
                    f"classifiers are averaged, but that of {kinds[0].name} has {first_size} parameters and that "
                    f"of {kind.name} {size}; give all models head: linear",
                )
        return {"w": classifier_of(models[ctx.clients[0].model])}

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
