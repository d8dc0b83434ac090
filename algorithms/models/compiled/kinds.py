"""The operations of every kind of value, forward and on the way back."""

from collections.abc import Callable

from torch import Tensor

from shoal.algorithms.models.compiled.hop_operations import ALL, ALONE, FIRST
from shoal.algorithms.models.compiled.lowering import DRAW, READERS, Lowering, Place
from shoal.algorithms.models.compiled.operations import Base, Code
from shoal.algorithms.models.compiled.trace import Untraceable, Value
from shoal.algorithms.models.layers.dropout import least_kept, whole_words

# What writes the operations of a value.
Write = Callable[[Lowering, Value], None]
_FORWARD: dict[str, Write] = {}
_BACK: dict[str, Write] = {}


def lower(logits: Value, embedding: Value | None, w: Tensor) -> Lowering:
    """Makes the operations of a pass, see `Lowering`."""
    return Lowering(logits, embedding, w, _FORWARD, _BACK)


def forward(function: Write) -> Write:
    _FORWARD[function.__name__.removeprefix("_")] = function
    return function


def back(function: Write) -> Write:
    _BACK[function.__name__.removeprefix("_back_")] = function
    return function


@forward
def _times(of: Lowering, value: Value) -> None:
    _multiply(of, value, of.memory[value].place, 0.0)


def _multiply(of: Lowering, value: Value, out: Place, g: float) -> None:
    x = of.memory[value.of[0]].place
    of.sparse(of.forward, value.with_["matrix"], value.rows, x, out, value.width, False, g)


@forward
def _features(of: Lowering, value: Value) -> None:
    """Multiplies sparse features, of one or several inputs behind one another, by a weight."""
    weight_FH, out = value.with_["weight"], of.memory[value].place
    factor = of.parameter(weight_FH)
    if not weight_FH.is_contiguous():
        turned = of.new(weight_FH.numel())
        of.forward.add(Code.TRANSPOSE, factor, turned, *weight_FH.t().shape)
        factor = turned
    if value.with_["kept"] is not None:
        masked = of.new(weight_FH.numel())
        of.forward.add(Code.SCALE_ROWS, factor, of.input(value.with_["kept"]), masked, *weight_FH.shape)
        factor = masked
    matrices = value.with_["matrices"]
    rows = value.rows // len(matrices)
    for number, matrix in enumerate(matrices):
        of.sparse(of.forward, matrix, rows, factor, out.behind(number * rows * value.width), value.width, False, 0.0)


@forward
def _linear(of: Lowering, value: Value) -> None:
    (x,), weight_HF = value.of, value.with_["weight"]
    factor, row = of.parameter(weight_HF), value.width
    if weight_HF.is_contiguous():
        turned = of.new(weight_HF.numel())
        of.forward.add(Code.TRANSPOSE, factor, turned, *weight_HF.shape)
        factor = turned
    elif not weight_HF.t().is_contiguous():
        raise Untraceable("a part of a weight")
    sizes = value.rows, x.width, value.width
    of.most = max(of.most, value.numbers * x.width)
    places = of.memory[x].place, x.width, 1, factor, row, of.memory[value].place, value.width
    of.forward.add(Code.DENSE, *places, *sizes)


@forward
def _bias(of: Lowering, value: Value) -> None:
    out, bias = of.copied(value), of.parameter(value.with_["bias"])
    of.forward.add(Code.BIAS, out, bias, value.rows, value.width)


@forward
def _relu(of: Lowering, value: Value) -> None:
    of.forward.add(Code.RELU, of.copied(value), value.numbers)


@forward
def _drop(of: Lowering, value: Value) -> None:
    p = value.with_["p"]
    drawn = Place(Base.KEPT, DRAW * of.kept)
    value.with_["drawn"] = drawn
    of.kept += whole_words(value.numbers)
    of.forward.add(Code.MASK, of.copied(value), drawn, value.numbers, f=1 / (1 - p), g=least_kept(p))


