"""FedDC: every client keeps how far it drifted, and the server averages what is corrected by it."""

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
from shoal.storage.options.types import NotNegative

# A client's state holds its drift and its last update under these names, `[P]` each; absent, they are zero.
DRIFT, UPDATE = "drift", "update"


@dataclass(frozen=True)
class FedDC(RowMethod, FedAvg):
    """FedDC (Gao et al., CVPR 2022): cross-entropy + alpha / 2 |h_i + w - w_sent|^2 + <w, g_i - g> / (lr K).

    h_i is the client's drift, g_i its last update, g the mean update of the last cohort, all zero at first, and K the
    client's steps. After training g_i <- w_i - w_sent and h_i <- h_i + g_i; the server averages w_i + h_i and g_i, both
    by `weight`.

    With an optimizer other than plain SGD an update is no multiple of a gradient: `variate: gradient` has the negative
    mean gradient of the loss instead of g_i / (lr K). Nor do drifts add up to anything that Adam can undo, whose steps
    are as long for a small gradient as for a large one: w_i is averaged alone then, and alpha has to be small. Down: w
    and g, `[P]` each. Up: w_i + h_i and g_i, and n_i. Without penalty (`alpha: 0`), linear term (`variate: off`, no g
    is kept or sent) and drift in what is averaged (`sends: off`) it is FedAvg, to the bit.

    Attributes:
        alpha: Weight of the penalty; None: 0.1 for SGD without momentum, otherwise 0.005. The paper has both.
        variate: `steps`, `gradient`, `off`, or `auto`: steps for SGD without momentum, gradient otherwise.
        sends: w_i with the drift `before` this training, or `after` it, as in the authors' code, where the first round
            goes twice as far; w_i alone (`off`); or `auto`: before for SGD without momentum, off otherwise.
    """

    only_replaced = frozenset({DRIFT, UPDATE})
    weight: Literal["nodes", "train", "uniform"] = "uniform"
    alpha: NotNegative | None = None
    variate: Form = "auto"
    sends: Literal["auto", "before", "after", "off"] = "auto"

    def setup(self, ctx: Context) -> Tree:
        state = super().setup(ctx)
        if self.variate == "off":
            return state
        form_for(self.variate, ctx.train)
        return {**state, "g": torch.zeros_like(ctx.initial)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", dict.fromkeys(server, Reduce.MEAN), shared=dict(server))
        if got.weights["w"] > 0:
            server.update({name: got[name] for name in server})

    def kept_rows(self, options: TrainOptions) -> tuple[str, ...]:
        alpha, sends = self._penalty_and_drift(options)
        drifts = bool(alpha) or sends != "off"
        return (*((UPDATE,) if self.variate != "off" else ()), *((DRIFT,) if drifts else ()))

    def pull_rows(self, kept: Tree, down: Tree, options: TrainOptions, steps: int) -> Pull | None:
        alpha, _ = self._penalty_and_drift(options)
        origin = down["w"] - kept[DRIFT] if alpha else None
        if self.variate == "off":
            return Pull(origin=origin, mu=alpha) if alpha else None
        by_gradient = form_for(self.variate, options) == "gradient"
        linear = kept[UPDATE] - down["g"]
        if not by_gradient:
            linear *= 1 / (options.lr * steps)
        return Pull(linear, origin, alpha, torch.zeros_like(linear) if by_gradient else None)

    def _penalty_and_drift(self, options: TrainOptions) -> tuple[float, str]:
        """Chooses the penalty's weight, and `before`, `after` or `off`, from `alpha` and `sends`, by the optimizer."""
        alpha, sends = (0.1, "before") if form_for("auto", options) == "steps" else (0.005, "off")
        return alpha if self.alpha is None else self.alpha, sends if self.sends == "auto" else self.sends

    def send_rows(
        self, kept: Tree, down: Tree, w: Tensor, total: Tensor | None, options: TrainOptions, steps: int
    ) -> tuple[Tree, Tree]:
        _, sends = self._penalty_and_drift(options)
        moved = w - down["w"]
        new = {UPDATE: moved if total is None else total.div_(-steps)} if self.variate != "off" else {}
        if DRIFT in kept:
            new[DRIFT] = kept[DRIFT] + moved
        if sends != "off":
            w = w + (kept[DRIFT] if sends == "before" else new[DRIFT])
        return {"w": w, **({"g": new[UPDATE]} if self.variate != "off" else {})}, new

    def send_untrained(self, state: Tree, w: Tensor) -> Tree:
        return {} if self.variate == "off" else {"g": state[UPDATE] if UPDATE in state else torch.zeros_like(w)}
