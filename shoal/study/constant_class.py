"""The accuracy of always predicting one class, the most frequent among test items: what any method has to be above."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shoal.engine.config.config import load_config
from shoal.engine.records.summary import NODES, POOLED
from shoal.study.figure_data import manifest_of, scores_in_checkpoint
from shoal.study.groups import Group

# Runs that differ in these sections are scored on other items, or by another metric.
OF_ITEMS = ("data", "partition", "task", "evaluation")


def constant_share(run: Path, scope: str, mean: str = NODES) -> float | None:
    """Computes the test accuracy of the best constant class over the clients of a run, by a mean over clients.

    None if the run keeps no checkpoint with scores, or chooses by another metric, or its items are no nodes.
    """
    from shoal.engine.scores.counts import PARTS, SUPPORT

    config, table, manifest = load_config(run), scores_in_checkpoint(run).get(scope), manifest_of(run)
    if table is None or manifest is None or config.task != "node" or config.evaluation.metrics[0] != "accuracy":
        return None
    test = PARTS.index("test")
    support_BC = np.concatenate([counts_BPKC[:, test, SUPPORT] for counts_BPKC in table.blocks()]).astype(np.float64)
    rows_B = support_BC.sum(1)
    scored = rows_B > 0
    if not scored.any() or len(manifest.clients) <= table.clients.max():
        return None
    weight_B = {
        NODES: np.asarray(manifest.clients.columns["nodes"], dtype=np.float64)[table.clients],
        POOLED: rows_B,
        "clients": np.ones(len(rows_B)),
    }[mean][scored]
    share_BC = support_BC[scored] / rows_B[scored, None]
    return float((weight_B @ share_BC).max() / weight_B.sum())


def constant_of(groups: Sequence[Group], scope: str, mean: str = NODES) -> float | None:
    """Computes the share of the best constant class for combinations that are scored on the same items; else None."""
    of_items = [{key: v for key, v in group.columns.items() if key.partition(".")[0] in OF_ITEMS} for group in groups]
    runs = [row.path for group in groups for row in group.rows if row.figures and row.run and row.path.is_dir()]
    if not runs or any(keys != of_items[0] for keys in of_items):
        return None
    return constant_share(runs[0], scope, mean)
