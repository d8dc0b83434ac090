"""What a client of FGGP costs, by part, beside FedAvg: neighbours, drawn graph, training, prototypes.

    python benchmarks/fggp_visit.py [--quick] [--nodes 300 22000 222000] [--repeats 3] [--hidden 128]
        [--methods fedavg …]

Synthetic clients of 128 features. Small ones are like a chunk of Twitch: 2 classes, about 2 neighbours, 60 % of the
nodes to train on; those above 1,000 nodes like papers100M's on 500 clients: 172 classes, about 29 neighbours, 1.4 %. A
visit is six epochs and the upload; the model is the extractor of `configs/papers/fggp`; full batches, one thread.
All methods train by autograd. A visit that looks for neighbours is shown apart from one that keeps them (nine of ten).
Memory is the highest resident size during a visit beyond what the process held before it. Nothing may be quadratic:
what n x n floats would take is shown beside it.
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

from shoal.algorithms.client import Client, ClientModel, FlatModel
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.fggp.fggp import FGGP, GENERATOR
from shoal.algorithms.methods.shared.body import body_of
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key, random_of
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.reduction import upload_bytes

TRAIN = TrainOptions(epochs=6, optimizer="sgd", lr=3e-3, momentum=0.9, weight_decay=1e-5, opt_state="reset")
# Name, method, and whether a visit looks for neighbours.
METHODS: list[tuple[str, FedAvg, bool]] = [
    ("fedavg", FedAvg(), False),
    ("fggp without gkic", FGGP(gkic="off"), False),
    ("fggp, neighbours only, kept", FGGP(gkic="knn_only"), False),
    ("fggp, generator only", FGGP(gkic="gen_only"), False),
    ("fggp, neighbours kept", FGGP(), False),
    ("fggp, neighbours found anew", FGGP(), True),
]


def client_of(nodes: int, hidden: int) -> Client:
    """A client with model and generator."""
    small = {"degree": 2.0, "classes": 2, "labelled": 0.6} if nodes <= 1000 else {}
    client = make_client(nodes, "gcn", hidden, **small)  # type: ignore[arg-type]
    options: dict[str, dict[str, object]] = {
        MODEL: {"hidden": hidden, "layers": 3, "norm": "batch", "head": "conv"}, GENERATOR: {"hidden": hidden}
    }  # fmt: skip
    models = {}
    for name, kind in ((MODEL, "gcn"), (GENERATOR, "topology")):
        module = build(kind, FEATURES, client.info.classes, HOPS, 0.5, options[name], headless=True)
        models[name] = ClientModel(FlatModel(module), client.data, random_of(partial(key, 0, 1, 0), name))
    client.models = models
    return client


def visit(client: Client, method: FedAvg, anew: bool) -> int:
    """A visit of a client; gives the bytes that it sends."""
    own = {name: client.models[name] for name in method.models()}
    held, client.models = client.models, own
    if anew:
        client.state.pop("knn", None)
    model = client.model
    down = {"w": body_of(model.flat) if isinstance(method, FGGP) else model.w.clone(), "round": torch.tensor(1)}
    received = method.receive(client, down)
    trainer = LocalTrainer({name: each.flat for name, each in own.items()}, TRAIN, method, None)
    method.train(client, received, trainer, "train")
    sent = upload_bytes(method.upload(client, received, "train"))
    client.models = held
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="300 nodes: within a minute")
    parser.add_argument("--nodes", type=int, nargs="*", default=[300, 22_000, 222_000])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=[], help="rows of the table, such as fedavg; all of them else")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title=f"a visit of six epochs, width {args.hidden}")
    table.add_column("method", no_wrap=True)
    for column in ("nodes", "s (median)", "× fedavg", "MiB", "MiB of n x n", "KiB up"):
        table.add_column(column, no_wrap=True, justify="right")
    figures: dict[str, Any] = {}
    for nodes in [300] if args.quick else args.nodes:
        client, base = client_of(nodes, args.hidden), 0.0
        for name, method, anew in METHODS:
            if args.methods and name not in args.methods:
                continue
            sent, seconds, memory = visit(client, method, anew), [], []
            for _ in range(args.repeats):
                with Peak() as peak:
                    began = time.perf_counter()
                    visit(client, method, anew)
                    seconds.append(time.perf_counter() - began)
                memory.append(peak.bytes)
            base = base or median(seconds)
            print(f"{nodes:,} nodes, {name}: {median(seconds):.3f} s", file=sys.stderr)
            figures[f"{nodes} {name}"] = {"seconds": seconds, "peak_bytes": max(memory), "bytes_up": sent}
            table.add_row(
                name, f"{nodes:,}", f"{median(seconds):.4f}", f"{median(seconds) / base:.1f}",
                f"{max(memory) / 2**20:.0f}", f"{4 * nodes**2 / 2**20:,.0f}", f"{sent / 2**10:.1f}",
            )  # fmt: skip
    Console(width=130).print(table)
    print_figures(figures, {})


if __name__ == "__main__":
    main()
