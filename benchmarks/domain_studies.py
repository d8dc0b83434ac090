"""The study `domains` of `accuracy.py`: one global model for clients of several domains, by what survives the classes.

Settings are named as in `twitch-index10`: the graphs, the partition, and alpha, the clients of the dominant domain over
those of another (two each). All methods train the extractor and classifier of `configs/papers/fggp`, from the same
split, by SGD begun anew in every round. Accuracy alone is not shown: on Twitch a constant class beats most rows of the
paper.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from figures import print_figures, spread
from rich.console import Console
from rich.table import Table

CONFIGS = Path(__file__).resolve().parent.parent / "configs/papers/fggp"
GRAPHS = ("twitch", "citation")
CUTS = ("index", "louvain")
ALPHAS = (10, 5)
UNIFORM = {"name": "fedavg", "weight": "uniform"}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedavg, uniform": UNIFORM,
    "fedavg, uniform, five times the rate": UNIFORM,
    "fedprox": {"name": "fedprox"},
    "moon": {"name": "moon"},
    "fedopt (momentum)": {"name": "fedopt", "optimizer": "momentum", "eta": 0.5, "momentum": 0.9, "weight": "uniform"},
    "fedproto, averaged": {"name": "fedproto_averaged", "lam": 0.01},
    "fpl": {"name": "fpl"},
    "fedproc": {"name": "fedproc"},
    "fednh": {"name": "fednh"},
    "fggp": {"name": "fggp"},
    "fggp without gkic": {"name": "fggp", "gkic": "off"},
    "fggp without fcpp": {"name": "fggp", "fcpp": False, "head_mode": "average"},
    "fggp, neighbours only": {"name": "fggp", "gkic": "knn_only"},
    "fggp, generator only": {"name": "fggp", "gkic": "gen_only"},
    # Votes change no training, so that the cheapest one will do.
    "fggp without gkic, the code's vote": {"name": "fggp", "gkic": "off", "vote": "softmax_sum"},
    "fggp without gkic, the paper's vote": {"name": "fggp", "gkic": "off", "vote": "sum_cos"},
}
FIVE_TIMES = "fedavg, uniform, five times the rate"
LOCAL = "local (clients' own nodes)"
# Table 1, the mean over domains at alpha 10 and 5, and Table 2; the paper's own cut, features and extractor.
PAPER = {
    ("twitch", 10): {
        "fedavg": 48.47, "fedprox": 46.67, "moon": 45.43, "fedopt (momentum)": 50.43, "fedproto, averaged": 46.59,
        "fedproc": 48.81, "fggp": 61.74, "fggp without gkic": 59.80, "fggp without fcpp": 50.04,
    },
    ("twitch", 5): {
        "fedavg": 50.41, "fedprox": 48.01, "moon": 47.97, "fedopt (momentum)": 58.94, "fedproto, averaged": 48.27,
        "fedproc": 50.51, "fggp": 62.67,
    },
    ("citation", 10): {
        "fedavg": 74.66, "fedprox": 74.86, "moon": 73.98, "fedopt (momentum)": 75.28, "fedproto, averaged": 75.20,
        "fedproc": 74.46, "fggp": 76.77,
    },
    ("citation", 5): {
        "fedavg": 70.17, "fedprox": 70.21, "moon": 69.44, "fedopt (momentum)": 72.35, "fedproto, averaged": 69.82,
        "fedproc": 69.56, "fggp": 74.80,
    },
}  # fmt: skip
RATES = ("accuracy", "f1", "balanced", "auc")
Finish = Callable[[dict[str, Any]], dict[str, Any]]


def settings(only: list[str]) -> Iterator[tuple[str, str, int]]:
    """Graphs, partition and alpha of every setting, or of those that are asked for."""
    for graphs in GRAPHS:
        for cut in CUTS:
            for alpha in ALPHAS:
                if not only or f"{graphs}-{cut}{alpha}" in only:
                    yield graphs, cut, alpha


def config_of(setting: tuple[str, str, int], method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """The config of one run, as plain values."""
    graphs, cut, alpha = setting
    plain = yaml.safe_load((CONFIGS / f"{graphs}.yaml").read_text())
    clients = [2 * alpha, *[2] * (len(plain["data"]["dataset"]) - 1)]
    chunks = {"chunks": plain["partition"]["chunks"]} if cut == "index" else {}
    plain["partition"] = {"method": cut, "clients": clients, **chunks}
    algorithm = {"name": "local"} if method == LOCAL else METHODS[method]
    if method == FIVE_TIMES:
        plain["train"]["lr"] *= 5
    return plain | {
        "name": f"{graphs}-{cut}{alpha}-{algorithm['name']}",
        "seed": seed,
        "rounds": args.rounds,
        "algorithm": algorithm,
        # The last five evaluations are those of the last ten rounds.
        "evaluation": {"every": 2},
        "engine": {"backend": "local", "precision": args.precision},
        "run": {"root": args.runs, "checkpoint_every": args.rounds, "tensorboard": False},
    }


def means(part: dict[str, Any]) -> dict[str, float]:
    """The four rates as means over domains, from one part of a scope."""
    return {"accuracy": part["clients"], "f1": part["f1_clients"], "balanced": part["balanced"], "auc": part["auc"]}


def study(args: argparse.Namespace, finish: Finish) -> None:
    """Runs what is not finished yet, and prints a table a setting and one by domain."""
    figures: dict[str, Any] = {}
    for setting in settings(args.only):
        label = f"{setting[0]}-{setting[1]}{setting[2]}"
        table = Table(title=f"{label}: global model on whole graphs, means over domains in %")
        for column in ("method", "last five: accuracy", "macro-F1", "balanced", "AUC", "chosen on validation: accuracy",
                       "macro-F1", "balanced", "AUC", "paper"):  # fmt: skip
            table.add_column(column, no_wrap=column == "method")
        by_domain = Table(title=f"{label}: accuracy / balanced accuracy / AUC by domain, last five evaluations, in %")
        by_domain.add_column("method", no_wrap=True)
        named: list[str] = []
        for method in METHODS:
            if args.methods and method not in args.methods:
                continue
            scopes = [finish(config_of(setting, method, seed, args))["scopes"]["domains"] for seed in range(args.seeds)]
            last = [scope["last_five"] for scope in scopes]
            chosen = [scope["best"]["test"] for scope in scopes]
            if not named:
                named = list(last[0]["domains"])
                for name in named:
                    by_domain.add_column(name, no_wrap=True)
                parts = scopes[0]["best"]["both"]
                chance = f"{100 / (2 if setting[0] == 'twitch' else 5):.1f}"
                constant, majority = (f"{100 * parts[name]:.1f}" for name in ("constant", "majority"))
                table.add_row(f"constant class {parts['constant_class']}", constant, "", chance, "50.0")
                table.add_row("majority of each domain", majority, "", chance, "50.0")
                of_each = [f"{100 * parts['domains'][name]['majority']:.1f} / - / 50.0" for name in named]
                by_domain.add_row("majority of each domain", *of_each)
            rows = [spread([100 * means(run)[rate] for run in runs]) for runs in (last, chosen) for rate in RATES]
            paper = PAPER[setting[0], setting[2]].get(method) if setting[1] == "index" else None
            table.add_row(method, *rows, f"{paper:.1f}" if paper else "-")
            rates = ("accuracy", "balanced", "auc")
            by_domain.add_row(
                method,
                *(" / ".join(f"{100 * mean([r['domains'][n][x] for r in last]):.1f}" for x in rates) for n in named),
            )
            figures[f"{label} {method}"] = {
                "last five": [means(run) for run in last], "chosen": [means(run) for run in chosen]
            }  # fmt: skip
        if not args.methods or "local" in args.methods:
            local = [finish(config_of(setting, LOCAL, seed, args))["scopes"]["trained"] for seed in range(args.seeds)]
            found = [scope["best"]["test"] for scope in local]
            rates = [spread([100 * run[key] for run in found]) for key in ("clients", "f1_clients", "balanced")]
            table.add_row(LOCAL, *["-"] * 4, *rates, "-", "-")
            figures[f"{label} local"] = [{"accuracy": run["clients"], "balanced": run["balanced"]} for run in found]
        Console(width=190).print(table)
        Console(width=190).print(by_domain)
    print_figures(figures, {})
