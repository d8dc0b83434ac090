"""What a round of FedAvg costs at least: Shoal in turn with bare loops, and the time of the products alone.

    python benchmarks/floor.py [--only cora,gcn] [--pairs 5] [--against local ray open_fgl] [--folder runs/floor]

Ten Louvain clients of a real graph of $SHOAL_DATA, a fifth of whose nodes trains, make three full-batch SGD steps on
models of two layers and width 64 with their default classifier; SGC, GAMLP and SIGN read two hops. `linear` and `mlp`
are 50 clients of 2,400 rows of 128 features and 172 classes, `linear-20` and `mlp-20` 50 of 20 rows, 32 features and 4
classes. A graph whose files are missing is left out; a loop that fails or has other weights makes the exit status 1.

The bare loops find gradients by autograd, by formulas over all nodes, and by formulas over the rows that the logits of
the training rows depend on (`field`; decoupled models and rows read no others), all in plain torch; `kernel` is the
last one with Shoal's sparse products. GAT, GIN, GCNII and SIGN have a loop by autograd alone. Each is a process with
one thread for mathematics, and so is Shoal (`local`: its engine in one process, whose training evaluates nothing here).
They play turns of ten rounds (rows: 1 or 20) in alternating order. After the first turn, which is not counted, all
weights of the first round must be those of autograd. Times are medians; `over torch` and `over kernel` are medians of
Shoal's time by that of the fastest loop of plain torch and by that of `kernel`, with the lowest and highest (from six
pairs on, the 95 % interval of the median).

`limit` is the time of a round's products alone: the sparse ones as fast as Shoal's kernel is on the same matrices,
repeated on their own, the dense ones as fast as a large product. The second table has their speeds beside those of the
machine: a product of 2,048² matrices, a copy of 256 MiB (read and written), and a dot product of two vectors of
256 KiB, which lie in cache. Bytes of a sparse product are its entries, a row of the other factor for each, and the
result; most of these rows lie in cache, too.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from contest import FORMS, OTHER_MODEL, PEERS, SHOAL, Absent, Case, Contender, interval, play_in_turns
from drawn_case import DrawnCase
from figures import print_figures
from graph_case import BY_AUTOGRAD, CLIENTS, GRAPHS, MODELS, GraphCase
from rich.console import Console
from rich.table import Table

from shoal.storage.errors import ShoalError

ROWS = ("linear", "mlp", "linear-20", "mlp-20")
OF_ROWS = 50
SPEEDS = ("sparse GFLOP", "torch GFLOP/s", "kernel GFLOP/s", "kernel GB/s", "dense GFLOP", "GFLOP/s")
OF_MACHINE = ("mm GFLOP/s", "copy GB/s", "cached GB/s")


@dataclass(frozen=True)
class RowsCase(DrawnCase):
    """Rows, whose weights are compared after the first round; a turn of short rounds has more of them."""

    @property
    def a_turn(self) -> int:  # type: ignore[override]
        return 20 if self.model.endswith("-20") else 1

    @property
    def compared(self) -> int:
        return 1


def forms_of(case: Case) -> list[str]:
    """The bare loops that differ: rows have no sparse products, and decoupled models read training rows alone."""
    if case.model in BY_AUTOGRAD:
        return ["autograd"]
    left_out = {"field", "kernel"} if case.model in ROWS else {"field"} if case.model in ("sgc", "gamlp") else set()
    return [form for form in FORMS if form not in left_out]


def measured(case: Case, against: Sequence[str], pairs: int, peers: Path) -> dict[str, Any]:
    """Seconds of all rounds by contender, and the limits of the case."""
    case.make()
    sides: dict[str, Contender] = {}
    for name in against:
        try:
            sides[name] = case.start(name, peers)
        except (Absent, FileNotFoundError) as reason:
            print(f"left out: {reason}", file=sys.stderr)
    forms = forms_of(case)
    sides |= {form: case.start(form, peers) for form in forms}

    def check() -> None:
        for name in sides.keys() - {"autograd", *OTHER_MODEL}:
            case.difference(name, "autograd")

    played, _ = play_in_turns([[side] for side in sides.values()], pairs, case.a_turn, check)
    seconds = {name: [turn["seconds"] for turn in turns] for name, turns in zip(sides, played)}
    tasks = [case.folder / f"{form}.json" for form in (*forms, *forms)[-2:]]
    alone = Contender("limits", sys.executable, case.folder / "limits.log", *tasks)
    try:
        limits = alone.hear()
    finally:
        alone.kill()
    return {"seconds": seconds, "limits": limits}


def over(mine: Sequence[float], other: Sequence[float]) -> str:
    """The median ratio of the pairs, and its interval."""
    ratios = [a / b for a, b in zip(mine, other)]
    low, high = interval(ratios)
    return f"{median(ratios):.2f} ({low:.2f} – {high:.2f})"


def round_of(case: Case, name: str, found: dict[str, Any]) -> list[str]:
    """A line of the first table."""
    seconds = found["seconds"]
    best = min((form for form in FORMS[:-1] if form in seconds), key=lambda form: median(seconds[form]))
    shown = [f"{1000 * median(seconds[form]):.2f}" if form in seconds else "" for form in (*FORMS, name)]
    ratios = [over(seconds[name], seconds[best]), over(seconds[name], seconds["kernel"]) if "kernel" in seconds else ""]
    return [case.name, name, *shown, *ratios, f"{1000 * found['limits']['limit']:.2f}"]


def speeds_of(case: Case, limits: dict[str, float]) -> list[str]:
    """A line of the second table."""
    work = [f"{1e-9 * limits[kind]:.3f}" for kind in ("sparse", "dense")]
    pairs = (("sparse", "torch"), ("sparse", "kernel"), ("bytes", "kernel"), ("dense", "dense seconds"))
    *sparse, dense = [f"{1e-9 * limits[of] / limits[by]:.1f}" if limits[by] else "" for of, by in pairs]
    return [case.name, work[0], *sparse, work[1], dense, *(f"{1e-9 * limits[k]:.1f}" for k in ("mm", "copy", "cached"))]


def chosen(only: str, turns: int, folder: Path) -> list[Case]:
    """The cases of the named graphs and models.

    Raises:
        ShoalError: A name is none of them.
    """
    words = [word for word in only.split(",") if word]
    unknown = set(words) - {*GRAPHS, *MODELS, *ROWS}
    if unknown:
        names = ", ".join((*GRAPHS, *MODELS, *ROWS))
        raise ShoalError("--only", f"expected names of {names}, got {', '.join(sorted(unknown))}")
    graphs, models = (tuple(name for name in names if name in words) for names in (GRAPHS, (*MODELS, *ROWS)))
    played = [model for model in MODELS if model in (models or MODELS)]
    cases: list[Case] = [
        GraphCase(model, CLIENTS, 1.0, turns, folder, graph) for graph in graphs or GRAPHS for model in played
    ]
    rows = [model for model in ROWS if model in (models or ROWS) and not graphs]
    return cases + [RowsCase(model, OF_ROWS, 1.0, turns, folder) for model in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of graphs and models, with commas; none: all of them")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--against", nargs="*", choices=(*SHOAL, *PEERS), default=["local"])
    parser.add_argument("--peers", type=Path, default=Path("runs/peers"))
    parser.add_argument("--folder", type=Path, default=Path("runs/floor"))
    args = parser.parse_args()
    try:
        cases = chosen(args.only, args.pairs + 1, args.folder.resolve())
    except ShoalError as error:
        parser.error(error.line)
    rounds = Table(title=f"a round in ms, medians of {args.pairs} turns, one thread each")
    speeds = Table(title="the products of a round alone, and the machine")
    for table, left, right in (
        (rounds, ("case", "contender"), (*FORMS, "its", "over torch", "over kernel", "limit")),
        (speeds, ("case",), (*SPEEDS, *OF_MACHINE)),
    ):
        for column in (*left, *right):
            table.add_column(column, no_wrap=column in left, justify="left" if column in left else "right")
    figures: dict[str, Any] = {}
    began, failed = monotonic(), False
    for number, case in enumerate(cases, 1):
        try:
            found = measured(case, args.against, args.pairs, args.peers.absolute())
        except (Absent, AssertionError, ShoalError) as reason:
            print(f"left out: {case.name}: {reason}", file=sys.stderr)
            failed |= not isinstance(reason, ShoalError)  # of missing data only
            continue
        for name in (n for n in args.against if n in found["seconds"]):
            rounds.add_row(*round_of(case, name, found))
        speeds.add_row(*speeds_of(case, found["limits"]))
        figures[case.name] = found
        left = (monotonic() - began) / number * (len(cases) - number)
        print(f"{number} of {len(cases)}: {case.name}; about {left / 60:.1f} minutes left", file=sys.stderr, flush=True)
    for table in (rounds, speeds):
        Console(width=170).print(table)
    print_figures(figures, {})
    sys.exit(failed)


if __name__ == "__main__":
    main()
