"""What FedGTA's clients receive: the size of their sets, who weighs in them, and what that does to the served models.

    python benchmarks/fedgta_weights.py [--quick] [--reference DIR] [--only pubmed-louvain …] [--runs runs/fedgta]

The threshold says who may contribute, the confidence (eq. 4) who does: ten clients of which one carries nearly all
weight are one contributor (1 / sum of squared weights, mean over clients and rounds). The rows `uniform` leave the
confidence out, which is the paper's ablation "w/o Conf.".
"""

import argparse
from statistics import mean
from typing import Any

from accuracy import STUDIES, Setting, best, config_of, settings
from figures import print_figures, spread
from rich.console import Console
from rich.table import Table

from shoal.engine.config.config import parse_config
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import read_summary, run_path
from shoal.engine.runs.run import run

NOTES = ("set size", "contributors", "own weight")


def measure(setting: Setting, algorithm: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Accuracies of all seeds, and the notes of the method averaged over rounds and seeds."""
    served, val, notes = [], [], []
    for seed in range(args.seeds):
        config = parse_config(config_of(setting, algorithm, seed, args), "benchmark")
        folder = run(config, resume=(run_path(config) / METRICS).exists())
        summary = read_summary(folder)
        served.append(best(summary, "served"))
        val.append(best(summary, "served", "val"))
        notes += [line["notes"] for line in read_metrics(folder)]
    return {"served": served, "validation": val, **{note: mean(n[note] for n in notes) for note in NOTES}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="digits only, one seed, 20 rounds: within a minute")
    parser.add_argument("--reference", help="folder with the peer's partitions")
    parser.add_argument("--only", nargs="*", default=[], help="settings such as cora-louvain")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--runs", default="runs/fedgta")
    args = parser.parse_args()
    if args.quick:
        args.only, args.seeds, args.rounds = ["digits-louvain"], 1, 20
    table = Table(title="FedGTA: served models at the best validation round, accuracy in %")
    for column in ("setting", "confidence", "eps", "served val", "served test", *NOTES):
        table.add_column(column, no_wrap=True)
    figures: dict[str, Any] = {}
    for setting in settings(STUDIES["averages"], args.only):
        for confidence in ("paper", "uniform"):
            for eps in (0.5, 0.9):
                algorithm = {"name": "fedgta", "eps": eps, "confidence": confidence}
                result = measure(setting, algorithm, args)
                name = f"{setting.name} {setting.backbone}"
                figures[f"{name} {confidence} {eps:g}"] = result
                numbers = [f"{result[note]:.2f}" for note in NOTES]
                shown = (spread(result["validation"], 2), spread(result["served"], 2))
                table.add_row(name, confidence, f"{eps:g}", *shown, *numbers)
    Console(width=120).print(table)
    print_figures(figures, {})


if __name__ == "__main__":
    main()
