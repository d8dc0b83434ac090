"""What dropout costs on the processor: masks of 16 bits an entry beside torch's own.

    python benchmarks/dropout.py [--quick] [--rows 270 2000 50000] [--width 64] [--repeats 101]

Forward and backward of one dropout with 0.5 over activations of some rows, one thread, both in turn; median and the
middle half. The goal is a third of torch's time at 2,000 rows, as many as a client of PubMed has.
"""

import argparse
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from figures import print_figures, target
from rich.console import Console
from rich.table import Table

from shoal.algorithms.models.layers.dropout import drop

P, GOAL, GOAL_ROWS = 0.5, 1 / 3, 2000


def seconds_of(rows: int, width: int, repeats: int) -> dict[str, list[float]]:
    """Of every contender, sorted."""
    x, gradient = torch.randn(rows, width, requires_grad=True), torch.randn(rows, width)
    contenders = {"torch": lambda: F.dropout(x, P), "shoal": lambda: drop(x, P, training=True)}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, dropped in contenders.items():
            x.grad = None
            start = perf_counter()
            dropped().backward(gradient)
            found[name].append(perf_counter() - start)
    return {name: sorted(seconds) for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within ten seconds")
    parser.add_argument("--rows", type=int, nargs="+", default=[270, GOAL_ROWS, 50_000])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=101)
    args = parser.parse_args()
    if args.quick:
        args.rows, args.repeats = [GOAL_ROWS], 21
    torch.set_num_threads(1)
    table = Table(title=f"dropout, forward and backward, width {args.width}, microseconds")
    for column in ("rows", "torch", "middle half", "Shoal", "middle half", "ratio"):
        table.add_column(column, no_wrap=True, justify="right")
    figures: dict[str, Any] = {}
    targets: dict[str, dict[str, Any]] = {}
    for rows in args.rows:
        found = seconds_of(rows, args.width, args.repeats)
        ratio = median(found["shoal"]) / median(found["torch"])
        cells = []
        for seconds in found.values():
            low, _, high = (1e6 * quarter for quarter in quantiles(seconds))
            cells += [f"{1e6 * median(seconds):,.0f}", f"{low:,.0f} - {high:,.0f}"]
        table.add_row(f"{rows:,}", *cells, f"{ratio:.3f}")
        figures[f"{rows} rows"] = {"ratio": ratio, **{name: median(seconds) for name, seconds in found.items()}}
        if rows == GOAL_ROWS:
            targets[f"{rows} rows: times torch's"] = target(ratio, GOAL, at_most=True)
    Console(width=120).print(table)
    print_figures(figures, targets)


if __name__ == "__main__":
    main()