@forward
def _scale(of: Lowering, value: Value) -> None:
    out, f = of.memory[value].place, value.with_["factor"]
    if of.memory[value.of[0]].place == out:
        of.forward.add(Code.MIX, Place(Base.NOWHERE, 0), out, value.numbers, g=f)
    else:
        of.forward.add(Code.MIX, of.memory[value.of[0]].place, out, value.numbers, f=f)


@forward
def _scaled(of: Lowering, value: Value) -> None:
    factor = of.parameter(value.with_["factor"])
    of.forward.add(Code.SCALED, of.memory[value.of[0]].place, factor, of.memory[value].place, value.numbers)


@forward
def _add(of: Lowering, value: Value) -> None:
    out, (x, y) = of.memory[value].place, value.of
    if of.memory[y].place != out:
        of.forward.add(Code.MIX, of.memory[y].place, out, value.numbers)
    if x in of.joined:
        _multiply(of, x, out, 1.0)
    else:
        of.forward.add(Code.MIX, of.memory[x].place, out, value.numbers, g=1.0)


@forward
def _norm(of: Lowering, value: Value) -> None:
    value.with_["moments"] = of.new(2 * value.rows)
    weight, bias = (of.parameter(value.with_[name]) for name in ("weight", "bias"))
    places = of.memory[value.of[0]].place, weight, bias, of.memory[value].place, value.with_["moments"]
    of.forward.add(Code.NORM, *places, value.rows, value.width, f=value.with_["epsilon"])


@back
def _back_times(of: Lowering, value: Value) -> None:
    gradient, matrix, (x,) = of.gradient(value), value.with_["matrix"], value.of

    def write(out: Place, g: float) -> None:
        of.sparse(of.backward, matrix, x.rows, gradient, out, value.width, True, g)

    of.pass_on(x, write)


@back
def _back_features(of: Lowering, value: Value) -> None:
    """Adds the sum of X_m' G_m over matrices of features, stacked in the rows of G, to the gradient of their weight.

    A sum with the weight's own layout goes right there; others go through memory of their own, where dropped features
    are scaled and the result is transposed.
    """
    weight_FH, gradient = value.with_["weight"], of.gradient(value)
    into, g = of.gradient_of(weight_FH)
    by_column, kept = weight_FH.is_contiguous(), value.with_["kept"]
    direct = by_column and kept is None
    out, before = (into, g) if direct else (of.new(weight_FH.numel()), 0.0)
    matrices = value.with_["matrices"]
    rows = value.rows // len(matrices)
    for number, matrix in enumerate(matrices):
        of_rows = gradient.behind(number * rows * value.width)
        of.sparse(of.backward, matrix, len(weight_FH), of_rows, out, value.width, True, before if not number else 1.0)
    if kept is not None:
        masked = (into, g) if by_column else (out, 0.0)
        of.backward.add(Code.SCALE_ROWS, out, of.input(kept), masked[0], *weight_FH.shape, g=masked[1])
    if not by_column:
        of.backward.add(Code.TRANSPOSE, out, into, *weight_FH.shape, g=g)


@back
def _back_linear(of: Lowering, value: Value) -> None:
    (x,), weight_HF, gradient = value.of, value.with_["weight"], of.gradient(value)
    into, g = of.gradient_of(weight_HF)
    place, sizes = of.memory[x].place, (value.rows, value.width, x.width)
    by_row = weight_HF.is_contiguous()
    if by_row:
        of.backward.add(Code.DENSE, gradient, 1, value.width, place, x.width, into, x.width,
                          value.width, value.rows, x.width, g=g)  # fmt: skip
    else:
        of.backward.add(Code.DENSE, place, 1, x.width, gradient, value.width, into, value.width,
                          x.width, value.rows, value.width, g=g)  # fmt: skip
    factor = of.parameter(weight_HF)
    if not by_row and x.kind != "input":
        turned = of.new(weight_HF.numel())
        of.backward.add(Code.TRANSPOSE, factor, turned, x.width, value.width)
        factor = turned
    of.pass_on(
        x,
        lambda out, g: of.backward.add(
            Code.DENSE, gradient, value.width, 1, factor, x.width, out, x.width, *sizes, g=g
        ),
    )


