"""What FedGTA's upload costs a client of papers100M's kind, by part: Shoal's passes over tiles, and torch's equations.

    python benchmarks/uploads.py [--quick] [--nodes 22000] [--degree 15 29] [--model gamlp] [--repeats 9]

One synthetic client with 172 classes, 128 features and so many neighbours on average, the defaults of FedGTA: five
steps, raw and central moments of orders 1 to 6 after each, confidence after the last. One thread, all parts
interleaved, median and range. `torch` is the path of a GPU, on the processor, after a forward pass over 65,536 rows at
a time, as a GPU has it. Scalings, row sums and weights of the seed belong to propagation. Errors are of the moments:
the norm of the differences from float64, over the norm.
"""

import argparse
import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import prototypes
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from figures import print_figures, target
from rich.console import Console
from rich.table import Table
from torch import Tensor

from shoal.algorithms import client as client_models
from shoal.algorithms.client import Client
from shoal.algorithms.losses.label_propagation import propagate_labels, row_stochastic
from shoal.algorithms.methods.fedgta.fedgta import FedGTA, with_training_labels
from shoal.algorithms.methods.fedgta.label_sketch import (
    Sketch,
    SketchForm,
    add_negative_entropies,
    confidence,
    moments,
    moments_of_tile,
    propagate_tiles,
    sketch_by_tiles,
    sketch_by_torch,
)
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.hosts.device import keep_freed_memory

GOAL, BEFORE = 2.0, 30
FORM = SketchForm(5, 0.5, "stochastic", 6, "hybrid", "all", "paper")
PARTS = ("forward", "seed", "propagation", "moments", "confidence", "upload")


def make_client(nodes: int, degree: float, model: str) -> Client:
    """A client whose model was trained for a while, so that its labels are as those of a run."""
    client = prototypes.make_client(nodes, model, 64, degree)
    LocalTrainer({MODEL: client.model.flat}, TrainOptions(epochs=BEFORE), FedGTA()).fit(client, None)
    return client


def steps(client: Client) -> dict[str, dict[str, Callable[[], Any]]]:
    """What is measured, by part and path."""
    data, method = client.data, FedGTA()

    def forward(rows: int) -> Tensor:
        kept, client_models.ROWS_AT_A_TIME = client_models.ROWS_AT_A_TIME, rows
        client.model.drop_logits()
        try:
            return client.model.logits()
        finally:
            client_models.ROWS_AT_A_TIME = kept

    def seed() -> Tensor:
        return with_training_labels(data, F.softmax(client.model.logits(), dim=1))

    def by_tiles() -> Any:
        client.model.drop_logits()
        return method.upload(client, None, "train")

    def by_torch() -> Sketch:
        forward(client_models.ROWS_ON_GPU)
        return sketch_by_torch(data, seed(), FORM)

    seed_NC = seed()
    _, tile = next(propagate_tiles(data, seed_NC, FORM))
    tiles, sums_N = -(-data.classes // tile.z_NW.shape[1]), np.zeros(data.nodes)
    of_torch = row_stochastic(list(propagate_labels(data, seed_NC, 5, 0.5))[-1])
    return {
        "forward": {
            "tiles": lambda: forward(client_models.ROWS_AT_A_TIME),
            "torch": lambda: forward(client_models.ROWS_ON_GPU),
        },
        "seed": {"tiles": seed, "torch": seed},
        "propagation": {
            "tiles": lambda: [None for _ in propagate_tiles(data, seed_NC, FORM)],
            "torch": lambda: [None for _ in map(row_stochastic, propagate_labels(data, seed_NC, 5, 0.5))],
        },
        "moments": {
            "tiles": lambda: [moments_of_tile(tile, FORM) for _ in range(FORM.lp_steps * tiles)],
            "torch": lambda: [moments(of_torch[None], FORM.orders, FORM.moments) for _ in range(FORM.lp_steps)],
        },
        "confidence": {
            "tiles": lambda: [add_negative_entropies(tile, sums_N, FORM) for _ in range(tiles)],
            "torch": lambda: confidence(of_torch, data.degree, FORM.confidence),
        },
        "upload": {"tiles": by_tiles, "torch": by_torch},
    }


def exact(client: Client, seed_NC: Tensor) -> np.ndarray:
    """The moments in float64."""
    indptr, indices = client.data.csr
    nodes = client.data.nodes
    loops = sp.csr_array((np.ones(len(indices)), indices, indptr), shape=(nodes, nodes)) + sp.eye_array(nodes)
    root = sp.diags_array(loops.sum(1) ** -0.5)
    y_NC = y0_NC = seed_NC.double().numpy()
    found = []
    for _ in range(FORM.lp_steps):
        y_NC = 0.5 * y0_NC + 0.5 * (root @ (loops @ (root @ y_NC)))
        rows_NC = y_NC / y_NC.sum(1, keepdims=True)
        for base_NC in (rows_NC, rows_NC - rows_NC.mean(0)):
            found += [np.mean(base_NC**order, axis=0) for order in range(1, FORM.orders + 1)]
    return np.stack(found)


def error(found: Sketch, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found.moments_SC.double().numpy() - expected) / np.linalg.norm(expected))


