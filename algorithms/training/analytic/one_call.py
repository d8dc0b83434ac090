"""The whole local training of a model that has compiled passes, all its steps in one call.

Axes: E steps, T training nodes, C classes, P parameters.
"""

import math
from typing import Any

import numba
import numpy as np
from torch import Tensor

from shoal.algorithms.models.compiled.operations import Base, execute, matrix_at
from shoal.algorithms.models.compiled.passes import Arrays, Pass, Passes, addresses, parts_of
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.heads import cross_entropy
from shoal.algorithms.training.analytic.small_heads import SmallModel, adam, in_one_batch, pull, sgd

WORK, KEPT = int(Base.WORK), int(Base.KEPT)


class TracedModel(SmallModel):
    """A model on the part of a graph, or the rows of sparse hops, that training rows read."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes

    def takes(self, inputs: Inputs, options: TrainOptions) -> bool:
        compiled = self._passes.of(inputs, embeds=False)
        return compiled is not None and in_one_batch(compiled.logits[0], options)

    def plan(self, inputs: Inputs) -> Pass:
        compiled = self._passes.of(inputs, embeds=False)
        assert compiled is not None
        return compiled

    def kept(self, plan: Pass) -> int:
        return plan.kept

    def draw(self, plan: Pass, out: Tensor) -> None:
        plan.draw(out)

    def train(self, plan: Pass, inputs: Inputs, label_T: Tensor, *trained: Any) -> tuple[float, float]:
        w, gradient, mean, square, kept, *options = trained
        room = self._passes.room(plan.work)
        bases = addresses(parts_of(inputs) or (), True, work=room.memory)
        bases[[Base.WEIGHTS, Base.GRADIENTS, Base.KEPT]] = [part.ctypes.data for part in (w, gradient, kept)]
        logits = plan.at, plan.logits[1], label_T.numpy()
        vectors = w, gradient, mean, square
        losses: tuple[float, float] = _train(
            plan.forward, plan.backward, bases, *logits, *vectors, 4 * plan.kept, *options
        )
        return losses


@numba.njit(cache=True, nogil=True)
def _train(
    forward: Arrays, backward: Arrays, bases: np.ndarray, logits_at: int, classes: int, label: np.ndarray,
    w: np.ndarray, gradient: np.ndarray, mean: np.ndarray, square: np.ndarray, kept_bytes: int, epochs: int,
    before: int, lr: float, weight_decay: float, total: np.ndarray, linear: np.ndarray, origin: np.ndarray, mu: float,
) -> tuple[float, float]:  # fmt: skip
    """See `SmallModel.train`; a pass is the first arguments of `execute`, and its logits lie behind `Base.WORK`.

    Numba keeps this function compiled, with `adam`, `pull` and `execute` in it, as long as this file stays as it is: a
    change of the other files is seen with one of this.
    """
    logits = matrix_at(bases[WORK] + logits_at, len(label), classes)
    loss = first = math.nan
    for epoch in range(epochs):
        execute(forward[0], forward[1], forward[2], forward[3], bases)
        loss = cross_entropy(logits, label)
        if not epoch:
            first = loss
        logits *= np.float32(1 / len(label))
        execute(backward[0], backward[1], backward[2], backward[3], bases)
        bases[KEPT] += kept_bytes
        pull(w, gradient, total, linear, origin, mu)
        if len(mean):
            adam(w, gradient, mean, square, before + epoch + 1, lr, weight_decay)
        else:
            sgd(w, gradient, np.float32(lr), np.float32(weight_decay))
    return loss, first
