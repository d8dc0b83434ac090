"""One hop of propagation beside the sparse products of libraries and the copy bandwidth of the machine.

    python benchmarks/propagation.py [--quick] [--repeats 7] [--order metis|planted] [--features 128]

Synthetic graphs of nested communities, one thread, the repeats of all kernels interleaved, median and range. Shoal
computes the whole hop: self loops, both scalings and, for float16, the check of its range; the libraries multiply by a
matrix of ones. Results go to newly allocated memory, in huge pages where the system grants them. A kernel's bandwidth
counts one row of features an entry, entries * F * itemsize / s; a copy's one read and one write, 2 * bytes / s.
In `partition order` nodes are sorted by the communities that edges are drawn from or, with `--order metis`, by METIS's
500 parts, which cut as many edges (55 %) of the large graph but take two minutes and 5.6 GB, in a process of their own.
All else takes 4 GB.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse
import torch
from figures import print_figures, target
from rich.console import Console
from rich.table import Table
from torch_geometric import EdgeIndex

from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition
from shoal.storage.graph.graph import Graph, clean_edges
from shoal.storage.graph.propagation import propagate

PARTS = 500
# Nodes of a community, and the share of all edges that is drawn inside communities of that size.
LEVELS = ((2_000, 0.45), (20_000, 0.24), (100_000, 0.19), (None, 0.12))
GOALS = {"float16": 3.0, "float32": 1.8}
COPY = "copy (numpy)"
R, CHECKED = 0.5, 200


def draw_edges(nodes: int, count: int, seed: int) -> np.ndarray:
    """About `count` undirected edges, int64 `[2, E]`; communities are consecutive nodes."""
    rng = np.random.default_rng(seed)
    ends = []
    for size, share in LEVELS:
        size = min(size or nodes, nodes)
        source = rng.integers(nodes, size=round(count * share))
        first = source // size * size
        ends.append(np.stack([source, first + rng.integers(np.minimum(size, nodes - first))]))
    return np.concatenate(ends, axis=1)


def csr(edges: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Row pointers and neighbours, int32, without duplicates and self loops."""
    indptr, indices, _ = clean_edges(edges, nodes, "benchmark")
    return indptr.astype(np.int32), indices


