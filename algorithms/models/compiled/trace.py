"""The computations of a model as a graph, which is drawn by running its `forward` on stand-ins for its inputs.

Axes: N rows, H width. A stand-in knows its shape and what made it, and has no numbers. A model's parameters stand for
themselves: they are known by their memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.models.inputs.learned_matrix import LearnedMatrix
from shoal.algorithms.models.inputs.masked_features import AlteredFeatures
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.models.layers.dropout import masks
from shoal.algorithms.models.layers.edge_attention import attend_by_products, attend_to_messages
from shoal.algorithms.models.layers.weighted_hops import weigh_sparse_hops
from shoal.storage.graph.sparse_matrix import FeatureMatrix, SparseMatrix


class Untraceable(Exception):
    """A model computes something that no operation stands for."""


def require_gradients() -> None:
    """Raises Untraceable where gradients are not enabled: stand-ins would have some all the same."""
    if not torch.is_grad_enabled():
        raise Untraceable("values without gradients")


class Value:
    """A matrix `[N, H]` that a pass computes.

    Attributes:
        kind: What makes it, see `kinds`; `of` are the values that it is made of.
        uses: How many values, and outputs, read it.
        with_: Whatever else it is made of: matrices, parameters, factors.
    """

    def __init__(self, kind: str, of: Sequence["Value"], rows: int, width: int, **with_: Any) -> None:
        require_gradients()
        self.kind, self.of, self.rows, self.width, self.with_ = kind, tuple(of), rows, width, with_
        self.uses = 0

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.rows, self.width))

    @property
    def numbers(self) -> int:
        return self.rows * self.width

    def __len__(self) -> int:
        return self.rows

    # Tensors that stand-ins are beside of are float32, and those that are detached have no gradient.
    is_cpu, dtype = True, torch.float32

    @property
    def requires_grad(self) -> bool:
        return self.kind != "detached"

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(name)

    def dim(self) -> int:
        return 2

    def to_dense(self) -> "Value":
        return self

    def to(self, dtype: torch.dtype) -> "Value":
        return self

    def index_select(self, dim: int, rows: Any) -> "Value":
        if dim or not isinstance(rows, Rows):
            raise Untraceable("columns, or rows that are no input")
        return Value("gather", [self], rows.count, self.width, number=rows.number)

    def detach(self) -> "Value":
        return Value("detached", [self], self.rows, self.width) if self.requires_grad else self

    def __getitem__(self, rows: Any) -> "Value":
        if isinstance(rows, Tensor) and rows.dtype == torch.int64 and rows.dim() == 1 and rows.is_cpu:
            return Value("picked", [self], len(rows), self.width, places=rows.contiguous())
        if not isinstance(rows, slice) or rows.start or rows.step or rows.stop is None or rows.stop < 0:
            raise Untraceable("rows that are not the first ones")
        stop, whole = min(rows.stop, self.rows), self.of[0] if self.kind == "rows" else self
        return self if stop == self.rows else Value("rows", [whole], stop, self.width)

    def __add__(self, other: Any) -> "Value":
        if isinstance(other, Value):
            if self.shape != other.shape:
                raise Untraceable("a sum of two shapes")
            return Value("add", [self, other], self.rows, self.width)
        if isinstance(other, Tensor) and other.dim() == 1 and len(other) == self.width:
            return Value("bias", [self], self.rows, self.width, bias=other)
        raise Untraceable(f"a sum with a {type(other).__name__}")

    __radd__ = __add__

    def __mul__(self, other: Any) -> "Value":
        if isinstance(other, Dropped):
            return Value("drop", [self], self.rows, self.width, p=other.p)
        if isinstance(other, int | float):
            return Value("scale", [self], self.rows, self.width, factor=float(other))
        if isinstance(other, nn.Parameter) and other.numel() == 1:
            return Value("scaled", [self], self.rows, self.width, factor=other)
        raise Untraceable(f"a product with a {type(other).__name__}")

    __rmul__ = __mul__

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = HANDLERS.get(function)
        if handler is None:
            raise Untraceable(getattr(function, "__name__", str(function)))
        return handler(*args, **(kwargs or {}))


class Dropped:
    """The factors of dropout, 0 or 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        self.p = p


