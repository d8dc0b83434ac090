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
from shoal.algorithms.models.compiled.trace import Untraceable
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.small_heads import LossOf, SmallModel, Trained, in_one_batch

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
        except (Untraceable, TypeError):
            # Stand-ins have few operators; autograd names what is wrong.
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
        next_kept = trained.kept.ctypes.data
        for number, call in enumerate(plan.calls):
            compiled = call.compiled
            rows = [] if plan.in_place else [value.numbers for value in call.outputs] * 2
            rooms.append(room := plan.passes.room(compiled.work + sum(rows)))
            memory = room.memory.data_ptr()
            own = addresses(parts_of(call.inputs) or (), True, work=room.memory)
            own[[Base.WEIGHTS, Base.GRADIENTS, Base.KEPT]] = address(trained.w), address(trained.gradient), next_kept
            if plan.in_place:
                places[call.outputs[0]] = (memory + compiled.at,) * 2
            else:
                starts = memory + 4 * (compiled.work + np.cumsum([0, *rows[:3]]))
                own[OUTPUTS + GRADIENTS] = starts
                places |= {value: (int(starts[k]), int(starts[2 + k])) for k, value in enumerate(call.outputs)}
                own[GRADIENTS] *= [any(term.x is value for term in plan.loss.terms) for value in call.outputs]
            bases.append(own)
            forward.append((compiled.forward, first))
            ways_back[-1].append((compiled.way_back(adds=number > 0), first))
            moved.append((first + Base.KEPT, 4 * plan.kept))
            next_kept, first = next_kept + 4 * compiled.kept, first + len(own)
    lists, refer = [*forward], []
    losses = np.zeros(len(learners))
    for (plan, trained), way_back, loss in zip(learners, ways_back, np.split(losses, len(learners))):
        of_loss, of_step = Operations(), Operations()
        refer += [lower_loss(of_loss, plan.loss, places, loss), add_step(of_step, trained)]
        lists += [(of_loss.arrays(), 0), *way_back, (of_step.arrays(), 0)]
    constants = np.array([plan.loss.number for plan, _ in learners])
    firsts = _repeat(*joined(lists), np.concatenate(bases), np.array(moved), losses, constants, epochs)
    return list(zip(losses.tolist(), firsts.tolist()))


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
