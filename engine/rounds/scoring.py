"""From predictions to the numbers of a table: counts per client and class, summed up in several weightings."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from algorithms.base import Algorithm, Given
from algorithms.client import Client
from algorithms.faults import Malformed, code_of
from engine.rounds.metric import ACCURACY, over_clients, ranked, ranks
from storage.errors import ShoalError
from storage.view import View

PARTS = ("val", "test")
SUPPORT, PREDICTED, CORRECT = range(3)
KINDS = 3


def score(algorithm: Algorithm, client: Client, given: Given, metric: str = ACCURACY) -> np.ndarray:
    """Counts of one client, int64 `[2, 3, C]`: validation and test; rows of the class, predicted so, rightly so.

    With another metric than accuracy there is a fourth kind behind them, what `ranks` gives.

    Raises:
        ShoalError: As for `scores_of`.
    """
    counts = np.zeros((2, KINDS + (metric != ACCURACY), client.info.classes), dtype=np.int64)
    for part, name in enumerate(PARTS):
        rows = getattr(client.data, name)
        if len(rows):
            scores, label = scores_of(algorithm, client, given, name, len(rows)), client.data.label[rows]
            counts[part, :KINDS] = counted(label, scores.argmax(1), client.info.classes)
            if metric != ACCURACY:
                counts[part, KINDS] = ranks(metric, scores, label)
    return counts


def counted(label: torch.Tensor, predicted: torch.Tensor, classes: int) -> np.ndarray:
    """Rows of every class, predicted so, rightly so, int64 `[3, C]`, of labels and predictions, int64 `[rows]`."""
    right = label[predicted == label]
    return np.stack([torch.bincount(found, minlength=classes).cpu().numpy() for found in (label, predicted, right)])


def predicted_classes(algorithm: Algorithm, client: Client, given: Given, part: str, rows: int) -> torch.Tensor:
    """The class of the largest score of every row, int64 `[rows]`; arguments and errors are those of `scores_of`."""
    return scores_of(algorithm, client, given, part, rows).argmax(1)


def scores_of(algorithm: Algorithm, client: Client, given: Given, part: str, rows: int) -> torch.Tensor:
    """The scores that a method gives to every row, `[rows, C]`.

    Args:
        algorithm: The method.
        client: The client.
        given: What `begin` gave.
        part: As for `Algorithm.predict`.
        rows: Number of its rows.

    Raises:
        ShoalError: The method's code failed, gave scores of another shape, or a row's largest score is not finite.
    """
    scores = scores_in_form(algorithm, client, given, part, rows)
    # NaN counts as the largest; -inf below it is a class that is ruled out.
    require_winner(part, bool(torch.isfinite(scores.max(1).values).all()))
    return scores


def scores_in_form(algorithm: Algorithm, client: Client, given: Given, part: str, rows: int) -> torch.Tensor:
    """The same, which may be NaN or infinite."""
    wanted = [rows, client.info.classes]
    with code_of(algorithm, "predict"):
        scores = algorithm.predict(client, given, part)
        if not isinstance(scores, torch.Tensor) or list(scores.shape) != wanted or scores.is_complex():
            found = list(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise Malformed(f"gives {found} for {part!r}, wanted scores {wanted}")
    return scores


def require_winner(part: str, finite: bool) -> None:
    """Refuses scores of a part of which not every row's largest is finite.

    Raises:
        ShoalError: As it says.
    """
    if not finite:
        raise ShoalError(f"predictions of {part!r} are NaN or infinite, so no class wins; a smaller train.lr may help")


def class_label(data: View, part: str) -> torch.Tensor:
    """Labels of a part, int64, kept where there is room."""
    label: torch.Tensor = data.memo(("label", part), lambda: data.label[getattr(data, part)])
    return label


def macro_f1(counts_B3C: np.ndarray) -> np.ndarray:
    """Macro-F1 of every client, float64 `[B]`, over the classes that occur or are predicted at it; NaN without any.

    Args:
        counts_B3C: Counts of B clients, int64 `[B, 3, C]`.
    """
    counted_BC = counts_B3C[:, SUPPORT] + counts_B3C[:, PREDICTED]
    seen_BC = counted_BC > 0
    f1_BC = 2 * counts_B3C[:, CORRECT] / np.maximum(counted_BC, 1)
    classes_B = seen_BC.sum(1)
    mean_B = np.full(len(classes_B), np.nan)
    # NumPy adds rows of one length in the order in which it adds each of them alone.
    for classes in np.unique(classes_B[classes_B > 0]):
        alike = classes_B == classes
        mean_B[alike] = f1_BC[alike][seen_BC[alike]].reshape(-1, classes).mean(1)
    return mean_B


def summarize(
    scores: Mapping[int, np.ndarray],
    items: Mapping[int, int],
    parts: Sequence[str] = PARTS,
    metric: str = ACCURACY,
) -> dict[str, Any]:
    """All weightings of one scope.

    Accuracy of a client without rows of a part is undefined; such a client has no weight there.

    Args:
        scores: Counts by client, `[parts, 3, C]`; after rightly predicted rows there may be more kinds of counts, of
            which those of another metric than accuracy are the last.
        items: How many every client has: rows of its shard, or graphs.
        parts: Names of the parts.
        metric: Of the run.

    Returns:
        For every part with rows: accuracy weighted by all items (`nodes`, as OpenFGL and FedGTA's code), by evaluated
        rows (`rows`), the plain mean over clients (`clients`); macro-F1 of the pooled counts (`f1`) and its mean over
        clients (`f1_clients`); minimum, median, maximum over clients; another metric under its name, as `over_clients`
        gives it.
    """
    result: dict[str, Any] = {}
    if not scores:
        return result
    clients = sorted(scores)
    every_BPKC = np.stack([scores[i] for i in clients])
    items_B = np.array([items[i] for i in clients])
    rows_BP = every_BPKC[:, :, SUPPORT].sum(2)
    for part, name in enumerate(parts):
        scored = rows_BP[:, part] > 0
        if not scored.any():
            continue
        counts, rows, size = every_BPKC[scored, part], rows_BP[scored, part], items_B[scored]
        right = counts[:, CORRECT].sum(1)
        accuracy = right / rows
        result[name] = {
            "nodes": float((size * accuracy).sum() / size.sum()),
            "rows": float(right.sum() / rows.sum()),
            "clients": float(accuracy.mean()),
            "f1": float(macro_f1(counts[:, :KINDS].sum(0, keepdims=True))[0]),
            "f1_clients": float(macro_f1(counts).mean()),
            "min": float(accuracy.min()),
            "median": float(np.median(accuracy)),
            "max": float(accuracy.max()),
        }
        if metric != ACCURACY:
            value = ranked(metric, counts[:, SUPPORT], counts[:, -1])
            result[name][metric] = over_clients(value, size, rows)
    return result
