"""The study `sgd` of `accuracy.py`: SCAFFOLD and FedDC as written, which want plain SGD, beside FedAvg by the same SGD.

A GCN of two layers of message passing, three full-batch steps a round without momentum, the baselines' weight decay;
the learning rate of every method is that of `RATES` with the highest mean validation accuracy of its served models over
the first `--selection-seeds` seeds, but none at which training diverges. FedAvg takes the plain mean, as the others do.
"""

import argparse
from collections.abc import Callable, Iterable
from statistics import mean, stdev
from typing import Any

from figures import print_figures
from rich.console import Console
from rich.table import Table

from storage.errors import ShoalError

RATES = (0.1, 0.3, 1.0)
METHODS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg", "weight": "uniform"},
    "scaffold": {"name": "scaffold", "variate": "steps"},
    "feddc": {"name": "feddc", "variate": "steps"},
    "feddc, drift after": {"name": "feddc", "variate": "steps", "sends": "after"},
}
Plain = dict[str, Any]
# The config of a method with a seed.
ConfigOf = Callable[[Plain, int], Plain]


def spread(values: list[float]) -> str:
    """Mean ± sample standard deviation."""
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def validation_of(lr: float, scopes: Callable[[float, int], Plain], seeds: int) -> float:
    """Mean validation accuracy of the served models; -1 where training diverges."""
    try:
        return mean(scopes(lr, seed)["served"]["best"]["val"]["nodes"] for seed in range(seeds))
    except ShoalError as error:
        print(f"learning rate {lr:g}: {error}")
        return -1.0


def study(args: argparse.Namespace, finish: Callable[[Plain], Plain], settings: Iterable[tuple[str, ConfigOf]]) -> None:
    """Runs what is not finished yet, and prints a table.

    Args:
        args: Of `accuracy.py`.
        finish: Gives the summary of the run of a config.
        settings: Name of every setting and its configs.
    """
    figures: dict[str, Any] = {}
    table = Table(title="plain SGD: test accuracy in % at the best validation round, mean ± std over seeds")
    for column in ("setting", "method", "learning rate", "trained", "served", "trained, last round"):
        table.add_column(column, no_wrap=True)
    for label, config_of in settings:
        for method, algorithm in METHODS.items():
            if args.methods and method not in args.methods:
                continue

            def scopes(lr: float, seed: int, algorithm: Plain = algorithm, config_of: ConfigOf = config_of) -> Plain:
                train = {"optimizer": "sgd", "lr": lr}
                return finish(config_of(algorithm, seed) | {"train": train})["scopes"]

            validation = {lr: validation_of(lr, scopes, min(args.selection_seeds, args.seeds)) for lr in RATES}
            lr = max(RATES, key=lambda lr: validation[lr])
            runs = [scopes(lr, seed) for seed in range(args.seeds)]
            found = {
                "trained": [100 * run["trained"]["best"]["test"]["nodes"] for run in runs],
                "served": [100 * run["served"]["best"]["test"]["nodes"] for run in runs],
                "last": [100 * run["trained"]["last"]["test"]["nodes"] for run in runs],
            }
            table.add_row(label, method, f"{lr:g}", *(spread(values) for values in found.values()))
            figures[f"{label} {method}"] = {"lr": lr, "validation": validation, **found}
    Console(width=160).print(table)
    print_figures(figures, {})
