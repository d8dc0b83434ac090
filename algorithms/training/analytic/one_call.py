"""The whole local training of models in one compiled call: steps of compiled passes, with the loss of their outputs.

Axes: T training rows, C classes, P parameters, M models that learn in turns.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.compiled.losses import Loss, Places, lower_loss, trace_loss
from shoal.algorithms.models.compiled.lowering import Operations
from shoal.algorithms.models.compiled.operations import Base, Code, execute
from shoal.algorithms.models.compiled.passes import Arrays, Call, Passes, addresses, joined, parts_of
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.small_heads import LossOf, SmallModel, Trained, in_one_batch

VECTORS = [Base.WEIGHTS, Base.GRADIENTS, Base.KEPT]
OUTPUTS = [Base.LOGITS, Base.EMBEDDING]
GRADIENTS = [Base.OF_LOGITS, Base.OF_EMBEDDING]


class Plan(NamedTuple):
    """Passes of a model, and its loss; `in_place`: it reads logits alone, whose gradient takes their place."""

    passes: Passes
    calls: list[Call]
    loss: Loss
    in_place: bool = False

    @property
    def kept(self) -> int:
        """Counts the numbers that dropout draws in a step."""
        return sum(call.compiled.kept for call in self.calls)

    def further_rows(self, call: Call) -> int:
        """Counts the numbers of outputs and their gradients that lie beside the values of a pass."""
        return 0 if self.in_place else 2 * sum(value.numbers for value in call.outputs)

    def draw(self, out: Tensor) -> None:
        """Draws what dropout keeps in a step, from torch's default generator, as the model itself would."""
        for call, of_call in zip(self.calls, out.split([call.compiled.kept for call in self.calls])):
            call.compiled.draw(of_call)


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
            with self._passes.drawing() as calls:
                loss = trace_loss(loss_of or cross_entropy, calls)
        except Exception:
            # Stand-ins can do little; autograd names what is wrong.
            return None
        logits = calls[0].outputs[0]
        if len(calls) == 1 and [(term.x, term.code) for term in loss.terms] == [(logits, Code.CROSS_ENTROPIES)]:
            return Plan(self._passes, calls, loss, in_place=True)
        return plan_whole(self._passes, calls, loss)

    def kept(self, plan: Plan) -> int:
        return plan.kept

    def draw(self, plan: Plan, out: Tensor) -> None:
        plan.draw(out)

    def train(self, plan: Plan, trained: Trained, epochs: int) -> tuple[float, float]:
        ((last, first),) = train_in_turns([(plan, trained)], epochs)
        return last, first


def plan_whole(passes: Passes, calls: Sequence[Call], loss: Loss) -> Plan | None:
    """Plans passes that write both outputs; None: there is none for some inputs."""
    whole = [(call, passes.of(call.inputs)) for call in calls]
    embedding = [call._replace(compiled=compiled) for call, compiled in whole if compiled is not None]
    return Plan(passes, embedding, loss) if len(embedding) == len(calls) else None


def train_in_turns(learners: Sequence[tuple[Plan, Trained]], epochs: int) -> list[tuple[float, float]]:
    """Trains models; in every step all of them answer, and then each takes a step on its loss of all outputs.

    Gives the loss before the last step and before the first, of every model.
    """
    forward: list[tuple[Arrays, int]] = []
    ways_back: list[list[tuple[Arrays, int]]] = []
    bases: list[np.ndarray] = []
    places: Places = {}
    rooms, moved, first = [], [], 0
    for plan, trained in learners:
        ways_back.append([])
        kept_at = address(trained.kept)
        for number, call in enumerate(plan.calls):
            rooms.append(room := plan.passes.room(call.compiled.work + plan.further_rows(call)))
            of_call = addresses(parts_of(call.inputs) or (), True, work=room.memory)
            of_call[VECTORS] = address(trained.w), address(trained.gradient), kept_at
            places |= _place(plan, call, of_call)
            bases.append(of_call)
            forward.append((call.compiled.forward, first))
            ways_back[-1].append((call.compiled.way_back(adds=number > 0), first))
            moved.append((first + Base.KEPT, 4 * plan.kept))
            kept_at, first = kept_at + 4 * call.compiled.kept, first + len(of_call)
    lists, refer = [*forward], []
    losses = np.zeros(len(learners))
    for (plan, trained), way_back, loss in zip(learners, ways_back, np.split(losses, len(learners))):
        of_loss, of_step = Operations(), Operations()
        refer += [lower_loss(of_loss, plan.loss, places, loss), add_step(of_step, trained)]
        lists += [(of_loss.arrays(), 0), *way_back, (of_step.arrays(), 0)]
    constants = np.array([plan.loss.number for plan, _ in learners])
    firsts = _repeat(*joined(lists), np.concatenate(bases), np.array(moved), losses, constants, epochs)
    return list(zip(losses.tolist(), firsts.tolist()))


def _place(plan: Plan, call: Call, bases: np.ndarray) -> Places:
    """Finds outputs and their gradients behind the memory for values, and notes both among the bases of a pass."""
    memory = int(bases[Base.WORK])
    if plan.in_place:
        at = memory + call.compiled.at
        return {call.outputs[0]: (at, at)}
    logits, embedding = call.outputs
    starts = memory + 4 * (call.compiled.work + np.cumsum([0, logits.numbers, embedding.numbers, logits.numbers]))
    bases[OUTPUTS + GRADIENTS] = starts
    # The gradient of an output that no loss reads is not there.
    bases[GRADIENTS] *= [any(term.x is value for term in plan.loss.terms) for value in call.outputs]
    return {value: (int(starts[k]), int(starts[2 + k])) for k, value in enumerate(call.outputs)}


def add_step(to: Operations, trained: Trained) -> np.ndarray:
    """Adds the operations of an optimizer's step; gives what they read, to be kept as long as they run."""
    vectors = address(trained.w), address(trained.gradient), len(trained.w)
    pulls = trained.total, trained.linear, trained.origin
    pulled = [number for part in pulls for number in (address(part), len(part))]
    if any(pulled[1::2]):
        to.add(Code.PULL, *vectors, *pulled, f=trained.mu)
    options = np.array([trained.before, trained.lr, trained.weight_decay])
    if len(trained.mean):
        to.add(Code.ADAM, *vectors, address(trained.mean), address(trained.square), address(options))
    else:
        to.add(Code.SGD, *vectors, f=trained.lr, g=trained.weight_decay)
    return options


def address(array: np.ndarray) -> int:
    """Returns where an array's numbers lie."""
    return int(array.ctypes.data)


@numba.njit(cache=True, nogil=True)
def _repeat(
    functions: np.ndarray, arguments: np.ndarray, bases_of: np.ndarray, factors: np.ndarray, bases: np.ndarray,
    moved: np.ndarray, losses: np.ndarray, constants: np.ndarray, epochs: int,
) -> np.ndarray:  # fmt: skip
    """Executes operations so many times, and gives the losses of the first.

    Losses begin with constants; some bases go on by so many bytes each time, pairs of both in `moved`.
    """
    first = np.full(len(losses), np.nan)
    for epoch in range(epochs):
        losses[:] = constants
        execute(functions, arguments, bases_of, factors, bases)
        if not epoch:
            first[:] = losses
        for pair in moved:
            bases[pair[0]] += pair[1]
    return first
