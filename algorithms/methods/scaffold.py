"""SCAFFOLD: every step of a client is corrected by how its gradients differ from the mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.algorithms.base import Ask, Context, Pull, Requests, Tree
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.mean_gradient import Form, form_for
from shoal.algorithms.methods.shared.row_method import RowMethod
from shoal.algorithms.protocol import Reduce
from shoal.algorithms.train_options import TrainOptions
from shoal.storage.options.types import AboveZero

# A client's state holds its control variate c_i under this name, `[P]`; absent before its first training, when zero.
VARIATE = "variate"


@dataclass(frozen=True)
class SCAFFOLD(RowMethod, FedAvg):
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

    def kept_rows(self, options: TrainOptions) -> tuple[str, ...]:
        return () if self.variate == "off" else (VARIATE,)

    def pull_rows(self, kept: Tree, down: Tree, options: TrainOptions, steps: int) -> Pull | None:
        if self.variate == "off":
            return None
        linear = down["c"] - kept[VARIATE]
        by_gradient = form_for(self.variate, options) == "gradient"
        return Pull(linear, total=torch.zeros_like(linear) if by_gradient else None)

    def send_rows(
        self, kept: Tree, down: Tree, w: Tensor, total: Tensor | None, options: TrainOptions, steps: int
    ) -> tuple[Tree, Tree]:
        if self.variate == "off":
            return {"w": w}, {}
        before = kept[VARIATE]
        if total is not None:
            variate = total.div_(steps)
        else:
            variate = (down["w"] - w) / (steps * options.lr) - down["c"] + before
        return {"w": w, "change": variate - before}, {VARIATE: variate}

    def send_untrained(self, state: Tree, w: Tensor) -> Tree:
        return {} if self.variate == "off" else {"change": torch.zeros_like(w)}

    def entry_weight(self, entry: str, n: float) -> float:
        return n if entry == "w" else float(n > 0)
