"""Figures of the docs, from tables in docs/results/data: `python benchmarks/page_figures.py docs/figures`."""

import csv
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from shoal.pages.figures import Drawing, grid
from shoal.study.grids import make_grid
from shoal.study.groups import Group, Row, group_runs
from shoal.study.main_score import MainScore

DATA = Path(__file__).resolve().parent.parent / "docs" / "results" / "data"
# Okabe and Ito's colours, and marks that differ in grey.
STYLES = [("#0072b2", "o"), ("#56b4e9", "s"), ("#e69f00", "^"), ("#d55e00", "D")]
CASES = {"linear, 10 clients": "10 clients", "linear, 50": "50 clients", "linear, 10 % of 500": "50 of 500 clients"}
CONTENDERS = ("Shoal, one process", "Shoal, one host on Ray", "pfl-research", "Flower")
METHODS = {"local": "Local", "fedavg": "FedAvg", "fedgta": "FedGTA", "fedpg": "FedPG"}


def table(name: str) -> list[dict[str, str]]:
    """Rows of a table by its columns."""
    with open(DATA / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def peers() -> Figure:
    """Rounds over a bare torch loop's: ratios and their intervals."""
    figure, axes = plt.subplots(figsize=(7.2, 2.6))
    rows = table("rounds-peers")
    styles = dict(zip(CONTENDERS, STYLES, strict=True))
    for place, case in enumerate(CASES):
        of_case = [row for row in rows if row["case"] == case and row["contender"].rstrip(" *") in styles]
        for number, row in enumerate(of_case):
            colour, mark = styles[row["contender"].rstrip(" *")]
            ratio, low, high = (float(row[key]) for key in ("ratio", "ratio_low", "ratio_high"))
            at = place + (number - (len(of_case) - 1) / 2) * 0.13
            axes.errorbar(
                at, ratio, [[ratio - low], [high - ratio]], color=colour, marker=mark, capsize=2, markersize=5
            )
    for contender, (colour, mark) in styles.items():
        axes.plot([], [], color=colour, marker=mark, linestyle="", label=contender)
    axes.axhline(1, color="0.6", linewidth=0.8)
    axes.set_xticks(range(len(CASES)), list(CASES.values()))
    axes.set_ylabel("seconds of a round,\nbare torch loop = 1")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def participation() -> Figure:
    """Test accuracy on PubMed over the share of clients a round, of deployed and of trained models."""
    figure, (deployed, trained) = plt.subplots(1, 2, figsize=(7.2, 2.8), sharey=True)
    rows = table("rounds-participation-pubmed")
    for (method, label), (colour, mark) in zip(METHODS.items(), STYLES, strict=True):
        lines = [row for row in rows if row["method"] == method]
        ratios, mean, deviation, of_trained = (
            [float(row[key]) for row in lines] for key in ("ratio", "deployed", "deployed_sd", "trained")
        )
        deployed.errorbar(ratios, mean, deviation, color=colour, marker=mark, capsize=2, markersize=5, label=label)
        trained.plot(ratios, of_trained, color=colour, marker=mark, markersize=5)
    for axes, title in ((deployed, "deployed models"), (trained, "trained models")):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("share of clients in a round")
        axes.spines[["top", "right"]].set_visible(False)
    deployed.set_ylabel("test accuracy, %")
    deployed.legend(frameon=False, fontsize=8)
    return figure


def cross_edges() -> Figure:
    """Test accuracy over the share of the edges between clients that hops run over, by graph and partition."""
    rows = [row for row in table("cross-edges") if row["model"] == "sgc"]
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    partitions = {"random": "-", "louvain": "--", "metis": ":"}
    figure, axes = plt.subplots(1, len(graphs), figsize=(2.4 * len(graphs), 2.8))
    for (method, label), (colour, mark) in zip(list(METHODS.items())[:3], STYLES):
        axes[0].plot([], [], color=colour, marker=mark, linestyle="", label=label)
        for (graph, ax), (partition, dashes) in product(zip(graphs, axes), partitions.items()):
            line = [
                row for row in rows if (row["graph"], row["partition"], row["method"]) == (graph, partition, method)
            ]
            numbers = ("share_of_edges_between_clients", "deployed_test", "deployed_test_sd")
            shares, mean, deviation = ([float(row[key]) for row in line] for key in numbers)
            ax.errorbar(shares, mean, deviation, color=colour, marker=mark, markersize=4, linestyle=dashes)
            ax.set_title(graph, fontsize=10)
            ax.set_xlabel("share of cut edges", fontsize=9)
            ax.spines[["top", "right"]].set_visible(False)
    for partition, dashes in partitions.items():
        axes[0].plot([], [], color="0.3", linestyle=dashes, label=partition)
    axes[0].set_ylabel("test accuracy, %")
    figure.legend(frameon=False, fontsize=8, ncols=6, loc="upper center", bbox_to_anchor=(0.5, -0.02))
    return figure


def cutting() -> Figure:
    """Points below exact hops, by the share of cut edges that is kept and by clients, in panels.

    The figure is that of the page of the sweep: `shoal report --against data.cross_edges=hops,data.cross_share=1.0`.
    """
    edges, share, clients = "data.cross_edges", "data.cross_share", "partition.clients"
    runs = []
    for row in table("cross-edges-diagram"):
        kept = {edges: "hops", share: row["share"]} if float(row["share"]) else {edges: "drop"}
        others = {"partition.method": row["partition"], "algorithm": METHODS[row["method"]], clients: row["clients"]}
        runs.append(Row(others | kept, {"deployed.best.test": float(row["test"]) / 100}))
    groups = group_runs(runs)
    drawn: list[Drawing] = []
    against = {edges: "hops", share: "1.0"}
    shown = make_grid(groups, MainScore(groups), (clients, share), against, _name)
    assert shown is not None
    grid(drawn, "cutting", "", shown, ("clients", "share of cut edges that is kept"), "points")
    return drawn[0].drawn


def _name(group: Group, keys: Sequence[str]) -> str:
    return ", ".join(group.columns[key] for key in keys if key in group.columns)


# What noise hides, and where it is added; `unit` of the table.
NOISE = {"client": "a client, at the server", "upload": "a client, at each client", "node": "a node"}


def attacks() -> Figure:
    """Success of attacks over epsilon of a client and of a node: items of models, classes and rows of uploads."""
    rows = table("privacy-attacks")
    figure, panels = plt.subplots(1, 3, figsize=(9.6, 2.8), layout="constrained")
    lines = (
        ("50", "membership_calibrated", "who trained, by models", "-"),
        ("50", "bias_auc", "classes, by uploads", "-"),
        ("500", "cosine_upload", "rows, by one upload", "-"),
        ("500", "cosine_mean_of_others", "rows, by one upload", ":"),
    )
    for (unit, (colour, mark)), (place, (clients, column, title, dashes)) in product(
        zip(NOISE, (STYLES[0], STYLES[1], STYLES[3])), enumerate(lines)
    ):
        of: dict[str, list[float]] = {}
        for row in rows:
            if (row["clients"], row["unit"]) == (clients, unit) and row[column]:
                of.setdefault(row["epsilon"], []).append(float(row[column]))
        # Local has no epsilon either, and comes first.
        of = {epsilon: of[epsilon] for epsilon in sorted(of, key=["local", "none", "8", "4", "2", "1"].index)}
        mean = [sum(each) / len(each) for each in of.values()]
        ends = [
            [m - min(each) for m, each in zip(mean, of.values())],
            [max(each) - m for m, each in zip(mean, of.values())],
        ]
        label = f"{NOISE[unit]}: mean of others" if dashes == ":" else NOISE[unit]
        axes = panels[min(place, 2)]
        axes.errorbar(
            list(of), mean, ends, color=colour, marker=mark, markersize=5, linestyle=dashes, capsize=2, label=label
        )
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epsilon")
        axes.set_ylabel("AUC, %" if place < 2 else "cosine, %")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[:2]:
        axes.axhline(50, color="0.6", linewidth=0.8)
        axes.set_ylim(45, 102)
    panels[2].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def main(folder: Path) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "shoal"
    for draw in (peers, participation, cross_edges, cutting, attacks):
        draw().savefig(folder / f"{draw.__name__}.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
