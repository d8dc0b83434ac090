"""Figures of a page, as wide as a column of a paper, by Matplotlib: readable in print, in grey, by the colour-blind.

Axes: T evaluated rounds, B clients, C classes.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.engine.config.sizes import size
from shoal.pages.looks import MOST_PANELS, Look, Panels
from shoal.pages.ramps import add_bar, make_rising_ramp, make_signed_ramp, write_cells, write_grid
from shoal.storage.files.digest import text_digest
from shoal.storage.plain_text import plain_text
from shoal.study.figure_data import ClientNumbers, Curve
from shoal.study.grids import Grid

# Colours follow Okabe and Ito (2008), each with a contrast of at least 3 to 1 on white; marks and dashes differ, too.
COLOURS = ("#0072b2", "#d55e00", "#00805e", "#aa4499", "#8a6a00", "#444444", "#cc2f4a", "#2b8cbe")
DASHES = ("-", (0, (3.5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oo", "--")
# A figure is as wide as a column of a paper, in inches, and a line of its text has so many letters.
WIDTH, HEIGHT, LETTERS = 3.3, 2.4, 46
MOST_BARS, MOST_NAMED, LONGEST = 24, 20, 200
# An axis has powers if its largest value is so many times the smallest.
POWERS = 8
PERCENT = "(%)"
# This dash marks a line that was not measured.
IDEAL = -1
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
STYLE: Any = {
    "font.size": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
    "axes.grid": True, "grid.alpha": 0.25, "grid.color": "#808080", "axes.axisbelow": True, "axes.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False,
    "svg.fonttype": "none", "svg.hashsalt": "shoal", "pdf.fonttype": 42, "figure.facecolor": "none",
    "axes.facecolor": "none", "hatch.linewidth": 0.5,
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A finished figure: name of its files, title, a text for who cannot see it, and what Matplotlib drew.

    `svg` has no declaration; its black is that of the page's text, its other colours are of `COLOURS`.
    """

    name: str
    title: str
    text: str
    svg: str
    drawn: Any

    def file(self, kind: str) -> bytes:
        """Returns its file as `svg`, `png` or `pdf`; the last, with its fonts, takes most of a figure's time."""
        import matplotlib as mpl

        if kind == "svg":
            return self.svg.encode()
        made = io.BytesIO()
        without = {"pdf": {"CreationDate": None, "Creator": None, "Producer": None}}
        with mpl.rc_context(STYLE):
            self.drawn.savefig(made, format=kind, dpi=300, facecolor="white", metadata=without.get(kind))
        return made.getvalue()


