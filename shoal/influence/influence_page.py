"""The sections of a run's page on the influence of its clients."""

from pathlib import Path

import numpy as np

from shoal.influence.influences import Influences, read_influences
from shoal.pages import figures as drawings
from shoal.pages.figures import Drawing
from shoal.pages.page import Section


def influence_sections(run: Path) -> list[Section]:
    """Makes the sections of the influences in a folder; none if there are none. Raises as `read_influences`."""
    if (kept := read_influences(run)) is None:
        return []
    figures: list[Drawing] = []
    _of_classes(figures, kept)
    return [
        Section("Influence of clients", figures, note=kept.finding),
        Section("Influence by client and by class", tables=[kept.table(), kept.of_classes()], folded=True),
    ]


def _of_classes(figures: list[Drawing], kept: Influences) -> None:
    """Draws points by class and client, clients by their numbers."""
    clients = sorted(kept.found, key=lambda influence: influence.client)
    points_CB = np.array([influence.on_classes for influence in clients]).T
    most = float(np.nanmax(np.abs(points_CB), initial=0.0)) or 1.0
    shown = (f"client {row.client}: {row.others_text} on all classes" for row in kept.ordered)
    title = "Influence of clients on classes at all others: points of test accuracy with the client minus without"
    drawings.matrix(
        figures, "influence", title, {"": points_CB}, ("class", "client"), "; ".join(shown), kept.classes,
        (-most, most, " points"), [str(influence.client) for influence in clients],
    )  # fmt: skip
