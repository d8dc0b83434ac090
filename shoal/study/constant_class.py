"""The accuracy of always predicting one class for the combinations of a study, as their summaries have it."""

from collections.abc import Sequence

from shoal.engine.records.summary import CONSTANT, NODES
from shoal.study.groups import Group

# Runs that differ in these sections are scored on other items, or by another metric.
OF_ITEMS = ("data", "partition", "task", "evaluation")


def constant_of(groups: Sequence[Group], scope: str, mean: str = NODES) -> float | None:
    """Returns the share of the best constant class for combinations that are scored on the same items; else None.

    None, too, for runs that choose by another metric than accuracy, and for those of earlier versions.
    """
    of_items = [{key: v for key, v in group.columns.items() if key.partition(".")[0] in OF_ITEMS} for group in groups]
    if any(keys != of_items[0] for keys in of_items):
        return None
    name = f"{CONSTANT}.{scope}.{mean}"
    return next((row.figures[name] for group in groups for row in group.rows if name in row.figures), None)