def metis_order(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The nodes, part by part."""
    nodes = len(indptr) - 1
    graph = Graph("benchmark", indptr, indices, np.empty((nodes, 0)), np.zeros(nodes, dtype=np.int64), 1)
    return np.argsort(partition(graph, PartitionOptions("metis", PARTS)), kind="stable")


def numbered(order: np.ndarray) -> np.ndarray:
    """The inverse of a permutation."""
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return number


def kernels(indptr: np.ndarray, indices: np.ndarray, x: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Every contender by name; the libraries first, as they multiply by A alone."""
    nodes, x16 = len(indptr) - 1, x.astype(np.float16)
    rows, columns, ones = torch.from_numpy(indptr), torch.from_numpy(indices), torch.ones(len(indices))
    matrix = torch.sparse_csr_tensor(rows, columns, ones, size=(nodes, nodes), check_invariants=False)
    sources = torch.repeat_interleave(torch.arange(nodes, dtype=torch.int32), rows.diff())
    edge_index = EdgeIndex(torch.stack([sources, columns]), sparse_size=(nodes, nodes), sort_order="row")
    edge_index.fill_cache_()
    of_scipy = scipy.sparse.csr_array((ones.numpy(), indices, indptr), shape=(nodes, nodes))
    dense = torch.from_numpy(x)
    found: dict[str, Callable[[], Any]] = {
        "torch CSR @ dense": lambda: matrix @ dense,
        "torch.sparse.mm": lambda: torch.sparse.mm(matrix, dense, "sum"),
        "PyG EdgeIndex.matmul": lambda: edge_index.matmul(dense),
        "scipy": lambda: of_scipy @ x,
    }
    if find_spec("torch_sparse"):
        from torch_sparse import SparseTensor

        tensor = SparseTensor(rowptr=rows.long(), col=columns.long(), sparse_sizes=(nodes, nodes))
        found["torch_sparse"] = lambda: tensor.matmul(dense)

    def hop(features: np.ndarray) -> np.ndarray:
        out = np.empty_like(features)
        propagate(indptr, indices, features, R, out)
        return out

    products = [torch.as_tensor(kernel()[:CHECKED]).clone().numpy() for kernel in found.values()]
    check(of_scipy, x, products, [hop(features)[:CHECKED].copy() for features in (x, x16)])
    target_of_copy = np.empty_like(x)
    return found | {
        "Shoal float32": lambda: hop(x),
        "Shoal float16": lambda: hop(x16),
        COPY: lambda: np.copyto(target_of_copy, x),
    }


def check(of_scipy: Any, x: np.ndarray, products: list[np.ndarray], hops: list[np.ndarray]) -> None:
    """Stops where the first rows of a result are not what float64 gives."""
    rows = len(hops[0])
    first = of_scipy[:rows].astype(np.float64)
    seen = np.unique(first.indices)
    first, own, others = first[:, seen], x[:rows].astype(np.float64), x[seen].astype(np.float64)
    degree = np.diff(of_scipy.indptr)[:, None] + 1.0
    hop = degree[:rows] ** (R - 1) * (first @ (degree[seen] ** -R * others) + degree[:rows] ** -R * own)
    for product in products:
        np.testing.assert_allclose(product, first @ others, rtol=1e-4, atol=1e-4)
    for mine in hops:
        np.testing.assert_allclose(mine, hop, rtol=2e-3, atol=2e-3)


def measure(indptr: np.ndarray, indices: np.ndarray, features: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of every kernel, `repeats` times, interleaved."""
    x = np.random.default_rng(1).standard_normal((len(indptr) - 1, features), dtype=np.float32)
    contenders = kernels(indptr, indices, x)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, kernel in contenders.items():
            start = perf_counter()
            kernel()
            seconds[name].append(perf_counter() - start)
    return seconds


def report(case: str, seconds: dict[str, list[float]], nodes: int, entries: int, features: int) -> tuple[Table, Any]:
    """The table of one graph, and its targets."""
    middle = {name: median(values) for name, values in seconds.items()}
    best = min((name for name in middle if not name.startswith(("Shoal", "copy"))), key=lambda name: middle[name])
    moved = {name: entries * features * (2 if name.endswith("16") else 4) for name in middle}
    moved[COPY] = 2 * nodes * features * 4
    table = Table(title=f"{case}: {entries / 1e6:.1f}M entries, F = {features}, one thread")
    for column in ("kernel", "s (median)", "s (range)", "GB/s", "× best library"):
        table.add_column(column, no_wrap=True, justify="left" if column == "kernel" else "right")
    for name, s in middle.items():
        spread, ratio = f"{min(seconds[name]):.3f} – {max(seconds[name]):.3f}", f"{middle[best] / s:.2f}"
        table.add_row(name, f"{s:.3f}", spread, f"{moved[name] / s / 1e9:.1f}", "-" if name == COPY else ratio)
    targets = {}
    for dtype, goal in GOALS.items():
        mine = f"Shoal {dtype}"
        targets[f"{case}: {dtype}, times the best library"] = target(middle[best] / middle[mine], goal)
        if "partition" in case:
            share = moved[mine] / middle[mine] / (moved[COPY] / middle[COPY])
            targets[f"{case}: {dtype}, share of copy bandwidth"] = target(share, 0.5)
    return table, targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one graph of 0.1M nodes: within a minute")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--order", choices=("metis", "planted"), default="planted")
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--nodes", type=int, default=100_000, help="of the graph of --quick")
    args = parser.parse_args()
    # Gives torch's results the huge pages that NumPy asks for anyway.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Sparse")
    full = [(250_000, 2_900_000, False), (1_000_000, 23_000_000, True)]
    figures: dict[str, Any] = {"threads": 1, "features": args.features, "repeats": args.repeats, "order": args.order}
    targets: dict[str, dict[str, Any]] = {}
    for nodes, count, ordered in [(args.nodes, 25 * args.nodes // 2, True)] if args.quick else full:
        planted = draw_edges(nodes, count, seed=0)
        edges = numbered(np.random.default_rng(2).permutation(nodes))[planted]
        cases = [("random ids", csr(edges, nodes))]
        if ordered and args.order == "metis":
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                order = pool.submit(metis_order, *cases[0][1]).result()
            cases.append(("partition order (metis)", csr(numbered(order)[edges], nodes)))
        elif ordered:
            cases.append(("partition order (planted)", csr(planted, nodes)))
        del planted, edges
        for name, (indptr, indices) in cases:
            seconds = measure(indptr, indices, args.features, args.repeats)
            case = f"{nodes / 1e6:g}M {name}"
            figures[case] = {"nodes": nodes, "entries": len(indices), "seconds": seconds}
            table, held = report(case, seconds, nodes, len(indices), args.features)
            targets |= held
            Console(width=120).print(table)
    print_figures(figures, targets)


if __name__ == "__main__":
    main()
