"""The work of clients: operations and memory traffic of their visits, by formula from models, graphs and steps.

Products of matrices are counted, as `torch.utils.flop_counter` does: a multiplication and an addition are two
operations. What is done entry by entry (activations, dropout, losses) is not. Features count as dense. A model that
passes messages computes all nodes in every step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import nn

from shoal.algorithms.base import Algorithm
from shoal.algorithms.methods.registry.names import ONLY_TRAIN, SKETCH_LABELS
from shoal.algorithms.models.decoupled.fixed_hops import FixedHops
from shoal.algorithms.models.decoupled.gamlp import GAMLP
from shoal.algorithms.models.decoupled.sign import SIGN
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import BuiltModel
from shoal.storage.errors import ShoalError
from shoal.storage.options.propagation import propagation_of
from shoal.storage.store.store import Store

KNOWN = "mlp, sgc, s2gc, gbp, sign, gamlp, gat, gcn, gcnii, gin, sage, transformer"
# A number has 4 bytes, and so has the column of an entry. For a parameter, a step of an optimizer reads and writes so
# many numbers.
FLOAT = 4
OF_STEP = {"adam": 7, "sgd": 3, "momentum": 5}


class Work(NamedTuple):
    """A number of floating point operations and bytes of memory traffic, float64 `[B]`."""

    flops: np.ndarray
    traffic: np.ndarray

    def __add__(self, other: Any) -> "Work":
        return Work(self.flops + other.flops, self.traffic + other.traffic)

    def times(self, count: Any) -> "Work":
        """Multiplies the work by a number, or by one for each client."""
        return Work(self.flops * count, self.traffic * count)


@dataclass(frozen=True)
class Sizes:
    """The sizes of clients, `[B]`: items that a pass answers for, nodes, and entries of the matrix of a layer."""

    rows: np.ndarray
    nodes: np.ndarray
    entries: np.ndarray


@dataclass(frozen=True)
class Product:
    """A product of a model: of `[n, inner]` with `[inner, out]`.

    Attributes:
        over: The meaning of n, `rows` or `nodes`; `entries`: of a sparse matrix `[nodes, nodes]` with `[nodes, out]`.
        passes: Products of this size in a training step: the output, the gradient of the weight, that of the input.
        repeat: Rows of the product for each of n; of a sparse matrix the values of an entry, one a head of attention.
        own: Each row has another second matrix.
    """

    over: Literal["rows", "nodes", "entries"]
    inner: int
    out: int
    passes: int
    repeat: int = 1
    own: bool = False

    def work(self, sizes: Sizes) -> Work:
        """Returns the work of a product; each number is read and written once, of a sparse entry values and column."""
        n = getattr(sizes, self.over).astype(np.float64)
        if self.over == "entries":
            return Work(2 * n * self.out, FLOAT * ((self.repeat + 1) * n + 2 * sizes.nodes * self.out))
        n = n * self.repeat
        second = self.inner * self.out * (n if self.own else 1)
        return Work(2 * n * self.inner * self.out, FLOAT * (n * (self.inner + self.out) + second))


def products_of(module: nn.Module) -> list[Product] | None:
    """Returns the products of a model of nodes, in their order; None: its work is not known."""
    if isinstance(module, Coupled) and module.fanouts:
        return None
    formula = FORMULAS.get(type(module).__name__) if type(module).__module__.startswith("shoal.") else None
    return None if formula is None else formula(module)


def _widths(head: Head) -> list[tuple[int, int]]:
    linears: Any = head.linears
    return [(linear.in_features, linear.out_features) for linear in linears]


def _head(head: Head, first: int) -> list[Product]:
    """Returns products of a classifier; the first layer has so many passes: two if its input needs no gradient."""
    return [Product("rows", *width, 3 if number else first) for number, width in enumerate(_widths(head))]


def _gamlp(module: GAMLP) -> list[Product]:
    hops, (width, *_) = len(module.inputs), _widths(module.head)
    score = Product("rows", width[0], 1, 2, repeat=hops)
    read = {
        "simple": [], "gate": [score], "recursive": [score, score], "ori_ref": [score, Product("rows", width[0], 1, 2)],
        "jk": [score, Product("rows", hops * width[0], 1, 2)],
    }[module.attention]  # fmt: skip
    return [*read, Product("rows", hops, width[0], 2, own=True), *_head(module.head, 3)]


def _sign(module: SIGN) -> list[Product]:
    of_hops: Any = module.of_hops
    return [
        *(Product("rows", linear.in_features, linear.out_features, 2) for linear in of_hops),
        *_head(module.head, 3),
    ]


class Layer(NamedTuple):
    """The widths of a layer that passes messages: input, hidden layers, output; passes of its first weight, and
    heads.
    """

    inner: int
    hidden: int
    out: int
    first: int = 3
    heads: int = 1


def _layers(module: Coupled, layer: Callable[[Layer], list[Product]]) -> list[Product]:
    """Returns the products of all layers, then those of the classifier."""
    hidden, classes = _widths(module.head)[-1]
    inner, products = module.first_weights()[0].shape[1], list[Product]()
    for number, conv in enumerate(module.convs):
        widths = Layer(hidden if number else inner, hidden, hidden, 3 if number else 2, getattr(conv, "heads", 1))
        products += layer(widths)
    return products + (layer(Layer(hidden, hidden, classes)) if module.conv_head else _head(module.head, 3))


def _gcn(of: Layer) -> list[Product]:
    return [Product("nodes", of.inner, of.out, of.first), Product("entries", 1, of.out, 2)]


def _sage(of: Layer) -> list[Product]:
    return [Product("nodes", of.inner, of.out, of.first), *_gcn(of)]


def _gin(of: Layer) -> list[Product]:
    return [*_gcn(of._replace(out=of.hidden)), Product("nodes", of.hidden, of.out, 3)]


def _gat(of: Layer) -> list[Product]:
    # Attention weights have a gradient, too, so that entries take three passes.
    return [Product("nodes", of.inner, of.out, of.first), Product("entries", 1, of.out, 3, repeat=of.heads)]


def _transformer(of: Layer) -> list[Product]:
    # Weights make queries, keys, values and the node's own term; the score of an edge is a product, too.
    weight, summed = _gat(of)
    return [weight] * 4 + [summed] * 2


def _gcnii(module: Coupled) -> list[Product]:
    hidden, classes = _widths(module.head)[-1]
    lift = Product("nodes", module.first_weights()[0].shape[1], hidden, 2)
    layers = [Product("entries", 1, hidden, 2), Product("nodes", hidden, hidden, 3)] * len(module.convs)
    return [lift, *layers, *(_gcn(Layer(hidden, hidden, classes)) if module.conv_head else _head(module.head, 3))]


def _hops_in_one(module: FixedHops) -> list[Product]:
    return _head(module.head, 2)


# Each class of a model has a formula for its products.
FORMULAS: dict[str, Callable[[Any], list[Product]]] = {
    **dict.fromkeys(("MLP", "SGC", "S2GC", "GBP"), _hops_in_one),
    **{
        "GAMLP": _gamlp,
        "SIGN": _sign,
        "GCN": partial(_layers, layer=_gcn),
        "GraphSAGE": partial(_layers, layer=_sage),
    },
    **{"GIN": partial(_layers, layer=_gin), "GAT": partial(_layers, layer=_gat), "GCNII": _gcnii},
    "Transformer": partial(_layers, layer=_transformer),
}


def training_work(products: list[Product], parameters: int, sizes: Sizes, options: TrainOptions) -> Work:
    """Returns the work of a visit's local training: all epochs, in batches, with the optimizer's traffic."""
    size = np.maximum(sizes.rows, 1) if options.batch_size is None else options.batch_size
    steps = np.ceil(sizes.rows / size)
    batch = Sizes(sizes.rows / np.maximum(steps, 1), sizes.nodes, sizes.entries)
    name = "momentum" if options.optimizer == "sgd" and options.momentum else options.optimizer
    total = Work(np.zeros(len(steps)), np.full(len(steps), float(FLOAT * OF_STEP[name] * parameters)))
    for product in products:
        total += product.work(batch).times(product.passes)
    return total.times(steps * options.epochs)


def forward_work(products: list[Product], sizes: Sizes) -> Work:
    """Returns the work of a pass without gradients."""
    total = Work(np.zeros(len(sizes.rows)), np.zeros(len(sizes.rows)))
    for product in products:
        total += product.work(sizes)
    return total


@dataclass(frozen=True)
class ClientWork:
    """The work of every client of a run at one visit, `[B]`; `note` says that the method does more, if it does."""

    train: Work
    upload: Work
    evaluate: Work
    note: str = ""


def work_of(
    job: Job, store: Store, algorithm: Algorithm, models: Sequence[BuiltModel], place: Path | str
) -> ClientWork:
    """Computes the work of every client of a job, from its store and the models of its config.

    Raises ShoalError: the work of a model is not known; the line begins with `place`.
    """
    if job.propagation is not None and propagation_of(job.propagation).first_layer:
        raise ShoalError(place, "the work of layers that read data.cross_edges is not known")
    method, counts = job.method.name, store.manifest.splits[job.split].counts
    totals = [Work(np.zeros(store.clients), np.zeros(store.clients)) for _ in range(3)]
    for number, built in enumerate(models):
        module = built.flat.module
        products = products_of(module) if store.manifest.task == "node" else None
        if products is None:
            raise ShoalError(place, f"the work of {built.spec.name} here is not known; known are {KNOWN}, of nodes")
        nodes, entries = _sizes(store, module)
        training = job.open_training(store)
        seen = Sizes(training.manifest.splits[job.split].counts[:, 0], *_sizes(training, module))
        # A pass over the whole graph answers for all nodes.
        scored = Sizes(nodes if isinstance(module, Coupled) else counts[:, 1:].sum(1), nodes, entries)
        steps = training_work(products, len(built.flat.w), seen, job.train)
        upload = steps.times(0)
        if method in SKETCH_LABELS:
            looped = Sizes(nodes, nodes, store.manifest.clients.count("entries") + nodes)
            sketch = Product("entries", 1, store.manifest.classes, 1).work(looped).times(algorithm.lp_steps)  # type: ignore
            passes = forward_work(products, Sizes(seen.nodes, seen.nodes, seen.entries))
            upload = (passes + sketch).times(1 / algorithm.sketch_every)  # type: ignore
        mine = np.array(job.model_of) == number
        for total, work in zip(totals, (steps, upload, forward_work(products, scored))):
            total.flops[mine], total.traffic[mine] = work.flops[mine], work.traffic[mine]
    note = (
        "" if method in ONLY_TRAIN else f"{method}: what it computes beside local training of the model is not counted"
    )
    train, upload, evaluate = totals
    return ClientWork(train, upload, evaluate, note)


def _sizes(store: Store, module: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """Returns nodes of clients, and entries of a layer's matrix: edges both ways, with self loops if it has them."""
    nodes, entries = (store.manifest.clients.count(name) for name in ("nodes", "entries"))
    return nodes, entries + nodes if getattr(module, "operator", "") in ("symmetric", "attention") else entries
