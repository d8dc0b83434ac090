"""What every fast path of training gains over the plain way, on real clients.

    python benchmarks/fast_paths.py [--graphs cora computers physics] [--only WORD ...] [--pairs 9]
                                    [--folder runs/rounds]

Both ways take turns in one process with one thread; which one begins alternates. A turn is repeated until it takes a
few milliseconds. Times are processor seconds, since other processes may share the machine. The gain is the median over
pairs of plain seconds by fast ones. The interval is that of this median with at least 95 %. A path whose gain is below
1.15 everywhere does not pay.

The clients are ten Louvain communities of real graphs of $SHOAL_DATA, a fifth of whose nodes trains; a visit is three
full-batch steps of Adam with dropout 0.5 on models of two layers of width 64 with their default classifier.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from contest import interval
from figures import print_figures, target
from graph_case import CLIENTS, GraphCase
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Loss, pure
from shoal.algorithms.client import Client, ClientModel, FlatModel
from shoal.algorithms.losses.prototype_losses import contrast, mean_square
from shoal.algorithms.models.build import build
from shoal.algorithms.models.decoupled import fixed_hops, gamlp
from shoal.algorithms.models.layers import edge_attention
from shoal.algorithms.models.layers.dropout import drop
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training import local_training
from shoal.algorithms.training.analytic import gamlp as analytic_gamlp
from shoal.algorithms.training.analytic.choice import analytic, needed_for_analytic
from shoal.algorithms.training.analytic.gamlp import Hops
from shoal.algorithms.training.local_training import LocalTrainer, flat_step, make_optimizer
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import Cache, View

# Graphs whose features are too wide to be kept dense.
WIDE = ("physics",)
GOAL, A_TURN, DROPOUT, HOPS = 1.15, 0.005, 0.5, 2
OPTIONS = TrainOptions(epochs=3)
COUPLED = {"gcn": "conv", "sage": "conv", "gat": "conv", "gin": "linear", "gcnii": "linear"}
DECOUPLED = ("mlp", "sgc", "gamlp")
# Have no formulas on dense hops.
OF_SPARSE_HOPS = ("s2gc", "sign")
STEPS = {"adam": TrainOptions(), "sgd": TrainOptions(optimizer="sgd", momentum=0.9)}

Turn = Callable[[], Any]
Context = Callable[[], AbstractContextManager[Any]]


class FastPath(NamedTuple):
    """A path by name on a graph, or at a size, and the two ways."""

    name: str
    case: str
    plain: Turn
    fast: Turn


class Clients:
    """The clients of a graph, whose matrices and rows stay in memory."""

    def __init__(self, graph: str, folder: Path, layout: str | None = None) -> None:
        case = GraphCase("gamlp", CLIENTS, 1.0, 1, folder, graph, layout)
        case.data.mkdir(parents=True, exist_ok=True)
        job, store = case.job()
        cache = Cache(2**31)
        self.views = [job.view(store, client, cache) for client in range(store.clients)]
        self.infos, self.features, self.classes = job.infos(store), store.manifest.features, store.manifest.classes
        self.sparse = isinstance(self.views[0].x, SparseMatrix)

    def flat(self, name: str, **options: Any) -> FlatModel:
        options = {"head": COUPLED[name], **options} if name in COUPLED else options
        model = FlatModel(build(name, self.features, self.classes, HOPS, DROPOUT, options), sparse=self.sparse)
        model.initial(0)
        return model

    def visits(self, flat: FlatModel, way: str, context: Context = nullcontext, loss: Loss | None = None) -> Turn:
        """Trains all clients one after another, from the same parameters, inside a context; a loss but cross-entropy.

        They are trained by `torch` alone, by compiled `passes` in single steps, or by `formulas`: what a run takes.
        """
        formulas = None
        if way == "formulas":
            assert needed_for_analytic(Algorithm(), flat) is None
            formulas = analytic(flat)
        elif way == "torch":
            flat = flat.on(flat.w.device)
            vars(flat)["passes"] = None
        trainer = LocalTrainer({MODEL: flat}, OPTIONS, Algorithm(), formulas)
        start = flat.w.detach().clone()

        def visit(view: View, info: Any) -> None:
            model = ClientModel(flat, view, lambda purpose: 0, start)
            trainer.fit(Client(info, view, {MODEL: model}, {}, {}, lambda purpose: 0), {}, loss=loss)

        def turn() -> None:
            with context():
                for view, info in zip(self.views, self.infos):
                    visit(view, info)

        return turn


def densified(hops: Any, *more: Any, of: Any) -> Any:
    """A function of hops, on dense ones."""
    return of([hop.to_dense() if isinstance(hop, SparseMatrix) else hop for hop in hops], *more)


def of_models(graph: str, clients: Clients) -> Iterator[FastPath]:
    """Formulas beside autograd, and what models do beside the plain operators of torch, by autograd."""
    for name in (*COUPLED, "transformer", *DECOUPLED, *(OF_SPARSE_HOPS if clients.sparse else ())):
        flat = clients.flat(name)
        by_torch: Turn = clients.visits(flat, "torch")
        title = f"{name}, head: {COUPLED[name]}" if name in COUPLED else name
        if flat.coupled is None and not clients.sparse:
            yield FastPath(f"formulas, {title}", graph, by_torch, clients.visits(flat, "formulas"))
        else:
            by_passes = clients.visits(flat, "passes")
            yield FastPath(f"compiled passes, {title}", graph, by_torch, by_passes)
            yield FastPath(f"all steps in one call, {title}", graph, by_passes, clients.visits(flat, "formulas"))
    if clients.sparse:
        by_row, by_column = FlatModel(clients.flat("gcn").module), clients.flat("gcn")
        plain, fast = clients.visits(by_row, "formulas"), clients.visits(by_column, "formulas")
        yield FastPath("first weight by columns, gcn", graph, plain, fast)
    for name, fast_sums, plain_sums in (
        ("gat", "attend", edge_attention.by_torch),
        ("transformer", "_attend_by_products", edge_attention.products_by_torch),
    ):
        flat, by_entries = clients.flat(name), partial(patch.object, edge_attention, fast_sums, plain_sums)
        plain, fast = clients.visits(flat, "torch", by_entries), clients.visits(flat, "torch")
        yield FastPath(f"sums of attention, {name}", graph, plain, fast)
    for name, module, function in (("gamlp", gamlp, "weighted_hops"), ("s2gc", fixed_hops, "weighted_sum")):
        flat, of = clients.flat(name), getattr(module, function)
        by_rows = partial(patch.object, module, function, partial(densified, of=of))
        plain = clients.visits(flat, "torch", by_rows)
        yield FastPath(f"weighted hops stay sparse, {name}", graph, plain, clients.visits(flat, "torch"))
    for name in ("gcn", "sgc"):
        flat = clients.flat(name)
        by_optimizer = partial(patch.object, local_training, "flat_step", lambda optimizer, w: torch_step(optimizer))
        plain, fast = clients.visits(flat, "passes", by_optimizer), clients.visits(flat, "passes")
        yield FastPath(f"flat step in a visit, {name}", graph, plain, fast)


def of_losses(graph: str, clients: Clients) -> Iterator[FastPath]:
    """Losses of embeddings, drawn once a visit, beside the same ones by autograd over compiled passes."""
    generator = torch.Generator().manual_seed(0)
    target_CH = torch.randn(clients.classes, 64, generator=generator)
    known_C, class_C = torch.ones(clients.classes).bool(), torch.arange(clients.classes)

    def loss(out: Output, y: Tensor, w: Tensor, received: Any) -> Tensor:
        z_NH = out.embedding_NH
        apart = contrast(z_NH, y, target_CH, class_C, 0.5) + mean_square(z_NH, y, target_CH, known_C)
        return F.cross_entropy(out.logits_NC, y) + apart

    for name in COUPLED:
        flat = clients.flat(name, head="linear")
        plain, fast = (
            clients.visits(flat, "formulas", loss=partial(loss)),
            clients.visits(flat, "formulas", loss=pure(loss)),
        )
        yield FastPath(f"losses in one call, {name}, head: linear", graph, plain, fast)


def of_dense_hops(graph: str, dense: Clients) -> Iterator[FastPath]:
    """GAMLP on dense hops."""
    case = f"{graph}, dense"
    flat = dense.flat("gamlp")
    yield FastPath("formulas, gamlp", case, dense.visits(flat, "torch"), dense.visits(flat, "formulas"))
    each_apart = partial(patch.object, analytic_gamlp, "apart", lambda hops: Hops({}, dict(enumerate(hops))))
    plain, fast = dense.visits(flat, "formulas", each_apart), dense.visits(flat, "formulas")
    yield FastPath("dense hops are summed first, gamlp", case, plain, fast)


def of_steps(name: str, options: TrainOptions, size: int) -> FastPath:
    """A step of an optimizer on one vector."""
    w = nn.Parameter(torch.randn(size))
    w.grad = torch.randn(size)
    optimizer = make_optimizer([w], options)
    return FastPath(f"flat step, {name}", f"{size:,} parameters", torch_step(optimizer), flat_step(optimizer, w))


def torch_step(optimizer: torch.optim.Optimizer) -> Turn:
    """Torch's own step of an optimizer of ours."""
    cls = torch.optim.Adam if isinstance(optimizer, torch.optim.Adam) else torch.optim.SGD
    return partial(cls.step, optimizer)


