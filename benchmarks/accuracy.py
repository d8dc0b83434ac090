"""Accuracies of Local, FedAvg, FedGTA and Global on real graphs, beside the papers' and a public peer's.

    python benchmarks/accuracy.py [--quick] [--reference DIR] [--only cora-louvain …] [--seeds 5] [--runs runs/accuracy]

Cora, PubMed and the digits, ten clients by Louvain and by METIS, GAMLP and SGC. With `--reference`, Cora and PubMed
use the partitions and splits of that folder, on which the peer's accuracies were measured. FedGTA's threshold is
chosen by the mean validation accuracy of its served models over the first two seeds; test accuracies play no part.
Every run is a run folder under `--runs`; finished ones are not run again.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from figures import print_figures, target
from rich.console import Console
from rich.table import Table

from engine.config import parse_config
from engine.run import run
from engine.run_folder import METRICS, read_summary, run_path

EPS = (0.3, 0.5, 0.7, 0.9)
SELECTION_SEEDS = 2
BACKBONES = {"gamlp": 3, "sgc": 2}
# FedGTA, PVLDB 17(1), Table 3: GAMLP, Louvain, 10 clients; its own split.
PAPER = {("cora", "louvain", "gamlp"): {"global": 85.7, "fedavg": 82.2, "fedgta": 83.8},
         ("pubmed", "louvain", "gamlp"): {"global": 91.1, "fedavg": 86.9, "fedgta": 88.4}}  # fmt: skip
# What the peer calls its closest backbones: A²X behind one linear layer, and behind an MLP.
PEER_BACKBONE = {"sgc": ("sgc_true",), "gamlp": ("dec", "gcn")}
PEER_METHOD = {"local": "isolate", "fedavg": "fedavg", "fedgta": "fedgta", "global": "central_full"}


@dataclass(frozen=True)
class Setting:
    """One graph, cut into clients one way, with one backbone."""

    dataset: str
    method: str
    backbone: str

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.method}"


def settings(only: list[str]) -> Iterator[Setting]:
    """All settings, or those whose `dataset-method` is asked for."""
    for dataset in ("digits", "cora", "pubmed"):
        for method in ("louvain", "metis"):
            for backbone in BACKBONES:
                setting = Setting(dataset, method, backbone)
                if not only or setting.name in only:
                    yield setting


def config_of(setting: Setting, algorithm: dict[str, Any], seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """The config of one run, as plain values."""
    plain: dict[str, Any] = {
        "name": f"{setting.name}-{setting.backbone}-{algorithm['name']}",
        "seed": seed,
        "rounds": args.rounds,
        "data": {"dataset": setting.dataset},
        "partition": {"method": setting.method, "clients": 10},
        "propagation": {"hops": BACKBONES[setting.backbone]},
        "model": {"name": setting.backbone},
        "algorithm": algorithm,
        "evaluation": {"every": 2},
        "engine": {"backend": "local"},
        "run": {"root": args.runs, "checkpoint_every": args.rounds, "tensorboard": False},
    }
    if setting.dataset == "digits" and setting.method == "louvain":
        plain["partition"]["resolution"] = 4.0
    folder = reference_folder(setting, args)
    if folder is not None:
        plain["partition"].update(method="file", file=str(folder / "assignment.npy"))
        plain["data"].update(split="file", split_file=str(folder / "split.npy"))
    return plain


def reference_folder(setting: Setting, args: argparse.Namespace) -> Path | None:
    """The peer's partition of a setting, if there is one."""
    names = {"cora": "Cora", "pubmed": "PubMed"}
    if args.reference is None or setting.dataset not in names:
        return None
    return Path(args.reference) / f"{names[setting.dataset]}-{setting.method}10"


