"""What FedPG's prototypes cost a client of papers100M's size, beside one epoch of its local training.

    python benchmarks/prototypes.py [--quick] [--nodes 222000] [--model gamlp] [--hidden 64] [--repeats 3]

One synthetic client of 222,000 nodes (papers100M on 500 clients), 172 classes, 128 features, about 29 neighbours each,
1.4 % of the nodes to train on; the model is trained for a while first, so that its annotations mean something. One
thread, median and range. `upload` is everything between the end of training and the message: a forward pass over all
nodes, the weights of hops 1 and 2, the sums. An aligned epoch is a full-batch step with the alignment, whose forward
pass reaches all nodes that a prototype rests on; `prepare` is what comes before the first such step of a visit. Memory
is the highest during a step beyond what the process held before it.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from figures import print_figures, target
from memory import Peak
from rich.console import Console
from rich.table import Table

from shoal.algorithms.client import Client, ClientInfo, ClientModel, FlatModel
from shoal.algorithms.losses.prototypes import pack
from shoal.algorithms.methods.fedpg.fedpg import FedPG
from shoal.algorithms.methods.fedpg.hop_prototypes import annotate, hop_prototypes, hop_weights
from shoal.algorithms.methods.local import Local
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL, Tree
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.sbm import load_sbm
from shoal.storage.graph.propagation import hops
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import Cache, View

FEATURES, CLASSES, DEGREE, LABELLED, HOPS = 128, 172, 29.0, 0.014, 3
BEFORE = 30


def make_client(
    nodes: int, model: str, hidden: int, degree: float = DEGREE, classes: int = CLASSES, labelled: float = LABELLED
) -> Client:
    """A client whose training rows are a random share of its nodes."""
    graph = load_sbm(
        "sbm", DataSource("sbm", nodes=nodes, classes=classes, features=FEATURES, degree=degree, signal=3.0)
    )
    indptr, indices = graph.indptr.astype(np.int32), graph.indices.astype(np.int32)
    shard = Shard(0, np.arange(nodes), graph.y.astype(np.int32), indptr, indices, graph.x)
    train = np.sort(np.random.default_rng(0).permutation(nodes)[: round(labelled * nodes)]).astype(np.int32)
    nothing = np.zeros(0, dtype=np.int32)
    propagation = PropagationOptions(HOPS)
    columns = hops(indptr, indices, graph.x, propagation)
    split = Split(train, nothing, nothing)
    view = View("client", shard, split, columns, classes, Cache(2**30), propagation=propagation)
    layers = {"layers": 2} if model == "sgc" else {}
    module = build(model, FEATURES, classes, HOPS, 0.5, {"hidden": hidden, **layers})
    info = ClientInfo(0, nodes, len(train), classes)
    random = partial(key, 0, 1, 0)
    return Client(info, view, {MODEL: ClientModel(FlatModel(module), view, random)}, {}, {}, random)


def steps(client: Client, method: FedPG) -> dict[str, Callable[[], Any]]:
    """What is measured, by name."""
    options = TrainOptions(epochs=1)
    models = {MODEL: client.model.flat}
    plain = LocalTrainer(models, options, Local())
    annotated = annotate(client)
    weight_LN, counts_LC = hop_weights(annotated.graph, annotated.class_N, annotated.centre_N, method.hops)
    proto_LCH = hop_prototypes(annotated.z_NH, annotated.class_N, weight_LN, CLASSES)
    down: Tree = pack(proto_LCH, counts_LC > 0)
    received = method.receive(client, down)
    assert method._alignment(client, received.targets) is not None
    aligned = LocalTrainer(models, options, method)
    return {
        "epoch": lambda: plain.fit(client, {}),
        "forward pass over all nodes": lambda: annotate(client),
        "weights of the hops": lambda: hop_weights(annotated.graph, annotated.class_N, annotated.centre_N, method.hops),
        "sums": lambda: hop_prototypes(annotated.z_NH, annotated.class_N, weight_LN, CLASSES),
        "upload": lambda: method.upload(client, received, "train"),
        "prepare": lambda: method._alignment(client, received.targets),
        "prepare, and an aligned epoch": lambda: method.train(client, received, aligned, "train"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the nodes: within a minute")
    parser.add_argument("--nodes", type=int, default=222_000)
    parser.add_argument("--model", choices=("sgc", "gamlp"), default="gamlp")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    nodes = 22_200 if args.quick else args.nodes
    client, method = make_client(nodes, args.model, args.hidden), FedPG()
    LocalTrainer({MODEL: client.model.flat}, TrainOptions(epochs=BEFORE), method).fit(client, None)
    found = annotate(client).class_N
    right = float((found == client.data.label).float().mean())
    title = (
        f"{args.model}, {nodes:,} nodes, {client.data.entries:,} entries, {client.info.train:,} training rows, "
        f"width {args.hidden}; {100 * right:.0f} % of the annotations are right"
    )
    table = Table(title=title)
    for column in ("step", "s (median)", "s (range)", "× epoch", "MiB beyond before"):
        table.add_column(column, no_wrap=True, justify="left" if column == "step" else "right")
    figures: dict[str, Any] = {}
    for name, step in steps(client, method).items():
        seconds, memory = [], []
        for _ in range(args.repeats):
            with Peak() as peak:
                began = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - began)
            memory.append(peak.bytes)
        figures[name] = {"seconds": seconds, "peak_bytes": max(memory)}
        middle = median(seconds)
        times = middle / median(figures["epoch"]["seconds"])
        spread = f"{min(seconds):.3f} – {max(seconds):.3f}"
        table.add_row(name, f"{middle:.3f}", spread, f"{times:.1f}", f"{max(memory) / 2**20:.0f}")
    Console(width=140).print(table)
    highest = max(f["peak_bytes"] for f in figures.values()) / 2**30
    print_figures({title: figures}, {"memory of a visit, GiB": target(highest, 4.0, at_most=True)})


if __name__ == "__main__":
    main()