@contextmanager
def _figure(
    drawings: list[Drawing], name: str, title: str, text: str, panels: int = 1, height: float = HEIGHT, a_row: int = 2
) -> Iterator[list[Any]]:
    """Yields the axes of panels, `a_row` in a row; appends the drawing at the end."""
    # Matplotlib takes a second to import. Without pyplot there is no window and no global state.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(panels, a_row)
    rows = -(-panels // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height if panels == 1 else 1.45 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        grid = list(figure.subplots(rows, columns, squeeze=False, sharex=panels > 1, sharey=panels > 1).flat)
        for empty in grid[panels:]:
            empty.remove()
        # The numbers of a shared axis stand below the last panel of a column, and above an empty place, too.
        for axes in grid[panels - columns : panels]:
            axes.xaxis.set_tick_params(labelbottom=True)
        yield grid[:panels]
        layout = figure.get_layout_engine()
        assert layout is not None
        layout.execute(figure)
        # With a layout engine every file would be drawn twice.
        figure.set_layout_engine(None)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    text_of = svg.getvalue()
    drawings.append(Drawing(_plain(name), title, text, text_of[text_of.index("<svg") :], figure))


def curves(
    drawings: list[Drawing], name: str, title: str, panels: Panels[Curve], x: str, y: str, constant: float | None = None
) -> None:
    """Draws a number over rounds, bytes or seconds; a band of a standard deviation to each side.

    `constant` is the share of the best constant class, which is a dotted line here and in other figures of shares.
    """
    heads = {"round": "round", "bytes": "total traffic, both ways", "seconds": "elapsed seconds in rounds"}
    heads["simulated"] = "simulated seconds"
    every = [look for looks in panels.values() for look in looks]
    scale = 100 if y.endswith(PERCENT) else 1
    unit = "%" if scale == 100 else ""
    ends = "; ".join(f"{look.label or y} ends at {scale * look.shown.middle[-1]:.3g} {unit}".strip() for look in every)
    runs = max(look.shown.runs for look in every)
    title += f" (band: ± standard deviation of {runs} runs)" if runs > 1 else ""
    title = _dotted(title, constant)
    totals = [look.shown.x[x][-1] for look in every]
    log = x != "round" and min(look.shown.x[x][0] for look in every) > 0 and max(totals) >= POWERS * min(totals)
    per, shown_in = _unit(max(totals)) if x == "bytes" and not log else (1, "")
    with _figure(drawings, name, title, f"{title}: {ends}", len(panels)) as grid:
        for axes, (panel, looks) in zip(grid, panels.items()):
            axes.set_title(_text(panel), fontsize=7)
            for look in looks:
                curve, style = look.shown, _line(look)
                at, middle, deviation = curve.x[x] / per, scale * curve.middle, scale * curve.deviation
                axes.plot(at, middle, markevery=max(1, len(at) // 6), **style)
                if curve.runs > 1:
                    axes.fill_between(
                        at, middle - deviation, middle + deviation, color=style["color"], alpha=0.18, lw=0
                    )
            if log:
                _powers(axes, 3 if len(grid) > 1 else 5, of_bytes=x == "bytes")
            if x == "round":
                axes.xaxis.get_major_locator().set_params(integer=True)
            if scale == 1:
                axes.set_ylim(bottom=0)
            _line_of_constant(axes, constant)
        _labels(grid, f"{heads[x]} ({shown_in})" if shown_in else heads[x], y)
        _legend(grid[0].figure, every)


def _line_of_constant(axes: Any, share: float | None, places: np.ndarray | None = None) -> None:
    """Draws the share of the best constant class as a dotted grey line; `_dotted` names it in the title.

    Beside points at `places`, below each other, it is upright, and leaves out the names between them.
    """
    style = {"color": "#777777", "linestyle": (0, (1, 2)), "linewidth": 0.9, "zorder": 1}
    if share is not None and places is not None:
        axes.vlines([100 * share] * len(places), places - 0.07, places + 0.07, **style)
    elif share is not None:
        axes.axhline(100 * share, **style)


def _dotted(title: str, share: float | None) -> str:
    return title if share is None else f"{title} (dotted: always the most frequent class, {100 * share:.1f} %)"


Point = tuple[float, float, float]


def over_key(
    drawings: list[Drawing], name: str, title: str, panels: Panels[list[Point]], x: str, y: str, scale: float = 100,
    constant: float | None = None,
) -> None:  # fmt: skip
    """Draws a number over the values of a key, each with its deviation; what is `IDEAL` has a dotted line."""
    every = [look for looks in panels.values() for look in looks]
    text = "; ".join(
        f"{look.label or y}: " + ", ".join(f"{at:g} gives {scale * value:.3g}" for at, value, _ in look.shown)
        for look in every
    )
    values = sorted({at for look in every for at, _, _ in look.shown})
    title += " (bars: ± standard deviation)" if any(d for look in every for _, _, d in look.shown) else ""
    title = _dotted(title, constant)
    with _figure(drawings, name, title, f"{title}: {text}", len(panels)) as grid:
        for axes, (panel, looks) in zip(grid, panels.items()):
            axes.set_title(_text(panel), fontsize=7)
            for look in looks:
                at, middle, deviation = np.array(look.shown).T
                style = _line(look)
                if look.dash == IDEAL:
                    axes.plot(at, scale * middle, **style)
                else:
                    axes.errorbar(at, scale * middle, yerr=scale * deviation, capsize=2, elinewidth=0.8, **style)
            if every[-1].dash == IDEAL:
                axes.set_ylim(bottom=0)
            if values[0] > 0 and values[-1] >= POWERS * values[0]:
                axes.set_xscale("log")
            if len(values) <= 7:
                axes.set_xticks(values, [f"{value:g}" for value in values])
                axes.set_xticks([], minor=True)
            _line_of_constant(axes, constant)
        _labels(grid, x, y)
        _legend(grid[0].figure, every)


def points(
    drawings: list[Drawing], name: str, title: str, looks: Sequence[Look[tuple[float, float | None]]], x: str,
    constant: float | None = None,
) -> None:  # fmt: skip
    """Draws shares below each other, each with its deviation and its number."""
    shown = looks[:MOST_BARS]
    numbers = [
        f"{100 * middle:.1f}" + (f" ± {100 * deviation:.1f}" if deviation is not None else "")
        for middle, deviation in (look.shown for look in shown)
    ]
    title += " (bars: ± standard deviation)" if any(look.shown[1] for look in shown) else ""
    title = _dotted(title, constant)
    title += f" (the first {MOST_BARS} of {len(looks)})" if len(looks) > MOST_BARS else ""
    text = "; ".join(f"{look.label or x}: {number} %" for look, number in zip(shown, numbers))
    places, height = _rows([look.label for look in shown])
    with _figure(drawings, name, title, f"{title}: {text}", height=0.5 + height) as (axes,):
        for place, look, number in zip(places, shown, numbers):
            middle, deviation = look.shown
            style = {**_line(look), "linestyle": "none"}
            axes.errorbar(100 * middle, place, xerr=100 * (deviation or 0), capsize=2, elinewidth=1, **style)
            _above(axes, place, look.label, number)
        _line_of_constant(axes, constant, places)
        _bare(axes, x, height)


def intervals(
    drawings: list[Drawing], name: str, title: str, rows: Sequence[tuple[str, float, float, str]], unit: str
) -> None:
    """Draws numbers below each other, each with its name, half of its interval and its text; zero has a line."""
    shown = rows[:MOST_BARS]
    title += " (bars: 95 % intervals)" if any(half for _, _, half, _ in shown) else ""
    title += f" (the first {MOST_BARS} of {len(rows)})" if len(rows) > MOST_BARS else ""
    text = "; ".join(f"{label}: {number}" for label, _, _, number in shown)
    places, height = _rows([label for label, *_ in shown])
    style = {"color": COLOURS[0], "marker": MARKS[0], "markersize": 3.5, "linestyle": "none"}
    with _figure(drawings, name, title, f"{title}: {text}", height=0.5 + height) as (axes,):
        axes.vlines([0] * len(places), places - 0.07, places + 0.07, color="#000000", linewidth=0.6)
        for place, (label, middle, half, number) in zip(places, shown):
            axes.errorbar(middle, place, xerr=half, capsize=2, elinewidth=1, **style)
            _above(axes, place, label, number)
        _bare(axes, unit, height)


def sorted_clients(drawings: list[Drawing], name: str, panels: Panels[np.ndarray], score: str) -> None:
    """Draws accuracy of single clients in ascending order, a line for each combination."""
    every = [look for looks in panels.values() for look in looks]
    title = f"Clients sorted by {score}"
    text = "; ".join(
        f"{look.label or 'clients'}: lowest {100 * look.shown.min():.1f} %, "
        f"median {100 * np.median(look.shown):.1f} %, highest {100 * look.shown.max():.1f} %"
        for look in every
    )
    with _figure(drawings, name, title, f"{title}: {text}", len(panels)) as grid:
        for axes, (panel, looks) in zip(grid, panels.items()):
            axes.set_title(_text(panel), fontsize=7)
            for look in looks:
                rank = np.linspace(0, 100, min(len(look.shown), 200))
                marks = {"markevery": max(1, len(rank) // 6)}
                axes.plot(rank, 100 * np.percentile(look.shown, rank), **_line(look), **marks)
        _labels(grid, "clients, the lowest first (%)", f"{score} (%)")
        _legend(grid[0].figure, every)


def histogram(drawings: list[Drawing], name: str, panels: Panels[np.ndarray], score: str) -> None:
    """Draws how many clients have which accuracy."""
    every = [look for looks in panels.values() for look in looks]
    title = f"How many clients have which {score}"
    text = "; ".join(f"{look.label or 'all'}: {(look.shown < 0.5).sum()} clients below 50 %" for look in every)
    with _figure(drawings, name, title, f"{title}: {text}", len(panels)) as grid:
        for axes, (panel, looks) in zip(grid, panels.items()):
            axes.set_title(_text(panel), fontsize=7)
            for look in looks:
                style = _line(look)
                counts, edges = np.histogram(100 * look.shown, bins=20, range=(0, 100))
                axes.stairs(counts, edges, color=style["color"], linestyle=style["linestyle"], label=style["label"])
        _labels(grid, f"{score} (%)", "clients")
        _legend(grid[0].figure, every)


def size_against(
    drawings: list[Drawing], name: str, panels: Panels[tuple[np.ndarray, np.ndarray]], score: str, items: str
) -> None:
    """Draws accuracy of single clients over their sizes, a panel for each combination."""
    title = f"Size of a client against its {score}"
    looks = [look for several in panels.values() for look in several]
    text = "; ".join(
        f"{look.label or 'all'}: {len(sizes)} clients of {sizes.min():,} to {sizes.max():,} {items}"
        for look in looks
        for sizes in [look.shown[0]]
    )
    with _figure(drawings, name, title, f"{title}: {text}", len(looks)) as grid:
        for axes, look in zip(grid, looks):
            axes.set_title(_text(_wrap(look.label, LETTERS // 2)), fontsize=7)
            sizes, accuracy = look.shown
            style = _line(look)
            axes.scatter(
                sizes, 100 * accuracy, s=8, alpha=0.6, color=style["color"], marker=style["marker"], linewidths=0,
                rasterized=len(sizes) > 1000,
            )  # fmt: skip
            if sizes.max() >= POWERS * max(1, sizes.min()):
                _powers(axes, 3)
            else:
                axes.xaxis.get_major_locator().set_params(integer=True, nbins=5)
        _labels(grid, f"{items} of a client", f"{score} (%)")


def of_classes(drawings: list[Drawing], panels: Panels[ClientNumbers], classes: Sequence[str]) -> None:
    """Draws F1 of every class over all test items, the most frequent class first; if there are many, in order of F1."""
    every = [look for looks in panels.values() for look in looks]
    few = len(classes) <= MOST_NAMED
    title = "F1 of each class, the most frequent first" if few else f"F1 of {len(classes)} classes, ascending"
    order = np.argsort(-every[0].shown.counts[0], kind="stable")
    lowest = [int(np.nanargmin(look.shown.f1)) for look in every]
    text = "; ".join(
        f"{look.label or 'all'}: lowest {100 * look.shown.f1[c]:.1f} % in class {classes[c]}"
        for look, c in zip(every, lowest)
    )
    with _figure(drawings, "classes", title, f"{title}: {text}", len(panels)) as grid:
        for axes, (panel, looks) in zip(grid, panels.items()):
            axes.set_title(_text(panel), fontsize=7)
            for look in looks:
                # F1 is NaN for classes that neither occur nor are predicted; sorting puts these last.
                f1 = 100 * (look.shown.f1[order] if few else np.sort(look.shown.f1))
                style = _line(look) | ({"linestyle": "none"} if few else {"markevery": max(1, len(f1) // 8)})
                axes.plot(range(len(f1)), f1, **style)
            if few:
                _named_ticks(axes, "x", [classes[c] for c in order])
        _labels(grid, "class" if few else "classes, the lowest first", "F1 (%)")
        _legend(grid[0].figure, every)


def matrix(
    drawings: list[Drawing], name: str, title: str, panels: Mapping[str, np.ndarray], heads: tuple[str, str], text: str,
    ticks: Sequence[str] = (), scale: tuple[float, float, str] = (0, 1, ""), across: Sequence[str] = (),
    decimals: int = 0,
) -> None:  # fmt: skip
    """Draws matrices in grey, a panel each; rows by `heads[0]` from the top down, columns by `heads[1]`.

    `ticks` are the names of rows, and of columns, unless these are `across`. A scale that begins below 0 has two
    colours, a bar of them, and numbers in cells, with so many decimals.
    """
    low, high, unit = scale
    signed = low < 0
    # A dark page changes white and black.
    shown = title if signed else f"{title} (from {low:g}{unit}, as the page, to {high:.3g}{unit}, as its text)"
    with _figure(drawings, name, shown, f"{shown}: {text}", len(panels), a_row=3) as grid:
        for axes, (panel, matrix_RC) in zip(grid, panels.items()):
            ramp = make_signed_ramp() if signed else "Greys"
            image = axes.imshow(matrix_RC, cmap=ramp, vmin=low, vmax=high, interpolation="nearest", aspect="auto")
            axes.grid(visible=False)
            axes.set_title(_text(panel), fontsize=7)
            for axis in (axes.xaxis, axes.yaxis):
                axis.get_major_locator().set_params(integer=True)
            for axis, names in (("x", across or ticks), ("y", ticks)):
                if 0 < len(names) <= MOST_NAMED:
                    _named_ticks(axes, axis, names)
            if len(across) > MOST_NAMED:
                axes.xaxis.set_major_formatter(lambda at, _: across[int(at)] if 0 <= at < len(across) else "")
            if signed:
                add_bar(image, unit.strip())
                write_cells(axes, matrix_RC, decimals)
        _labels(grid, heads[1], heads[0])


def grid(drawings: list[Drawing], name: str, title: str, shown: Grid, heads: tuple[str, str], unit: str) -> None:
    """Draws a grid of two keys in colours of one scale, with numbers in cells; `heads` name its rows and columns."""
    panels, signed = dict(list(shown.panels.items())[:MOST_PANELS]), bool(shown.reference)
    title += f" (the first {MOST_PANELS} of {len(shown.panels)} panels)" if len(panels) < len(shown.panels) else ""
    title += " (±: 95 % interval)" if any(np.isfinite(cells.half).any() for cells in panels.values()) else ""
    every = np.array([cells.middle for cells in panels.values()])
    low, high = float(np.nanmin(every)), float(np.nanmax(every))
    most = max(-low, high) or 1.0
    low, high = (-most, most) if signed else (low, high)
    text = "; ".join(f"{panel or unit}: {_tell_ends(shown, cells.middle, heads)}" for panel, cells in panels.items())
    with _figure(drawings, name, title, f"{title}: {text}", len(panels)) as every_axes:
        ramp = make_signed_ramp() if signed else make_rising_ramp()
        for axes, (panel, cells) in zip(every_axes, panels.items()):
            image = axes.imshow(cells.middle, cmap=ramp, vmin=low, vmax=high, interpolation="nearest", aspect="auto")
            axes.grid(visible=False)
            axes.set_title(_text(panel), fontsize=7)
            _named_ticks(axes, "x", shown.columns.values)
            _named_ticks(axes, "y", shown.rows.values)
            write_grid(axes, cells.middle, cells.half, signed)
        add_bar(image, unit, every_axes)
        _labels(every_axes, heads[1], heads[0])


def _tell_ends(shown: Grid, middle_RC: np.ndarray, heads: tuple[str, str]) -> str:
    """Says where the lowest and the highest number are."""
    ends = []
    for word, place in (("lowest", np.nanargmin(middle_RC)), ("highest", np.nanargmax(middle_RC))):
        r, c = np.unravel_index(place, middle_RC.shape)
        at = f"{heads[0]} {shown.rows.values[r]}, {heads[1]} {shown.columns.values[c]}"
        ends.append(f"{word} {middle_RC[r, c]:.1f} at {at}")
    return ", ".join(ends)


def label_counts(drawings: list[Drawing], counts_BC: np.ndarray) -> None:
    """Draws the share of every class in clients, ordered by their largest class; with many classes, their numbers.

    `counts_BC` has the labelled items, int64.
    """
    clients, classes = counts_BC.shape
    share_BC = counts_BC / np.maximum(counts_BC.sum(1, keepdims=True), 1)
    largest_B = share_BC.max(1)
    text = (
        f"the largest class of a client has {100 * largest_B.min():.0f} to {100 * largest_B.max():.0f} % of its labels"
    )
    if classes <= 50:
        order = np.lexsort((-largest_B, share_BC.argmax(1)))
        # A figure has fewer dots than many clients, so that a column may be the mean of neighbours.
        blocks = np.array_split(share_BC[order], min(clients, 300))
        block_KC = np.array([block.mean(0) for block in blocks])
        title = f"Labels of {clients:,} clients in {classes} classes, clients of one largest class together"
        heads = ("class", "client" if clients <= 300 else "clients (sorted)")
        matrix(drawings, "labels", title, {"": 100 * block_KC.T}, heads, text, scale=(0, 100, " %"))
        return
    held_B = np.sort((counts_BC > 0).sum(1))
    title = f"Classes that each of {clients:,} clients has labels of, out of {classes}"
    with _figure(drawings, "labels", title, f"{title}: {held_B[0]} to {held_B[-1]}; {text}") as (axes,):
        axes.plot(np.arange(1, clients + 1), held_B, color=COLOURS[0], linewidth=1.4)
        _labels([axes], "clients, the fewest classes first", "classes")


def bars(drawings: list[Drawing], name: str, title: str, unit: str, parts: Mapping[str, Mapping[str, float]]) -> None:
    """Draws stacked bars: by combination, the parts of a whole."""
    names = list(parts)[:MOST_BARS]
    kinds = list(next(iter(parts.values())))
    text = "; ".join(f"{row}: " + ", ".join(f"{kind} {parts[row][kind]:.3g}" for kind in kinds) for row in names)
    title += f" ({MOST_BARS} of {len(parts)})" if len(parts) > MOST_BARS else ""
    places, height = _rows(names)
    with _figure(drawings, name, title, f"{title}, in {unit}: {text}", height=0.6 + height) as (axes,):
        left = np.zeros(len(names))
        for number, kind in enumerate(kinds):
            values = np.array([parts[row][kind] for row in names])
            axes.barh(
                places, values, height=0.14, left=left, label=kind, color=COLOURS[number % len(COLOURS)],
                hatch=HATCHES[number % len(HATCHES)], edgecolor="#ffffff", linewidth=0.4,
            )  # fmt: skip
            left += values
        for place, row, total in zip(places, names, left):
            _above(axes, place, row, f"{total:,.0f}" if total >= 100 else f"{total:.3g}")
        _bare(axes, unit, height)
        _legend(axes.figure, axes.get_legend_handles_labels())


def parallel(
    drawings: list[Drawing],
    name: str,
    title: str,
    axes_T: Mapping[str, Sequence[float]],
    ends: Mapping[str, tuple[str, str]],
) -> None:
    """Draws parallel coordinates: T trials as lines through vertical axes with their ends.

    The best tenth of the last axis has a colour.
    """
    table_TA = np.array(list(axes_T.values()), dtype=float).T
    low_A, spread_A = table_TA.min(0), np.ptp(table_TA, axis=0)
    at_TA = np.where(spread_A > 0, (table_TA - low_A) / np.where(spread_A > 0, spread_A, 1), 0.5)
    order = np.argsort(table_TA[:, -1], kind="stable")
    best = set(order[-max(1, len(order) // 10) :])
    title += " (colour: the best tenth)"
    text = "; ".join(f"{axis} from {low} to {high}" for axis, (low, high) in ends.items())
    with _figure(drawings, name, title, f"{title}: {text}") as (axes,):
        for trial in order:
            style = {"color": COLOURS[1], "linewidth": 1.3} if trial in best else {"color": COLOURS[5], "alpha": 0.3}
            axes.plot(at_TA[trial], **{"linewidth": 0.7, **style})
        for place, (low, high) in enumerate(ends.values()):
            axes.text(place, -0.03, _text(low), ha="center", va="top", fontsize=7)
            axes.text(place, 1.03, _text(high), ha="center", va="bottom", fontsize=7)
        axes.set_ylim(-0.15, 1.12)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xticks(range(len(ends)), [_text(textwrap.fill(axis, 12)) for axis in ends])


def prototypes(drawings: list[Drawing], name: str, title: str, point_P2: np.ndarray, class_P: np.ndarray) -> None:
    """Draws prototypes of all clients in two dimensions, the number of its class at each class's mean."""
    classes = np.unique(class_P)
    text = f"{title}: {len(point_P2)} prototypes of {len(classes)} classes, by their two largest principal components"
    with _figure(drawings, name, title, text) as (axes,):
        for place, c in enumerate(classes):
            of_class = class_P == c
            style = {"color": COLOURS[place % len(COLOURS)], "marker": MARKS[place // len(COLOURS) % len(MARKS)]}
            axes.scatter(*point_P2[of_class].T, s=9, alpha=0.6, linewidths=0, **style)
            axes.annotate(str(c), point_P2[of_class].mean(0), ha="center", va="center", weight="bold")
        _labels([axes], "first principal component", "second principal component")


def _unit(most: float) -> tuple[int, str]:
    """Returns the largest unit of bytes that is not above `most`: its bytes, and its name."""
    power = min(len(UNITS) - 1, max(0, int(np.log2(max(most, 1)) // 10)))
    return 1024**power, UNITS[power]


def _powers(axes: Any, most: int, of_bytes: bool = False) -> None:
    """Makes the horizontal axis one of powers of two, with plain numbers at `most` of them."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log", base=2)
    axis = axes.xaxis
    axis.set_major_locator(LogLocator(base=2, numticks=most))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        lambda v, _: size(v).replace(".0 ", " ") if of_bytes else f"{v:,.0f}" if v >= 1 else f"{v:.2g}"
    )


def _named_ticks(axes: Any, axis: str, names: Sequence[str]) -> None:
    shown = [_text(textwrap.shorten(name, 14 if axis == "x" else 24, placeholder="…")) for name in names]
    upright = axis == "x" and max(map(len, shown)) > 2
    getattr(axes, f"set_{axis}ticks")(range(len(shown)), shown, rotation=90 if upright else 0)


def _text(name: str) -> str:
    """Escapes a name, since Matplotlib would show text between two dollars as a formula."""
    return plain_text(name).replace("$", r"\$")


def _wrap(name: str, letters: int = LETTERS) -> str:
    return "\n".join(textwrap.wrap(name, letters)) or name


def _plain(name: str) -> str:
    """Makes a name fit into that of a file, which has at most 255 bytes."""
    plain = re.sub(r"[^\w.-]+", "-", name)
    return plain if len(plain.encode()) <= LONGEST else f"{plain[: LONGEST // 4]}-{text_digest(name)[:8]}"


def _line(look: Look[Any]) -> dict[str, Any]:
    if look.dash == IDEAL:
        return {"color": "#000000", "linestyle": (0, (1, 2)), "linewidth": 1, "label": _text(_wrap(look.label))}
    colours = len(COLOURS)
    return {
        "color": COLOURS[look.colour % colours], "linestyle": DASHES[look.dash % len(DASHES)],
        "marker": MARKS[(look.colour + look.colour // colours) % len(MARKS)], "markersize": 3.5, "linewidth": 1.3,
        "label": _text(_wrap(look.label)),
    }  # fmt: skip


def _rows(names: Sequence[str]) -> tuple[np.ndarray, float]:
    """Places bars with names above them; returns inches from the bottom, and the height of all."""
    heights = np.array([0.2 + 0.12 * (_wrap(name).count("\n") + 1) for name in names])
    below = np.cumsum(heights)
    return below[-1] - below + 0.1, float(below[-1])


def _above(axes: Any, place: float, name: str, number: str) -> None:
    """Writes the name of a bar above its left end, and its number at the right."""
    style = {"fontsize": 7, "transform": axes.get_yaxis_transform(), "va": "bottom"}
    axes.text(0, place + 0.08, _text(_wrap(name)), ha="left", **style)
    axes.text(1, place + 0.08, number, ha="right", **style)


def _bare(axes: Any, x: str, height: float) -> None:
    """Leaves the axis below bars that have their names above them; `height` is in inches."""
    axes.set_ylim(-0.05, height)
    axes.set_yticks([])
    axes.xaxis.get_major_locator().set_params(nbins=6)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(x)


def _labels(grid: Sequence[Any], x: str, y: str) -> None:
    """Writes the names of the axes; those of several panels once."""
    if len(grid) == 1:
        grid[0].set_xlabel(x)
        grid[0].set_ylabel(y)
    else:
        grid[0].figure.supxlabel(x, fontsize=8)
        grid[0].figure.supylabel(y, fontsize=8)


def _legend(figure: Any, entries: Sequence[Look[Any]] | tuple[list[Any], list[str]]) -> None:
    """Draws a legend above all axes, in as many columns as fit; none for a single entry.

    The figure grows by its height, so that no name takes room from the axes or is cut off.
    """
    if isinstance(entries, tuple):
        shown = dict(zip(entries[1], entries[0]))
    else:
        of_axes = [axes.get_legend_handles_labels() for axes in figure.axes]
        shown = {label: handle for handles, labels in of_axes for handle, label in zip(handles, labels)}
    if len(shown) < 2:
        return
    for columns in (4, 3, 2, 1):
        legend = figure.legend(
            shown.values(), shown.keys(), loc="outside upper left", ncols=columns, frameon=False, handlelength=3,
            columnspacing=1.2, borderaxespad=0, borderpad=0.2,
        )  # fmt: skip
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + extent.height / figure.dpi)
