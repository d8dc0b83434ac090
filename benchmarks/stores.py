"""Disk, time and memory of a store by the layout of its features, dense or as chosen by size.

    python benchmarks/stores.py [--quick] [--graphs cora pubmed physics flickr-size] [--layouts dense auto] [--hops 0 3]

Every `shoal prepare` is a process of its own, ten Louvain clients, of the published files under $SHOAL_DATA; that is
`raw`. `flickr-size` is drawn: Flickr's nodes, entries and features, of which 46 % are not zero, in the order of random
communities. Disk is what the store's files take. Memory is that of the process and those below it, mapped
pages included, sampled every 20 ms. A store is deleted when it is measured.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import yaml
from figures import print_figures, target
from prepare import size
from rich.console import Console
from rich.table import Table

from shoal.engine.hosts.device import tree_memory
from shoal.storage.datasets.registry import record
from shoal.storage.datasets.sources.source import DataSource, data_root

DRAWN = "flickr-size"
NODES, EDGES, FEATURES, CLASSES, SHARE = 89_250, 450_000, 500, 7, 0.46
SAMPLE_SECONDS = 0.02
MIB = 2**20


def draw(folder: Path) -> None:
    """Writes a graph of Flickr's size for dataset `files`."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    source = rng.integers(NODES, size=EDGES)
    # Most neighbours are near in number, so that Louvain finds communities.
    near = source + rng.integers(1, 200, size=EDGES)
    target_of = np.where(rng.random(EDGES) < 0.8, near, rng.integers(NODES, size=EDGES)) % NODES
    x = sp.random_array((NODES, FEATURES), density=SHARE, format="csr", dtype=np.float32, rng=rng)
    np.save(folder / "edge_index.npy", np.stack([source, target_of]))
    np.save(folder / "y.npy", rng.integers(CLASSES, size=NODES))
    sp.save_npz(folder / "x.npz", x)


def raw_bytes(graph: str, drawn: Path) -> int:
    """Bytes of the files that a graph is read from."""
    root = data_root(None)
    if graph == DRAWN:
        return size(drawn)
    files = record(graph).published_files(DataSource(graph))
    return sum((root / file).stat().st_size for file in files)


def measure(graph: str, drawn: Path, layout: str, hops: int) -> dict[str, float]:
    """Seconds, bytes of disk and of memory of one prepare."""
    data: dict[str, Any] = {"dataset": "files", "path": str(drawn)} if graph == DRAWN else {"dataset": graph}
    with tempfile.TemporaryDirectory(dir=drawn.parent) as name:
        folder = Path(name)
        store, config = folder / "store", folder / "config.yaml"
        plain = {
            "name": "stores",
            "data": {**data, "layout": layout, "store": str(store)},
            "partition": {"method": "louvain", "clients": 10},
            "propagation": {"hops": hops},
            "algorithm": {"name": "fedavg"},
        }
        config.write_text(yaml.safe_dump(plain))
        log, began, most = folder / "log", time.perf_counter(), 0
        with log.open("wb") as sink:
            command = [sys.executable, "-m", "shoal", "prepare", str(config)]
            process = subprocess.Popen(command, stdout=sink, stderr=sink)
            while process.poll() is None:
                most = max(most, tree_memory(process.pid))
                time.sleep(SAMPLE_SECONDS)
        took = time.perf_counter() - began
        if process.returncode:
            sys.exit(log.read_text()[-2000:])
        found = json.loads((store / "manifest.json").read_text()).get("layout", "dense")
        return {"seconds": took, "disk": size(store), "memory": most, "sparse": found == "sparse"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="cora: within a minute")
    parser.add_argument("--graphs", nargs="+", default=["cora", "pubmed", "physics", DRAWN])
    parser.add_argument("--layouts", nargs="+", default=["dense", "auto"])
    parser.add_argument("--hops", nargs="+", type=int, default=[0, 3])
    parser.add_argument("--folder", type=Path, default=Path("runs/stores"))
    args = parser.parse_args()
    graphs = ["cora"] if args.quick else args.graphs
    table = Table(title="stores of ten Louvain clients, MiB")
    for column in ("graph", "hops", "layout", "raw", "store", "seconds", "peak memory"):
        table.add_column(column, justify="left" if column in ("graph", "layout") else "right")
    figures: dict[str, Any] = {}
    targets: dict[str, dict[str, Any]] = {}
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder.resolve()) as name:
        drawn = Path(name) / DRAWN
        if DRAWN in graphs:
            draw(drawn)
        for graph in graphs:
            raw = raw_bytes(graph, drawn)
            for hops in args.hops:
                found = {layout: measure(graph, drawn, layout, hops) for layout in args.layouts}
                for layout, taken in found.items():
                    chosen = f"{layout}: {'sparse' if taken['sparse'] else 'dense'}" if layout == "auto" else layout
                    shown = [f"{taken[key] / MIB:,.1f}" for key in ("disk", "memory")]
                    table.add_row(
                        graph, str(hops), chosen, f"{raw / MIB:,.1f}", shown[0], f"{taken['seconds']:.1f}", shown[1]
                    )
                    figures[f"{graph}, {hops} hops, {layout}"] = {**taken, "raw": raw}
                if {"dense", "auto"} <= found.keys():
                    share = found["auto"]["disk"] / found["dense"]["disk"]
                    targets[f"{graph}, {hops} hops: disk, share of dense"] = target(share, 1.0, True)
    Console(width=110).print(table)
    print_figures(figures, targets)


if __name__ == "__main__":
    main()
