"""Cut, balance, time and peak memory of the partitioners beside METIS, on synthetic graphs of communities.

    python benchmarks/partitioners.py [--quick] [--graphs 1M 2.4M] [--clients 10 50 500] [--folder runs/partition]

Every partitioner runs in a process of its own, on a graph that is memory-mapped. Memory is the peak of that process and
of its children (METIS works in a fork), whole, and beyond what it had after cutting a graph of 200 nodes (so without
imports and compiled loops). Graphs are made once and kept in the folder. METIS on the graph of 2.4M nodes needs 13 GB
and an hour for all three cuts.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from figures import print_figures, target
from memory import Peak
from rich.console import Console
from rich.table import Table

from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.partition.out_of_core.semi_external import BYTES_OF_NODE
from shoal.partition.partitioning import partition
from shoal.partition.quality import quality
from shoal.storage.graph.graph import Graph, clean_edges

# Nodes and, before duplicates are dropped, undirected edges.
GRAPHS = {
    "2k": (2_000, 20_000),
    "60k": (60_000, 1_400_000),
    "1M": (1_000_000, 24_000_000),
    "2.4M": (2_400_000, 58_000_000),
}
# Name in the table: method, and whether the memory is limited.
METHODS = {
    "metis": ("metis", False),
    "kaminpar": ("kaminpar", False),
    "semi-external": ("semi-external", False),
    "semi-external, limited": ("semi-external", True),
}
# Of METIS: largest cut, memory and time of a method.
GOALS: dict[str, dict[str, float]] = {
    "kaminpar": {"cut": 1.05, "memory": 1 / 4, "seconds": 1.25},
    "semi-external": {"cut": 1.08, "memory": 1 / 3},
}
BUCKETS = 16


def limit_of(nodes: int, edges: int) -> int:
    """The limit of the limited run: the arrays of the nodes, and 20 bytes an edge instead of METIS's 200."""
    return BYTES_OF_NODE * nodes + 20 * edges + (128 << 20)


