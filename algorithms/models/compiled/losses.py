"""Losses of a model's outputs as lists of operations, which are drawn by computing them of stand-ins.

Axes: N rows, H width of rows, C classes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.compiled import projected_losses, row_losses
from shoal.algorithms.models.compiled.lowering import Operations, Place
from shoal.algorithms.models.compiled.operations import Base, Code
from shoal.algorithms.models.compiled.passes import Call
from shoal.algorithms.models.compiled.row_losses import row_loss
from shoal.algorithms.models.compiled.trace import HANDLERS, Untraceable, Value, require_gradients

# Operations of kernels, and the types of the tensors that they take.
_KERNELS: dict[Callable[..., float], tuple[Code, tuple[torch.dtype, ...]]] = {
    row_losses.squares: (Code.SQUARES, (torch.int64, torch.float32, torch.bool)),
    row_losses.contrasts: (Code.CONTRASTS, (torch.int64, torch.float32, torch.int64)),
    row_losses.divergences: (Code.DIVERGENCES, (torch.float32, torch.int64)),
    row_losses.neighbour_divergences: (
        Code.NEIGHBOUR_DIVERGENCES,
        (torch.float32, torch.int32, torch.int32, torch.float32, torch.float32),
    ),
    row_losses.squares_of_directions: (Code.SQUARES_OF_DIRECTIONS, (torch.float32,)),
    row_losses.contrasts_by_class: (
        Code.CONTRASTS_BY_CLASS,
        (torch.int64, torch.int64, torch.float32, torch.int64),
    ),
    row_losses.likeness_divergences: (Code.LIKENESS_DIVERGENCES, (torch.float32, torch.int32, torch.int32)),
    row_losses.squares_of_sums: (
        Code.SQUARES_OF_SUMS,
        (torch.int64, torch.int32, torch.int32, torch.float32, torch.float32, torch.float32),
    ),
    row_losses.softplus_along: (Code.SOFTPLUS_ALONG, (torch.float32,)),
    projected_losses.squares_to_projected: (Code.SQUARES_TO_PROJECTED, (torch.float32, torch.float32)),
    projected_losses.squares_of_projected: (Code.SQUARES_OF_PROJECTED, (torch.float32, torch.float32)),
    projected_losses.squares_by_projection: (Code.SQUARES_BY_PROJECTION, (torch.float32, torch.float32)),
}


# Constants that are places in others, or, without any, in the rows.
_PLACES: dict[Code, list[tuple[int, tuple[int, ...]]]]
_PLACES = {
    Code.SQUARES: [(0, (1, 2))],
    Code.DIVERGENCES: [(1, (0,))],
    Code.SQUARES_OF_SUMS: [(0, ())],
    Code.CONTRASTS_BY_CLASS: [(0, ())],
}
# Kernels that divide by their first factor.
_DIVIDES = (Code.CONTRASTS, Code.CONTRASTS_BY_CLASS, Code.LIKENESS_DIVERGENCES, Code.SOFTPLUS_ALONG)
# Where outputs lie, and their gradients, at the same place if an output is needed no more.
Places = dict[Value, tuple[Place, Place]]
NOTHING = Place(Base.NOWHERE, 0)


class Divisor(NamedTuple):
    """The value of a loss, without a gradient, but at least so much, by which terms are divided."""

    of: "Loss"
    least: float = 0.0

    def clamp_min(self, least: float) -> "Divisor":
        return self._replace(least=max(self.least, least))


class Term(NamedTuple):
    """A loss of rows, so many times.

    Attributes:
        code: Its operation.
        x: The rows.
        tensors, factors: The constants of its kernel, contiguous; a detached output is one, too.
        weight: How many times it counts.
        over: What it is divided by; None: one.
    """

    code: Code
    x: Value
    tensors: Sequence[Tensor | Value]
    factors: Sequence[float]
    weight: float = 1.0
    over: Divisor | None = None


class Loss:
    """A scalar: a sum of terms, and a number."""

    def __init__(self, terms: Sequence[Term], number: float = 0.0) -> None:
        require_gradients()
        self.terms, self.number = terms, number

    def __bool__(self) -> bool:
        raise Untraceable("a choice by the value of a loss")

    def __eq__(self, other: object) -> bool:
        return bool(self)

    def __add__(self, other: Any) -> "Loss":
        if isinstance(other, Loss):
            return Loss([*self.terms, *other.terms], self.number + other.number)
        return Loss(self.terms, self.number + _number(other))

    __radd__ = __add__

    def __mul__(self, other: Any) -> "Loss":
        f = _number(other)
        return Loss([term._replace(weight=f * term.weight) for term in self.terms], f * self.number)

    __rmul__ = __mul__

    def __neg__(self) -> "Loss":
        return self * -1

    def __sub__(self, other: Any) -> "Loss":
        return self + -1 * other

    def __rsub__(self, other: Any) -> "Loss":
        return other + -self

    def __truediv__(self, other: Any) -> "Loss":
        if isinstance(other, Divisor):
            if self.number or any(term.over for term in [*self.terms, *other.of.terms]):
                raise Untraceable("a number divided by a loss, or a quotient by another one")
            return Loss([term._replace(over=other) for term in self.terms])
        return self * (1 / _number(other))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Value.__torch_function__(function, types, args, kwargs)

    def detach(self) -> Divisor:
        return Divisor(self)

    @property
    def divisor(self) -> Divisor | None:
        """Finds by what terms are divided, if any are."""
        for term in self.terms:
            if term.over is not None:
                return term.over
        return None

    @property
    def computed(self) -> Sequence[Term]:
        """All terms that a step computes, those of the divisor first."""
        return self.terms if self.divisor is None else [*self.divisor.of.terms, *self.terms]


def _number(x: Any) -> float:
    if isinstance(x, int | float) or (isinstance(x, Tensor) and x.numel() == 1 and not x.requires_grad):
        return float(x)
    raise Untraceable(f"a loss and a {type(x).__name__}")


def _constant(t: Any, dtype: torch.dtype) -> Tensor | Value:
    if isinstance(t, Value) and not t.requires_grad and t.of[0].kind == "output" and dtype == torch.float32:
        return t
    if not isinstance(t, Tensor) or t.dtype != dtype or not t.is_cpu or t.requires_grad:
        raise Untraceable("a loss of other tensors")
    return t.contiguous()


def _row_loss(kernel: Callable[..., float], x: Any, *constants: Any) -> Loss:
    if not isinstance(x, Value) or kernel not in _KERNELS:
        raise Untraceable("a loss of its own")
    code, dtypes = _KERNELS[kernel]
    for number, matrices in _PLACES.get(code, ()):
        # An operation has no exceptions. Labels below zero have no part.
        places = constants[number].clamp_min(0) if matrices else constants[number]
        if not _are_below(min((len(constants[k]) for k in matrices), default=x.rows), places):
            raise Untraceable("places that are not there")
    tensors = [t for t in constants if isinstance(t, Tensor | Value)]
    factors = [float(f) for f in constants if not isinstance(f, Tensor | Value)]
    if code in _DIVIDES and not factors[0]:
        raise Untraceable("a temperature of zero")
    return Loss([Term(code, x, [_constant(t, dtype) for t, dtype in zip(tensors, dtypes, strict=True)], factors)])


def cross_entropy(
    x: Any, label: Any, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100,
    reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Loss:  # fmt: skip
    """Draws `F.cross_entropy` of a stand-in, or of some rows of it; Untraceable says that compiled code has no such."""
    if reduction != "mean" or label_smoothing or any(option is not None for option in (weight, size_average, reduce)):
        raise Untraceable("another form of cross-entropy")
    if not isinstance(x, Value) or not isinstance(label, Tensor) or label.shape != (x.rows,):
        raise Untraceable("a cross-entropy of other labels")
    label_N = _constant(label, torch.int64)
    if not _are_below(x.width, label) or (ignore_index >= 0 and bool((label == ignore_index).any())):
        raise Untraceable("labels that are no classes, or ignored")
    if x.kind == "picked":
        if not _are_below(x.of[0].rows, x.with_["places"]):
            raise Untraceable("rows that are not there, or counted from the end")
        return Loss([Term(Code.CROSS_ENTROPIES_OF_ROWS, x.of[0], [label_N, x.with_["places"]], [])])
    return Loss([Term(Code.CROSS_ENTROPIES, x, [label_N], [])])


def _are_below(count: int, places: Tensor) -> bool:
    values = places.numpy()
    return not len(values) or 0 <= values.min() <= values.max() < count


HANDLERS |= {F.cross_entropy: cross_entropy, row_loss: _row_loss}


def trace_loss(loss_of: Callable[[Tensor], Any], calls: Sequence[Call], own: Value | None = None) -> Loss:
    """Computes a loss of stand-ins, of which the outputs of the model's `calls` alone, or `own`, may have gradients.

    `loss_of` takes a stand-in for the parameters, which `own` is. Raises Untraceable: it is more than a sum of losses
    of rows.
    """
    parameters: Any = own or Value("parameters", [], 1, 0)
    loss = loss_of(parameters)
    if not isinstance(loss, Loss):
        raise Untraceable("a loss that reads no output")
    if len({id(term.over) for term in loss.terms if term.over}) > 1:
        raise Untraceable("several divisors")
    outputs = {parameters, *(value for call in calls for value in call.outputs)}
    if not outputs.issuperset(term.x for term in loss.terms):
        raise Untraceable("a loss of what is computed of outputs")
    return loss


def lower_loss(
    to: Operations, loss: Loss, places: Places, total: Place, quotient: Place, others: Iterator[Place], spare: Place
) -> None:
    """Adds the operations of a loss; without its number it is added to `total`, float64.

    The factors of a term, and then its constants, lie at the next of the `others`, of the terms as they are `computed`;
    in `spare` there is room for the gradient of one term, and at `quotient` the divisor, float64, and a zero behind it.
    """
    begun: set[Value] = set()
    for number, term in enumerate(loss.computed, start=len(loss.terms) - len(loss.computed)):
        (x, gradient), factors = places[term.x], next(others)
        arrays = [part for t in term.tensors for part in (_place(t, places, others), len(t))]
        divides = number < 0
        out = spare if divides or term.x in begun else gradient
        into = quotient if divides else total if term.over is None else quotient.behind(2)
        to.add(term.code, x, term.x.rows, term.x.width, out, into, factors, *arrays, f=term.weight)
        if divides:
            continue
        if term.over is not None:
            to.add(Code.QUOTIENT, out, term.x.numbers, quotient, total, f=term.over.least)
        if term.x in begun:
            to.add(Code.MIX, out, gradient, term.x.numbers, f=term.weight, g=1.0)
        elif term.weight != 1:
            to.add(Code.MIX, NOTHING, gradient, term.x.numbers, g=term.weight)
        begun.add(term.x)


def _place(t: Tensor | Value, places: Places, others: Iterator[Place]) -> Place:
    return places[t.of[0]][0] if isinstance(t, Value) else next(others)
