"""The table of the server's model on the whole graphs that clients come from."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from shoal.engine.rounds.domains import BOTH, DOMAINS

# Columns, by the names of rates and of their means over domains.
RATES = {
    "accuracy": ("accuracy", "clients"),
    "F1": ("f1", "f1_clients"),
    "balanced": ("balanced", "balanced"),
    "AUC": ("auc", "auc"),
    "majority": ("majority", "majority"),
}
CAPTION = (
    "in %, of a whole graph with all its edges; F1 is the mean over classes, balanced the mean\n"
    "recall, AUC the mean area under the ROC curve of each class against the others; majority:\n"
    "the share of the domain's largest class; constant: one class for all domains"
)


def domain_table(scope: Mapping[str, Any]) -> Table:
    """A row a domain, their mean, and the best constant class: of the best validation round, the last, the last five.

    Args:
        scope: The scope `domains` of a summary.
    """
    title = "the server's model on the whole graph of every domain"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("rounds", no_wrap=True)
    table.add_column("domain", no_wrap=True)
    for name in RATES:
        table.add_column(name, justify="right", no_wrap=True)
    best, last, five = scope["best"], scope["last"], scope["last_five"]
    rounds = five["rounds"]
    blocks = [
        (f"best val @{best['round']}, test" if best else "", (best or {}).get("test")),
        (f"last @{last['round']}, test", last.get("test")),
        (f"mean of {len(rounds)} to @{rounds[-1] if rounds else 0}, {BOTH}", five if rounds else None),
    ]
    for label, numbers in blocks:
        if numbers is not None:
            _add_block(table, label, numbers)
    return table


def _add_block(table: Table, label: str, numbers: Mapping[str, Any]) -> None:
    for place, (name, rates) in enumerate(numbers[DOMAINS].items()):
        table.add_row(label if place == 0 else "", name, *(_percent(rates[rate]) for rate, _ in RATES.values()))
    table.add_row("", "mean", *(_percent(numbers[mean]) for _, mean in RATES.values()))
    table.add_row("", f"constant {numbers['constant_class']}", _percent(numbers["constant"]))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
