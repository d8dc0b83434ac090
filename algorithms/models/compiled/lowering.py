"""From what a model computes to lists of operations: memory, and the way back.

A value that nothing else reads is overwritten by the one that is made of it. Gradients are written where they are first
known, and added to from then on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.models.compiled.operations import ARGUMENTS, ARRAYS, Base, Code, address_of
from shoal.algorithms.models.compiled.trace import Operator, Untraceable, Value

# Bytes of a number, and of what dropout draws for one.
FLOAT, DRAW = 4, 2
# Numbers that share a line of the cache.
LINE = 16
# Kinds that may overwrite the value they are made of, if nothing else reads it.
IN_PLACE = ("bias", "relu", "leaky", "drop", "scale", "add")
# Kinds whose way back reads their gradient and changes nothing in it.
READERS = ("times", "features", "linear")


class Place(NamedTuple):
    """An address: bytes from a base, a `Base` or that of an input's array."""

    base: int
    offset: int

    def behind(self, numbers: int) -> "Place":
        return Place(self.base, self.offset + FLOAT * numbers)


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
    """A list of operations in columns, an entry of each a line."""

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
            np.array(self.bases_of, dtype=np.int16).reshape(-1, ARGUMENTS),
            np.array(self.factors, dtype=np.float32).reshape(-1, 2),
        )


class Product(NamedTuple):
    """A product Y = A X: the number of A, places of X and of the gradient of Y, in bytes, and shapes of X and Y."""

    number: int
    x: int
    of_y: int
    shape: torch.Size
    shape_of_y: torch.Size


