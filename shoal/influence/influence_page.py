"""The section of a run's page on the influence of its clients."""

from pathlib import Path

import numpy as np

from shoal.influence.influences import read_influences
from shoal.pages import figures as drawings
from shoal.pages.figures import Drawing
from shoal.pages.page import Section


def influence_sections(run: Path) -> list[Section]:
    """Makes the section of the influences in a folder; none if there are none. Raises as `read_influences`."""
    if (kept := read_influences(run)) is None:
        return []
    figures: list[Drawing] = []
    ordered = kept.ordered
    points_CB = np.array([row.on_classes for row in ordered]).T
    most = float(np.nanmax(np.abs(points_CB), initial=0.0)) or 1.0
    text = "; ".join(f"client {row.client}: {row.on_others:+.2f} on all classes" for row in ordered)
    title = "Influence of clients on classes of all others, the most useful client first"
    drawings.matrix(
        figures, "influence", title, {"": points_CB}, ("class", "client, by its influence"), text,
        scale=(-most, most, " points"),
    )  # fmt: skip
    return [Section("Influence of clients", figures, [kept.of_classes(), kept.table()], folded=True)]