@back
def _back_bias(of: Lowering, value: Value) -> None:
    gradient, (into, g) = of.gradient(value), of.gradient_of(value.with_["bias"])
    of.backward.add(Code.SUMS, gradient, into, value.rows, value.width, g=g)
    of.copy_to(value.of[0], gradient)


@back
def _back_relu(of: Lowering, value: Value) -> None:
    out = of.memory[value].place
    of.change(value, lambda gradient: of.backward.add(Code.THROUGH, gradient, out, value.numbers))


@back
def _back_drop(of: Lowering, value: Value) -> None:
    p, drawn = value.with_["p"], value.with_["drawn"]
    factors = {"f": 1 / (1 - p), "g": least_kept(p)}
    of.change(value, lambda gradient: of.backward.add(Code.MASK, gradient, drawn, value.numbers, **factors))


@back
def _back_scale(of: Lowering, value: Value) -> None:
    f = value.with_["factor"]
    nothing = Place(Base.NOWHERE, 0)
    of.change(value, lambda gradient: of.backward.add(Code.MIX, nothing, gradient, value.numbers, g=f))


@back
def _back_scaled(of: Lowering, value: Value) -> None:
    (x,), gradient, factor = value.of, of.gradient(value), value.with_["factor"]
    into, g = of.gradient_of(factor)
    of.backward.add(Code.DOT, gradient, of.memory[x].place, into, value.numbers, g=g)
    place = of.parameter(factor)
    of.pass_on(x, lambda out, g: of.backward.add(Code.SCALED, gradient, place, out, value.numbers, g=g))


@back
def _back_add(of: Lowering, value: Value) -> None:
    gradient, (x, y) = of.gradient(value), value.of
    if all(part.kind in READERS and part.uses == 1 for part in (x, y)):
        # Both only read the gradient.
        of.copy_to(x, gradient)
    else:
        of.pass_on(x, lambda out, g: of.backward.add(Code.MIX, gradient, out, x.numbers, g=g))
    of.copy_to(y, gradient)


@back
def _back_norm(of: Lowering, value: Value) -> None:
    (x,), gradient = value.of, of.gradient(value)
    (of_weight, g), (of_bias, _) = (of.gradient_of(value.with_[name]) for name in ("weight", "bias"))
    weight, moments = of.parameter(value.with_["weight"]), value.with_["moments"]
    of_x = of.new(x.numbers)
    places = gradient, of.memory[x].place, weight, moments, of_x, of_weight, of_bias
    of.backward.add(Code.UNNORM, *places, x.rows, x.width, g=g)
    of.copy_to(x, of_x)


@forward
def _leaky(of: Lowering, value: Value) -> None:
    of.forward.add(Code.LEAKY, of.copied(value), value.numbers, f=value.with_["slope"])


@back
def _back_leaky(of: Lowering, value: Value) -> None:
    out, f = of.memory[value].place, value.with_["slope"]
    of.change(value, lambda gradient: of.backward.add(Code.THROUGH_LEAKY, gradient, out, value.numbers, f=f))


@forward
def _prelu(of: Lowering, value: Value) -> None:
    slope = of.parameter(value.with_["slope"])
    of.forward.add(Code.PRELU, of.memory[value.of[0]].place, slope, of.memory[value].place, value.numbers)


@back
def _back_prelu(of: Lowering, value: Value) -> None:
    x, slope = of.memory[value.of[0]].place, of.parameter(value.with_["slope"])
    into, g = of.gradient_of(value.with_["slope"])

    def change(gradient: Place) -> None:
        of.backward.add(Code.THROUGH_PRELU, gradient, x, slope, into, value.numbers, g=g)

    of.change(value, change)


@forward
def _join(of: Lowering, value: Value) -> None:
    first, out = 0, of.memory[value].place
    for part in value.of:
        source = of.memory[part].place
        of.forward.add(Code.COLUMNS, source, part.width, out.behind(first), value.width, part.rows, part.width)
        first += part.width