def of_dropout(rows: int, width: int = 64) -> FastPath:
    """Forward and backward of dropout."""
    x, gradient = torch.randn(rows, width, requires_grad=True), torch.randn(rows, width)
    return FastPath(
        "dropout's 16 bits",
        f"{rows:,} rows of {width}",
        lambda: F.dropout(x, DROPOUT).backward(gradient),
        lambda: drop(x, DROPOUT, training=True).backward(gradient),
    )


def of_bfloat16(name: str, rows: int, features: int, classes: int, hidden: int = 0) -> FastPath:
    """A step of SGD by formulas whose products are in bfloat16, beside float32, on rows that the host keeps."""

    def turn_in(dtype: torch.dtype) -> Turn:
        options = {"hidden": hidden} if hidden else {"layers": 1}
        flat = FlatModel(build(name, features, classes, HOPS, 0.0, options), dtype == torch.bfloat16)
        form, x_NF = analytic(flat).steps, torch.randn(rows, features).to(dtype)
        label_N = torch.randint(classes, (rows,))
        step = flat_step(make_optimizer([flat.w], STEPS["sgd"]), flat.w)
        assert form is not None
        return lambda: (form.gradient([x_NF], label_N), step())

    case = f"{rows:,} x {features} x {f'{hidden} x ' if hidden else ''}{classes}"
    return FastPath(f"bfloat16, {name}", case, turn_in(torch.float32), turn_in(torch.bfloat16))


