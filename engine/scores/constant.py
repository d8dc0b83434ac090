"""The accuracy of always predicting one class, the most frequent among test items: what any method has to be above."""

from collections.abc import Mapping

import numpy as np

from shoal.engine.scores.counts import PARTS, SUPPORT
from shoal.engine.scores.table import ScoreTable

TEST = PARTS.index("test")


def constant_shares(table: ScoreTable, items_N: np.ndarray) -> Mapping[str, float]:
    """Computes the test accuracy of the best constant class for every mean over clients, as `summarize` names them.

    Args:
        table: Counts of clients.
        items_N: All items of every client, int64 `[N]`.

    Returns:
        By mean: of the class that is best for this mean. Empty if no client has test items, or one is not in `items_N`.
    """
    if not len(table) or table.clients.max() >= len(items_N):
        return {}
    support_BC = np.concatenate([counts_BPKC[:, TEST, SUPPORT] for counts_BPKC in table.blocks()]).astype(np.float64)
    rows_B = support_BC.sum(1)
    scored = rows_B > 0
    if not scored.any():
        return {}
    share_BC = support_BC[scored] / rows_B[scored, None]
    weights = {"nodes": items_N[table.clients][scored], "rows": rows_B[scored], "clients": np.ones(scored.sum())}
    return {mean: float((weight_B @ share_BC).max() / weight_B.sum()) for mean, weight_B in weights.items()}