def finish(setting: Setting, algorithm: dict[str, Any], seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Runs what is not finished yet, and returns the summary."""
    config = parse_config(config_of(setting, algorithm, seed, args), "benchmark")
    path = run_path(config)
    return read_summary(run(config, resume=(path / METRICS).exists()))


def best(summary: dict[str, Any], scope: str, part: str = "test") -> float:
    """Accuracy in % at the scope's best validation round, weighted by all nodes."""
    return 100 * summary["scopes"][scope]["best"][part]["nodes"]


def choose_eps(setting: Setting, args: argparse.Namespace) -> tuple[float, dict[str, float]]:
    """The threshold with the highest mean validation accuracy of the served models."""
    seeds = range(min(SELECTION_SEEDS, args.seeds))
    scores = {
        eps: mean(best(finish(setting, {"name": "fedgta", "eps": eps}, s, args), "served", "val") for s in seeds)
        for eps in EPS
    }
    return max(scores, key=lambda eps: scores[eps]), {f"{eps:g}": score for eps, score in scores.items()}


def peer_of(setting: Setting, method: str, args: argparse.Namespace) -> tuple[float, float | None] | None:
    """The peer's accuracies before and after the download, mean over its seeds."""
    if reference_folder(setting, args) is None:
        return None
    runs = json.loads((Path(args.reference) / "reference.json").read_text())["runs"]
    for backbone in PEER_BACKBONE[setting.backbone]:
        same = [r for r in runs if (r["dataset"].lower(), r["partition"], r["algorithm"], r["backbone"])
                == (setting.dataset, setting.method, PEER_METHOD[method], backbone)]  # fmt: skip
        if same:
            post = [100 * r["post_best_val_test"] for r in same if r.get("post_best_val_test") is not None]
            return mean(100 * r["best_val_test"] for r in same), mean(post) if post else None
    return None


def spread(values: list[float]) -> str:
    """Mean ± sample standard deviation."""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="digits only, one seed, 20 rounds: within a minute")
    parser.add_argument("--reference", help="folder with the peer's partitions and accuracies")
    parser.add_argument("--only", nargs="*", default=[], help="settings such as cora-louvain")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--runs", default="runs/accuracy")
    args = parser.parse_args()
    if args.quick:
        args.only, args.seeds, args.rounds = ["digits-louvain"], 1, 20
    table = Table(title="test accuracy in % at the best validation round, mean ± std over seeds")
    for column in ("setting", "method", "trained", "served", "paper", "peer before / after download"):
        table.add_column(column, no_wrap=True)
    figures: dict[str, Any] = {}
    targets: dict[str, dict[str, Any]] = {}
    for setting in settings(args.only):
        eps, scores = choose_eps(setting, args)
        label = f"{setting.name} {setting.backbone}"
        figures[f"{label} eps"] = {"chosen": eps, "validation": scores}
        for method in ("local", "fedavg", "fedgta", "global"):
            algorithm: dict[str, Any] = {"name": method, **({"eps": eps} if method == "fedgta" else {})}
            summaries = [finish(setting, algorithm, seed, args) for seed in range(args.seeds)]
            trained = [best(s, "trained") for s in summaries]
            served = [best(s, "served") for s in summaries]
            paper = PAPER.get((setting.dataset, setting.method, setting.backbone), {}).get(method)
            peer = peer_of(setting, method, args)
            name = f"fedgta (eps {eps:g})" if method == "fedgta" else method
            after = "-" if peer is None or peer[1] is None else f"{peer[1]:.2f}"
            table.add_row(
                label, name, spread(trained), spread(served), f"{paper:.1f}" if paper else "-",
                "-" if peer is None else f"{peer[0]:.2f} / {after}",
            )  # fmt: skip
            figures[f"{label} {method}"] = {"trained": trained, "served": served}
            if peer is not None and setting.backbone == "sgc" and method != "fedgta":
                # The same model on the same partition; FedGTA differs by design (the peer seeds training rows only).
                targets[f"{label} {method}: distance to the peer"] = target(abs(mean(trained) - peer[0]), 1.5, True)
    Console(width=140).print(table)
    print_figures(figures, targets)


if __name__ == "__main__":
    main()
