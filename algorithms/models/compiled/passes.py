"""Passes of a model over the same inputs, forward and backward, each in one compiled call.

Axes: N rows of the output, H width of the embedding, C classes, P parameters.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from shoal.algorithms.models.compiled.kinds import lower
from shoal.algorithms.models.compiled.lowering import FLOAT, Product
from shoal.algorithms.models.compiled.operations import ARRAYS, Base, execute
from shoal.algorithms.models.compiled.trace import Untraceable, Value, signature_of, stand_in, tracing
from shoal.algorithms.models.inputs.learned_matrix import LearnedMatrix
from shoal.algorithms.models.inputs.masked_features import AlteredFeatures, SmoothedHops
from shoal.algorithms.models.inputs.neighbourhood import DrawnInputs, Inputs, ItemBatch, Neighbourhood
from shoal.algorithms.models.layers.dropout import draw_entries, masks_are_set
from shoal.algorithms.models.layers.head import Output

# Multiplications of a product up to which passes are compiled: they keep all values until the way back is done.
MOST_PRODUCTS = 2**27
# Passes of a model that are kept, 4 KB of a GCN's and 11 of a GIN's: clients differ in sizes.
MOST_KEPT = 4096
# Rooms of a model that wait for their next use, and the numbers of the largest that does: 16 MiB.
MOST_FREE, LARGEST_FREE = 4, 2**22
# Passes of a step: each takes memory of its own.
MOST_CALLS = 256

BASES = len(Base)

# Finds the parameters, or their gradients, in a vector of all.
Parts = Callable[[Tensor], Iterator[Tensor]]
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Pass:
    """Operations of a pass, and the memory that they need.

    Attributes:
        forward, backward: First arguments of `execute`.
        adding: Factors of `backward` that add to gradients of parameters instead of writing them.
        work, kept: Numbers of the memory for values, and for what dropout draws.
        logits, embedding: Shapes of the outputs.
        embeds: The outputs are written out, and gradients of both are read.
        at: The place of the logits in the memory for values, in bytes.
        widths: The largest width that a sparse input multiplies, by its number.
        products: Products by operators, by places in the memory for values.
    """

    forward: Arrays
    backward: Arrays
    adding: np.ndarray
    work: int
    kept: int
    logits: torch.Size
    embedding: torch.Size
    embeds: bool
    at: int
    widths: Mapping[int, int]
    products: Sequence[Product]

    def products_of(self, parts: Sequence[Any], matrices: Sequence[Any]) -> list[Product]:
        """Lists products by some matrices, of a pass over inputs that consist of these parts."""
        return [product for product in self.products if any(parts[product.number] is matrix for matrix in matrices)]

    def way_back(self, adds: bool) -> Arrays:
        """Returns the operations backward, which may add to gradients of parameters instead of writing them."""
        *operations, factors = self.backward
        return operations[0], operations[1], operations[2], self.adding if adds else factors


def joined(lists: Sequence[tuple[Arrays, int]]) -> Arrays:
    """Joins lists of operations, each of which has the number of its first base."""
    functions, arguments, _, factors = (np.concatenate(columns) for columns in zip(*(part for part, _ in lists)))
    # A number counts from nowhere in any list.
    moved = [part[2] if not first else np.where(part[2], part[2] + first, Base.NOWHERE) for part, first in lists]
    return functions, arguments, np.concatenate(moved).astype(np.int16), factors


class Read(NamedTuple):
    """The parts of inputs that passes read: matrices, their shapes, if they are of a graph, and powers of smoothing."""

    parts: Sequence[Any]
    signature: tuple[Any, ...]
    coupled: bool
    powers: Sequence[int]


class Call(NamedTuple):
    """The parts that are read, a pass over them, and stand-ins for logits and embedding.

    `drawn` says whether each step has inputs of its own.
    """

    read: Read
    compiled: Pass
    outputs: tuple[Value, Value]
    drawn: DrawnInputs | None = None


def addresses(inputs: Sequence[Any], back: bool, **tensors: Tensor | None) -> np.ndarray:
    """Lists the bases of operations: of tensors by their names in lower case, and of the arrays of inputs.

    Those that are not given are 0, as are transposes unless it is for the way `back`.
    """
    bases = [0] * BASES
    for name, tensor in tensors.items():
        if tensor is not None:
            bases[Base[name.upper()]] = tensor.data_ptr()
    for x in inputs:
        if isinstance(x, Tensor):
            bases += [x.data_ptr(), *[0] * (ARRAYS - 1)]
        else:
            bases += [*x.addresses, *(x.transposed_addresses if back else (0, 0, 0))]
    return np.array(bases, dtype=np.int64)


def parts_of(inputs: Inputs) -> Sequence[Any] | None:
    """Lists the matrices of a model's inputs; None: they are more than matrices."""
    if isinstance(inputs, Neighbourhood):
        if not inputs.operators or not _are_rows_of(inputs.operators[-1], inputs.rows):
            return None
        x_NF: Any = inputs.x_NF
        kept: list[Tensor] = []
        if isinstance(x_NF, AlteredFeatures) and x_NF.masked is not None:
            x_NF, *kept = x_NF.masked
        return [x_NF, *inputs.operators, *([] if inputs.rows is None else [inputs.rows]), *kept]
    if isinstance(inputs, SmoothedHops):
        return inputs.factors
    return None if isinstance(inputs, ItemBatch) else inputs


