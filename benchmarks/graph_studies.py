"""The study `graphs` of `accuracy.py`: clients with many small graphs each, of which every one has a label.

Settings are named as in `nci1-dirichlet-gin`: dataset, partition (labels of every client drawn from Dirichlet(1), or
graphs dealt out evenly), backbone. Ten clients, 80/10/10 % of each one's graphs, three layers of width 64 without
normalisation or dropout, readout by sum, Adam, batches of 32 graphs, one epoch a round. Methods share everything but
themselves; FedStar's model is its own, two parallel encoders. `global` is one model on all graphs, beside which
stand published accuracies of GIN.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from figures import print_figures, spread
from rich.console import Console
from rich.table import Table

DATASETS = ("nci1", "proteins", "imdb-binary", "collab")
CUTS: dict[str, dict[str, Any]] = {
    "dirichlet": {"method": "dirichlet", "alpha": 1.0},
    "dirichlet0.5": {"method": "dirichlet", "alpha": 0.5},
    "dirichlet0.3": {"method": "dirichlet", "alpha": 0.3},
    "uniform": {"method": "random"},
}
BACKBONES = ("gin", "gcn")
# What is one-hot of degrees would be hundreds of columns wide.
DEGREE_CAP = {"imdb-binary": 64, "collab": 64}
METHODS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox"},
    "fedproto": {"name": "fedproto"},
    "fedtgp": {"name": "fedtgp"},
    "gcfl+": {"name": "gcfl_plus"},
    "fedstar": {"name": "fedstar"},
    "fedpg": {"name": "fedpg"},
    "global": {"name": "global"},
}
# GIN in Errica et al., "A Fair Comparison of Graph Neural Networks for Graph Classification", ICLR 2020, Tables 3 and 4
# (degrees as features of the last two): ten folds, model selected within the training part.
PUBLISHED = {"nci1": "80.0 ± 1.4", "proteins": "73.3 ± 4.0", "imdb-binary": "71.2 ± 3.9", "collab": "75.6 ± 2.3"}
Finish = Callable[[dict[str, Any]], dict[str, Any]]


def settings(only: list[str]) -> Iterator[tuple[str, str, str]]:
    """Dataset, partition and backbone of every setting, or of those that are asked for."""
    for setting in product(DATASETS, CUTS, BACKBONES):
        if not only or "-".join(setting) in only:
            yield setting


def config_of(setting: tuple[str, str, str], method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """The config of one run, as plain values."""
    dataset, cut, backbone = setting
    cap = DEGREE_CAP.get(dataset)
    data: dict[str, Any] = {"dataset": dataset, "fractions": [0.8, 0.1, 0.1], "split_seed": seed}
    return {
        "name": f"{'-'.join(setting)}-{METHODS[method]['name']}",
        "task": "graph",
        "seed": seed,
        "rounds": args.rounds,
        "data": data if cap is None else {**data, "options": {"degree_cap": cap}},
        "partition": {"clients": 10, "seed": seed, **CUTS[cut]},
        "propagation": {"hops": 0},
        "model": {
            "name": "star" if method == "fedstar" else backbone,
            "hidden": 64,
            "layers": 3,
            "readout": "sum",
            "norm": "none",
        },
        "train": {"epochs": 1, "batch_size": 32, "lr": 0.001, "weight_decay": 0.0, "dropout": 0.0},
        "algorithm": METHODS[method],
        "evaluation": {"every": 2},
        "engine": {"backend": "local", "precision": args.precision},
        "run": {"root": args.runs, "checkpoint_every": args.rounds, "tensorboard": False},
    }


def study(args: argparse.Namespace, finish: Finish) -> None:
    """Runs what is not finished yet, and prints a table."""
    figures: dict[str, Any] = {}
    table = Table(title="test accuracy in %, mean ± std over seeds, each with a partition and split of its own")
    for column in ("setting", "method", "trained", "macro-F1", "trained, last round", "served", "published"):
        table.add_column(column, no_wrap=True)
    for setting in settings(args.only):
        label = "-".join(setting)
        for method in METHODS:
            if args.methods and method not in args.methods:
                continue
            scopes = [finish(config_of(setting, method, seed, args))["scopes"] for seed in range(args.seeds)]
            found = {
                "trained": [scope["trained"]["best"]["test"]["nodes"] for scope in scopes],
                "f1": [scope["trained"]["best"]["test"]["f1"] for scope in scopes],
                "last": [scope["trained"]["last"]["test"]["nodes"] for scope in scopes],
                "served": [scope["served"]["best"]["test"]["nodes"] for scope in scopes],
            }
            published = PUBLISHED[setting[0]] if method == "global" and setting[2] == "gin" else "-"
            table.add_row(label, method, *(spread([100 * share for share in found[part]]) for part in found), published)
            figures[f"{label} {method}"] = found
    Console(width=160).print(table)
    print_figures(figures, {})