def measure(client: Client, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of every part by path, after a repeat that is not counted; the paths take turns to be first."""
    measured = steps(client)
    seconds: dict[str, dict[str, list[float]]] = {part: {path: [] for path in measured[part]} for part in PARTS}
    for repeat in range(repeats + 1):
        for part in PARTS:
            for path in sorted(measured[part], reverse=repeat % 2 == 0):
                began = perf_counter()
                measured[part][path]()
                if repeat:
                    seconds[part][path].append(perf_counter() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5,000 nodes, three repeats: within half a minute")
    parser.add_argument("--nodes", type=int, default=22_000)
    parser.add_argument("--degree", type=float, nargs="+", default=[15.0, 29.0])
    parser.add_argument("--model", choices=("sgc", "gamlp"), default="gamlp")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    if args.quick:
        args.nodes, args.repeats = 5_000, 3
    torch.set_num_threads(1)
    # As a host: page faults of matrices of 15 MB would take longer than some parts.
    keep_freed_memory()
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    figures: dict[str, Any] = {"threads": 1, "repeats": args.repeats}
    targets: dict[str, dict[str, Any]] = {}
    for degree in args.degree:
        client = make_client(args.nodes, degree, args.model)
        seconds = measure(client, args.repeats)
        case = f"{args.model}, {args.nodes:,} nodes, {client.data.entries:,} entries"
        table = Table(title=case)
        for column in ("part", "torch, ms", "range", "tiles, ms", "range", "× torch"):
            table.add_column(column, no_wrap=True, justify="left" if column == "part" else "right")
        for part in PARTS:
            middle = {path: median(values) * 1e3 for path, values in seconds[part].items()}
            spread = {path: f"{min(v) * 1e3:.1f} – {max(v) * 1e3:.1f}" for path, v in seconds[part].items()}
            row = [f"{middle['torch']:.1f}", spread["torch"], f"{middle['tiles']:.1f}", spread["tiles"]]
            table.add_row(part, *row, f"{middle['torch'] / middle['tiles']:.1f}")
        Console(width=120).print(table)
        seed_NC = with_training_labels(client.data, F.softmax(client.model.logits(), dim=1))
        expected = exact(client, seed_NC)
        errors = {
            "tiles": error(sketch_by_tiles(client.data, seed_NC, FORM), expected),
            "torch": error(sketch_by_torch(client.data, seed_NC, FORM), expected),
        }
        figures[case] = {"seconds": seconds, "error": errors}
        times = median(seconds["upload"]["torch"]) / median(seconds["upload"]["tiles"])
        targets[f"{case}: upload, times torch"] = target(times, GOAL)
        targets[f"{case}: error over torch's"] = target(errors["tiles"] / errors["torch"], 1.0, at_most=True)
    print_figures(figures, targets)


if __name__ == "__main__":
    main()
