"""SCAFFOLD: every step of a client is corrected by how its gradients differ from the mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.algorithms.base import Ask, Client, Context, Pull, Received, Requests, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.mean_gradient import Form, form_for, steps_of
from shoal.algorithms.protocol import Reduce
from shoal.algorithms.train_options import TrainOptions
from shoal.storage.options.types import AboveZero

# A client's state holds its control variate c_i under this name, `[P]`; absent before its first training, when zero.
VARIATE = "variate"


@dataclass(frozen=True)
class SCAFFOLD(FedAvg):
    """SCAFFOLD (Karimireddy et al., ICML 2020, algorithm 1): to every gradient of a client, c - c_i is added.

    The correction is the gradient of a linear term of the loss, (c - c_i) . w. After K steps from w_sent the client
    has c_i <- c_i - c + (w_sent - w_i) / (K lr), the paper's option II, and sends w_i and the change of c_i. The server
    takes w <- w + eta (mean w_i - w) and c <- c + (clients that sent) / N * mean change, so that c is the mean of all
    c_i. N counts clients with training rows; all, where clients are hidden.

    The distance is K lr times a mean gradient with SGD alone, weight decay within. `gradient` records the mean gradient
    of the loss in its place, which is the same under SGD without momentum and weight decay, and means the same under
    any optimizer; Adam then rescales the corrected gradient. Down: w and c, `[P]` each. Up: w_i, the change of c_i,
    `[P]` each, and n_i.

    Attributes:
        variate: `steps` and `gradient` as above; `auto` is `steps` for SGD without momentum and `gradient` otherwise.
            `off` is FedAvg, to the bit with eta = 1.
        eta: The server's learning rate; 1 in the paper's experiments.
    """

    only_replaced = frozenset({VARIATE})
    weight: Literal["nodes", "train", "uniform"] = "uniform"
    variate: Form = "auto"
    eta: AboveZero = 1.0

    def setup(self, ctx: Context) -> Tree:
        state = super().setup(ctx)
        if self.variate == "off":
            return state
        form_for(self.variate, ctx.train)
        return {**state, "c": torch.zeros_like(ctx.initial)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        up = {"w": Reduce.MEAN} | ({"change": Reduce.MEAN} if "c" in server else {})
        got = yield Ask("train", up, shared=dict(server))
        if got.weights["w"] > 0:
            # The mean itself is taken with eta = 1, not rounded once more.
            server["w"] = got["w"] if self.eta == 1 else server["w"] + self.eta * (got["w"] - server["w"])
        if "c" in server:
            able = sum(info.train > 0 for info in ctx.clients)
            share = float(got.weights["change"]) / max(able, 1)
            server["c"] = server["c"] + share * got["change"]

    def receive(self, client: Client, down: Tree) -> Received:
        return dict(super().receive(client, down))

    def pull(self, client: Client, received: Received, options: TrainOptions) -> Pull | None:
        if self.variate == "off":
            return None
        before, w = client.state.get(VARIATE), client.model.flat.w
        by_gradient = form_for(self.variate, options) == "gradient"
        received["total"] = torch.zeros_like(w) if by_gradient else None
        received["steps"], received["lr"] = steps_of(client, options), options.lr
        return Pull(received["c"] if before is None else received["c"] - before, total=received["total"])

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        plain = super().upload(client, received, phase)
        if self.variate == "off":
            return plain
        change = self._change(client, received) if "steps" in received else torch.zeros_like(client.model.w)
        return Upload({**plain.entries, "change": change}, {**plain.weight, "change": float(client.info.train > 0)})

    def _change(self, client: Client, received: Received) -> Tensor:
        """Computes a client's new control variate after training, and how it differs from the one before."""
        before, steps = client.state.get(VARIATE, 0), received["steps"]
        if received["total"] is not None:
            # The sum is this visit's alone.
            variate = received["total"].div_(steps)
        else:
            variate = (received["w"] - client.model.w) / (steps * received["lr"]) - received["c"] + before
        client.state[VARIATE] = variate
        return variate - before