def _are_rows_of(matrix: Any, rows: Tensor | None) -> bool:
    """Whether rows that are asked for exist; what is done about others is torch's."""
    if rows is None or not len(rows) or not rows.is_cpu:
        return True
    low, high = torch.aminmax(rows)
    return int(low) >= 0 and int(high) < len(matrix)


class Passes:
    """The passes of one model, made when they are first asked for: one for all inputs of the same shapes."""

    def __init__(self, module: nn.Module, w: Tensor, parts: Parts) -> None:
        """Takes a model whose class is `traced`, and the vector `[P]` that its parameters are `parts` of."""
        self._module, self._w, self._parts = module, w, parts
        self._parameters = list(module.parameters())
        self._adds = False
        self._calls: list[Call] | None = None
        self._free: deque[Tensor] = deque(maxlen=MOST_FREE)
        self._kept: dict[Any, Pass | None] = {}
        # Operations of whole steps, and the passes that these are made of.
        self.programs: dict[Any, tuple[Arrays, list[Pass]]] = {}

    def of(self, inputs: Inputs, embeds: bool = True) -> Pass | None:
        """Finds the pass over inputs in the model's present mode, see `find`; None: there is none."""
        read = self.read(inputs)
        return None if read is None else self.find(read, embeds)

    def read(self, inputs: Inputs) -> Read | None:
        """Lists what a pass would read; None: there is none over such inputs."""
        parts = parts_of(inputs)
        # Neighbours that are drawn have other shapes in every step.
        draws = self._module.training and bool(getattr(self._module, "fanouts", None))
        if parts is None or masks_are_set() or draws:
            return None
        coupled = isinstance(inputs, Neighbourhood)
        if not coupled and any(isinstance(hop, Tensor) for hop in parts):
            # Dense rows need no compiled loops.
            return None
        signature = signature_of(parts, entries=getattr(self._module, "weighs_entries", False))
        powers = inputs.powers if isinstance(inputs, SmoothedHops) else ()
        return None if signature is None else Read(parts, signature, coupled, powers)

    def find(self, read: Read, embeds: bool = True) -> Pass | None:
        """Finds the pass over what is read, in the model's present mode; None: there is none.

        One that does not embed has no output but logits in the memory for values, and is trained on their gradient,
        which takes their place.
        """
        # Others than those who count predictions read logits as the model itself computes them from such hops.
        if embeds and read.powers:
            return None
        if not embeds and any(isinstance(part, LearnedMatrix) for part in read.parts):
            return None
        key = read.signature, self._module.training, embeds, read.powers
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = self._make(read.parts, read.coupled, embeds, read.powers)
        compiled = self._kept[key]
        if compiled is None:
            return None
        entries = ((len(read.parts[number].arrays[1]), width) for number, width in compiled.widths.items())
        return None if any(count * width > MOST_PRODUCTS for count, width in entries) else compiled

    def _make(self, parts: Sequence[Any], coupled: bool, embeds: bool, powers: Sequence[int]) -> Pass | None:
        try:
            with torch.enable_grad(), tracing():
                logits, embedding = (part for part in self._module(stand_in(parts, coupled, powers)))
            if not isinstance(logits, Value) or (embeds and not isinstance(embedding, Value)):
                return None
            lowered = lower(logits, embedding if embeds else None, self._w)
        except Untraceable:
            return None
        if lowered.most > MOST_PRODUCTS:
            return None
        return Pass(
            lowered.forward.arrays(), lowered.backward.arrays(), lowered.adding(), lowered.work, lowered.kept,
            logits.shape, embedding.shape, embeds, lowered.logits.offset, lowered.widths,
            lowered.products(),
        )  # fmt: skip

    @property
    def draws(self) -> bool:
        """Whether the model answers with stand-ins."""
        return self._calls is not None

    def output(self, inputs: Inputs | DrawnInputs) -> Output | None:
        """Computes the output for inputs, with gradients where these are enabled; None: no pass does.

        Inside `drawing` it is one of stand-ins; Untraceable says that no pass does.
        """
        if self._calls is not None:
            return self._draw(inputs, self._calls)
        assert not isinstance(inputs, DrawnInputs)
        read = self.read(inputs)
        compiled = None if read is None else self.find(read)
        if read is None or compiled is None:
            return None
        parts = read.parts
        if not torch.is_grad_enabled():
            logits_NC, embedding_NH, *_ = self.go(compiled, parts, back=False)
            return Output(logits_NC, embedding_NH)
        learned = [part for part in parts if isinstance(part, LearnedMatrix)]
        if len(set(learned)) > 1 or len(learned) != len(compiled.products_of(parts, learned)):
            return None
        numbers = learned[0].numbers if learned else None
        return Output(*_Run.apply(compiled, parts, self, self._w, numbers, *self._parameters))

    def _draw(self, asked: Inputs | DrawnInputs, calls: list[Call]) -> Output:
        drawn = asked if isinstance(asked, DrawnInputs) else None
        inputs = asked.look(0) if isinstance(asked, DrawnInputs) else asked
        # A pass that does not embed has the same shapes, and may be all that is needed.
        read = self.read(inputs)
        compiled = None if read is None else self.find(read, embeds=False)
        if read is None or compiled is None or len(calls) == MOST_CALLS or not self.learns_all():
            raise Untraceable("inputs without a pass, too many, or frozen parameters")
        outputs: Any = Value("output", [], *compiled.logits), Value("output", [], *compiled.embedding)
        calls.append(Call(read, compiled, outputs, drawn))
        return Output(*outputs)

    @contextmanager
    def drawing(self) -> Iterator[list[Call]]:
        """Lets the model answer with stand-ins inside the block, and gives its calls there."""
        self._calls, training = [], self._module.training
        try:
            yield self._calls
        finally:
            self._calls = None
            if self._module.training != training:
                self._module.train(training)

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Lets backward passes inside the block add to `w.grad` themselves, which saves two copies of it."""
        # Frozen parameters have no gradient, which is told one by one.
        self._adds = self.learns_all()
        try:
            yield
        finally:
            self._adds = False

    def learns_all(self) -> bool:
        """Whether no parameter is frozen."""
        return all(p.requires_grad for p in self._parameters)

    def room(self, numbers: int) -> "_Room":
        """Returns memory for so many numbers, which comes back when the room is given up."""
        for place, free in enumerate(self._free):
            if len(free) >= numbers:
                del self._free[place]
                return _Room(free, self._free)
        return _Room(torch.empty(numbers), self._free if numbers <= LARGEST_FREE else None)

    def go(
        self, compiled: Pass, inputs: Sequence[Any], back: bool
    ) -> tuple[Tensor, Tensor, np.ndarray, tuple[Any, ...]]:
        """Runs a pass; returns logits, embedding, the bases of its operations, and what these are addresses of.

        Without `back` they are not those of a way back.
        """
        room, drawn = self.room(compiled.work), torch.empty(compiled.kept, dtype=torch.int16)
        draw_entries(drawn)
        logits_NC, embedding_NH = torch.empty(compiled.logits), torch.empty(compiled.embedding)
        bases = addresses(
            inputs, back, weights=self._w, work=room.memory, kept=drawn, logits=logits_NC, embedding=embedding_NH
        )
        execute(*compiled.forward, bases)
        return logits_NC, embedding_NH, bases, (inputs, room, drawn)

    def go_back(self, compiled: Pass, bases: np.ndarray) -> list[Tensor | None]:
        """Runs a pass back; returns the gradients of all parameters, None where it added them to `w.grad`."""
        adds = self._adds and self._w.grad is not None
        gradient = self._w.grad if adds else torch.empty_like(self._w)
        assert gradient is not None
        bases[Base.GRADIENTS] = gradient.data_ptr()
        execute(*compiled.way_back(adds), bases)
        return [None] * len(self._parameters) if adds else list(self._parts(gradient))


class _Room:
    """Memory that is used again: pages of new memory take as long as a small client's products."""

    def __init__(self, memory: Tensor, free: deque[Tensor] | None) -> None:
        """Takes where the memory waits for its next use; None: it is given back."""
        self.memory, self._free = memory, free

    def __del__(self) -> None:
        if self._free is not None:
            self._free.append(self.memory)