class Lowering:
    """The operations of one pass of a model, forward, and backward from the gradients of its outputs.

    Attributes:
        forward, backward: Both lists.
        work: Numbers of the memory that both need.
        most: Multiplications of the largest dense product.
        widths: The largest width that a sparse input multiplies, by its number.
        kept: Numbers for which dropout draws, in whole words.
    """

    def __init__(
        self,
        logits: Value,
        embedding: Value | None,
        w: Tensor,
        forward: Mapping[str, Callable[["Lowering", Value], None]],
        back: Mapping[str, Callable[["Lowering", Value], None]],
    ) -> None:
        """Takes the outputs; without an embedding none is written, and the gradient of logits is where these were.

        `forward` and `back` write the operations of a value, by its kind. Raises Untraceable: a parameter does not lie
        in `w`.
        """
        self.forward, self.backward = Operations(), Operations()
        self.work, self.kept, self.most = 0, 0, 0
        self.widths: dict[int, int] = {}
        self._w = w
        self.memory: dict[Value, Memory] = {}
        self._written: list[tuple[int, int]] = []
        order = _in_order(logits, *([] if embedding is None else [embedding]))
        self.joined = _joined_sums(order)
        for value in order:
            self.memory[value] = self._place_of(value)
            if value not in self.joined and value.kind not in ("rows", "input"):
                forward[value.kind](self, value)
        self.logits = self.memory[logits].place
        if embedding is not None:
            self._write_out(logits, Base.LOGITS)
            self._write_out(embedding, Base.EMBEDDING)
        self._go_back(order, logits, embedding, back)

    def products(self) -> list["Product"]:
        """Lists products by operators whose factors stay in the memory for values; those of an input do not."""
        products = []
        for value, memory in self.memory.items():
            if value.kind == "times" and memory.begun and self.memory[value.of[0]].place.base == Base.WORK:
                x, number = value.of[0], value.with_["matrix"].number
                places = self.memory[x].place.offset, self.gradient(value).offset
                products.append(Product(number, *places, x.shape, value.shape))
        return products

    def adding(self) -> np.ndarray:
        """Makes the factors of the way back that add to gradients of parameters, `[O, 2]`."""
        factors = self.backward.arrays()[-1]
        for line, bases in enumerate(self.backward.bases_of):
            if Base.GRADIENTS in bases:
                factors[line, 1] = 1.0
        return factors

    def _place_of(self, value: Value) -> Memory:
        """Finds a value's memory: that of what it is made of, or new memory."""
        if value.kind == "rows":
            return Memory(self.memory[value.of[0]].place)
        if value.kind == "input":
            return Memory(self.input(value.with_["number"]))
        if value in self.joined:
            return Memory(Place(Base.NOWHERE, 0))
        source = self._overwritten(value)
        return Memory(self.memory[source].place if source is not None else self.new(value.numbers))

    def _overwritten(self, value: Value) -> Value | None:
        if value.kind not in IN_PLACE:
            return None
        source = value.of[-1]
        if source.uses > 1 or source.kind in ("input", "rows", "drop"):
            return None
        # The way back through ReLU reads its result, or that of the dropout behind it.
        return None if source.kind in ("relu", "leaky") and value.kind != "drop" else source

    def new(self, numbers: int) -> Place:
        place = Place(Base.WORK, FLOAT * self.work)
        self.work += -(-numbers // LINE) * LINE
        return place

    def _write_out(self, value: Value, base: Base) -> None:
        self.forward.add(Code.MIX, self.memory[value].place, Place(base, 0), value.numbers)

    def parameter(self, tensor: Tensor, base: Base = Base.WEIGHTS) -> Place:
        """Finds a parameter in the vector of all, or its gradient."""
        offset = tensor.data_ptr() - self._w.data_ptr()
        inside = tensor.untyped_storage().data_ptr() == self._w.untyped_storage().data_ptr()
        if not inside or not 0 <= offset < FLOAT * self._w.numel():
            raise Untraceable("a tensor that is no parameter")
        return Place(base, offset)

    def gradient_of(self, tensor: Tensor) -> tuple[Place, float]:
        """Finds the gradient of a parameter, and the factor of what it is so far."""
        place = self.parameter(tensor, Base.GRADIENTS)
        span = place.offset // FLOAT, place.offset // FLOAT + tensor.numel()
        if span in self._written:
            return place, 1.0
        if any(first < span[1] and span[0] < last for first, last in self._written):
            raise Untraceable("a part of a parameter")
        self._written.append(span)
        return place, 0.0

    def sparse(
        self, to: Operations, matrix: Operator, rows: int, x: Place, out: Place, width: int, back: bool, g: float
    ) -> None:
        """Multiplies by a matrix, or `back` by its transpose."""
        self.widths[matrix.number] = max(self.widths.get(matrix.number, 0), width)
        first = _base_of(matrix.number) + 3 * back
        arrays = [Place(first + part, 0) for part in range(3)]
        to.add(Code.SPARSE_ONES if matrix.ones else Code.SPARSE, *arrays, rows, x, out, width, g=g)

    def input(self, number: int) -> Place:
        """Finds the values of a dense input."""
        return Place(_base_of(number), 0)

    def pattern(self, matrix: Operator) -> list[Place]:
        """Finds row starts and columns of a matrix."""
        first = _base_of(matrix.number)
        return [Place(first, 0), Place(first + 1, 0)]

    def _go_back(
        self,
        order: Sequence[Value],
        logits: Value,
        embedding: Value | None,
        back: Mapping[str, Callable[["Lowering", Value], None]],
    ) -> None:
        memory = self.memory[logits]
        if embedding is None:
            memory.gradient = memory.place
        else:
            memory.gradient = self.new(logits.numbers)
            self.backward.add(Code.MIX, Place(Base.OF_LOGITS, 0), memory.gradient, logits.numbers)
        memory.begun = True
        for value in reversed(order):
            if value is embedding:
                self._add_of_embedding(value)
            if self.memory[value].begun and value.kind != "input":
                back[value.kind](self, value)
        self._zero_others()

    def _add_of_embedding(self, value: Value) -> None:
        of_output = Place(Base.OF_EMBEDDING, 0)
        self.pass_on(value, lambda out, g: self.backward.add(Code.MIX, of_output, out, value.numbers, g=g))

    def gradient(self, value: Value) -> Place:
        gradient = self.memory[value].gradient
        assert gradient is not None
        return gradient

    def pass_on(self, value: Value, write: Callable[[Place, float], None]) -> None:
        """Writes to the gradient of a value, or adds to it: `write` takes its place and the factor of what it was."""
        if value.kind == "input":
            return
        memory = self.memory[value]
        if value.kind == "rows":
            # The first rows of another value's gradient.
            if value.of[0].kind != "input":
                write(self.added_to(value), 1.0)
            return
        if memory.begun:
            assert memory.gradient is not None
            write(memory.gradient, 1.0)
            return
        memory.gradient, memory.begun = self.new(value.numbers), True
        write(memory.gradient, 0.0)

    def added_to(self, value: Value) -> Place:
        """Finds the gradient of a value to add to, of zeros if it is not begun; for the first rows, that of all."""
        if value.kind == "rows":
            return self.added_to(value.of[0])
        memory = self.memory[value]
        if not memory.begun:
            memory.gradient, memory.begun = self.new(value.numbers), True
            self.backward.add(Code.ZERO, memory.gradient, value.numbers)
        assert memory.gradient is not None
        return memory.gradient

    def copied(self, value: Value) -> Place:
        """Copies what a value is made of to its memory, if that is another one."""
        source, out = self.memory[value.of[0]].place, self.memory[value].place
        if source != out:
            self.forward.add(Code.MIX, source, out, value.numbers)
        return out

    def copy_to(self, value: Value, gradient: Place) -> None:
        """Lets a value have a gradient's memory, which is needed no more, as that of its own; or adds it to that."""
        memory = self.memory[value]
        if memory.begun or value.kind in ("input", "rows"):
            self.pass_on(value, lambda out, g: self.backward.add(Code.MIX, gradient, out, value.numbers, g=g))
        else:
            memory.gradient, memory.begun = gradient, True

    def change(self, value: Value, change: Callable[[Place], None]) -> None:
        """Changes a value's gradient in place, and lets what it is made of have it."""
        gradient = self.gradient(value)
        change(gradient)
        self.copy_to(value.of[0], gradient)

    def _zero_others(self) -> None:
        """Writes zeros to the gradients of parameters that the outputs do not depend on."""
        end = 0
        for first, last in [*sorted(self._written), (self._w.numel(), self._w.numel())]:
            if first > end:
                # Zeros by a sum of nothing, which may be added, too.
                place = Place(Base.GRADIENTS, FLOAT * end)
                self.backward.add(Code.MIX, Place(Base.OF_NOTHING, 0), place, first - end)
            end = max(end, last)


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