class Rows:
    """The rows that are asked for: the input of this number."""

    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count


class Operator:
    """A sparse matrix `[N, M]` that multiplies a value: the input of this number."""

    def __init__(self, number: int, matrix: SparseMatrix) -> None:
        (_, columns, values), self._rows = matrix.arrays, len(matrix)
        self.number, self.ones, self.entries = number, values is None, len(columns)

    def __len__(self) -> int:
        return self._rows

    def __matmul__(self, x: Any) -> Value:
        if not isinstance(x, Value):
            raise Untraceable(f"a product of an operator and a {type(x).__name__}")
        return Value("times", [x], len(self), x.width, matrix=self)


class SparseFeatures(FeatureMatrix):
    """Sparse features `[N, F]`, which are multiplied by weights; `kept` is the input that masks their columns."""

    def __init__(self, number: int, matrix: SparseMatrix, kept: int | None = None) -> None:
        self.operator, self._shape, self._kept = Operator(number, matrix), matrix.shape, kept

    @property
    def shape(self) -> torch.Size:
        return self._shape

    def __matmul__(self, weight_FH: Tensor) -> Any:
        parts = {"matrices": [self.operator], "weight": weight_FH, "kept": self._kept}
        return Value("features", [], len(self), weight_FH.shape[1], **parts)

    def dim(self) -> int:
        return 2

    def to_dense(self) -> Tensor:
        raise Untraceable("sparse features written out")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Value.__torch_function__(function, types, args, kwargs)


def _linear(x: Any, weight: Tensor, bias: Tensor | None = None) -> Value:
    if not isinstance(x, Value):
        raise Untraceable("a linear layer on something else than a value")
    out = Value("linear", [x], x.rows, len(weight), weight=weight)
    return out if bias is None else out + bias


def _relu(x: Value, inplace: bool = False) -> Value:
    return Value("relu", [x], x.rows, x.width)


