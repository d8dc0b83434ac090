"""FedDC: every client keeps how far it drifted, and the server averages what is corrected by it."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from shoal.algorithms.base import Ask, Client, Context, Received, Requests, Term, Trainer, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.mean_gradient import Form, form_for, record_gradients, steps_of
from shoal.algorithms.protocol import Reduce
from shoal.algorithms.train_options import TrainOptions
from shoal.storage.options.types import NotNegative

# A client's state holds its drift and its last update under these names, `[P]` each; absent, they are zero.
DRIFT, UPDATE = "drift", "update"


@dataclass(frozen=True)
class FedDC(FedAvg):
    """FedDC (Gao et al., CVPR 2022): cross-entropy + alpha / 2 |h_i + w - w_sent|^2 + <w, g_i - g> / (lr K).

    h_i is the client's drift, g_i its last update, g the mean update of the last cohort, all zero at first, and K the
    client's steps. After training g_i <- w_i - w_sent and h_i <- h_i + g_i; the server averages w_i + h_i and g_i, both
    by `weight`.

    With an optimizer other than plain SGD an update is no multiple of a gradient: `variate: gradient` has the negative
    mean gradient of the loss instead of g_i / (lr K). Nor do drifts add up to anything that Adam can undo, whose steps
    are as long for a small gradient as for a large one: w_i is averaged alone then, and alpha has to be small. Down: w
    and g, `[P]` each. Up: w_i + h_i and g_i, and n_i. Without penalty (`alpha: 0`), linear term (`variate: off`, no g
    is kept or sent) and drift in what is averaged (`sends: off`) it is FedAvg, to the bit by autograd.

    Attributes:
        alpha: Weight of the penalty; None: 0.1 for SGD without momentum, otherwise 0.005. The paper has both.
        variate: `steps`, `gradient`, `off`, or `auto`: steps for SGD without momentum, gradient otherwise.
        sends: w_i with the drift `before` this training, or `after` it, as in the authors' code, where the first round
            goes twice as far; w_i alone (`off`); or `auto`: before for SGD without momentum, off otherwise.
    """

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

    def receive(self, client: Client, down: Tree) -> Received:
        return dict(super().receive(client, down))

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        if not client.info.train:
            return trainer.fit(client, received)
        steps, state = steps_of(client, trainer.options), client.state
        by_gradient = form_for(self.variate, trainer.options) == "gradient"
        alpha, sends = self._penalty_and_drift(trainer.options)
        received["scale"] = 1.0 if by_gradient else 1 / (trainer.options.lr * steps)
        with record_gradients(client) if by_gradient else nullcontext() as total:
            loss = trainer.fit(client, received, term=self._term(client, received, alpha))
        moved = client.model.w - received["w"]
        if self.variate != "off":
            state[UPDATE] = moved if total is None else -total / steps
        if alpha or sends != "off":
            before = state.get(DRIFT, torch.zeros_like(moved))
            state[DRIFT] = before + moved
            if sends != "off":
                received["corrected"] = client.model.w + (before if sends == "before" else state[DRIFT])
        return loss

    def _penalty_and_drift(self, options: TrainOptions) -> tuple[float, str]:
        """Chooses the penalty's weight, and `before`, `after` or `off`, from `alpha` and `sends`, by the optimizer."""
        alpha, sends = (0.1, "before") if form_for("auto", options) == "steps" else (0.005, "off")
        return alpha if self.alpha is None else self.alpha, sends if self.sends == "auto" else self.sends

    def _term(self, client: Client, received: Received, alpha: float) -> Term | None:
        w = client.model.flat.w
        target = received["w"] - client.state.get(DRIFT, 0)
        if self.variate == "off":
            return (lambda: alpha / 2 * (w - target).square().sum()) if alpha else None
        linear = received["scale"] * (client.state.get(UPDATE, 0) - received["g"])
        return lambda: alpha / 2 * (w - target).square().sum() + linear @ w

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        n, w = self.weight_of(client), received.get("corrected", client.model.w)
        if self.variate == "off":
            return Upload({"w": w}, {"w": n})
        update = client.state.get(UPDATE, torch.zeros_like(w))
        return Upload({"w": w, "g": update}, {"w": n, "g": n})
