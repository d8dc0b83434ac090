"""Nearest rows by cosine: all pairs, as Shoal compares them, beside libraries that search.

    python benchmarks/neighbours.py [--quick] [--once] [--rows 30000 100000 222000] [--contenders exact hnswlib …]

Rows are 128 wide: the last layer's ReLU of a GCN that was trained on a synthetic graph of nested communities, for a
graph of the size in question. Every contender runs in a process of its own, three times: twice on one thread and once
on two. Seconds and peak memory, beyond what the process had before it was given the rows, are those of the first run
(CPU seconds are those of all threads); recall is the share of the true three nearest ones of 2,000 rows. `exact` is
`nearest` where it compares all pairs, `above the limit` the same where it does not, by the lists of faiss. Libraries
that are not installed are left out: `pip install hnswlib pynndescent`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import xxhash
from figures import print_figures, target
from propagation import csr, draw_edges
from rich.console import Console
from rich.table import Table
from torch import Tensor

from shoal.algorithms.graphs.nearest import nearest
from shoal.algorithms.models.inputs.neighbourhood import operator_over

K, WIDTH, CLASSES = 3, 128, 40
# Edges of a node, nodes of a community that are of one class mostly, and the share that is of another.
EDGES, COMMUNITY, STRAY = 7, 500, 0.2
TRAINED_ON, STEPS, SAMPLE = 20_000, 40, 2_000
# Threads of every run.
RUNS = (1, 1, 2)
GOAL = 0.9


def graph(nodes: int, seed: int) -> tuple[Any, Tensor, Tensor]:
    """P = D^-1/2 (A + I) D^-1/2, features and classes of a graph."""
    rng = np.random.default_rng(seed)
    operator = operator_over("symmetric", *csr(draw_edges(nodes, EDGES * nodes, seed), nodes))
    label = rng.integers(CLASSES, size=nodes // COMMUNITY + 1)[np.arange(nodes) // COMMUNITY]
    stray = rng.random(nodes) < STRAY
    label[stray] = rng.integers(CLASSES, size=stray.sum())
    means = np.random.default_rng(0).standard_normal((CLASSES, WIDTH), dtype=np.float32)
    x = 0.35 * means[label] + rng.standard_normal((nodes, WIDTH), dtype=np.float32)
    return operator, torch.from_numpy(x), torch.from_numpy(label)


def embedding(operator: Any, x: Tensor, one: Tensor, two: Tensor) -> Tensor:
    """ReLU of a GCN's second layer."""
    return F.relu(operator @ (F.relu(operator @ (x @ one)) @ two))


def make_rows(sizes: list[int], folder: Path) -> None:
    """Writes the rows of every size, `<rows>.npy`."""
    torch.manual_seed(0)
    weights = [torch.nn.init.xavier_uniform_(torch.empty(WIDTH, n)) for n in (WIDTH, WIDTH, CLASSES)]
    one, two, last = (weight.requires_grad_() for weight in weights)
    optimizer = torch.optim.Adam([one, two, last], lr=0.01)
    operator, x, label = graph(TRAINED_ON, 1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(embedding(operator, x, one, two) @ last, label).backward()
        optimizer.step()
    for rows in sizes:
        operator, x, _ = graph(rows, 2)
        with torch.no_grad():
            np.save(folder / f"{rows}.npy", embedding(operator, x, one, two).numpy())


def by_hnswlib(z: np.ndarray, threads: int) -> np.ndarray:
    """A hierarchical graph of neighbours; rows are added one after the other, or their order would be the threads'."""
    import hnswlib

    index = hnswlib.Index("cosine", WIDTH)
    index.init_index(len(z), ef_construction=100, M=16, random_seed=0)
    index.add_items(z, num_threads=1)
    index.set_ef(64)
    return index.knn_query(z, K + 1, num_threads=threads)[0]


def by_faiss_lists(z: np.ndarray, threads: int) -> np.ndarray:
    """Rows in lists by their nearest of sqrt(N) centres, sixteen of which are searched."""
    import faiss

    faiss.omp_set_num_threads(threads)
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-8)
    lists = round(len(z) ** 0.5)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(WIDTH), WIDTH, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = 0
    index.train(z)
    index.add(z)
    index.nprobe = 16
    return index.search(z, K + 1)[1]


