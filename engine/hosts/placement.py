"""Which host runs a cell: the one that ran it last, as long as all hosts have the same to do."""

from collections.abc import Sequence

SLACK = 0.01


def place(costs: Sequence[float], able: Sequence[Sequence[int]], homes: Sequence[int | None]) -> list[int]:
    """Gives every cell a host, the most costly cells first.

    A host keeps what it ran before, whose data it has open, up to its share of all costs or while it has least to
    do; the rest goes where there is least to do. So a host that came later than others gets its share, too.

    Args:
        costs: Of the cells.
        able: Hosts that see a cell's data, at least one.
        homes: Host that ran a cell last.

    Returns:
        The host of every cell.
    """
    load = dict.fromkeys((host for hosts in able for host in hosts), 0.0)
    share = (1 + SLACK) * sum(costs) / max(len(load), 1)
    places = [-1] * len(costs)
    for cell in sorted(range(len(costs)), key=lambda cell: (-costs[cell], cell)):
        host, home = min(able[cell], key=load.__getitem__), homes[cell]
        if home is not None and home in able[cell] and (load[home] + costs[cell] <= share or load[home] == load[host]):
            host = home
        places[cell] = host
        load[host] += costs[cell]
    return places
