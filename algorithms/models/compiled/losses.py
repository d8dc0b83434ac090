"""Losses of a model's outputs as lists of operations, which are drawn by computing them of stand-ins.

Axes: N rows, H width of rows, C classes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses import compiled_rows
from shoal.algorithms.losses.compiled_rows import row_loss
from shoal.algorithms.models.compiled.lowering import Operations
from shoal.algorithms.models.compiled.operations import Code
from shoal.algorithms.models.compiled.passes import Call, Passes
from shoal.algorithms.models.compiled.trace import HANDLERS, Untraceable, Value

# Operations of kernels, and the types of the tensors that they take.
_KERNELS: dict[Callable[..., float], tuple[Code, tuple[torch.dtype, ...]]] = {
    compiled_rows.squares: (Code.SQUARES, (torch.int64, torch.float32, torch.bool)),
    compiled_rows.contrasts: (Code.CONTRASTS, (torch.int64, torch.float32, torch.int64)),
    compiled_rows.divergences: (Code.DIVERGENCES, (torch.float32, torch.int64)),
    compiled_rows.soft_cross_entropies: (Code.SOFT_CROSS_ENTROPIES, (torch.float32,)),
    compiled_rows.softplus_along: (Code.SOFTPLUS_ALONG, (torch.float32,)),
}


# Addresses of outputs and of their gradients, the same for an output that is needed no more.
Places = dict[Value, tuple[int, int]]


class Term(NamedTuple):
    """A loss of rows, so many times.

    Attributes:
        code: Its operation.
        x: The rows.
        tensors, factors: The constants of its kernel, contiguous.
        weight: How many times it counts.
    """

    code: Code
    x: Value
    tensors: Sequence[Tensor]
    factors: Sequence[float]
    weight: float = 1.0


class Loss:
    """A scalar: a sum of terms, and a number."""

    def __init__(self, terms: Sequence[Term], number: float = 0.0) -> None:
        self.terms, self.number = terms, number

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

    def __truediv__(self, other: Any) -> "Loss":
        return self * (1 / _number(other))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Value.__torch_function__(function, types, args, kwargs)


def _number(x: Any) -> float:
    if isinstance(x, int | float) or (isinstance(x, Tensor) and x.numel() == 1 and not x.requires_grad):
        return float(x)
    raise Untraceable(f"a loss and a {type(x).__name__}")


def _constant(t: Any, dtype: torch.dtype) -> Tensor:
    if not isinstance(t, Tensor) or t.dtype != dtype or not t.is_cpu or t.requires_grad:
        raise Untraceable("a loss of other tensors")
    return t.contiguous()


def _row_loss(kernel: Callable[..., float], x: Any, *constants: Any) -> Loss:
    if not isinstance(x, Value) or kernel not in _KERNELS:
        raise Untraceable("a loss of its own")
    code, dtypes = _KERNELS[kernel]
    tensors = [t for t in constants if isinstance(t, Tensor)]
    factors = [float(f) for f in constants if not isinstance(f, Tensor)]
    return Loss([Term(code, x, [_constant(t, dtype) for t, dtype in zip(tensors, dtypes, strict=True)], factors)])


def _cross_entropy(x: Any, label: Any, reduction: str = "mean", label_smoothing: float = 0.0, **others: Any) -> Loss:
    if reduction != "mean" or label_smoothing or any(others[name] is not None for name in ("weight", "size_average")):
        raise Untraceable("another form of cross-entropy")
    if not isinstance(x, Value) or not isinstance(label, Tensor) or label.shape != (x.rows,):
        raise Untraceable("a cross-entropy of other labels")
    label_N = _constant(label, torch.int64)
    if x.rows and not 0 <= int(label_N.min()) <= int(label_N.max()) < x.width:
        raise IndexError("expected labels below the number of logits")
    return Loss([Term(Code.CROSS_ENTROPIES, x, [label_N], [])])


HANDLERS |= {F.cross_entropy: _cross_entropy, row_loss: _row_loss}


def trace_loss(passes: Passes, loss_of: Callable[[Tensor], Any]) -> tuple[Loss, list[Call]]:
    """Computes a loss of a model's outputs, all of stand-ins; gives its calls, too.

    `loss_of` takes a stand-in for the parameters. Raises Untraceable: it is more than a sum of losses of rows.
    """
    parameters: Any = Value("parameters", [], 1, 0)
    with passes.drawing() as calls:
        loss = loss_of(parameters)
    outputs = {value for call in calls for value in call.outputs}
    if not isinstance(loss, Loss) or not outputs.issuperset(term.x for term in loss.terms):
        raise Untraceable("a loss of what is computed of outputs")
    return loss, calls


def lower_loss(loss: Loss, places: Places, total: np.ndarray) -> tuple[Operations, list[Any]]:
    """Makes the operations of a loss, and what they read, to be kept as long as they run.

    The loss, without its number, is added to `total`, float64 `[1]`.
    """
    list_of, kept, begun = Operations(), [], set()
    for term in loss.terms:
        x, gradient = places[term.x]
        factors = np.array(term.factors)
        arrays = [number for t in term.tensors for number in (t.data_ptr(), len(t))]
        kept += [*term.tensors, factors]
        out = gradient
        if term.x in begun:
            more = np.empty(term.x.numbers, np.float32)
            kept.append(more)
            out = more.ctypes.data
        sizes = term.x.rows, term.x.width
        list_of.add(term.code, x, *sizes, out, total.ctypes.data, factors.ctypes.data, *arrays, f=term.weight)
        if term.x in begun:
            list_of.add(Code.MIX, out, gradient, term.x.numbers, f=term.weight, g=1.0)
        elif term.weight != 1:
            list_of.add(Code.MIX, 0, gradient, term.x.numbers, g=term.weight)
        begun.add(term.x)
    return list_of, kept
