"""From what a model computes to lists of operations: memory, and the way back.

A value that nothing else reads is overwritten by the one that is made of it. Gradients are written where they are first
known, and added to from then on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from shoal.algorithms.models.compiled.operations import ARGUMENTS, ARRAYS, Base, Code, address_of
from shoal.algorithms.models.compiled.trace import Operator, Untraceable, Value

FLOAT = 4
# Numbers that share a line of the cache.
LINE = 16
# Kinds that may overwrite the value they are made of, if nothing else reads it.
IN_PLACE = ("bias", "relu", "drop", "scale", "add")
# Kinds whose way back reads their gradient and changes nothing in it.
READERS = ("times", "features", "linear")


class Place(NamedTuple):
    """An address: bytes from a base, a `Base` or that of an input's array."""

    base: int
    offset: int


def _base_of(number: int) -> int:
    """Returns the base of the first array of an input."""
    return len(Base) + ARRAYS * number


@dataclass
class Memory:
    """The place of a value, and that of its gradient, once that is begun."""

    place: Place
    gradient: Place | None = None
    begun: bool = False


@dataclass
class Operations:
    """A list of operations, and what has to stay in memory for it."""

    functions: list[int] = field(default_factory=list)
    arguments: list[list[int]] = field(default_factory=list)
    bases_of: list[list[int]] = field(default_factory=list)
    factors: list[tuple[float, float]] = field(default_factory=list)

    def add(self, code: Code, *arguments: int | Place, f: float = 1.0, g: float = 0.0) -> None:
        pairs = [a if isinstance(a, Place) else Place(Base.NOWHERE, a) for a in arguments]
        pairs += [Place(Base.NOWHERE, 0)] * (ARGUMENTS - len(pairs))
        self.functions.append(address_of(code))
        self.arguments.append([pair.offset for pair in pairs])
        self.bases_of.append([int(pair.base) for pair in pairs])
        self.factors.append((f, g))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The first four arguments of `operations.execute`."""
        return (
            np.array(self.functions, dtype=np.int64),
            np.array(self.arguments, dtype=np.int64).reshape(-1, ARGUMENTS),
            np.array(self.bases_of, dtype=np.int8).reshape(-1, ARGUMENTS),
            np.array(self.factors, dtype=np.float32).reshape(-1, 2),
        )


class Drop(NamedTuple):
    """Entries that dropout draws in a step, with probability p: a range of the memory of all."""

    first: int
    last: int
    p: float


class Lowering:
    """The operations of one pass of a model, forward, and backward from the gradients of its outputs.

    Attributes:
        forward, backward: Both lists.
        work: Numbers of the memory that both need.
        most: Multiplications of the largest dense product.
        widths: The largest width that a sparse input multiplies, by its number.
        drops: What dropout draws, in order; `kept` counts all its numbers.
    """

    def __init__(self, logits: Value, embedding: Value | None, w: Tensor, gradients: bool) -> None:
        """Takes the outputs; without an embedding it is not written, and the gradient of logits is where these were.

        With `gradients` the way back is made, too. Raises Untraceable: a parameter does not lie in `w`.
        """
        self.forward, self.backward = Operations(), Operations()
        self.work, self.kept, self.most = 0, 0, 0
        self.drops: list[Drop] = []
        self.widths: dict[int, int] = {}
        self._w = w
        self._memory: dict[Value, Memory] = {}
        self._written: list[tuple[int, int]] = []
        order = _in_order(logits, *([] if embedding is None else [embedding]))
        self._joined = _joined_sums(order)
        for value in order:
            self._memory[value] = self._place_of(value)
            if value not in self._joined:
                getattr(self, f"_{value.kind}")(value)
        self.logits = self._memory[logits].place
        if embedding is not None:
            self._write_out(logits, Base.LOGITS)
            self._write_out(embedding, Base.EMBEDDING)
        if gradients:
            self._go_back(order, logits, embedding)

    def _place_of(self, value: Value) -> Memory:
        """Finds a value's memory: that of what it is made of, or new memory."""
        if value.kind == "rows":
            return Memory(self._memory[value.of[0]].place)
        if value.kind == "input":
            return Memory(Place(_base_of(value.with_["number"]), 0))
        if value in self._joined:
            return Memory(Place(Base.NOWHERE, 0))
        source = self._overwritten(value)
        return Memory(self._memory[source].place if source is not None else self._new(value.numbers))

    def _overwritten(self, value: Value) -> Value | None:
        if value.kind not in IN_PLACE:
            return None
        source = value.of[-1]
        if source.uses > 1 or source.kind in ("input", "rows", "drop"):
            return None
        # The way back through ReLU reads its result, or that of the dropout behind it.
        return None if source.kind == "relu" and value.kind != "drop" else source

    def _new(self, numbers: int) -> Place:
        place = Place(Base.WORK, FLOAT * self.work)
        self.work += -(-numbers // LINE) * LINE
        return place

    def _write_out(self, value: Value, base: Base) -> None:
        self.forward.add(Code.MIX, self._memory[value].place, Place(base, 0), value.numbers)

    def _parameter(self, tensor: Tensor, base: Base = Base.WEIGHTS) -> Place:
        """Finds a parameter in the vector of all, or its gradient."""
        offset = tensor.data_ptr() - self._w.data_ptr()
        inside = tensor.untyped_storage().data_ptr() == self._w.untyped_storage().data_ptr()
        if not inside or not 0 <= offset < FLOAT * self._w.numel():
            raise Untraceable("a tensor that is no parameter")
        return Place(base, offset)

    def _gradient_of(self, tensor: Tensor) -> tuple[Place, float]:
        """Finds the gradient of a parameter, and the factor of what it is so far."""
        place = self._parameter(tensor, Base.GRADIENTS)
        span = place.offset // FLOAT, place.offset // FLOAT + tensor.numel()
        if span in self._written:
            return place, 1.0
        if any(first < span[1] and span[0] < last for first, last in self._written):
            raise Untraceable("a part of a parameter")
        self._written.append(span)
        return place, 0.0

    def _sparse(
        self, to: Operations, matrix: Operator, rows: int, x: Place, out: Place, width: int, back: bool, g: float
    ) -> None:
        """Multiplies by a matrix, or `back` by its transpose."""
        self.widths[matrix.number] = max(self.widths.get(matrix.number, 0), width)
        first = _base_of(matrix.number) + 3 * back
        arrays = [Place(first + part, 0) for part in range(3)]
        to.add(Code.SPARSE_ONES if matrix.ones else Code.SPARSE, *arrays, rows, x, out, width, g=g)

    # Forward, a method a kind.

    def _input(self, value: Value) -> None:
        pass

    def _rows(self, value: Value) -> None:
        pass

    def _times(self, value: Value, into: Value | None = None) -> None:
        x, out, g = self._memory[value.of[0]].place, self._memory[into or value].place, 0.0 if into is None else 1.0
        self._sparse(self.forward, value.with_["matrix"], value.rows, x, out, value.width, False, g)

    def _features(self, value: Value) -> None:
        weight_FH = value.with_["weight"]
        if not weight_FH.is_contiguous():
            raise Untraceable("a weight that lies row by row")
        factor, place = self._parameter(weight_FH), self._memory[value].place
        self._sparse(self.forward, value.with_["matrix"], value.rows, factor, place, value.width, False, 0.0)

    def _linear(self, value: Value) -> None:
        (x,), weight_HF = value.of, value.with_["weight"]
        factor, row = self._parameter(weight_HF), value.width
        if weight_HF.is_contiguous():
            turned = self._new(weight_HF.numel())
            self.forward.add(Code.TRANSPOSE, factor, turned, *weight_HF.shape)
            factor = turned
        elif not weight_HF.t().is_contiguous():
            raise Untraceable("a part of a weight")
        sizes = value.rows, x.width, value.width
        self.most = max(self.most, value.numbers * x.width)
        places = self._memory[x].place, x.width, 1, factor, row, self._memory[value].place, value.width
        self.forward.add(Code.DENSE, *places, *sizes)

    def _bias(self, value: Value) -> None:
        out, bias = self._copied(value), self._parameter(value.with_["bias"])
        self.forward.add(Code.BIAS, out, bias, value.rows, value.width)

    def _relu(self, value: Value) -> None:
        self.forward.add(Code.RELU, self._copied(value), value.numbers)

    def _drop(self, value: Value) -> None:
        p = value.with_["p"]
        kept = Place(Base.KEPT, FLOAT * self.kept)
        self.drops.append(Drop(self.kept, self.kept + value.numbers, p))
        value.with_["kept"] = kept
        self.kept += value.numbers
        self.forward.add(Code.MASK, self._copied(value), kept, value.numbers, f=1 / (1 - p))

    def _copied(self, value: Value) -> Place:
        """Copies what a value is made of to its memory, if that is another one."""
        source, out = self._memory[value.of[0]].place, self._memory[value].place
        if source != out:
            self.forward.add(Code.MIX, source, out, value.numbers)
        return out

    def _scale(self, value: Value) -> None:
        out, f = self._memory[value].place, value.with_["factor"]
        if self._memory[value.of[0]].place == out:
            self.forward.add(Code.MIX, Place(Base.NOWHERE, 0), out, value.numbers, g=f)
        else:
            self.forward.add(Code.MIX, self._memory[value.of[0]].place, out, value.numbers, f=f)

    def _scaled(self, value: Value) -> None:
        factor = self._parameter(value.with_["factor"])
        self.forward.add(Code.SCALED, self._memory[value.of[0]].place, factor, self._memory[value].place, value.numbers)

    def _add(self, value: Value) -> None:
        out, (x, y) = self._memory[value].place, value.of
        if self._memory[y].place != out:
            self.forward.add(Code.MIX, self._memory[y].place, out, value.numbers)
        if x in self._joined:
            self._times(x, value)
        else:
            self.forward.add(Code.MIX, self._memory[x].place, out, value.numbers, g=1.0)

    def _norm(self, value: Value) -> None:
        value.with_["moments"] = self._new(2 * value.rows)
        weight, bias = (self._parameter(value.with_[name]) for name in ("weight", "bias"))
        places = self._memory[value.of[0]].place, weight, bias, self._memory[value].place, value.with_["moments"]
        self.forward.add(Code.NORM, *places, value.rows, value.width, f=value.with_["epsilon"])

    # Backward.

    def _go_back(self, order: Sequence[Value], logits: Value, embedding: Value | None) -> None:
        memory = self._memory[logits]
        if embedding is None:
            memory.gradient = memory.place
        else:
            memory.gradient = self._new(logits.numbers)
            self.backward.add(Code.MIX, Place(Base.OF_LOGITS, 0), memory.gradient, logits.numbers)
        memory.begun = True
        for value in reversed(order):
            if value is embedding:
                self._add_of_embedding(value)
            if self._memory[value].begun and value.kind != "input":
                _BACK[value.kind](self, value)
        self._zero_others()

    def _add_of_embedding(self, value: Value) -> None:
        of_output = Place(Base.OF_EMBEDDING, 0)
        self._pass_on(value, lambda out, g: self.backward.add(Code.MIX, of_output, out, value.numbers, g=g))

    def _gradient(self, value: Value) -> Place:
        gradient = self._memory[value].gradient
        assert gradient is not None
        return gradient

    def _pass_on(self, value: Value, write: Callable[[Place, float], None]) -> None:
        """Writes to the gradient of a value, or adds to it: `write` takes its place and the factor of what it was."""
        if value.kind == "input":
            return
        memory = self._memory[value]
        if value.kind == "rows":
            # The first rows of another value's gradient.
            (whole,) = value.of
            other = self._memory[whole]
            if not other.begun:
                other.gradient, other.begun = self._new(whole.numbers), True
                self.backward.add(Code.ZERO, other.gradient, whole.numbers)
            assert other.gradient is not None
            write(other.gradient, 1.0)
            return
        if memory.begun:
            assert memory.gradient is not None
            write(memory.gradient, 1.0)
            return
        memory.gradient, memory.begun = self._new(value.numbers), True
        write(memory.gradient, 0.0)

    def _hand_over(self, value: Value, gradient: Place, change: Callable[[Place], None] | None = None) -> bool:
        """Lets a value have a gradient's memory as its own, changed in place; False: it has one already."""
        memory = self._memory[value]
        if memory.begun or value.kind in ("input", "rows"):
            return False
        if change is not None:
            change(gradient)
        memory.gradient, memory.begun = gradient, True
        return True

    def _back_rows(self, value: Value) -> None:
        raise AssertionError("the gradient of some rows is that of all")

    def _back_times(self, value: Value) -> None:
        gradient, matrix, (x,) = self._gradient(value), value.with_["matrix"], value.of

        def write(out: Place, g: float) -> None:
            self._sparse(self.backward, matrix, x.rows, gradient, out, value.width, True, g)

        self._pass_on(x, write)

    def _back_features(self, value: Value) -> None:
        weight_FH, gradient = value.with_["weight"], self._gradient(value)
        into, g = self._gradient_of(weight_FH)
        self._sparse(self.backward, value.with_["matrix"], len(weight_FH), gradient, into, value.width, True, g)

    def _back_linear(self, value: Value) -> None:
        (x,), weight_HF, gradient = value.of, value.with_["weight"], self._gradient(value)
        into, g = self._gradient_of(weight_HF)
        place, sizes = self._memory[x].place, (value.rows, value.width, x.width)
        by_row = weight_HF.is_contiguous()
        if by_row:
            self.backward.add(Code.DENSE, gradient, 1, value.width, place, x.width, into, x.width,
                              value.width, value.rows, x.width, g=g)  # fmt: skip
        else:
            self.backward.add(Code.DENSE, place, 1, x.width, gradient, value.width, into, value.width,
                              x.width, value.rows, value.width, g=g)  # fmt: skip
        factor = self._parameter(weight_HF)
        if not by_row and x.kind != "input":
            turned = self._new(weight_HF.numel())
            self.backward.add(Code.TRANSPOSE, factor, turned, x.width, value.width)
            factor = turned
        self._pass_on(
            x,
            lambda out, g: self.backward.add(
                Code.DENSE, gradient, value.width, 1, factor, x.width, out, x.width, *sizes, g=g
            ),
        )

    def _back_bias(self, value: Value) -> None:
        gradient, (into, g) = self._gradient(value), self._gradient_of(value.with_["bias"])
        self.backward.add(Code.SUMS, gradient, into, value.rows, value.width, g=g)
        self._copy_to(value.of[0], gradient)

    def _copy_to(self, value: Value, gradient: Place) -> None:
        """Hands a gradient over that is needed no more, or adds it."""
        if not self._hand_over(value, gradient):
            self._pass_on(value, lambda out, g: self.backward.add(Code.MIX, gradient, out, value.numbers, g=g))

    def _change(self, value: Value, change: Callable[[Place], None]) -> None:
        """Changes a value's gradient in place, and lets what it is made of have it."""
        gradient = self._gradient(value)
        change(gradient)
        self._copy_to(value.of[0], gradient)

    def _back_relu(self, value: Value) -> None:
        out = self._memory[value].place
        self._change(value, lambda gradient: self.backward.add(Code.THROUGH, gradient, out, value.numbers))

    def _back_drop(self, value: Value) -> None:
        kept, f = value.with_["kept"], 1 / (1 - value.with_["p"])
        self._change(value, lambda gradient: self.backward.add(Code.MASK, gradient, kept, value.numbers, f=f))

    def _back_scale(self, value: Value) -> None:
        f = value.with_["factor"]
        nothing = Place(Base.NOWHERE, 0)
        self._change(value, lambda gradient: self.backward.add(Code.MIX, nothing, gradient, value.numbers, g=f))

    def _back_scaled(self, value: Value) -> None:
        (x,), gradient, factor = value.of, self._gradient(value), value.with_["factor"]
        into, g = self._gradient_of(factor)
        self.backward.add(Code.DOT, gradient, self._memory[x].place, into, value.numbers, g=g)
        place = self._parameter(factor)
        self._pass_on(x, lambda out, g: self.backward.add(Code.SCALED, gradient, place, out, value.numbers, g=g))

    def _back_add(self, value: Value) -> None:
        gradient, (x, y) = self._gradient(value), value.of
        if all(part.kind in READERS and part.uses == 1 for part in (x, y)):
            # Both only read the gradient.
            self._copy_to(x, gradient)
        else:
            self._pass_on(x, lambda out, g: self.backward.add(Code.MIX, gradient, out, x.numbers, g=g))
        self._copy_to(y, gradient)

    def _back_norm(self, value: Value) -> None:
        (x,), gradient = value.of, self._gradient(value)
        (of_weight, g), (of_bias, _) = (self._gradient_of(value.with_[name]) for name in ("weight", "bias"))
        weight, moments = self._parameter(value.with_["weight"]), value.with_["moments"]
        of_x = self._new(x.numbers)
        places = gradient, self._memory[x].place, weight, moments, of_x, of_weight, of_bias
        self.backward.add(Code.UNNORM, *places, x.rows, x.width, g=g)
        self._copy_to(x, of_x)

    def _zero_others(self) -> None:
        """Writes zeros to the gradients of parameters that the outputs do not depend on."""
        end = 0
        for first, last in [*sorted(self._written), (self._w.numel(), self._w.numel())]:
            if first > end:
                place = Place(Base.GRADIENTS, FLOAT * end)
                self.backward.add(Code.ZERO, place, first - end)
            end = max(end, last)


_BACK: dict[str, Callable[[Lowering, Value], None]] = {
    name.removeprefix("_back_"): function for name, function in vars(Lowering).items() if name.startswith("_back_")
}


def _in_order(*outputs: Value) -> list[Value]:
    """Lists all values that outputs are made of, each behind those that it is made of, and counts who reads them."""
    order: list[Value] = []
    seen: set[Value] = set()

    def visit(value: Value) -> None:
        if value in seen:
            return
        seen.add(value)
        value.uses = 0
        for part in value.of:
            visit(part)
        order.append(value)

    for output in outputs:
        visit(output)
    for value in order:
        for part in value.of:
            part.uses += 1
    for output in outputs:
        output.uses += 1
    return order


def _joined_sums(order: Sequence[Value]) -> set[Value]:
    """Finds sparse products that are added to another value, which the product does itself."""
    sums = [value for value in order if value.kind == "add" and value.of[0] is not value.of[1]]
    return {value.of[0] for value in sums if value.of[0].kind == "times" and value.of[0].uses == 1}
