"""How many classes labels imply: the largest label tells, and every client has arrays of that length."""

import numpy as np

from storage.errors import ShoalError

# Few enough for any number of nodes, and more than any graph that has ever been published.
ALWAYS, MOST = 1024, 1 << 17


def class_count(y: np.ndarray, where: str, what: str = "node") -> int:
    """Number of classes of labels `[items]` of nodes, or of `what` they are, -1 where there is none: one more than the largest.

    Raises:
        ShoalError: No item has a label, one is below -1, or there would be more classes than labelled items; names
            the row.
    """
    labelled = int((y >= 0).sum())
    if not labelled:
        raise ShoalError(f"{where}: no {what} has a label; there is nothing to learn")
    row = int(y.argmin())
    if y[row] < -1:
        raise ShoalError(f"{where}: row {row} is {y[row]}; a label is a class from 0, or -1 for none")
    row = int(y.argmax())
    classes = int(y[row]) + 1
    if classes > max(ALWAYS, min(labelled, MOST)):
        raise ShoalError(
            f"{where}: row {row} has label {y[row]}, which makes {classes} classes, but {labelled} {what}s have a label; "
            "number the classes from 0 on"
        )
    return classes
