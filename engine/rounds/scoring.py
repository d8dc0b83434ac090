"""From predictions to the numbers of a table: counts per client and class, summed up in several weightings."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from algorithms.base import Algorithm, Given
from algorithms.client import Client
from algorithms.faults import Malformed, code_of
from storage.errors import ShoalError

PARTS = ("val", "test")
SUPPORT, PREDICTED, CORRECT = range(3)


def score(algorithm: Algorithm, client: Client, given: Given) -> np.ndarray:
    """Counts of one client, int64 `[2, 3, C]`: validation and test; rows of the class, predicted so, rightly so.

    Raises:
        ShoalError: As for `predicted_classes`.
    """
    counts = np.zeros((2, 3, client.info.classes), dtype=np.int64)
    for part, name in enumerate(PARTS):
        rows = getattr(client.data, name)
        if not len(rows):
            continue
        predicted = predicted_classes(algorithm, client, given, name, len(rows))
        label = client.data.label[rows]
        right = label[predicted == label]
        for kind, classes in ((SUPPORT, label), (PREDICTED, predicted), (CORRECT, right)):
            counts[part, kind] = torch.bincount(classes, minlength=client.info.classes).cpu().numpy()
    return counts


def predicted_classes(algorithm: Algorithm, client: Client, given: Given, part: str, rows: int) -> torch.Tensor:
    """The class of the largest score of every row, int64 `[rows]`.

    Args:
        algorithm: The method.
        client: The client.
        given: What `begin` gave.
        part: As for `Algorithm.predict`.
        rows: Number of its rows.

    Raises:
        ShoalError: The method's code failed, gave scores of another shape, or a row's largest score is not finite.
    """
    wanted = [rows, client.info.classes]
    with code_of(algorithm, "predict"):
        scores = algorithm.predict(client, given, part)
        if not isinstance(scores, torch.Tensor) or list(scores.shape) != wanted or scores.is_complex():
            found = list(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise Malformed(f"gives {found} for {part!r}, wanted scores {wanted}")
    predicted = scores.argmax(1)
    # NaN counts as the largest; -inf below it is a class that is ruled out.
    if not bool(torch.isfinite(scores.gather(1, predicted[:, None])).all()):
        raise ShoalError(f"predictions of {part!r} are NaN or infinite, so no class wins; a smaller train.lr may help")
    return predicted


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


def summarize(scores: Mapping[int, np.ndarray], nodes: Mapping[int, int]) -> dict[str, Any]:
    """All weightings of one scope.

    Accuracy of a client without rows of a part is undefined; such a client has no weight there.

    Args:
        scores: Counts by client, `[2, 3, C]`.
        nodes: All rows of every client's shard.

    Returns:
        For `val` and `test`: accuracy weighted by all nodes (`nodes`, as OpenFGL and FedGTA's code), by evaluated rows
        (`rows`), the plain mean over clients (`clients`); macro-F1 of the pooled counts (`f1`) and its mean over
        clients (`f1_clients`); minimum, median, maximum over clients.
    """
    result: dict[str, Any] = {}
    if not scores:
        return result
    clients = sorted(scores)
    every_B23C = np.stack([scores[i] for i in clients])
    nodes_B = np.array([nodes[i] for i in clients])
    rows_B2 = every_B23C[:, :, SUPPORT].sum(2)
    for part, name in enumerate(PARTS):
        scored = rows_B2[:, part] > 0
        if not scored.any():
            continue
        counts, rows, size = every_B23C[scored, part], rows_B2[scored, part], nodes_B[scored]
        right = counts[:, CORRECT].sum(1)
        accuracy = right / rows
        result[name] = {
            "nodes": float((size * accuracy).sum() / size.sum()),
            "rows": float(right.sum() / rows.sum()),
            "clients": float(accuracy.mean()),
            "f1": float(macro_f1(counts.sum(0, keepdims=True))[0]),
            "f1_clients": float(macro_f1(counts).mean()),
            "min": float(accuracy.min()),
            "median": float(np.median(accuracy)),
            "max": float(accuracy.max()),
        }
    return result
