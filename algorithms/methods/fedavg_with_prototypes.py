"""What methods do whose clients share a row for each class beside the parameters of one model."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from shoal.algorithms.base import Ask, Client, Context, Received, Requests, Tree, Upload
from shoal.algorithms.losses.prototypes import class_means, unpack
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.class_prototypes import known_rows, rows_upload, take_rows, training_embeddings
from shoal.algorithms.protocol import Reduce


@dataclass(frozen=True)
class AveragedRows(FedAvg):
    """FedAvg, and beside it prototypes p_c = sum_i n_ic p_ic / sum_i n_ic over the cohort, as FedProto has them.

    Down: w, the known p_c, and a bit for every class; in the first round w alone. Up: w_i, n_i, the p_ic of the C_i
    classes that the client trains on and all counts, P + 1 + C_i H + C scalars. p_ic are means of embeddings in
    evaluation mode after training. Everybody is evaluated with the averaged w.
    """

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        shared = {"w": server["w"], **known_rows(server), **self.besides(ctx)}
        got = yield Ask("train", {"w": Reduce.MEAN, "proto": Reduce.MEAN}, shared=shared)
        if got.weights["w"] > 0:
            server["w"] = got["w"]
        take_rows(server, got)

    def besides(self, ctx: Context) -> Tree:
        """What the downloads of a round hold beside w and the prototypes."""
        return {}

    def receive(self, client: Client, down: Tree) -> tuple[Tensor, Tensor] | None:
        """Loads w; gives the known prototypes, `[C, H]`, and which those are, `[C]`; None while there are none."""
        super().receive(client, down)
        return unpack(down, client.info.classes)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        model, data = super().upload(client, received, phase), client.data
        rows = rows_upload(*class_means(training_embeddings(client), data.train_label, client.info.classes))
        return Upload({**model.entries, **rows.entries}, {**model.weight, **rows.weight}, rows.upload_bytes)