def _leaky_relu(x: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    return Value("leaky", [x], x.rows, x.width, slope=negative_slope)


def _prelu(x: Value, slope: Tensor) -> Value:
    if slope.numel() != 1:
        raise Untraceable("a slope of every column")
    return Value("prelu", [x], x.rows, x.width, slope=slope)


def _cat(parts: Sequence[Any], dim: int = 0) -> Value:
    if dim != 1 or not all(isinstance(part, Value) for part in parts):
        raise Untraceable("rows joined, or values and tensors")
    return Value("join", parts, parts[0].rows, sum(part.width for part in parts))


def _attend(operator: Operator, x: Value, of_senders: Tensor, of_receivers: Tensor, slope: float) -> Value:
    vectors = {"of_senders": of_senders, "of_receivers": of_receivers}
    return Value(
        "attend", [x], len(operator), x.width, matrix=operator, slope=slope, heads=of_senders.shape[-2], **vectors
    )


def _attend_by_products(operator: Operator, query: Value, key: Value, value: Value, heads: int) -> Value:
    return Value("attend_products", [query, key, value], len(operator), value.width, matrix=operator, heads=heads)


def _weigh_sparse(hops: Sequence[SparseFeatures], weight_HF: Tensor, vectors_RF: Tensor, module: Any) -> Value:
    matrices, rows = [hop.operator for hop in hops], len(hops) * len(hops[0])
    parts = [
        Value("features", [], rows, len(factor), matrices=matrices, weight=factor.t(), kept=None)
        for factor in (weight_HF, vectors_RF)
        if len(factor)
    ]
    return Value("weigh", parts, len(hops[0]), len(weight_HF), hops=len(hops), module=module)


def _lerp(x: Value, y: Value, share: float) -> Value:
    return x * (1 - share) + y * share


def _addmm(to: Value, x: Value, weight_FH: Tensor, beta: float = 1, alpha: float = 1) -> Value:
    return to * beta + _linear(x, weight_FH.t()) * alpha


def _add(x: Value, y: Any, alpha: float = 1) -> Value:
    return x + (y if alpha == 1 else y * alpha)


def _layer_norm(
    x: Value, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Value:
    if tuple(shape) != (x.width,) or weight is None or bias is None:
        raise Untraceable("a layer norm of other shapes, or without parameters")
    return Value("norm", [x], x.rows, x.width, weight=weight, bias=bias, epsilon=eps)


HANDLERS: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    F.relu: _relu,
    torch.relu: _relu,
    F.leaky_relu: _leaky_relu,
    torch.prelu: _prelu,
    torch.cat: _cat,
    attend_to_messages: _attend,
    attend_by_products: _attend_by_products,
    weigh_sparse_hops: _weigh_sparse,
    torch.lerp: _lerp,
    torch.addmm: _addmm,
    torch.add: _add,
    F.layer_norm: _layer_norm,
    torch.Tensor.__mul__: lambda x, y: y * x,
    torch.Tensor.mul: lambda x, y: y * x,
    torch.Tensor.__rmul__: lambda x, y: y * x,
    torch.Tensor.add: lambda x, y: y + x,
    torch.Tensor.__add__: lambda x, y: y + x,
}


def signature_of(inputs: Sequence[Any], entries: bool) -> tuple[Any, ...] | None:
    """Describes inputs as far as a pass depends on them, by `entries` counted; None: no stand-ins exist for them."""
    parts: list[Any] = []
    for x in inputs:
        if type(x) is SparseMatrix or isinstance(x, LearnedMatrix):
            if x.form is None:
                return None
            parts.append(x.form if entries else x.form[:3])
        elif isinstance(x, Tensor) and x.is_cpu and x.dtype == torch.int64 and x.dim() == 1 and x.is_contiguous():
            parts.append(len(x))
        elif isinstance(x, Tensor) and x.is_cpu and x.dtype == torch.float32 and not x.requires_grad:
            if not x.is_contiguous():
                return None
            parts.append(tuple(x.shape))
        else:
            return None
    return tuple(parts)


def stand_in(inputs: Sequence[Any], coupled: bool, powers: Sequence[int] = ()) -> Any:
    """Makes stand-ins of inputs that have a signature: hops; or features, operators, and, if any, rows and a mask.

    With `powers` they are features and what these are smoothed by, so often for each hop.
    """
    if powers:
        smoothing: Any = Operator(1, inputs[1])
        return [AlteredFeatures(_stand_in_features(0, inputs[0]), None, smoothing, k) for k in powers]
    if not coupled:
        return [_stand_in_features(number, hop) for number, hop in enumerate(inputs)]
    features, *others = inputs
    kept = len(others) if isinstance(others[-1], Tensor) and others[-1].is_floating_point() else None
    if kept is not None:
        others.pop()
    rows: Any = Rows(len(others), len(others.pop())) if isinstance(others[-1], Tensor) else None
    operators: Any = tuple(Operator(number, matrix) for number, matrix in enumerate(others, start=1))
    return Neighbourhood(_stand_in_features(0, features, kept), operators, rows)


def _stand_in_features(number: int, x: Any, kept: int | None = None) -> Any:
    if isinstance(x, SparseMatrix):
        return SparseFeatures(number, x, kept)
    return Value("input", [], *x.shape, number=number)


@contextmanager
def tracing() -> Iterator[None]:
    """Lets dropout stand for itself inside the block."""
    with masks(lambda x, p: Dropped(p)):  # type: ignore[arg-type, return-value]
        yield
