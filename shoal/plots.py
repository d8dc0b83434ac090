"""Figures of a run, by matplotlib; without pyplot there is no window and no global state."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shoal.engine.config.sections import current_name
from shoal.engine.records.metrics import numbers_of
from shoal.engine.records.summary import chosen
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import one_of
from shoal.storage.suggestions import did_you_mean
from shoal.study.means import is_share

AXES = {"round": "round", "bytes": "bytes sent so far, both ways", "seconds": "seconds of rounds so far"}


class Plot(Figure):
    """A figure that a notebook shows, whether pyplot is loaded there or not."""

    def _repr_png_(self) -> bytes:
        """The figure as PNG."""
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def draw_plot(lines: Sequence[Mapping[str, Any]], figure: str, by: str) -> Plot:
    """The figure of `Run.plot`; `lines` are those of `metrics_table`."""
    one_of("by", by, *AXES)
    figure, points = current_name(figure), []
    latest: dict[str, float] = {}
    so_far = dict.fromkeys(AXES, 0.0)
    for line in lines:
        so_far["round"] = line["round"]
        so_far["bytes"] += line["bytes_up"] + line["bytes_down"]
        so_far["seconds"] += line["seconds"]["round"]
        numbers = {
            f"{scope}.{part}": number
            for scope, parts in line.get("scopes", {}).items()
            for part, of_part in parts.items()
            if (number := chosen(of_part, scope)) is not None
        }
        numbers |= numbers_of(line)
        latest = numbers | latest
        if figure in numbers:
            points.append((so_far[by], numbers[figure]))
    if not points:
        some = ", ".join(list(latest)[:12])
        raise ShoalError("figure", f"{did_you_mean(figure, latest)}no round has {figure!r}; there are {some}")
    made = Plot(figsize=(6.4, 4.0), layout="constrained")
    axes, share = made.subplots(), is_share(figure)
    x, y = zip(*points)
    axes.plot(x, [100 * value if share else value for value in y], marker="o", markersize=3)
    axes.set(xlabel=AXES[by], ylabel=f"{figure} (%)" if share else figure)
    axes.xaxis.set_major_locator(MaxNLocator(integer=by == "round"))
    axes.grid(alpha=0.3)
    return made