def seconds(turn: Turn, repeats: int) -> float:
    """Processor seconds of a turn."""
    began = process_time()
    for _ in range(repeats):
        turn()
    return (process_time() - began) / repeats


def measured(path: FastPath, pairs: int) -> dict[str, Any]:
    """Seconds of both ways and the gain."""
    for turn in (path.plain, path.fast):
        turn()
    repeats = max(1, round(A_TURN / max(seconds(path.fast, 1), 1e-6)))
    found: dict[str, list[float]] = {"plain": [], "fast": []}
    for number in range(pairs):
        order = ("plain", "fast") if number % 2 else ("fast", "plain")
        for way in order:
            found[way].append(seconds(getattr(path, way), repeats))
    ratios = [plain / fast for plain, fast in zip(found["plain"], found["fast"])]
    return {**{way: median(s) for way, s in found.items()}, "gain": median(ratios), "interval": interval(ratios)}


def paths(args: argparse.Namespace) -> Iterator[FastPath]:
    """All paths, one after another; a graph is prepared when its paths are asked for."""
    for rows in (270, 2000, 50_000):
        yield of_dropout(rows)
    for name, options in STEPS.items():
        for size in (1000, 100_000):
            yield of_steps(name, options, size)
    for shape in ((2400, 128, 172), (2400, 128, 40), (500, 128, 172), (500, 128, 40), (270, 1433, 7), (20, 32, 4)):
        yield of_bfloat16("sgc", *shape)
        for hidden in (256, 64):
            yield of_bfloat16("mlp", *shape, hidden)
    for graph in args.graphs:
        clients = Clients(graph, args.folder)
        yield from of_models(graph, clients)
        if clients.sparse:
            yield from of_losses(graph, clients)
        if graph not in WIDE:
            yield from of_dense_hops(graph, Clients(graph, args.folder, "dense"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=["cora", "computers", "physics"])
    parser.add_argument("--only", nargs="*", default=[""], help="paths whose name has one of these words")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--folder", type=Path, default=Path("runs/rounds"))
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    torch.set_num_threads(1)
    np.random.seed(0)
    table = Table(title=f"fast paths, medians of {args.pairs} pairs, one thread, processor time")
    for column in ("path", "case", "plain ms", "fast ms", "gain", "95 %"):
        table.add_column(column, no_wrap=True, justify="left" if column in ("path", "case") else "right")
    figures: dict[str, Any] = {}
    for path in paths(args):
        if not any(word in path.name for word in args.only):
            continue
        found = measured(path, args.pairs)
        low, high = found["interval"]
        ms = [f"{1000 * found[way]:.3f}" for way in ("plain", "fast")]
        table.add_row(path.name, path.case, *ms, f"{found['gain']:.2f}", f"{low:.2f} – {high:.2f}")
        figures.setdefault(path.name, {})[path.case] = found
    Console(width=130).print(table)
    best = {name: max(found["gain"] for found in cases.values()) for name, cases in figures.items()}
    print_figures(figures, {f"{name}: gain": target(gain, GOAL) for name, gain in best.items()})


if __name__ == "__main__":
    main()
