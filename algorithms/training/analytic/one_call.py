"""The whole local training of models in one compiled call: steps of compiled passes, with the loss of their outputs.

Axes: T training rows, C classes, P parameters, M models that learn in turns.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from typing import Any, cast

import numba
import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.client import ClientModel
from shoal.algorithms.models.compiled.kept_by_view import KeptByView
from shoal.algorithms.models.compiled.losses import Loss, Places, cross_entropy, lower_loss, trace_loss
from shoal.algorithms.models.compiled.lowering import DRAW, Operations, Place
from shoal.algorithms.models.compiled.operations import ARRAYS, Base, Code, execute
from shoal.algorithms.models.compiled.passes import MOST_KEPT, Arrays, Call, Passes, addresses, joined, parts_of
from shoal.algorithms.models.compiled.trace import Untraceable, Value
from shoal.algorithms.models.inputs.neighbourhood import DrawnInputs, Inputs, Neighbourhood
from shoal.algorithms.models.layers.dropout import draw_entries
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.small_heads import LossOf, SmallModel, Trained, in_one_batch
from shoal.storage.graph.sparse_matrix import SparseMatrix

KEPT = int(Base.KEPT)
# Entries of the matrices that are drawn for all steps of a visit, 8 bytes each.
MOST_ENTRIES = 2**25
VECTORS = [Base.WEIGHTS, Base.GRADIENTS, Base.KEPT, Base.WORK]
OUTPUTS = [Base.LOGITS, Base.EMBEDDING]
GRADIENTS = [Base.OF_LOGITS, Base.OF_EMBEDDING]


@dataclass(frozen=True, eq=False)
class Plan:
    """Lists what a learner computes in a step.

    Attributes:
        passes, calls: Passes of a model.
        loss: Its loss.
        in_place: The loss reads logits alone, whose gradient takes their place.
        own: Stands for the parameters of a learner that is no model, and has no calls.
    """

    passes: Passes
    calls: list[Call]
    loss: Loss
    in_place: bool = False
    own: Value | None = None

    @cached_property
    def addresses(self) -> Sequence[np.ndarray]:
        """The bases of each call's operations that are those of its inputs; others are 0."""
        return [addresses(call.read.parts, True) for call in self.calls]

    @cached_property
    def kept(self) -> int:
        """Counts the numbers that dropout draws in a step."""
        return sum(call.compiled.kept for call in self.calls)

    def reads(self, call: Call) -> list[bool]:
        """Says which outputs of a call the loss reads."""
        return [any(term.x is value for term in self.loss.terms) for value in call.outputs]

    def further_room(self, call: Call) -> int:
        """Counts the numbers that a call needs beside the values of its pass."""
        return 0 if self.in_place else 2 * sum(value.numbers for value in call.outputs)

    @property
    def spare_room(self) -> int:
        """Counts the numbers of the largest gradient of a term."""
        return 0 if self.in_place else max(term.x.numbers for term in self.loss.computed)

    def form(self, number_of: Mapping[Value, int]) -> tuple[Any, ...]:
        """Describes the plan as far as operations depend on it, outputs by their numbers."""
        if self.in_place:
            return (id(self.calls[0].compiled),)
        terms = [
            (
                *(term.code, number_of[term.x], term.weight, term.over and term.over.least),
                *(_form(t, number_of) for t in term.tensors),
            )
            for term in self.loss.computed
        ]
        return *(id(call.compiled) for call in self.calls), *terms

    def draw(self, out: Tensor) -> None:
        """Draws for dropout in steps, int16 `[E, kept]`, from torch's default generator, as the model itself would."""
        draw_entries(out)


def _form(t: Tensor | Value, number_of: Mapping[Value, int]) -> tuple[bool, int]:
    return (True, len(t)) if isinstance(t, Tensor) else (False, number_of[t.of[0]])


Learner = tuple[Plan, Trained]


