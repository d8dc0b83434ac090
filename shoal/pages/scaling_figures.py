"""The figures of a scaling study: speed-up and efficiency beside the ideal, parts of a round, memory."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from shoal.pages import figures as drawings
from shoal.pages.figures import IDEAL, Drawing, Point
from shoal.pages.looks import Look, Looks, Panels
from shoal.pages.page import Section
from shoal.scaling.scaling import (
    CLIENTS,
    HOSTS,
    REPEAT,
    ROUND,
    ideal,
    parts_of_round,
    scaling_groups,
    scaling_table,
    scores_differ,
    seconds_are,
)
from shoal.study.groups import Group, Row


def is_scaling(rows: Sequence[Row]) -> bool:
    """Returns whether runs are those of a scaling study."""
    return all(REPEAT in row.columns for row in rows)


def scaling_sections(rows: Sequence[Row], of_page: Looks) -> list[Section]:
    """Makes the sections of a scaling study; scores are shown only if they differ, which is an error."""
    looks = Looks(scaling_groups(rows), of_page.names, of_page.alone)
    figures: list[Drawing] = []
    if HOSTS in looks.keys:
        against_fewest(figures, looks)
    _parts(figures, looks)
    if CLIENTS in looks.keys:
        _over_clients(figures, looks)
    return [
        Section("", figures, note=f"Seconds of a round: {seconds_are(looks.groups)}.", alarm=scores_differ(rows)),
        Section("Scaling", tables=[scaling_table(rows)]),
    ]


def against_fewest(figures: list[Drawing], looks: Looks) -> None:
    """Draws speed-up and efficiency over hosts, against the fewest hosts with as many clients on the same graph."""
    lines = _lines(looks, HOSTS)
    hosts = sorted({_number(group, HOSTS) for group in looks.groups})
    against = f"of a round against {hosts[0]:g} host{'s' if hosts[0] > 1 else ''}"
    of_hosts = [(several[0], [_sped_up(group, several[0]) for group in several]) for several in lines]
    panels = _with_ideal(looks.panels(of_hosts, HOSTS), [(h, h / hosts[0], 0.0) for h in hosts])
    drawings.over_key(figures, "speed-up", f"Speed-up {against}", panels, "hosts", "speed-up", 1)
    shares = [
        (group, [(h, up * line[0][0] / h, deviation * line[0][0] / h) for h, up, deviation in line])
        for group, line in of_hosts
    ]
    panels = _with_ideal(looks.panels(shares, HOSTS), [(h, 1.0, 0.0) for h in hosts])
    drawings.over_key(figures, "efficiency", f"Efficiency {against}", panels, "hosts", "efficiency (%)")


def _over_clients(figures: list[Drawing], looks: Looks) -> None:
    """Draws seconds of a round over clients, and the ideal seconds without overhead."""
    lines: list[tuple[Group, list[Point]]] = []
    best: list[Point] = []
    for several in _lines(looks, CLIENTS):
        x, _, seconds = ideal(several, CLIENTS)
        lines.append((several[0], [_point(group, CLIENTS, group.values(ROUND)) for group in several]))
        best = [(at, value, 0.0) for at, value in zip(x, seconds)]
    panels = looks.panels(lines, CLIENTS)
    panels = _with_ideal(panels, best) if len(lines) == 1 else panels
    title = "Seconds of a round by clients"
    drawings.over_key(figures, "seconds-by-clients", title, panels, "clients", "s per round", 1)


def _lines(looks: Looks, key: str) -> list[list[Group]]:
    """Collects groups that differ in a key alone, the key ascending; the graph of a line may grow with the key."""
    grows = [other for other in looks.keys if other.startswith("data.options.")] if key == CLIENTS else []
    others = [other for other in looks.keys if other != key and other not in grows]
    lines: dict[str, list[Group]] = {}
    for group in sorted(looks.groups, key=lambda group: _number(group, key)):
        lines.setdefault(looks.label(group, others), []).append(group)
    return list(lines.values())


def _number(group: Group, key: str) -> float:
    return float(group.columns.get(key, 1))


def _sped_up(group: Group, base: Group) -> Point:
    """Returns the mean of the base over that of a group, and its deviation, from that of the group's rounds."""
    hosts, seconds, deviation = _point(group, HOSTS, group.values(ROUND))
    speed_up = fmean(base.values(ROUND)) / seconds
    return hosts, speed_up, speed_up * deviation / seconds


def _point(group: Group, key: str, values: Sequence[float]) -> Point:
    return _number(group, key), fmean(values), stdev(values) if len(values) > 1 else 0.0


def _with_ideal(panels: Panels[list[Point]], best: list[Point]) -> Panels[list[Point]]:
    """Adds a dotted line of the ideal to every panel."""
    ideal_line = Look("ideal", 0, IDEAL, best)
    return {
        title: [*(replace(look, label=look.label or "measured") for look in looks), ideal_line]
        for title, looks in panels.items()
    }


def _parts(figures: list[Drawing], looks: Looks) -> None:
    """Draws the seconds of a round by part, under the names and with the numbers of the table."""
    parts = {looks.name(group): parts_of_round(group) for group in looks.groups}
    drawings.bars(figures, "parts", "Parts of a round, of work on hosts the mean over them", "s a round", parts)
