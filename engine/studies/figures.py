"""Figures of a report and their data: numbers over rounds with a band over seeds, of single clients, times by part.

Matplotlib draws them: readable in print, in grey and by the colour-blind.

Axes: T evaluated rounds, S runs that differ in seeds alone, B clients.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from shoal.engine.config.sizes import size
from shoal.engine.records.checkpoint import newest_round, sound_tensors
from shoal.engine.records.metrics import read_metrics, read_records, recorded_rounds
from shoal.engine.records.run_folder import CHECKPOINTS
from shoal.engine.records.summary import NODES, chosen
from shoal.engine.rounds.scoring import PARTS as OF_SCORES
from shoal.engine.rounds.scoring import by_client
from shoal.engine.rounds.state import read_scores
from shoal.engine.studies.groups import Group
from shoal.storage.files.digest import text_digest

# Okabe and Ito (2008), the dark ones first; lines and marks differ, too.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx", "\\\\", "++")
WIDTH, HEIGHT = 6.4, 4.0
MOST_BARS, LONGEST = 40, 200


@dataclass(frozen=True)
class Curve:
    """A number over the evaluated rounds of one group: its name, and float64 `[T]` over the runs the mean, the smallest
    and the largest; `x` by `round`, `bytes` sent both ways so far and `seconds` of rounds so far, means over the runs.
    """

    name: str
    x: dict[str, np.ndarray]
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: int


def curve_of(name: str, runs: Sequence[Path], scope: str, part: str, mean: str = NODES) -> Curve | None:
    """The number that stands for a scope, by a mean over clients, of the rounds in which all runs have it, if any."""
    of_runs = [_points(read_metrics(run), scope, part, mean) for run in runs]
    rounds = sorted(set.intersection(*(set(points) for points in of_runs))) if of_runs else []
    if not rounds:
        return None
    table_STX = np.array([[points[number] for number in rounds] for points in of_runs])
    value_ST = table_STX[:, :, 0]
    sent_T, seconds_T = table_STX[:, :, 1:].mean(0).T
    x = {"round": np.array(rounds, dtype=float), "bytes": sent_T, "seconds": seconds_T}
    return Curve(name, x, value_ST.mean(0), value_ST.min(0), value_ST.max(0), len(runs))


def _points(
    lines: Sequence[Mapping[str, Any]], scope: str, part: str, mean: str
) -> dict[int, tuple[float, float, float]]:
    """Value, bytes and seconds so far by evaluated round."""
    found, sent, seconds = {}, 0.0, 0.0
    for line in lines:
        sent += line["bytes_up"] + line["bytes_down"]
        seconds += line["seconds"]["round"]
        numbers = line.get("scopes", {}).get(scope, {}).get(part)
        value = None if numbers is None else chosen(numbers, scope, mean)
        if value is not None:
            found[int(line["round"])] = (value, sent, seconds)
    return found


def client_accuracies(run: Path, scope: str) -> np.ndarray:
    """Accuracy of every client with test rows in the newest checkpoint, float64 `[B]`; empty if not kept."""
    newest = newest_round(run / CHECKPOINTS)
    if not newest:
        return np.zeros(0)
    with safe_open(sound_tensors(run / CHECKPOINTS, newest), framework="np") as file:
        table = read_scores({name: file.get_tensor(name) for name in file.keys() if name.startswith("score")})  # noqa: SIM118
    if not table.get(scope):
        return np.zeros(0)
    numbers, test = by_client(table[scope]), OF_SCORES.index("test")
    scored = numbers.rows_BP[:, test] > 0
    found: np.ndarray = numbers.correct_BP[scored, test] / numbers.rows_BP[scored, test]
    return found


def recorded_mixing(run: Path) -> dict[int, np.ndarray]:
    """Matrices of mixing of the first, the middle and the last recorded round, float32 `[B, B]`, if there are any."""
    found = recorded_rounds(run)
    numbers = sorted({found[place] for place in (0, len(found) // 2, -1)}) if found else []
    of_rounds = {number: read_records(run, number) for number in numbers}
    return {number: records["mixing"].numpy() for number, records in of_rounds.items() if "mixing" in records}


def recorded_prototypes(run: Path) -> tuple[int, np.ndarray, np.ndarray] | None:
    """The last recorded round, its prototypes on their two largest principal components float64 `[P, 2]`, and their
    classes `[P]`; None if there are fewer than three.
    """
    for number in reversed(recorded_rounds(run)):
        records = read_records(run, number)
        if len(records.get("prototypes", ())) > 2:
            proto_PH = records["prototypes"].double().numpy()
            centred_PH = proto_PH - proto_PH.mean(0)
            u_PK, s_K, _ = np.linalg.svd(centred_PH, full_matrices=False)
            point_P2 = (u_PK * s_K)[:, :2]
            return number, point_P2, records["prototype_class"].numpy()
    return None


def name_of(group: Group, keys: Sequence[str]) -> str:
    """A line that distinguishes a group from the others."""
    by_themselves = ("algorithm", "algorithm.name", "model", "model.name")
    known = {key: value for key in keys if (value := group.columns.get(key))}
    short = [v if key in by_themselves else f"{key.rpartition('.')[2]} {v}" for key, v in known.items()]
    return ", ".join(short) or "all runs"


def numeric(values: Sequence[str]) -> list[float] | None:
    """Values of a key as numbers; None if one is none, or they do not differ."""
    try:
        found = [float(value) for value in values]
    except ValueError:
        return None
    return found if len(set(found)) > 1 else None


STYLE: Any = {
    "font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
    "svg.fonttype": "none", "svg.hashsalt": "shoal", "figure.constrained_layout.use": True,
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A finished figure: name of its files, title, a text for who cannot see it, SVG without a declaration, and PNG."""

    name: str
    title: str
    text: str
    svg: str
    png: bytes