class TracedModel(SmallModel):
    """A model on the part of a graph, or the rows of sparse hops, that training rows read."""

    draws = torch.int16

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._plans: KeptByView[Plan | None] = KeptByView()

    def plan_plainly(self, own: ClientModel, options: TrainOptions) -> Plan | None:
        """Makes the plan once while a client's view lives: a small client's step takes no longer."""

        def make() -> tuple[Plan | None, Sequence[Any]]:
            inputs = own.gathered("train")
            plan = self.plan(inputs, own.data.train_label) if self.takes(inputs, options) else None
            return plan, () if plan is None else parts_of(inputs) or ()

        return self._plans.get(own.data, make) if self._passes.learns_all() else None

    def takes(self, inputs: Inputs, options: TrainOptions) -> bool:
        compiled = self._passes.of(inputs, embeds=False)
        return compiled is not None and in_one_batch(compiled.logits[0], options)

    def plan(self, inputs: Inputs, label_N: Tensor, loss_of: LossOf | None = None, steps: int = 1) -> Plan | None:
        with self._passes.drawing() as calls:
            try:
                if loss_of is None:
                    (logits, _) = cast(tuple[Any, Any], self._passes.output(inputs))
                    return Plan(self._passes, calls, cross_entropy(logits, label_N), in_place=True)
                loss = trace_loss(loss_of, calls)
            except Exception as error:
                if loss_of is None and not isinstance(error, Untraceable):
                    raise
                # Code of a method can do little with stand-ins; autograd names what is wrong.
                return None
        return plan_whole(self._passes, calls, loss, steps)

    def kept(self, plan: Plan) -> int:
        return plan.kept

    def draw(self, plan: Plan, out: Tensor) -> None:
        plan.draw(out)

    def train(self, plan: Plan, trained: Trained, epochs: int) -> tuple[float, float]:
        ((last, first),) = train_in_turns([(plan, trained)], epochs)
        return last, first


def plan_whole(passes: Passes, calls: Sequence[Call], loss: Loss, steps: int) -> Plan | None:
    """Plans passes that write both outputs; None: there is none for some inputs.

    Inputs that are drawn anew in each of the `steps` are drawn here, and are all held.
    """
    whole = [(call, passes.find(call.read)) for call in calls]
    embedding = [call._replace(compiled=compiled) for call, compiled in whole if compiled is not None]
    drawn = [(call.drawn, call.compiled) for call in embedding if call.drawn is not None]
    if len(embedding) < len(calls):
        return None
    entries = sum(len(part.arrays[1]) for inputs, _ in drawn for part in matrices_of(inputs.look(0)))
    if entries * steps > MOST_ENTRIES:
        return None
    for step in range(1, steps):
        if not all(passes.of(inputs.look(step)) is compiled for inputs, compiled in drawn):
            return None
    return Plan(passes, embedding, loss)


def matrices_of(inputs: Inputs) -> Sequence[SparseMatrix]:
    """Lists the matrices of the layers."""
    return inputs.operators if isinstance(inputs, Neighbourhood) else ()


def train_in_turns(learners: Sequence[Learner], epochs: int) -> list[tuple[float, float]]:
    """Trains models; in every step all of them answer, and then each takes a step on its loss of all outputs.

    Gives the loss before the last step and before the first, of every model.
    """
    bases: list[np.ndarray] = []
    moved: list[tuple[int, int]] = []
    drawn: list[tuple[int, DrawnInputs]] = []
    first = 0
    # Losses of all, and divisors with a zero, and behind them what each learner's terms and steps read in float64.
    numbers = [plan.loss.number for plan, _ in learners]
    for plan, _ in learners:
        numbers += 0.0 if plan.loss.divisor is None else plan.loss.divisor.of.number, 0.0
    spare = learners[0][0].passes.room(max([plan.spare_room for plan, _ in learners]))
    count, behind, rooms = len(numbers), [(True, 0), (False, spare.memory.data_ptr())], [spare]
    for plan, trained in learners:
        kept_at, a_step = trained.kept.data_ptr(), DRAW * plan.kept
        if plan.own is not None:
            bases.append(np.array([trained.w.data_ptr(), trained.gradient.data_ptr()]))
            first += 2
        for call, of_inputs in zip(plan.calls, plan.addresses):
            rooms.append(room := plan.passes.room(call.compiled.work + plan.further_room(call)))
            of_call = of_inputs.copy()
            of_call[VECTORS] = trained.w.data_ptr(), trained.gradient.data_ptr(), kept_at, room.memory.data_ptr()
            if not plan.in_place:
                logits, embedding = (value.numbers for value in call.outputs)
                starts = np.cumsum([call.compiled.work, logits, embedding, logits])
                of_call[OUTPUTS + GRADIENTS] = of_call[Base.WORK] + 4 * starts
                # The gradient of an output that no loss reads is not there.
                of_call[GRADIENTS] *= plan.reads(call)
            bases.append(of_call)
            moved.append((first + KEPT, a_step))
            if call.drawn is not None:
                drawn.append((first, call.drawn))
            kept_at, first = kept_at + DRAW * call.compiled.kept, first + len(of_call)
        for term in plan.loss.computed:
            behind.append((True, len(numbers)))
            behind += [(False, t.data_ptr()) for t in term.tensors if isinstance(t, Tensor)]
            numbers += term.factors
        vectors = trained.w, trained.gradient, trained.mean, trained.square
        behind += [(False, t.data_ptr()) for t in vectors]
        behind.append((True, len(numbers)))
        behind += [(False, t.data_ptr()) for t in (trained.total, trained.linear, trained.origin)]
        numbers += trained.before, trained.lr, trained.weight_decay
    array = np.array(numbers, np.float64)
    start, losses = array.ctypes.data, array[:count]
    others = np.array([start + 8 * place if is_number else place for is_number, place in behind])
    of_steps = np.empty((epochs, first + len(others)), np.int64)
    of_steps[:] = np.concatenate([*bases, others])
    for step in range(1, epochs):
        for place, a_step in moved:
            of_steps[step, place] += step * a_step
        for place, inputs in drawn:
            of_inputs = addresses(parts_of(inputs.look(step)) or (), True)
            of_steps[step, place + len(Base) : place + len(of_inputs)] = of_inputs[len(Base) :]
    firsts = _repeat(*_operations_of(learners), of_steps, losses, losses.copy())
    return list(zip(losses.tolist(), firsts.tolist()))[: len(learners)]