@back
def _back_join(of: Lowering, value: Value) -> None:
    first, gradient = 0, of.gradient(value)
    for part in value.of:
        columns, width = gradient.behind(first), part.width

        def write(out: Place, g: float, columns: Place = columns, width: int = width) -> None:
            of.backward.add(Code.COLUMNS, columns, value.width, out, width, value.rows, width, g=g)

        of.pass_on(part, write)
        first += width


@forward
def _attend(of: Lowering, value: Value) -> None:
    (x,), heads, matrix = value.of, value.with_["heads"], value.with_["matrix"]
    memory = [of.new(count * heads) for count in (value.rows, x.rows, matrix.entries)]
    vectors = [of.parameter(value.with_[name]) for name in ("of_senders", "of_receivers")]
    sizes = value.rows, x.rows, matrix.entries, heads, value.width // heads
    value.with_["arguments"] = [*of.pattern(matrix), of.memory[x].place, *vectors, *memory], sizes
    before, _ = value.with_["arguments"]
    of.forward.add(Code.ATTEND, *before, of.memory[value].place, *sizes, f=value.with_["slope"])


@back
def _back_attend(of: Lowering, value: Value) -> None:
    (x,), gradient, (before, sizes) = value.of, of.gradient(value), value.with_["arguments"]
    (of_senders, g), (of_receivers, _) = (of.gradient_of(value.with_[name]) for name in ("of_senders", "of_receivers"))
    into = of.added_to(x), of_senders, of_receivers
    of.backward.add(Code.UNATTEND, *before, gradient, *sizes, *into, f=value.with_["slope"], g=g)


@forward
def _attend_products(of: Lowering, value: Value) -> None:
    heads, matrix, (_, key, _) = value.with_["heads"], value.with_["matrix"], value.of
    places = [of.memory[part].place for part in value.of]
    sizes = value.rows, key.rows, matrix.entries, heads, value.width // heads
    value.with_["arguments"] = [*of.pattern(matrix), *places, of.new(matrix.entries * heads)], sizes
    before, _ = value.with_["arguments"]
    of.forward.add(Code.ATTEND_PRODUCTS, *before, of.memory[value].place, *sizes)


@back
def _back_attend_products(of: Lowering, value: Value) -> None:
    before, sizes = value.with_["arguments"]
    into = [of.added_to(part) for part in value.of]
    of.backward.add(Code.UNATTEND_PRODUCTS, *before, of.gradient(value), *sizes, *into)


@forward
def _weigh(of: Lowering, value: Value) -> None:
    module, hops = value.with_["module"], value.with_["hops"]
    product, *scores = (of.memory[part].place for part in value.of)
    vectors = value.of[1].width if scores else 0
    added = module.score.bias if scores else module.theta
    common = {"ori_ref": FIRST, "jk": ALL}.get(module.attention, ALONE)
    memory = [of.new(value.rows * hops) for _ in range(2)]
    places = product, scores[0] if scores else Place(Base.NOWHERE, 0), of.parameter(added), *memory
    value.with_["arguments"] = places, (hops, value.rows, value.width, vectors, common), added
    of.forward.add(Code.WEIGH, *places, of.memory[value].place, *value.with_["arguments"][1])


@back
def _back_weigh(of: Lowering, value: Value) -> None:
    places, sizes, added = value.with_["arguments"]
    into, g = of.gradient_of(added)
    # Products are read by nothing else: their gradients are written, not added to.
    of_parts = [of.new(part.numbers) for part in value.of]
    nothing = [Place(Base.NOWHERE, 0)] * (2 - len(of_parts))
    of.backward.add(Code.UNWEIGH, *places, of.gradient(value), *sizes, *of_parts, *nothing, into, g=g)
    for part, gradient in zip(value.of, of_parts):
        of.copy_to(part, gradient)


@forward
def _gather(of: Lowering, value: Value) -> None:
    places = of.memory[value.of[0]].place, of.input(value.with_["number"]), of.memory[value].place
    of.forward.add(Code.GATHER, *places, value.rows, value.width)


@back
def _back_gather(of: Lowering, value: Value) -> None:
    places = of.gradient(value), of.input(value.with_["number"]), of.added_to(value.of[0])
    of.backward.add(Code.SCATTER, *places, value.rows, value.width)
