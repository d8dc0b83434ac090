"""The study `prompts` of `accuracy.py`: one GNN for clients whose tasks are of nodes, of edges and of graphs.

Settings are named as in `cora-clean`: the graph that small ones are cut out of, and one of KINDS. They are left as they
are (`clean`) or filled up with nodes of the label's class (`padded`), as the published code does, in test graphs, too.
Nine clients, three for each level, GraphTransformer of two layers and width 100 from scratch, dropout 0.5 between them,
Adam with 0.1 for prompts and classifiers, one epoch a round, batches of 16. In the rows of whole models each client has
all of GNN, prompt and classifier, trained with 0.001; what is averaged is averaged over all nine. Scope `trained`, best
validation round: means of accuracy and macro-F1 over the clients of a level, as in the paper, and their mean.

The other kinds change one thing of `clean`: `alpha0.3` deals graphs out by a Dirichlet draw a class, `few` leaves about
100 training graphs to a client, `pretrained` starts from a GNN that learnt from the training graphs by GraphCL in about
1,250 steps of 16, `gcn` has a GCN on the server, and `node_edge` has no clients of the third level.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from figures import print_figures, spread
from rich.console import Console
from rich.table import Table

from shoal.algorithms.training.graph_contrast import ContrastOptions
from shoal.engine.config.config import parse_config
from shoal.engine.runs.pretrain import pretrain

# Their numbers of classes.
DATASETS = {"cora": 7, "pubmed": 3, "computers": 10, "physics": 5}
LEVELS = ("induced-node", "induced-edge", "induced-graph")
ALPHAS = (0.9, 0.6, 0.3, 0.1)
PAIRS = {"node_edge": LEVELS[:2], "node_graph": LEVELS[::2], "edge_graph": LEVELS[1:]}
KINDS = ("clean", "padded", *(f"alpha{alpha}" for alpha in ALPHAS), "few", "pretrained", "gcn", *PAIRS)
FEW, CLIENTS_OF_LEVEL = 100, 3
# As many steps of 16 graphs as 100 epochs over 200 parts of one graph are; of about 4,000 graphs that is five epochs.
CONTRAST = ContrastOptions(epochs=5)
SPLIT = {"name": "fedgpl", "gnn": "per_batch_seq"}
WHOLE_LR = 0.001
# The paper's prompt; with learnt candidates it is FedGPL* of Table 5.
CANDIDATES = {"name": "vpg", "candidates": 10, "join": "below", "shares": "original"}
# The method, the prompt, and the learning rate.
METHODS: dict[str, tuple[dict[str, Any], Any, float]] = {
    "fedgpl": (SPLIT, "vpg", 0.1),
    "fedgpl, one step a round": ({**SPLIT, "gnn": "round_accumulate"}, "vpg", 0.1),
    "fedgpl, frozen": ({**SPLIT, "gnn": "frozen"}, "vpg", 0.1),
    "fedgpl, own steps as distance": ({**SPLIT, "diagonal": "delta"}, "vpg", 0.1),
    "fedgpl, pre-defined candidates": (SPLIT, {**CANDIDATES, "learnt": False}, 0.1),
    "fedgpl, learnt candidates": (SPLIT, CANDIDATES, 0.1),
    "fedgpl, as written": ({"name": "fedgpl", "form": "paper"}, {**CANDIDATES, "learnt": False}, 0.1),
    "fedgpl, means within tasks": ({**SPLIT, "mixing": "task_mean"}, "vpg", 0.1),
    "fedgpl, nothing mixed": ({**SPLIT, "mixing": "none"}, "vpg", 0.1),
    "fedgpl, no prompt": (SPLIT, "none", 0.1),
    "fedgpl, gpf": (SPLIT, "gpf", 0.1),
    "fedgpl, all_in_one": (SPLIT, "all_in_one", 0.1),
    **{
        f"fedgpl, {noise} noise, epsilon {epsilon:g}": ({**SPLIT, "noise": noise, "epsilon": epsilon}, "vpg", 0.1)
        for noise, epsilon in product(("paper", "clipped"), (1000.0, 100.0, 10.0))
    },
    "local, vpg": ({"name": "local"}, "vpg", WHOLE_LR),
    "local, no prompt": ({"name": "local"}, "none", WHOLE_LR),
    "local, gpf": ({"name": "local"}, "gpf", WHOLE_LR),
    "fedavg, vpg": ({"name": "fedavg", "weight": "uniform"}, "vpg", WHOLE_LR),
    "fedavg, gpf": ({"name": "fedavg", "weight": "uniform"}, "gpf", WHOLE_LR),
    "fedavg, supt": ({"name": "fedavg", "weight": "uniform"}, "supt", WHOLE_LR),
    "fedavg, all_in_one": ({"name": "fedavg", "weight": "uniform"}, "all_in_one", WHOLE_LR),
    "fedprox, vpg": ({"name": "fedprox", "weight": "uniform"}, "vpg", WHOLE_LR),
    "scaffold, vpg": ({"name": "scaffold"}, "vpg", WHOLE_LR),
}
# Tables 1 (pre-trained, fine-tuned GNN), 2, 3, 7, 8 (from scratch), 9 and 10 (local VPG: node, edge, graph), accuracy.
# In Table 2 the level that does not take part counts with what it has alone, for FedGPL in a row without a name.
PAPER = {
    ("cora-clean", "fedgpl"): "88.34 (from scratch 89.14)",
    ("cora-clean", "fedgpl, frozen"): "87.61",
    ("cora-clean", "fedavg, gpf"): "85.20",
    ("cora-clean", "fedavg, supt"): "85.74",
    ("cora-clean", "fedavg, all_in_one"): "86.70",
    ("cora-clean", "local, vpg"): "79.19 / 90.35 / 91.02",
    ("cora-clean", "local, gpf"): "85.02",
    ("cora-alpha0.9", "fedgpl"): "88.23",
    ("cora-alpha0.9", "fedavg, vpg"): "86.93",
    ("cora-alpha0.6", "fedgpl"): "87.90",
    ("cora-alpha0.6", "fedavg, vpg"): "87.77",
    ("cora-alpha0.3", "fedgpl"): "85.07",
    ("cora-alpha0.3", "fedavg, vpg"): "85.00",
    ("cora-alpha0.1", "fedgpl"): "83.93",
    ("cora-alpha0.1", "fedavg, vpg"): "83.43",
    ("cora-few", "fedgpl"): "86.45",
    ("cora-pretrained", "fedgpl"): "88.34",
    ("cora-pretrained", "fedgpl, frozen"): "87.61",
    ("cora-gcn", "fedgpl"): "86.87",
    ("cora-node_edge", "fedgpl"): "79.73 / 90.89",
    ("cora-node_edge", "fedavg, vpg"): "79.02 / 89.34",
    ("cora-node_graph", "fedgpl"): "80.44 / 92.56",
    ("cora-node_graph", "fedavg, vpg"): "79.09 / 90.02",
    ("cora-edge_graph", "fedgpl"): "92.13 / 92.75",
    ("cora-edge_graph", "fedavg, vpg"): "90.13 / 91.14",
    ("physics-clean", "fedgpl"): "90.91",
    ("physics-clean", "fedavg, gpf"): "89.75",
    ("physics-clean", "fedavg, supt"): "89.79",
    ("physics-clean", "fedavg, all_in_one"): "89.05",
    ("physics-clean", "local, vpg"): "83.37 / 91.03 / 99.50",
    ("physics-clean", "local, gpf"): "88.29",
    ("physics-few", "fedgpl"): "90.14",
}
Finish = Callable[[dict[str, Any]], dict[str, Any]]


def settings(only: list[str]) -> Iterator[tuple[str, str]]:
    """Dataset and kind of every setting that is asked for, or of those with graphs of all levels dealt out evenly."""
    known = {f"{dataset}-{kind}": (dataset, kind) for dataset, kind in product(DATASETS, KINDS)}
    if wrong := set(only).difference(known):
        raise SystemExit(f"--only {wrong.pop()}: the study has no such setting; it has {', '.join(known)}")
    for name, setting in known.items():
        if name in only or (not only and setting[1] in ("clean", "padded")):
            yield setting


def config_of(setting: tuple[str, str], method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """The config of one run, as plain values."""
    dataset, kind = setting
    algorithm, prompt, lr = METHODS[method]
    levels = list(PAIRS.get(kind, LEVELS))
    options = {"base": dataset, "padding": "same_class" if kind == "padded" else "none", "seed": seed}
    partition = {"method": "random", "clients": [CLIENTS_OF_LEVEL] * len(levels), "seed": seed}
    model = {"name": "transformer", "hidden": 100, "layers": 2, "prompt": prompt, "head_dropout": False}
    if kind.startswith("alpha"):
        partition |= {"method": "dirichlet", "alpha": float(kind.removeprefix("alpha"))}
    if kind == "few":
        options["shots"] = CLIENTS_OF_LEVEL * FEW // DATASETS[dataset]
    if kind == "gcn":
        model["name"] = "gcn"
    plain = {
        "name": f"{'-'.join(setting)}-{algorithm['name']}",
        "task": "graph",
        "seed": seed,
        "rounds": args.rounds,
        "data": {"dataset": levels, "split": "public", "options": options},
        "partition": partition,
        "propagation": {"hops": 0},
        "model": model,
        "train": {"epochs": 1, "batch_size": 16, "lr": lr, "weight_decay": 0.0, "dropout": 0.5},
        "algorithm": algorithm,
        "evaluation": {"every": 5},
        "engine": {"backend": "local", "precision": args.precision},
        "run": {"root": args.runs, "checkpoint_every": args.rounds, "tensorboard": False},
    }
    if kind == "pretrained":
        model["pretrained"] = str(pretrained(f"{dataset}-{seed}", plain, args))
    return plain


def pretrained(name: str, plain: dict[str, Any], args: argparse.Namespace) -> Path:
    """The file of a GNN that has learnt from a config's training graphs, made if it is not there."""
    path = Path(args.runs) / f"{name}-graphcl.safetensors"
    return path if path.exists() else pretrain(parse_config(plain, "benchmark"), path, CONTRAST, 200, "train")