def _operations_of(learners: Sequence[Learner]) -> Arrays:
    """Finds the operations of a step, the same for all that is alike but for what lies in memory."""
    programs = learners[0][0].passes.programs
    outputs = [value for plan, _ in learners for call in plan.calls for value in call.outputs]
    outputs += [plan.own for plan, _ in learners if plan.own is not None]
    number_of = {value: number for number, value in enumerate(outputs)}
    key = tuple((plan.form(number_of), trained.form()) for plan, trained in learners)
    if key not in programs:
        if len(programs) >= MOST_KEPT:
            programs.clear()
        # The passes are kept, so that no other has their number.
        programs[key] = _lower(learners), [call.compiled for plan, _ in learners for call in plan.calls]
    return programs[key][0]


def _lower(learners: Sequence[Learner]) -> Arrays:
    """Makes the operations of a step; their bases are in the order of `train_in_turns`."""
    forward: list[tuple[Arrays, int]] = []
    ways_back: list[list[tuple[Arrays, int]]] = []
    places: Places = {}
    first = 0
    for plan, _ in learners:
        ways_back.append([])
        if plan.own is not None:
            places[plan.own] = Place(first, 0), Place(first + 1, 0)
            first += 2
        for call in plan.calls:
            if plan.in_place:
                places[call.outputs[0]] = (Place(first + Base.WORK, call.compiled.at),) * 2
            else:
                bases = zip(call.outputs, OUTPUTS, GRADIENTS)
                places |= {value: (Place(first + out, 0), Place(first + of_out, 0)) for value, out, of_out in bases}
            forward.append((call.compiled.forward, first))
            # There is no way back of what the loss reads as constants.
            if plan.in_place or any(plan.reads(call)):
                ways_back[-1].append((call.compiled.way_back(adds=bool(ways_back[-1])), first))
            first += len(Base) + ARRAYS * len(call.read.parts)
    # Bases behind those of the passes, one after another.
    others = (Place(number, 0) for number in count(first))
    losses, spare, lists = next(others), next(others), [*forward]
    for number, (plan, trained) in enumerate(learners):
        of_loss, of_step = Operations(), Operations()
        quotient = losses.behind(2 * (len(learners) + 2 * number))
        lower_loss(of_loss, plan.loss, places, losses.behind(2 * number), quotient, others, spare)
        _lower_step(of_step, trained, others)
        lists += [(of_loss.arrays(), 0), *ways_back[number], (of_step.arrays(), 0)]
    return joined(lists)


def _lower_step(to: Operations, trained: Trained, others: Iterator[Place]) -> None:
    w, gradient, mean, square, options, *pulls = islice(others, 8)
    parameters, lengths = len(trained.w), [len(t) for t in (trained.total, trained.linear, trained.origin)]
    if any(lengths):
        total, linear, origin = pulls
        parts = total, lengths[0], linear, lengths[1], origin, lengths[2]
        to.add(Code.PULL, w, gradient, parameters, *parts, f=trained.mu)
    if len(trained.mean):
        to.add(Code.ADAM, w, gradient, parameters, mean, square, options)
    else:
        to.add(Code.SGD, w, gradient, parameters, f=trained.lr, g=trained.weight_decay)


@numba.njit(cache=True, nogil=True)
def _repeat(
    functions: np.ndarray, arguments: np.ndarray, bases_of: np.ndarray, factors: np.ndarray, bases: np.ndarray,
    losses: np.ndarray, constants: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Executes operations for every row of bases, and gives the losses of the first, which begin with constants."""
    first = np.full(len(losses), np.nan)
    for epoch in range(len(bases)):
        losses[:] = constants
        execute(functions, arguments, bases_of, factors, bases[epoch])
        if not epoch:
            first[:] = losses
    return first
