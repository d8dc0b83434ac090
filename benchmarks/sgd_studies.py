"""The study `sgd` of `accuracy.py`: SCAFFOLD and FedDC as written, which want plain SGD, beside FedAvg by the same SGD.

And Local, FedAvg and SCAFFOLD by Adam, whose moments stay at the clients. A GCN of two layers of message passing, three
full-batch steps a round, no momentum, the baselines' weight decay; the learning rate of every row is that of `RATES`
with the highest mean validation accuracy of its served models over the first `--selection-seeds` seeds, but none at
which training diverges. FedAvg takes the plain mean, as the others do.
"""

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from statistics import mean
from typing import Any

from figures import print_figures, spread
from rich.console import Console
from rich.table import Table

from shoal.storage.errors import ShoalError

# By optimizer.
RATES = {"sgd": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), "adam": (0.001, 0.003, 0.01, 0.03)}
FEDAVG = {"name": "fedavg", "weight": "uniform"}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("sgd", {"name": "local"}),
    "fedavg": ("sgd", FEDAVG),
    "scaffold": ("sgd", {"name": "scaffold", "variate": "steps"}),
    "feddc": ("sgd", {"name": "feddc", "variate": "steps"}),
    "feddc, drift after": ("sgd", {"name": "feddc", "variate": "steps", "sends": "after"}),
    "local, adam": ("adam", {"name": "local"}),
    "fedavg, adam": ("adam", FEDAVG),
    "scaffold, adam": ("adam", {"name": "scaffold"}),
}
# How the line ends of a run whose numbers are not finite.
DIVERGED = "a smaller train.lr may help"
Plain = dict[str, Any]
# The config of a method with a seed.
ConfigOf = Callable[[Plain, int], Plain]


def scopes_of(
    finish: Callable[[Plain], Plain], config_of: ConfigOf, algorithm: Plain, optimizer: str, lr: float, seed: int
) -> Plain:
    """The scores of a run by an optimizer and a learning rate."""
    return finish(config_of(algorithm, seed) | {"train": {"optimizer": optimizer, "lr": lr}})["scopes"]


def validation_of(lr: float, scopes: Callable[[float, int], Plain], seeds: int) -> float:
    """Mean validation accuracy of the served models; -1 where training diverges."""
    try:
        return mean(scopes(lr, seed)["served"]["best"]["val"]["nodes"] for seed in range(seeds))
    except ShoalError as error:
        if not str(error).endswith(DIVERGED):
            raise
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
    table = Table(title="test accuracy in % at the best validation round, mean ± std over seeds, SGD or Adam")
    for column in ("setting", "method", "learning rate", "trained", "served", "trained, last round"):
        table.add_column(column, no_wrap=True)
    for label, config_of in settings:
        for method, (optimizer, algorithm) in METHODS.items():
            if args.methods and method not in args.methods:
                continue
            scopes = partial(scopes_of, finish, config_of, algorithm, optimizer)
            seeds = min(args.selection_seeds, args.seeds)
            validation = {lr: validation_of(lr, scopes, seeds) for lr in RATES[optimizer]}
            lr = max(validation, key=validation.__getitem__)
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
