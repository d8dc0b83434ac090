"""The sentence of tables and pages about clients that cannot train, over all runs of a study."""

from collections.abc import Sequence

from shoal.engine.records.untrained import UNTRAINED, describe_untrained
from shoal.study.groups import Row


def note_untrained(rows: Sequence[Row]) -> str:
    """Says of how many clients the most cannot train in a run, and in how many of the finished runs; or is empty."""
    prefix = f"{UNTRAINED}."
    finished = [row.figures for row in rows if row.figures]
    counts = [
        {name.removeprefix(prefix): int(value) for name, value in figures.items() if name.startswith(prefix)}
        for figures in finished
    ]
    lacking = sorted(filter(None, counts), key=lambda of_run: of_run["clients"] / of_run["among"])
    if not lacking:
        return ""
    several = "" if lacking[0] == lacking[-1] else "up to "
    where = "" if len(lacking) == len(finished) else f"in {len(lacking)} of {len(finished)} runs "
    return f"{where}{several}{describe_untrained(lacking[-1], 'item')}"
