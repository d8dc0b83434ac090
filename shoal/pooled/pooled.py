"""Scores of a finished run over the items of all clients together, by the functions that score each client in a run.

A run records means over clients, of which those of accuracy over rows alone are the same number: an area under the ROC
curve compares only items of one client there, and here those of all. Scores of clients with models of their own are
compared as they are.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from shoal.engine.config.sections import ACCURACY, F1, RANKINGS
from shoal.engine.records.run_folder import read_summary
from shoal.engine.records.summary import count_distinct, describe_distinct
from shoal.engine.runs.export import reopen
from shoal.engine.scores.counts import Measure, count_rows, macro_f1, values_of, winners
from shoal.engine.scores.measures import measures_of
from shoal.past.predictions import predict_parts
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.storage.options.target_names import CLASSIFICATION, CLUSTERING
from shoal.tables.text_table import TextTable

HEADS = ("scope", "part", "metric", "clients", "items", "pooled")


@dataclass(frozen=True)
class PooledReader:
    """The reader that scores the items of all clients together.

    Attributes:
        best: Scope whose best validation round is scored, which `run.keep_best` keeps; None: the last round.
    """

    best: Literal["trained", "deployed", "global"] | None = None

    def read(self, past: PastRun) -> Reading:
        """Returns a row for each scope, part and metric: those of the run, and of classes all of ours; `--out` has all
        digits.

        Raises ShoalError: clusters are predicted, or as `reopen` and `predict_parts`.
        """
        # A run that is not whole is refused whatever it is on.
        read_summary(past.path)
        opened, rows = reopen(past.path, self.best), []
        target = opened.job.target_of(opened.store)
        if target == CLUSTERING:
            raise ShoalError("target", "clusters of a client are none of another, so they have no pooled score")
        names = tuple(opened.job.metrics)
        if target == CLASSIFICATION:
            names = tuple(dict.fromkeys((ACCURACY, F1, *RANKINGS, *names)))
        measures = measures_of(names, opened.job.own_metrics)
        for scope, of_parts in predict_parts(opened).items():
            for part, (scores_NC, label, clients) in of_parts.items() if self.best in (None, scope) else ():
                values = score_items(scores_NC, label, measures, target == CLASSIFICATION)
                rows += [
                    (scope, part, metric, str(clients), str(len(label)), value) for metric, value in values.items()
                ]
        if not rows:
            raise ShoalError(past.path, "no client has validation or test items to score")
        shared = describe_distinct(count_distinct(opened.store.manifest.splits[opened.job.split]), past.config.task)
        notes = ("of the items of all clients together; a run records means over clients", *([shared] * bool(shared)))
        title = f"{past.path.name}: scores of all clients' items together"
        tables = [
            TextTable(HEADS, tuple((*row, form.format(value)) for *row, value in rows), 3, title=title, notes=notes)
            for form in ("{:.6f}", "{!r}")
        ]
        return Reading(tables[:1], tables[1].csv())


def score_items(scores_NC: Tensor, label: Tensor, measures: dict[str, Measure], of_classes: bool) -> dict[str, float]:
    """Computes metrics of items by their scores and labels, or targets; NaN where one is not defined."""
    classes, values = scores_NC.shape[1], dict[str, float]()
    support_C = np.zeros(classes, dtype=np.int64)
    if of_classes:
        counts_3C = count_rows(label, winners(scores_NC, "items"), classes)
        support_C = counts_3C[0]
        values = {ACCURACY: float(counts_3C[2].sum() / counts_3C[0].sum()), F1: float(macro_f1(counts_3C[None])[0])}
    for metric, measure in measures.items():
        values[metric] = float(values_of(metric, support_C[None], measure(scores_NC, label)[None])[0])
    return values