@contextmanager
def _panels(
    found: list[Drawing], name: str, title: str, text: str, count: int = 1, height: float = HEIGHT
) -> Iterator[Sequence[Any]]:
    """Axes in a row; the drawing is appended at the end."""
    # It takes a second of every process that imports it. Without pyplot there is no window and no global state.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height))
        FigureCanvasAgg(figure)
        yield list(figure.subplots(1, count, squeeze=False)[0])
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=150)
    text_of = svg.getvalue()
    found.append(Drawing(name, title, text, text_of[text_of.index("<svg") :], png.getvalue()))


def curves(found: list[Drawing], several: Sequence[Curve], scope: str, part: str, x: str) -> None:
    """Accuracy over rounds, bytes or seconds; a band from the lowest to the highest run."""
    units = {"round": "round", "bytes": "bytes sent in all, both ways", "seconds": "seconds of rounds in all"}
    ends = "; ".join(f"{c.name} ends at {100 * c.middle[-1]:.1f} %" for c in several)
    title = f"{part} of scope {scope} by {units[x]}"
    with _panels(found, f"{scope}-{part}-by-{x}", title, f"{title}: {ends}") as (axes,):
        for number, curve in enumerate(several):
            style = _line(number)
            every = max(1, len(curve.middle) // 8)
            axes.plot(curve.x[x], 100 * curve.middle, label=_text(curve.name), markevery=every, **style)
            if curve.runs > 1:
                axes.fill_between(curve.x[x], 100 * curve.low, 100 * curve.high, color=style["color"], alpha=0.15, lw=0)
        if x == "bytes":
            axes.set_xscale("log" if all((curve.x[x] > 0).all() for curve in several) else "linear")
            axes.xaxis.set_major_formatter(lambda value, _: size(value))
        if x == "round":
            _whole(axes.xaxis)
        _label(axes, units[x], f"{part}, {scope} (%)", len(several))


def over_key(
    found: list[Drawing], key: str, lines: Mapping[str, Sequence[tuple[float, float, float]]], figure: str
) -> None:
    """A figure over the values of a numeric key, a line for each combination of the others, with deviations."""
    title = f"{figure} by {key}"
    text = "; ".join(
        f"{name}: " + ", ".join(f"{x:g} gives {100 * y:.1f} %" for x, y, _ in line) for name, line in lines.items()
    )
    with _panels(found, f"{figure}-by-{key}".replace(".", "-"), title, f"{title}: {text}") as (axes,):
        for number, (name, line) in enumerate(lines.items()):
            x, y, deviation = np.array(line).T
            axes.errorbar(x, 100 * y, yerr=100 * deviation, label=_text(name), capsize=3, **_line(number))
        _label(axes, key, f"{figure} (%)", len(lines))


def against_ideal(
    found: list[Drawing], key: str, lines: Mapping[str, tuple[list[float], list[float], list[float]]]
) -> None:
    """Seconds of a round over clients or hosts, and the ideal from the first on, both axes in powers."""
    title = f"seconds of a round by {key}"
    text = "; ".join(
        f"{name}: " + ", ".join(f"{x:g} takes {y:.3g} s, ideally {best:.3g} s" for x, y, best in zip(*line))
        for name, line in lines.items()
    )
    with _panels(found, f"seconds-by-{key}".replace(".", "-"), title, f"{title}: {text}") as (axes,):
        for number, (name, (x, seconds, best)) in enumerate(lines.items()):
            style = _line(number)
            axes.plot(x, seconds, label=_text(name), **style)
            axes.plot(x, best, color=style["color"], linestyle=(0, (1, 3)), linewidth=1, label=f"{_text(name)}, ideal")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        _label(axes, key, "s a round (median)", 2 * len(lines))


def boxes(found: list[Drawing], accuracies: Mapping[str, np.ndarray], scope: str) -> None:
    """Test accuracy of single clients, a box for each combination."""
    title = f"test accuracy of single clients, scope {scope}, last round"
    text = "; ".join(
        f"{name}: median {100 * np.median(a):.1f} %, lowest {100 * a.min():.1f} %" for name, a in accuracies.items()
    )
    height = 1.4 + 0.4 * len(accuracies)
    with _panels(found, f"{scope}-clients", title, f"{title}: {text}", height=height) as (axes,):
        axes.boxplot(
            [100 * a for a in accuracies.values()], orientation="horizontal", tick_labels=[*map(_text, accuracies)],
            medianprops={"color": COLOURS[1], "linewidth": 2}, flierprops={"markersize": 3},
        )  # fmt: skip
        axes.invert_yaxis()
        axes.set_xlabel(f"test accuracy of a client, {scope} (%)")


def labels(found: list[Drawing], counts_BC: np.ndarray) -> None:
    """Share of every class among the labelled items of every client."""
    share_BC = counts_BC / np.maximum(counts_BC.sum(1, keepdims=True), 1)
    largest = share_BC.max(1)
    title = f"labels of {len(counts_BC)} clients in {counts_BC.shape[1]} classes"
    text = f"the largest class of a client has {100 * largest.min():.0f} to {100 * largest.max():.0f} % of its labels"
    with _panels(found, "labels", title, f"{title}: {text}") as (axes,):
        image = axes.imshow(
            100 * share_BC.T, aspect="auto", cmap="Greys", vmin=0, vmax=100, interpolation="nearest", origin="lower"
        )
        axes.grid(visible=False)
        _whole(axes.xaxis, axes.yaxis)
        _label(axes, "client", "class")
        axes.figure.colorbar(image, ax=axes, label="share of a client's labels (%)")


def bars(found: list[Drawing], name: str, title: str, unit: str, parts: Mapping[str, Mapping[str, float]]) -> None:
    """Stacked bars: by combination, the parts of a whole."""
    names = list(parts)[:MOST_BARS]
    kinds = list(next(iter(parts.values())))
    text = "; ".join(f"{row}: " + ", ".join(f"{kind} {parts[row][kind]:.3g}" for kind in kinds) for row in names)
    with _panels(found, name, title, f"{title}, in {unit}: {text}", height=1.6 + 0.4 * len(names)) as (axes,):
        left = np.zeros(len(names))
        for number, kind in enumerate(kinds):
            values = np.array([parts[row][kind] for row in names])
            axes.barh(
                [*map(_text, names)], values, left=left, label=kind, color=COLOURS[1 + number % (len(COLOURS) - 1)],
                hatch=HATCHES[number % len(HATCHES)], edgecolor="white", linewidth=0.5,
            )  # fmt: skip
            left += values
        axes.invert_yaxis()
        _label(axes, unit, "", len(kinds))


def mixing(found: list[Drawing], name: str, rounds: Mapping[int, np.ndarray]) -> None:
    """Weights with which clients receive the uploads of others, a panel a round, on one scale of grey."""
    title = f"weights of mixing, {name}"
    text = "; ".join(
        f"round {number}: a client's own weight is {np.diagonal(weight_BB)[weight_BB.any(1)].mean():.2f} in the mean"
        for number, weight_BB in rounds.items()
    )
    most = max(float(weight_BB.max()) for weight_BB in rounds.values())
    with _panels(found, f"mixing-{_plain(name)}", title, f"{title}: {text}", len(rounds), 2.9) as panels:
        for axes, (number, weight_BB) in zip(panels, rounds.items()):
            image = axes.imshow(weight_BB, cmap="Greys", vmin=0, vmax=most, interpolation="nearest")
            axes.grid(visible=False)
            _whole(axes.xaxis, axes.yaxis)
            axes.set_title(f"round {number}", fontsize=9)
            axes.set_xlabel("upload of client")
        panels[0].set_ylabel("received by client")
        panels[0].figure.colorbar(image, ax=panels, label="weight", shrink=0.8)


def prototypes(found: list[Drawing], name: str, number: int, point_P2: np.ndarray, class_P: np.ndarray) -> None:
    """Prototypes of all clients in two dimensions, a mark for every class."""
    classes = np.unique(class_P)
    title = f"prototypes after round {number}, {name}"
    text = f"{title}: {len(point_P2)} prototypes of {len(classes)} classes, by their two largest principal components"
    with _panels(found, f"prototypes-{_plain(name)}", title, text) as (axes,):
        for place, c in enumerate(classes):
            own = class_P == c
            style = {"color": COLOURS[place % len(COLOURS)], "marker": MARKS[place // len(COLOURS) % len(MARKS)]}
            axes.scatter(*point_P2[own].T, s=18, alpha=0.7, linewidths=0, label=f"class {c}", **style)
            axes.annotate(str(c), point_P2[own].mean(0), ha="center", va="center", weight="bold")
        _label(axes, "first principal component", "second principal component")


def _text(name: str) -> str:
    """A name that matplotlib shows as it is: text between two dollars would be a formula."""
    return name.replace("$", r"\$")


def _plain(name: str) -> str:
    """A name as a part of that of a file, which has at most 255 bytes."""
    plain = re.sub(r"[^\w.-]+", "-", name)
    return plain if len(plain.encode()) <= LONGEST else f"{plain[: LONGEST // 4]}-{text_digest(name)[:8]}"


def _whole(*several: Any) -> None:
    """Ticks at whole numbers."""
    for axis in several:
        axis.get_major_locator().set_params(integer=True)


def _line(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number % len(LINES)],
        "marker": MARKS[number % len(MARKS)], "markersize": 4, "linewidth": 1.6,
    }  # fmt: skip


def _label(axes: Any, x: str, y: str, entries: int = 1) -> None:
    """Names of both axes, and above these, where it hides nothing, a legend; none where there is one entry."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if entries > 1:
        axes.figure.legend(loc="outside upper left", ncols=min(entries, 3), frameon=False, fontsize=8)