def make_graph(folder: Path, nodes: int, edges: int) -> None:
    """Writes indptr and indices of a graph with communities of power-law sizes, inside neighbourhoods of two sizes.

    Half of a node's edges stay in its community, 22 % in 1/125 of the nodes around it, 18 % in 1/16 of them, and the
    rest go anywhere; degrees have a heavy tail, and nodes random ids.
    """
    rng = np.random.default_rng(0)
    sizes = np.minimum(40 * (1 - rng.random(nodes // 40)) ** (-1 / 1.1), nodes // 50).astype(np.int64)
    ends = np.minimum(np.cumsum(sizes), nodes)
    community = np.searchsorted(ends, np.arange(nodes), side="right")
    starts = np.append(0, ends[:-1])
    weight = np.minimum((1 - rng.random(nodes)) ** (-1 / 1.8), 200)
    out = rng.poisson(weight * edges / weight.sum())
    names = rng.permutation(nodes).astype(np.int64)
    step = -(-nodes // BUCKETS)
    folder.mkdir(parents=True)
    files = [(folder / f"bucket-{i}").open("w+b") for i in range(BUCKETS)]
    for first in range(0, nodes, step):
        stop = min(first + step, nodes)
        keys = draw_edges(first, stop, starts[community], ends[community], out, names, first)
        owner = keys // nodes // step
        for number, file in enumerate(files):
            keys[owner == number].tofile(file)
    degree = np.zeros(nodes, dtype=np.int64)
    with (folder / "indices.unfinished").open("wb") as whole:
        for number, file in enumerate(files):
            file.close()
            keys = np.unique(np.fromfile(folder / f"bucket-{number}", dtype=np.int64))
            (folder / f"bucket-{number}").unlink()
            degree += np.bincount(keys // nodes, minlength=nodes)
            (keys % nodes).astype(np.int32).tofile(whole)
    np.save(folder / "indptr.npy", np.append(0, np.cumsum(degree)))
    (folder / "indices.unfinished").rename(folder / "indices")


@numba.njit
def draw_edges(
    first: int, stop: int, starts: np.ndarray, ends: np.ndarray, out: np.ndarray, names: np.ndarray, seed: int
) -> np.ndarray:
    """Edges of nodes `first` to `stop`, both ways, as source * nodes + target; no loops."""
    np.random.seed(seed)
    nodes = len(names)
    keys = np.empty(2 * out[first:stop].sum(), dtype=np.int64)
    end = 0
    for node in range(first, stop):
        for _ in range(out[node]):
            scale = np.random.random()
            size = nodes // 125 if scale < 0.72 else nodes // 16 if scale < 0.9 else nodes
            low, high = (starts[node], ends[node]) if scale < 0.5 else (node // size * size, node // size * size + size)
            other = low + int((min(high, nodes) - low) * np.random.random() ** 1.25)
            if other != node:
                keys[end] = names[node] * nodes + names[other]
                keys[end + 1] = names[other] * nodes + names[node]
                end += 2
    return keys[:end]


def open_graph(folder: Path) -> Graph:
    """The graph in a folder, its edges memory-mapped."""
    indptr = np.load(folder / "indptr.npy", mmap_mode="r")
    indices = np.memmap(folder / "indices", dtype=np.int32, mode="r")
    nodes = len(indptr) - 1
    nothing = np.zeros((nodes, 0), dtype=np.float32)
    return Graph("benchmark", indptr, indices, nothing, np.zeros(nodes, dtype=np.int64), 1, synthetic=True)


def measure(folder: Path, method: str, clients: int, limited: bool) -> dict[str, float]:
    """Figures of one partitioner, in a process that does nothing else."""
    ring = np.stack([np.arange(200), (np.arange(200) + 1) % 200])
    indptr, indices, _ = clean_edges(ring, 200, "ring")
    small = Graph("ring", indptr, indices, np.zeros((200, 0), dtype=np.float32), np.zeros(200, dtype=np.int64), 1)
    partition(small, PartitionOptions(method, 2))
    graph = open_graph(folder)
    limit = limit_of(graph.nodes, graph.entries // 2) if limited else None
    options = PartitionOptions(method, clients)
    with Peak() as peak:
        start = time.perf_counter()
        assignment = partition(graph, options, workspace=Workspace(folder, memory_limit=limit))
        seconds = time.perf_counter() - start
    got = quality(graph, assignment, clients)
    return {
        "cut": got.cut_fraction,
        "largest": got.balance,
        "smallest": got.nodes_min * clients / graph.nodes,
        "seconds": seconds,
        "bytes": peak.bytes,
        "process_bytes": peak.highest,
        "edges": graph.entries // 2,
        "limit": limit or 0,
    }


def in_own_process(*args: str) -> dict[str, Any]:
    """Runs this file with other arguments and reads the JSON on its last line."""
    done = subprocess.run([sys.executable, __file__, *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(args)}: {done.stderr.strip().splitlines()[-1]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(name: str, got: dict[str, float], metis: dict[str, float], add: Callable[..., None]) -> None:
    """Holds the figures of a method to its goals."""
    ratios = {"cut": got["cut"] / metis["cut"], "memory": got["bytes"] / max(metis["bytes"], 1)}
    ratios["seconds"] = got["seconds"] / metis["seconds"]
    for goal, most in GOALS.get(name, {}).items():
        add(f"{goal} of METIS's", ratios[goal], most)
    if got["limit"]:
        add("peak of memory_limit", got["bytes"] / got["limit"], 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="60k nodes, 10 and 50 clients: within a minute")
    parser.add_argument("--graphs", nargs="*", choices=list(GRAPHS), default=["1M", "2.4M"])
    parser.add_argument("--clients", nargs="*", type=int, default=[10, 50, 500])
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--folder", default="runs/partition")
    parser.add_argument("--one", nargs=2, metavar=("GRAPH", "METHOD"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(Path(args.folder) / args.one[0], args.one[0], args.one[1], args.clients[0])))
        return
    if args.quick:
        args.graphs, args.clients = ["60k"], [10, 50]
    table = Table(title="partitioners, 3 % imbalance, one thread")
    for column in (
        "graph",
        "clients",
        "method",
        "cut",
        "largest",
        "smallest",
        "seconds",
        "bytes/edge",
        "whole process",
    ):
        table.add_column(column, no_wrap=True)
    figures: dict[str, Any] = {}
    targets: dict[str, dict[str, Any]] = {}
    for graph in args.graphs:
        in_own_process("--folder", args.folder, "--one", graph, "make")
        for clients in args.clients:
            for name in args.methods:
                label = f"{graph} {clients} {name}"
                got = in_own_process("--folder", args.folder, "--clients", str(clients), "--one", graph, name)
                figures[label] = got
                table.add_row(
                    graph, str(clients), name, f"{got['cut']:.4f}", f"{got['largest']:.3f}", f"{got['smallest']:.3f}",
                    f"{got['seconds']:.1f}", f"{got['bytes'] / got['edges']:.0f}",
                    f"{got['process_bytes'] / got['edges']:.0f}",
                )  # fmt: skip
                print(label, json.dumps(got), file=sys.stderr, flush=True)
                metis = figures.get(f"{graph} {clients} metis")
                if metis:

                    def add(what: str, value: float, most: float, label: str = label) -> None:
                        targets[f"{label}: {what}"] = target(value, most, at_most=True)

                    compare(name, got, metis, add)
    Console(width=140).print(table)
    print_figures(figures, targets)


def one(folder: Path, graph: str, method: str, clients: int) -> dict[str, Any]:
    """What a process of its own does: make a graph unless it is there, or measure a method."""
    if method != "make":
        return measure(folder, METHODS[method][0], clients, METHODS[method][1])
    if not (folder / "indices").exists():
        make_graph(folder, *GRAPHS[graph])
    return {}


if __name__ == "__main__":
    main()