def by_faiss_graph(z: np.ndarray, threads: int) -> np.ndarray:
    """As hnswlib; faiss adds rows in parallel, under locks."""
    import faiss

    faiss.omp_set_num_threads(threads)
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-8)
    index = faiss.IndexHNSWFlat(WIDTH, 16, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 100, 64
    index.add(z)
    return index.search(z, K + 1)[1]


def by_pynndescent(z: np.ndarray, threads: int) -> np.ndarray:
    """Neighbours of neighbours."""
    import numba
    from pynndescent import NNDescent

    numba.set_num_threads(threads)
    return NNDescent(z, metric="cosine", n_neighbors=15, random_state=0, n_jobs=threads).neighbor_graph[0][:, : K + 1]


def by_shoal(exact_up_to: int) -> Callable[[np.ndarray, int], np.ndarray]:
    """What Shoal does, for a limit."""

    def search(z: np.ndarray, threads: int) -> np.ndarray:
        torch.set_num_threads(threads)
        return nearest(torch.from_numpy(z), K, exact_up_to).numpy()

    return search


# What it is called, the library it needs, and how it answers; a row may be among its own neighbours.
CONTENDERS: dict[str, tuple[str, Callable[[np.ndarray, int], np.ndarray]]] = {
    "exact": ("algorithms", by_shoal(2**31)),
    "above the limit": ("faiss", by_shoal(0)),
    "hnswlib": ("hnswlib", by_hnswlib),
    "faiss, lists": ("faiss", by_faiss_lists),
    "faiss, graph": ("faiss", by_faiss_graph),
    "pynndescent": ("pynndescent", by_pynndescent),
}


def without_itself(found: np.ndarray) -> np.ndarray:
    """The first K of every row that are not the row, `[N, K]`."""
    if found.shape[1] == K:
        return found
    own = found == np.arange(len(found))[:, None]
    own[~own.any(1), -1] = True
    return found[~own].reshape(len(found), K)


def answer(name: str, file: Path, threads: int) -> None:
    """One run, in a process of its own; prints its figures."""
    _, search = CONTENDERS[name]
    z = np.load(file)
    search(z[:500], threads)  # imports, compiled loops
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    start, cpu = time.perf_counter(), time.process_time()
    found = without_itself(search(z, threads))
    figures = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}
    figures["memory"] = memory("VmHWM") - before
    rows = np.random.default_rng(0).choice(len(z), min(SAMPLE, len(z)), replace=False)
    figures["recall"] = recall(z, rows, found[rows])
    print(json.dumps({**figures, "digest": xxhash.xxh64(found.astype(np.int32).tobytes()).hexdigest()}))


def memory(which: str) -> int:
    """Bytes of this process now (`VmRSS`), or at most (`VmHWM`)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) * 1024


def recall(z: np.ndarray, rows: np.ndarray, found: np.ndarray) -> float:
    """Share of the true nearest ones of some rows, `found` `[n, K]`, that are as near as the K-th."""
    unit = z.astype(np.float64) / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-8)
    hits = 0
    for part in np.array_split(np.arange(len(rows)), max(len(rows) // 200, 1)):
        near = unit[rows[part]] @ unit.T
        near[np.arange(len(part)), rows[part]] = -np.inf
        kth = np.partition(near, -K, axis=1)[:, -K]
        hits += (np.take_along_axis(near, found[part], axis=1) >= kth[:, None] - 1e-7).sum()
    return hits / (len(rows) * K)


def run(name: str, file: Path, threads: int) -> dict[str, Any]:
    """One run in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, __file__, "--answer", name, str(file), str(threads)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["--answer"]:
        answer(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5,000 rows alone")
    parser.add_argument("--rows", type=int, nargs="+", default=[30_000, 100_000, 222_000])
    parser.add_argument("--once", action="store_true", help="one run each, on one thread")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    args = parser.parse_args()
    sizes = [5_000] if args.quick else args.rows
    names = [name for name in args.contenders if find_spec(CONTENDERS[name][0])]
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        make_rows(sizes, Path(made))
        for rows in sizes:
            table = Table(title=f"{rows:,} rows x {WIDTH}, {K} nearest")
            for column in ("contender", "s", "CPU s", "MB", "recall", "the same again", "on 2 threads", "s"):
                table.add_column(column, justify="left" if column == "contender" else "right")
            for name in names:
                runs = [run(name, Path(made) / f"{rows}.npy", threads) for threads in RUNS[: 1 if args.once else None]]
                figures[f"{name}, {rows}"] = runs
                first, *others = runs
                same = ["yes" if first["digest"] == other["digest"] else "no" for other in others]
                values = f"{first['seconds']:.1f}", f"{first['cpu']:.1f}", f"{first['memory'] / 1e6:.0f}"
                last = [f"{runs[-1]['seconds']:.1f}"] if others else []
                table.add_row(name, *values, f"{first['recall']:.3f}", *same, *last)
            Console(width=120).print(table)
    least = min((runs[0]["recall"] for key, runs in figures.items() if key.startswith("above")), default=1.0)
    print_figures(figures, {"least recall above the limit": target(least, GOAL)})


if __name__ == "__main__":
    main()
