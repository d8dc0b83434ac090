"""What a client costs that has a copilot, beside one that trains for itself.

    python benchmarks/copilots.py [--quick] [--nodes 300 22000 222000] [--repeats 5] [--hidden 64]

Synthetic clients of 128 features. Small ones are like a tenth of Cora: 7 classes, about 4 neighbours, 20 % of the nodes
to train on; those above 1,000 nodes like papers100M's on 500 clients: 172 classes, about 29 neighbours, 1.4 %. A visit
is three epochs and the upload; full batches, one thread, median and range. All train as a run would: in one compiled
call or by gradient formulas what these take, the others by autograd. FML and FedGKC's mutual distillation answer for
all nodes, by both models; FedGKC's self distillation answers twice more. Memory is the highest resident size during a
visit beyond what the process held before it.
"""

import argparse
import sys
import time
from functools import partial
from statistics import median
from typing import Any

import torch
from figures import print_figures
from memory import Peak
from prototypes import FEATURES, HOPS, make_client
from rich.console import Console
from rich.table import Table

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, ClientModel, FlatModel
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.methods.shared.copilot import COPILOT
from shoal.algorithms.models.build import build
from shoal.algorithms.rng import key, random_of
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import analytic
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.reduction import upload_bytes

# A client's own model and its copilot.
PAIRS = (("gcn", "gcn"), ("sgc", "sgc"), ("gamlp", "sgc"))
METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "fml": {},
    "fedgkc": {},
    "fedgkc without self distillation": {"self_distillation": False},
}


def client_of(nodes: int, own: str, copilot: str, hidden: int) -> Client:
    """A client with both of its models."""
    small = {"degree": 4.0, "classes": 7, "labelled": 0.2} if nodes <= 1000 else {}
    client = make_client(nodes, own, hidden, **small)  # type: ignore[arg-type]
    layers = {"layers": 2} if copilot == "sgc" else {}
    module = build(copilot, FEATURES, client.info.classes, HOPS, 0.5, {"hidden": hidden, **layers})
    random = random_of(partial(key, 0, 1, 0), COPILOT)
    client.models = {**client.models, COPILOT: ClientModel(FlatModel(module), client.data, random)}
    return client


def parameters(features: int, hidden: int, classes: int) -> int:
    """P_c of a GCN of two layers and a linear classifier, as FedGKC's specification counts it."""
    return features * hidden + hidden + hidden * hidden + hidden + hidden * classes + classes


def visit(client: Client, method: Algorithm, trainer: LocalTrainer) -> int:
    """A visit of a client; gives the bytes that it sends."""
    received = method.receive(client, {"w": client.models[COPILOT].w.clone()} if COPILOT in method.models() else {})
    method.train(client, received, trainer, "train")
    return upload_bytes(method.upload(client, received, "train"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="300 nodes: within a minute")
    parser.add_argument("--nodes", type=int, nargs="*", default=[300, 22_000, 222_000])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title=f"a visit of three epochs, width {args.hidden}")
    for column in ("own model, copilot", "method"):
        table.add_column(column, no_wrap=True)
    for column in ("nodes", "s (median)", "s (range)", "× local", "MiB", "KiB up"):
        table.add_column(column, no_wrap=True, justify="right")
    figures: dict[str, Any] = {}
    formula: dict[int, tuple[int, int]] = {}
    for nodes in [300] if args.quick else args.nodes:
        for own, copilot in PAIRS:
            client, base = client_of(nodes, own, copilot, args.hidden), 0.0
            for name, options in METHODS.items():
                kind = name.split()[0]
                method = load(
                    describe(kind, {**options, **({"copilot": {"name": copilot}} if kind != "local" else {})})
                )
                flats = {model: client.models[model].flat for model in method.models()}
                trainer = LocalTrainer(flats, TrainOptions(), method, analytic(client.model.flat))
                sent, seconds, memory = visit(client, method, trainer), [], []
                if name == "fedgkc" and copilot == "gcn":
                    formula[nodes] = sent, 4 * parameters(FEATURES, args.hidden, client.info.classes) + 12
                for _ in range(args.repeats):
                    with Peak() as peak:
                        began = time.perf_counter()
                        visit(client, method, trainer)
                        seconds.append(time.perf_counter() - began)
                    memory.append(peak.bytes)
                base = base or median(seconds)
                print(f"{nodes:,} nodes, {own}, {copilot}, {name}: {median(seconds):.3f} s", file=sys.stderr)
                figures[f"{nodes} {own}, {copilot} {name}"] = {
                    "seconds": seconds, "peak_bytes": max(memory), "bytes_up": sent,
                }  # fmt: skip
                table.add_row(
                    f"{own}, {copilot}", name, f"{nodes:,}", f"{median(seconds):.4f}",
                    f"{min(seconds):.4f} – {max(seconds):.4f}", f"{median(seconds) / base:.1f}",
                    f"{max(memory) / 2**20:.0f}", f"{sent / 2**10:.1f}",
                )  # fmt: skip
    Console(width=140).print(table)
    for nodes, (sent, expected) in formula.items():
        print(f"{nodes:,} nodes, GCN copilot: {sent:,} B sent by FedGKC, 4 P_c + 12 = {expected:,} B")
    print_figures(figures, {})


if __name__ == "__main__":
    main()
