"""Scores of a finished run by OGB's Evaluator, beside ours of the same predictions.

The Evaluator scores all items of a part together. Ours is computed of the same items by the functions that score
clients in a run; what a run records is a mean over clients, which of accuracy alone is the same number.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from shoal.engine.config.sections import ACCURACY, AVERAGE_PRECISION, ROC_AUC
from shoal.engine.records.run_folder import read_summary
from shoal.engine.records.summary import count_distinct, describe_distinct
from shoal.engine.runs.export import reopen
from shoal.engine.scores.counts import precision_bits, twice_wins, values_of, winners
from shoal.engine.sections.section import load
from shoal.engine.sections.sections import SECTIONS
from shoal.past.predictions import predict_parts
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import OF_OGB
from shoal.tables.text_table import TextTable

HEADS = ("scope", "part", "items", "metric", "ours", "OGB's Evaluator", "difference")
# Our metric of two classes and that of targets, by what OGB calls it.
OURS = {
    "acc": (ACCURACY, ""),
    "rocauc": (ROC_AUC, "label_roc_auc"),
    "ap": (AVERAGE_PRECISION, "label_average_precision"),
    "rmse": ("", "rmse"),
}
# Both sum the same numbers, in other orders.
MOST_DIFFERENCE = 1e-9


@dataclass(frozen=True)
class EvaluatorReader:
    """The reader that scores a run on a dataset of OGB by OGB's Evaluator.

    Attributes:
        best: Scope whose best validation round is scored, which `run.keep_best` keeps; None: the last round.
    """

    best: Literal["trained", "deployed", "global"] | None = None

    def read(self, past: PastRun) -> Reading:
        """Returns a row for each scope and part: ours, the Evaluator's, and their difference; `--out` has all digits.

        Raises ShoalError: the dataset is none of OGB, ogb is not installed, or as `reopen`.
        """
        # A run that is not whole is refused whatever it is on.
        read_summary(past.path)
        evaluator, name = _evaluator_of(past), str(past.config.data.dataset)
        opened, rows = reopen(past.path, self.best), []
        for scope, scores_of_part in predict_parts(opened).items():
            if self.best not in (None, scope):
                continue
            for part, (scores_NC, label, _) in scores_of_part.items():
                ours = _score(evaluator.eval_metric, scores_NC, label)
                try:
                    theirs = _ask(evaluator, scores_NC, label)
                except RuntimeError as error:
                    why = " ".join(str(error).split())
                    raise ShoalError(
                        past.path, f"OGB's Evaluator refuses the {part} items ({why}); take others"
                    ) from error
                rows.append((scope, part, len(label), ours, theirs))
        if not rows:
            raise ShoalError(past.path, "no client has validation or test items to score")
        differs = any(_differ(ours, theirs) for *_, ours, theirs in rows)
        return Reading(
            (_make_table(past, name, evaluator.eval_metric, rows, shorten=True),),
            _make_table(past, name, evaluator.eval_metric, rows, shorten=False).csv(),
            "ours and OGB's differ" if differs else "ours and OGB's Evaluator agree",
            not differs,
        )


def _differ(ours: float, theirs: float) -> bool:
    """Whether two scores differ: a number beside none does, and two that are none do not."""
    if math.isnan(ours) or math.isnan(theirs):
        return math.isnan(ours) != math.isnan(theirs)
    return abs(ours - theirs) > MOST_DIFFERENCE


def _evaluator_of(past: PastRun) -> Any:
    """Makes the Evaluator of a run's dataset."""
    name = str(past.config.data.dataset).lower()
    if name not in OF_OGB or past.config.task == "edge":
        raise ShoalError(
            "data.dataset", f"OGB's Evaluator is for its datasets and their labels ({', '.join(OF_OGB)}), found {name}"
        )
    # The package asks the network whether there is a newer one.
    os.environ.setdefault("OUTDATED_IGNORE", "1")
    try:
        if name.startswith("ogbn-"):
            from ogb.nodeproppred import Evaluator
        else:
            from ogb.graphproppred import Evaluator
    except ImportError as error:
        raise ShoalError("ogb", f"not installed ({error}); pip install --editable '.[ogb]'") from error
    return Evaluator(name=name.replace("100m", "100M"))


def _score(official: str, scores_NC: Tensor, label: Tensor) -> float:
    """Computes our metric of all items of a part, named as OGB does."""
    of_classes, of_targets = OURS[official]
    if label.ndim == 1:
        if of_classes == ACCURACY:
            return float((winners(scores_NC, "items") == label).double().mean())
        measure, metric = (twice_wins if of_classes == ROC_AUC else precision_bits), of_classes
        support_C = np.bincount(label.numpy(), minlength=scores_NC.shape[1])
    else:
        metric = of_targets
        section = next(section for section in SECTIONS if metric in [measured.name for measured in section.measures])
        measure = load(section.make_measure)(metric)
        support_C = np.zeros(scores_NC.shape[1], dtype=np.int64)
    return float(values_of(metric, support_C[None], measure(scores_NC, label)[None])[0])


def _ask(evaluator: Any, scores_NC: Tensor, label: Tensor) -> float:
    """Returns the number of the Evaluator, which takes classes, or scores of the second class or of every target."""
    metric = evaluator.eval_metric
    if label.ndim == 1 and metric == "acc":
        y_true, y_pred = label.numpy()[:, None], winners(scores_NC, "items").numpy()[:, None]
    elif label.ndim == 1:
        double = scores_NC.double().numpy()
        y_true, y_pred = label.numpy()[:, None], (double[:, 1] - double[:, 0])[:, None]
    else:
        numbers = label.double().numpy()
        y_true, y_pred = (
            np.where(numbers < 0, np.nan, numbers) if metric != "rmse" else numbers,
            scores_NC.double().numpy(),
        )
    return float(evaluator.eval({"y_true": y_true, "y_pred": y_pred})[metric])


def _make_table(
    past: PastRun, name: str, metric: str, rows: Sequence[tuple[str, str, int, float, float]], shorten: bool
) -> TextTable:
    """Makes the table; `shorten` for a screen."""
    form = "{:.6f}" if shorten else "{!r}"
    cells = tuple(
        (scope, part, f"{items:,}" if shorten else str(items), metric, form.format(ours), form.format(theirs),
         f"{abs(ours - theirs):.1e}")
        for scope, part, items, ours, theirs in rows
    )  # fmt: skip
    notes = ["of all items together; a run records means over clients"]
    if past.config.data.split != "public":
        notes.append(f"data.split is {past.config.data.split}: these are not the published validation and test items")
    if shared := describe_distinct(count_distinct(past.store.manifest.splits[past.config.data.split_name]), "item"):
        notes.append(shared)
    if past.store.manifest.synthetic:
        notes.append(f"the graph is {past.store.manifest.name}, which is synthetic")
    return TextTable(HEADS, cells, 2, title=f"{past.path.name} on {name}, by OGB's Evaluator", notes=tuple(notes))
