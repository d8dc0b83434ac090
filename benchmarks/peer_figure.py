"""The README's figure, from the first table of docs/results/rounds.md: `python benchmarks/peer_figure.py SVG`."""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "rounds.md"
CASES = {"linear, 10 clients": "10 clients", "linear, 50": "50 clients", "linear, 10 % of 500": "50 of 500 clients"}
# Okabe and Ito's colours, and marks that differ in grey.
CONTENDERS = {
    "Shoal, one process": ("#0072b2", "o"),
    "Shoal, one host on Ray": ("#56b4e9", "s"),
    "pfl-research": ("#e69f00", "^"),
    "Flower": ("#d55e00", "D"),
}


def rows(page: str) -> list[tuple[str, str, float, float, float]]:
    """Case, contender, ratio to the bare loop and its interval, of every line that is drawn."""
    lines = []
    case = ""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 8 or not re.fullmatch(r"[\d.]+", cells[4]):
            continue
        case = cells[0] or case
        contender = cells[1].rstrip(" *")
        if case in CASES and contender in CONTENDERS:
            low, high = (float(bound) for bound in cells[5].split("–"))
            lines.append((case, contender, float(cells[4]), low, high))
    return lines


def main(out: Path) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "shoal"
    figure, axes = plt.subplots(figsize=(7.2, 2.6))
    drawn = rows(PAGE.read_text())
    for place, case in enumerate(CASES):
        of_case = [row for row in drawn if row[0] == case]
        for number, (_, contender, ratio, low, high) in enumerate(of_case):
            colour, mark = CONTENDERS[contender]
            at = place + (number - (len(of_case) - 1) / 2) * 0.13
            axes.errorbar(
                at, ratio, [[ratio - low], [high - ratio]], color=colour, marker=mark, capsize=2, markersize=5
            )
    for contender, (colour, mark) in CONTENDERS.items():
        axes.plot([], [], color=colour, marker=mark, linestyle="", label=contender)
    axes.axhline(1, color="0.6", linewidth=0.8)
    axes.set_xticks(range(len(CASES)), list(CASES.values()))
    axes.set_ylabel("seconds of a round,\nbare torch loop = 1")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
