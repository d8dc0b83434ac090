"""The whole local training of a model in one compiled call: steps of a compiled pass, with the loss of its outputs.

Axes: T training rows, C classes, P parameters.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.compiled.losses import Loss, lower_loss, trace_loss
from shoal.algorithms.models.compiled.operations import Base, Code, execute
from shoal.algorithms.models.compiled.passes import Arrays, Pass, Passes, addresses, parts_of
from shoal.algorithms.models.compiled.trace import Untraceable, Value
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.small_heads import OutputLoss, SmallModel, adam, in_one_batch, pull, sgd

KEPT = int(Base.KEPT)
OUTPUTS = [Base.LOGITS, Base.EMBEDDING]
GRADIENTS = [Base.OF_LOGITS, Base.OF_EMBEDDING]


class Plan(NamedTuple):
    """A pass over a client's inputs, and the loss of stand-ins for its outputs."""

    compiled: Pass
    loss: Loss
    outputs: tuple[Value, Value]


class TracedModel(SmallModel):
    """A model on the part of a graph, or the rows of sparse hops, that training rows read."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes

    def takes(self, inputs: Inputs, options: TrainOptions) -> bool:
        compiled = self._passes.of(inputs, embeds=False)
        return compiled is not None and in_one_batch(compiled.logits[0], options)

    def plan(self, inputs: Inputs, label_T: Tensor, loss: OutputLoss | None = None) -> Plan | None:
        compiled = self._passes.of(inputs, embeds=False)
        assert compiled is not None
        loss = loss or (lambda out, w: F.cross_entropy(out.logits_NC, label_T))
        try:
            traced, outputs = trace_loss(loss, compiled.logits, compiled.embedding)
        except (Untraceable, TypeError):
            # Stand-ins have few operators; autograd names what is wrong.
            return None
        if [(term.x is outputs[0], term.code) for term in traced.terms] != [(True, Code.CROSS_ENTROPIES)]:
            compiled = self._passes.of(inputs)
        return None if compiled is None else Plan(compiled, traced, outputs)

    def kept(self, plan: Plan) -> int:
        return plan.compiled.kept

    def draw(self, plan: Plan, out: Tensor) -> None:
        plan.compiled.draw(out)

    def train(self, plan: Plan, inputs: Inputs, *trained: Any) -> tuple[float, float]:
        compiled, loss, outputs = plan
        w, gradient, mean, square, kept, *options = trained
        rows = [part.numbers for part in outputs] * 2 if compiled.embeds else []
        room = self._passes.room(compiled.work + sum(rows))
        ends = room.memory.data_ptr() + 4 * (compiled.work + np.append(0, np.cumsum(rows, dtype=np.int64)))
        bases = addresses(parts_of(inputs) or (), True, work=room.memory)
        bases[[Base.WEIGHTS, Base.GRADIENTS, Base.KEPT]] = [part.ctypes.data for part in (w, gradient, kept)]
        if compiled.embeds:
            read = [any(term.x is part for term in loss.terms) for part in outputs]
            bases[OUTPUTS], bases[GRADIENTS] = ends[:2], np.where(read, ends[2:4], 0)
            places = {part: (int(ends[k]), int(ends[2 + k])) for k, part in enumerate(outputs)}
        else:
            # The gradient of logits takes their place.
            at = room.memory.data_ptr() + compiled.at
            places = {outputs[0]: (at, at)}
        total = np.zeros(1)
        operations, _constants = lower_loss(loss, places, total)
        losses: tuple[float, float] = _train(
            compiled.forward, operations.arrays(), compiled.backward, bases, total, loss.number,
            w, gradient, mean, square, 4 * compiled.kept, *options,
        )  # fmt: skip
        return losses


@numba.njit(cache=True, nogil=True)
def _train(
    forward: Arrays, of_loss: Arrays, backward: Arrays, bases: np.ndarray, loss: np.ndarray, constant: float,
    w: np.ndarray, gradient: np.ndarray, mean: np.ndarray, square: np.ndarray, kept_bytes: int, epochs: int,
    before: int, lr: float, weight_decay: float, total: np.ndarray, linear: np.ndarray, origin: np.ndarray, mu: float,
) -> tuple[float, float]:  # fmt: skip
    """See `SmallModel.train`; lists of operations are the first arguments of `execute`, and a step's loss is in `loss`.

    Numba keeps this function compiled, with `adam`, `pull` and `execute` in it, as long as this file stays as it is: a
    change of the other files is seen with one of this.
    """
    first = math.nan
    for epoch in range(epochs):
        loss[0] = constant
        execute(forward[0], forward[1], forward[2], forward[3], bases)
        execute(of_loss[0], of_loss[1], of_loss[2], of_loss[3], bases)
        if not epoch:
            first = loss[0]
        execute(backward[0], backward[1], backward[2], backward[3], bases)
        bases[KEPT] += kept_bytes
        pull(w, gradient, total, linear, origin, mu)
        if len(mean):
            adam(w, gradient, mean, square, before + epoch + 1, lr, weight_decay)
        else:
            sgd(w, gradient, np.float32(lr), np.float32(weight_decay))
    return loss[0], first
