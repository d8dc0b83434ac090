"""Differences of tensors: how many numbers, how far apart, and whether in value or in last bits."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# Values of tensors that are too many to be kept are known by their digests.
Value = Tensor | str


class Point(NamedTuple):
    """A place in a round where a tensor is looked at; points are ordered as a round goes.

    Attributes:
        phase: Number of the phase in the round, from 1; 0 before the first, `END` after the last.
        kind: One of `KINDS`, by number.
        client: -1 for the server.
        step: Order among points of one kind.
        place: What the tensor is, as `kept by the client`.
        name: Of the tensor.
    """

    phase: int
    kind: int
    client: int
    step: int
    place: str
    name: str


# A draw is of a cohort, of initial parameters, or, as keys, of a client's or the server's random streams.
DRAW, DOWNLOAD, KEYS, TRAINING, UPLOAD, REDUCTION = range(6)
KINDS = ("draw", "download", "draw", "training", "upload", "reduction")
SERVER, END = -1, 1 << 30
Points = Mapping[Point, Value]


@dataclass(frozen=True)
class Difference:
    """The difference of two tensors of one name.

    Attributes:
        name: Of the tensor.
        differing: Numbers that differ.
        numbers: All of them.
        largest: The largest distance of two numbers; NaN: they cannot be compared.
        relative: The same as a share of the largest magnitude in both tensors; infinite where they cannot be compared.
        first: Place of the first number that differs, in the flat tensor.
        why: Why numbers cannot be compared; empty: they can.
    """

    name: str
    differing: int = 0
    numbers: int = 0
    largest: float = float("nan")
    relative: float = float("inf")
    first: int = 0
    why: str = ""

    def text(self, tolerance: float) -> str:
        """Says how far the tensors differ, and whether in value."""
        if self.why:
            return self.why
        kind = "in value" if self.relative > tolerance else "in last bits"
        far = f"largest {self.largest:.3g}, relative {self.relative:.3g}"
        return f"{self.differing:,} of {self.numbers:,} numbers, {far}: {kind} (tolerance {tolerance:g})"


def compare(name: str, a: Value | None, b: Value | None) -> Difference | None:
    """Compares two tensors, or digests of tensors; None: they have equal types, shapes and bits, NaN counts as equal.

    A tensor that only one side has, another shape or type is a difference in value.
    """
    if a is None and b is None:
        return None
    if a is None or b is None:
        return Difference(name, why=f"{'B' if a is None else 'A'} alone has it")
    if isinstance(a, str) or isinstance(b, str):
        return None if a == b else Difference(name, why="too many numbers to be kept; their digests differ")
    if a.dtype != b.dtype or a.shape != b.shape:
        forms = [f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (a, b)]
        return Difference(name, why=f"A has {forms[0]}, B {forms[1]}")
    if torch.equal(a, b):
        return None
    left, right = a.detach().reshape(-1).double(), b.detach().reshape(-1).double()
    unequal = (left != right) & ~(left.isnan() & right.isnan())
    if not unequal.any():
        return None
    distance = (left - right)[unequal].abs().nan_to_num(nan=float("inf"))
    scale = torch.maximum(left.abs(), right.abs()).nan_to_num(nan=0.0, posinf=0.0).max()
    largest = float(distance.max())
    relative = largest / float(scale) if a.is_floating_point() and scale > 0 else float("inf")
    return Difference(name, int(unequal.sum()), len(left), largest, relative, int(unequal.nonzero()[0]))


def list_differences(a: Points, b: Points, tolerance: float = 0.0) -> list[tuple[Point, Difference]]:
    """Compares tensors at all points in the order of a round; relative differences up to a tolerance are none.

    Random streams are compared where both sides draw from as many: who trains longer draws more often.
    """
    differing = []
    drawn = [Counter(point[:3] for point in points if point.kind == KEYS) for points in (a, b)]
    for point in sorted({*a, *b}):
        if point.kind == KEYS and drawn[0][point[:3]] != drawn[1][point[:3]]:
            continue
        difference = compare(point.name, a.get(point), b.get(point))
        if difference is not None and difference.relative > tolerance:
            differing.append((point, difference))
    return differing


def name_layer(name: str, value: Value | None, first: int, layers: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """Names the parameter of a model in which a flat vector of all of them first differs.

    Args:
        name: Of the vector.
        value: The vector; another tensor keeps its name.
        first: Place of the first number that differs.
        layers: Of each kind of model, shapes of its parameters by name, in their order.
    """
    for shapes in layers:
        sizes = {layer: torch.Size(shape).numel() for layer, shape in shapes.items()}
        if isinstance(value, Tensor) and value.dim() == 1 and len(value) == sum(sizes.values()):
            end = 0
            for layer, size in sizes.items():
                end += size
                if first < end:
                    return f"{name} ({layer})"
    return name