class _Run(torch.autograd.Function):
    """One pass; the gradients are those of the parameters."""

    @staticmethod
    def forward(
        ctx: Any, compiled: Pass, inputs: Sequence[Any], passes: Passes, w: Tensor, numbers: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        logits_NC, embedding_NH, bases, refer = passes.go(compiled, inputs, any(ctx.needs_input_grad))
        ctx.set_materialize_grads(False)
        # Saved, so that torch refuses a way back through parameters that have changed.
        ctx.save_for_backward(*parameters)
        ctx.compiled, ctx.passes, ctx.bases, ctx.refer = compiled, passes, bases, refer
        return logits_NC, embedding_NH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        _ = ctx.saved_tensors
        of_logits, of_embedding = (None if g is None else g.contiguous() for g in gradients)
        bases = ctx.bases.copy()
        for base, of_output in ((Base.OF_LOGITS, of_logits), (Base.OF_EMBEDDING, of_embedding)):
            bases[base] = 0 if of_output is None else of_output.data_ptr()
        of_parameters = ctx.passes.go_back(ctx.compiled, bases)
        of_numbers = _of_numbers(ctx.compiled, *ctx.refer[:2]) if ctx.needs_input_grad[4] else None
        return None, None, None, None, of_numbers, *of_parameters


def _of_numbers(compiled: Pass, inputs: Sequence[Any], room: _Room) -> Tensor:
    """Computes the gradient of the numbers of a learned matrix, after the way back."""

    def at(place: int, shape: torch.Size) -> Tensor:
        first = place // FLOAT
        return room.memory[first : first + shape.numel()].view(shape)

    learned = next(part for part in inputs if isinstance(part, LearnedMatrix))
    products = compiled.products_of(inputs, [learned])
    return learned.of_numbers([(at(p.x, p.shape), at(p.of_y, p.shape_of_y)) for p in products])