def levels_of(setting: tuple[str, str], summary: dict[str, Any], scope: str, rate: str) -> list[float]:
    """Of nodes, edges and graphs, or of those that take part, in %, at the best validation round."""
    domains = summary["scopes"][scope]["best"]["test"]["domains"]
    return [100 * domains[level][rate] for level in PAIRS.get(setting[1], LEVELS)]


def study(args: argparse.Namespace, finish: Finish) -> None:
    """Runs what is not finished yet, and prints a table."""
    figures: dict[str, Any] = {}
    table = Table(title="test accuracy in % by level of task, mean ± std over seeds")
    columns = ("setting", "method", "node", "edge", "graph", "mean", "macro-F1", "served, mean", "MB a round", "paper")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for setting in settings(args.only):
        label = "-".join(setting)
        for method in METHODS:
            if args.methods and method not in args.methods:
                continue
            summaries = [finish(config_of(setting, method, seed, args)) for seed in range(args.seeds)]
            found = {
                "trained": [levels_of(setting, summary, "trained", "clients") for summary in summaries],
                "f1": [mean(levels_of(setting, summary, "trained", "f1_clients")) for summary in summaries],
                "served": [mean(levels_of(setting, summary, "served", "clients")) for summary in summaries],
                "bytes": [sum(summary["bytes"][way] for way in ("up", "down")) / args.rounds for summary in summaries],
            }
            by_level = dict.fromkeys(LEVELS, "-")
            for place, level in enumerate(PAIRS.get(setting[1], LEVELS)):
                by_level[level] = spread([levels[place] for levels in found["trained"]])
            table.add_row(
                label, method, *by_level.values(), spread([mean(levels) for levels in found["trained"]]),
                spread(found["f1"]), spread(found["served"]), f"{mean(found['bytes']) / 1e6:.1f}",
                PAPER.get((label, method), "-"),
            )  # fmt: skip
            figures[f"{label} {method}"] = found
    Console(width=180).print(table)
    print_figures(figures, {})
