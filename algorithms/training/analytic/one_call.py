"""The whole local training of a model in one compiled call: steps of compiled passes, with the loss of their outputs.

Axes: T training rows, C classes, P parameters.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.compiled.losses import Loss, Places, lower_loss, trace_loss
from shoal.algorithms.models.compiled.operations import Base, Code, execute
from shoal.algorithms.models.compiled.passes import Arrays, Call, Passes, addresses, joined, parts_of
from shoal.algorithms.models.compiled.trace import Untraceable
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.compiled_steps import adam, pull, sgd
from shoal.algorithms.training.analytic.small_heads import LossOf, SmallModel, in_one_batch

OUTPUTS = [Base.LOGITS, Base.EMBEDDING]
GRADIENTS = [Base.OF_LOGITS, Base.OF_EMBEDDING]


class Plan(NamedTuple):
    """Passes, and the loss of their outputs; `in_place`: it reads logits alone, whose gradient takes their place."""

    calls: list[Call]
    loss: Loss
    in_place: bool


class TracedModel(SmallModel):
    """A model on the part of a graph, or the rows of sparse hops, that training rows read."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes

    def takes(self, inputs: Inputs, options: TrainOptions) -> bool:
        compiled = self._passes.of(inputs, embeds=False)
        return compiled is not None and in_one_batch(compiled.logits[0], options)

    def plan(self, inputs: Inputs, label_N: Tensor, loss_of: LossOf | None = None) -> Plan | None:
        def cross_entropy(w: Tensor) -> Tensor:
            out = self._passes.output(inputs)
            assert out is not None
            return F.cross_entropy(out.logits_NC, label_N)

        try:
            loss, calls = trace_loss(self._passes, loss_of or cross_entropy)
        except (Untraceable, TypeError):
            # Stand-ins have few operators; autograd names what is wrong.
            return None
        logits = calls[0].outputs[0]
        if len(calls) == 1 and [(term.x, term.code) for term in loss.terms] == [(logits, Code.CROSS_ENTROPIES)]:
            return Plan(calls, loss, in_place=True)
        whole = [(call, self._passes.of(call.inputs)) for call in calls]
        embedding = [call._replace(compiled=compiled) for call, compiled in whole if compiled is not None]
        return Plan(embedding, loss, in_place=False) if len(embedding) == len(calls) else None

    def kept(self, plan: Plan) -> int:
        return sum(call.compiled.kept for call in plan.calls)

    def draw(self, plan: Plan, out: Tensor) -> None:
        for call, of_call in zip(plan.calls, out.split([call.compiled.kept for call in plan.calls])):
            call.compiled.draw(of_call)

    def train(self, plan: Plan, *trained: Any) -> tuple[float, float]:
        w, gradient, mean, square, kept, *options = trained
        bases: list[np.ndarray] = []
        rooms, kept_at = [], []
        places: Places = {}
        next_kept, a_step = kept.ctypes.data, 4 * self.kept(plan)
        for call in plan.calls:
            compiled = call.compiled
            rows = [] if plan.in_place else [value.numbers for value in call.outputs] * 2
            rooms.append(room := self._passes.room(compiled.work + sum(rows)))
            memory = room.memory.data_ptr()
            own = addresses(parts_of(call.inputs) or (), True, work=room.memory)
            own[[Base.WEIGHTS, Base.GRADIENTS, Base.KEPT]] = w.ctypes.data, gradient.ctypes.data, next_kept
            kept_at.append(sum(len(part) for part in bases) + Base.KEPT)
            next_kept += 4 * compiled.kept
            if plan.in_place:
                places[call.outputs[0]] = (memory + compiled.at,) * 2
            else:
                starts = memory + 4 * (compiled.work + np.cumsum([0, *rows[:3]]))
                own[OUTPUTS + GRADIENTS] = starts
                places |= {value: (int(starts[k]), int(starts[2 + k])) for k, value in enumerate(call.outputs)}
                read = [any(term.x is value for term in plan.loss.terms) for value in call.outputs]
                own[GRADIENTS] *= read
            bases.append(own)
        value = np.zeros(1)
        operations, _constants = lower_loss(plan.loss, places, value)
        sizes = [len(own) for own in bases]
        forward = joined([call.compiled.forward for call in plan.calls], sizes)
        backward = joined([call.compiled.way_back(adds=number > 0) for number, call in enumerate(plan.calls)], sizes)
        losses: tuple[float, float] = _train(
            forward, operations.arrays(), backward, np.concatenate(bases), np.array(kept_at), a_step,
            value, plan.loss.number, w, gradient, mean, square, *options,
        )  # fmt: skip
        return losses


@numba.njit(cache=True, nogil=True)
def _train(
    forward: Arrays, of_loss: Arrays, backward: Arrays, bases: np.ndarray, kept_at: np.ndarray, kept_bytes: int,
    loss: np.ndarray, constant: float, w: np.ndarray, gradient: np.ndarray, mean: np.ndarray, square: np.ndarray,
    epochs: int, before: int, lr: float, weight_decay: float, total: np.ndarray, linear: np.ndarray,
    origin: np.ndarray, mu: float,
) -> tuple[float, float]:  # fmt: skip
    """See `SmallModel.train`; lists of operations are the first arguments of `execute`.

    A step's loss is in `loss`; the bases at `kept_at`, of what dropout keeps, go on by so many bytes a step. Numba
    keeps this function compiled, with `adam`, `pull` and `execute` in it, as long as this file stays as it is: a change
    of the other files is seen with one of this.
    """
    first = math.nan
    for epoch in range(epochs):
        loss[0] = constant
        execute(forward[0], forward[1], forward[2], forward[3], bases)
        execute(of_loss[0], of_loss[1], of_loss[2], of_loss[3], bases)
        if not epoch:
            first = loss[0]
        execute(backward[0], backward[1], backward[2], backward[3], bases)
        for place in kept_at:
            bases[place] += kept_bytes
        pull(w, gradient, total, linear, origin, mu)
        if len(mean):
            adam(w, gradient, mean, square, before + epoch + 1, lr, weight_decay)
        else:
            sgd(w, gradient, np.float32(lr), np.float32(weight_decay))
    return loss[0], first
