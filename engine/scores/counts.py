"""From predictions to the numbers of a table: counts per client and class, summed up in several weightings."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Received, overrides
from shoal.algorithms.client import Client
from shoal.algorithms.method_errors import ProtocolError, describe, kind, raise_named
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.engine.config.sections import ACCURACY, CHOSEN_BY, F1, OF_FEATURES, RANKINGS, ROC_AUC, metric_key
from shoal.engine.scores.table import ScoreTable
from shoal.storage.errors import ShoalError
from shoal.storage.options.target_names import CLASSIFICATION, CLUSTERING, OF_CLASSES
from shoal.storage.shards.view import View


def twice_wins(scores_NC: Tensor, label_N: Tensor) -> np.ndarray:
    """Computes twice the Mann-Whitney U of every class against all others, int64 `[C]`: exact areas, in whole numbers.

    Of all pairs of a row of the class and another row, one whose first row is more probably of the class counts 2, a
    tie counts 1. Rows are compared by the logit of the class's softmax probability p in float64,
    log p - log(1 - p) = s_c - log sum_{j != c} exp(s_j): the order of p, without its rounding near 0 and 1. The largest
    score of each row is finite; labels are int64.
    """
    twice_C = np.zeros(scores_NC.shape[1], dtype=np.int64)
    for c, margin_N, own_N in _margins(scores_NC, label_N):
        above, below = margin_N[own_N], np.sort(margin_N[~own_N])
        twice_C[c] = np.searchsorted(below, above, "left").sum() + np.searchsorted(below, above, "right").sum()
    return twice_C


def average_precisions(scores_NC: Tensor, label_N: Tensor) -> np.ndarray:
    """Computes average precisions of classes against all others, float64 `[C]`; 0 where all rows are of it, or none.

    AP = sum_k (R_k - R_{k-1}) P_k over the distinct margins of rows (as for `twice_wins`) from the highest down, where
    P_k is the share of the class among rows down to the k-th margin and R_k the share of its rows that are among them.
    Rows that tie come together, as in scikit-learn's `average_precision_score`. The sum is rounded once, so that it
    has the same bits everywhere.
    """
    average_C = np.zeros(scores_NC.shape[1])
    for c, margin_N, own_N in _margins(scores_NC, label_N):
        order = np.argsort(margin_N)[::-1]
        falling_N, found_N = margin_N[order], np.cumsum(own_N[order])
        last_K = np.flatnonzero(np.append(falling_N[1:] != falling_N[:-1], True))
        found_K = found_N[last_K]
        average_C[c] = math.fsum(np.diff(found_K, prepend=0) * (found_K / (last_K + 1))) / int(found_K[-1])
    return average_C


def mean_auc(support_C: np.ndarray, twice_C: np.ndarray) -> float | None:
    """Averages over classes the area under the ROC curve of the class against all others (Hanley & McNeil, 1982).

    Over the classes that some rows are of and some are not; None if there is none. `support_C` counts the rows of
    every class, int64; `twice_C` is what `twice_wins` gave.
    """
    pairs_C = support_C * (support_C.sum() - support_C)
    ranked = pairs_C > 0
    return float((twice_C[ranked] / (2 * pairs_C[ranked])).mean()) if ranked.any() else None


def _margins(scores_NC: Tensor, label_N: Tensor) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields classes that some rows are of and some are not: rows' margins, float64 `[N]`, and which are of the
    class.
    """
    scores_NC, label = scores_NC.detach().double().cpu(), label_N.cpu().numpy()
    classes = scores_NC.shape[1]
    positive_C = np.bincount(label, minlength=classes)
    for c in np.flatnonzero((positive_C > 0) & (positive_C < len(label))).tolist():
        others_NC = scores_NC[:, [j for j in range(classes) if j != c]]
        yield c, (scores_NC[:, c] - others_NC.logsumexp(1)).numpy(), label == c


# A measure gives what is kept of scores `[N, C]` and labels `[N]` of a part: int64 `[C]`, none negative.
Measure = Callable[[Tensor, Tensor], np.ndarray]


def precision_bits(scores_NC: Tensor, label_N: Tensor) -> np.ndarray:
    """Returns the bits of average precisions, int64 `[C]`."""
    return average_precisions(scores_NC, label_N).view(np.int64)


def metrics_beyond_counts(metrics: Sequence[str]) -> list[str]:
    """Selects the metrics that counts do not tell."""
    return [metric for metric in metrics if metric not in (ACCURACY, F1)]


def kept_of_own(value: float, classes: int) -> np.ndarray:
    """Encodes a value of a user's metric, which may be NaN, as counts keep it: the bits of its magnitude, and 1 if
    negative.
    """
    kept_C = np.zeros(classes, dtype=np.int64)
    kept_C[0], kept_C[1] = np.float64(abs(value)).view(np.int64), value < 0
    return kept_C


def values_of(metric: str, support_BC: np.ndarray, kept_BC: np.ndarray) -> np.ndarray:
    """Computes a metric of every client, float64 `[B]`, NaN where it is not defined: of a ranking where one class alone
    occurs. Of two classes a ranking is that of the second, of more the mean over classes, each against all others.

    `support_BC` counts the rows of classes, `kept_BC` is what its `Measure` gave, both int64.
    """
    if metric in OF_FEATURES and not OF_FEATURES[metric].signed:
        value_BC = kept_BC.copy().view(np.float64)
        if OF_FEATURES[metric].of_parts:
            part_BC, whole_BC = split_parts(kept_BC)
            value_BC = np.where(whole_BC > 0, 1 - part_BC / np.where(whole_BC > 0, whole_BC, 1), np.nan)
        return _mean_of(value_BC, ~np.isnan(value_BC))
    if metric not in RANKINGS:
        return np.where(kept_BC[:, 1] > 0, -1.0, 1.0) * kept_BC[:, 0].copy().view(np.float64)
    pairs_BC = support_BC * (support_BC.sum(1, keepdims=True) - support_BC)
    if metric == ROC_AUC:
        value_BC = kept_BC / np.maximum(2 * pairs_BC, 1)
    else:
        value_BC = kept_BC.copy().view(np.float64)
    if support_BC.shape[1] == 2:
        return np.where(pairs_BC[:, 1] > 0, value_BC[:, 1], np.nan)
    return _mean_of(value_BC, pairs_BC > 0)


def _mean_of(value_BC: np.ndarray, defined_BC: np.ndarray) -> np.ndarray:
    """Averages the columns that are defined, float64 `[B]`; NaN without any."""
    mean_B = np.where(defined_BC, value_BC, 0).sum(1) / np.maximum(defined_BC.sum(1), 1)
    return np.where(defined_BC.any(1), mean_B, np.nan)


def join_parts(part_C: np.ndarray, whole_C: np.ndarray) -> np.ndarray:
    """Keeps two numbers, none negative, as one int64 each, `[C]`: the bits of two of float32."""
    most = np.finfo(np.float32).max
    kept = (np.minimum(numbers, most).astype(np.float32) for numbers in (part_C, whole_C))
    part_C, whole_C = (numbers.view(np.uint32).astype(np.int64) for numbers in kept)
    return whole_C << 32 | part_C


def split_parts(kept_BC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverts `join_parts`: parts and wholes, float64 `[B, C]`."""
    halves = (kept_BC & 0xFFFFFFFF, kept_BC >> 32)
    part_BC, whole_BC = (half.astype(np.uint32).view(np.float32).astype(np.float64) for half in halves)
    return part_BC, whole_BC


def means_of_parts(count_BC: np.ndarray, kept_BC: np.ndarray, items_B: np.ndarray) -> dict[str, float | None]:
    """Computes 1 minus the part of the whole over clients, a mean over columns, by all items, rows and clients."""
    (part_BC, whole_BC), given_BC = split_parts(kept_BC), count_BC > 0
    means: dict[str, float | None] = {}
    for name, weight_BC in {"nodes": items_B[:, None] * given_BC, "rows": count_BC, "clients": given_BC}.items():
        part_C, whole_C = (weight_BC * part_BC).sum(0), (weight_BC * whole_BC).sum(0)
        defined = whole_C > 0
        means[name] = float((1 - part_C[defined] / whole_C[defined]).mean()) if defined.any() else None
    return means


def over_clients(value_B: np.ndarray, items_B: np.ndarray, rows_B: np.ndarray) -> dict[str, float | int | None]:
    """Weightings of a metric over the clients at which it is defined (not NaN); None where it is at none.

    Returns:
        Weighted by all items (`nodes`), by evaluated rows (`rows`), the plain mean (`clients`), minimum, median,
        maximum, and the number of these clients (`ranked`).
    """
    defined = ~np.isnan(value_B)
    value, items, rows = value_B[defined], items_B[defined], rows_B[defined]
    if not len(value):
        return {**dict.fromkeys(("nodes", "rows", "clients", "min", "median", "max")), "ranked": 0}
    return {
        "nodes": float((items * value).sum() / items.sum()),
        "rows": float((rows * value).sum() / rows.sum()),
        "clients": float(value.mean()),
        "min": float(value.min()),
        "median": float(np.median(value)),
        "max": float(value.max()),
        "ranked": len(value),
    }


PARTS = ("val", "test")
NO_MEASURES: Mapping[str, Measure] = {}
SUPPORT, PREDICTED, CORRECT = range(3)
KINDS = 3


def score(
    algorithm: Algorithm,
    client: Client,
    received: Received,
    measures: Mapping[str, Measure] = NO_MEASURES,
    predicted: dict[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Counts the rows of one client, int64 `[2, 3, C]`: validation and test; rows of the class, predicted so, rightly
    so.

    Behind these three kinds is one for each of the `measures`. The predicted class and the label of every row, `[2, N]`
    by part, are put into `predicted`. Where no classes are predicted, rows of a class are those that have the target,
    none is said to be predicted, and `predicted` gets scores and targets, float32 `[2, N, C]`. Nor is one of clusters.
    """
    counts = np.zeros((2, KINDS + len(measures), client.info.classes), dtype=np.int64)
    if not measures and predicted is None and _count_in_one_call(algorithm, client, counts):
        return counts
    for part, name in enumerate(PARTS):
        rows = getattr(client.data, name)
        if len(rows):
            scores, label = scores_in_form(algorithm, client, received, name, len(rows)), class_label(client.data, name)
            if client.data.target in OF_CLASSES:
                class_N = winners(scores, name)
                # No cluster is the cluster of a class.
                kinds = slice(SUPPORT, PREDICTED if client.data.target == CLUSTERING else KINDS)
                counts[part, kinds] = count_rows(label, class_N, client.info.classes)[kinds]
            else:
                if not torch.isfinite(scores).all():
                    raise ShoalError(f"predictions of {name!r} are NaN or infinite; a smaller train.lr may help")
                given_NC = ~label.isnan() if label.is_floating_point() else label >= 0
                counts[part, SUPPORT] = given_NC.sum(0).cpu().numpy()
            for place, measure in enumerate(measures.values(), KINDS):
                counts[part, place] = measure(scores, label)
            if predicted is not None and client.data.target not in OF_CLASSES:
                predicted[name] = torch.stack([scores.detach().float(), label.float()]).cpu().numpy()
            elif predicted is not None:
                narrow = torch.int16 if client.info.classes < 2**15 else torch.int32
                predicted[name] = torch.stack([class_N, label]).to(narrow).cpu().numpy()
    return counts


def _count_in_one_call(algorithm: Algorithm, client: Client, counts: np.ndarray) -> bool:
    """Counts a client's rows by compiled passes of its model; False: there are none over its data, or other answers."""
    model, data = client.model, client.data
    passes = model.pattern.passes
    if passes is None or model.items is not None or data.target != CLASSIFICATION or overrides(algorithm, "predict"):
        return False
    # Other models load none of it.
    from shoal.algorithms.models.compiled.counting import Rows, count_in_passes, count_logits

    def all_parts() -> Rows:
        return Rows.of([(getattr(data, name), class_label(data, name)) for name in PARTS])

    def ask() -> list[tuple[Inputs, Rows]]:
        model.pattern.set_training(False)
        if (inputs := model.at_once(len(data.val) + len(data.test))) is not None:
            return [(inputs, all_parts())]
        labels = {name: class_label(data, name) for name in PARTS if len(getattr(data, name))}
        return [(model.gathered(name), Rows.of_part(PARTS.index(name), label)) for name, label in labels.items()]

    if model.answered:
        logits_NC = model.logits().contiguous()
        if list(logits_NC.shape) != [client.info.items, client.info.classes]:
            return False
        part: int | None = count_logits(logits_NC.data_ptr(), client.info.classes, *all_parts(), counts)
    else:
        part = count_in_passes(passes, data, model.values, ask, counts)
    if part is not None and part >= 0:
        require_winner(PARTS[part], False)
    return part is not None


def count_rows(label: torch.Tensor, predicted: torch.Tensor, classes: int) -> np.ndarray:
    """Counts rows of every class, predicted so, rightly so, int64 `[3, C]`, of labels and predictions `[rows]`."""
    label_N, class_N = label.cpu().numpy(), predicted.cpu().numpy()
    counts_3C = np.empty((KINDS, classes), dtype=np.int64)
    for kind_of_rows, c_N in enumerate((label_N, class_N, label_N[label_N == class_N])):
        counts_3C[kind_of_rows] = np.bincount(c_N, minlength=classes)
    return counts_3C


def scores_of(algorithm: Algorithm, client: Client, received: Received, part: str, rows: int) -> torch.Tensor:
    """Returns the scores that a method gives to every row of a part, `[rows, C]`.

    Raises:
        ShoalError: The method's code failed, gave scores of another shape, or a row's largest score is not finite.
    """
    scores = scores_in_form(algorithm, client, received, part, rows)
    winners(scores, part)
    return scores


def winners(scores_NC: torch.Tensor, part: str) -> torch.Tensor:
    """Returns the class of every row's largest score, the first one of several, int64 `[N]`; a ShoalError as above."""
    best_N, class_N = scores_NC.max(1)
    # NaN counts as the largest; -inf below it is a class that is ruled out.
    require_winner(part, bool(torch.isfinite(best_N).all()))
    return class_N


def scores_in_form(algorithm: Algorithm, client: Client, received: Received, part: str, rows: int) -> torch.Tensor:
    """Returns the scores of every row as `scores_of`, which may be NaN or infinite here; of clusters a one for each."""
    if client.data.target == CLUSTERING:
        # Other targets do without scikit-learn.
        from shoal.algorithms.losses.clusters import cluster_items

        clusters_NC = cluster_items(client)
        return clusters_NC if part == "all" else clusters_NC[getattr(client.data, part)]
    expected = [rows, client.info.classes]
    try:
        scores = algorithm.predict(client, received, part)
        fits = isinstance(scores, torch.Tensor) and list(scores.shape) == expected
        if not fits or scores.is_complex() or scores.dtype == torch.bool:
            form = f"{kind(scores)} {list(scores.shape)}" if isinstance(scores, torch.Tensor) else describe(scores)
            raise ProtocolError(f"gives {form} for {part!r}, expected scores {expected}, as float32")
    except BaseException as error:
        raise_named(algorithm, "predict", error)
    return client.data.in_units(scores)


def require_winner(part: str, finite: bool) -> None:
    """Raises a ShoalError where not every row's largest score of a part is finite."""
    if not finite:
        raise ShoalError(f"predictions of {part!r} are NaN or infinite, so no class wins; a smaller train.lr may help")


def class_label(data: View, part: str) -> torch.Tensor:
    """Returns the labels of a part, int64, kept where there is room."""
    label: torch.Tensor = data.cache(("label", part), lambda: data.label[getattr(data, part)])
    return label


def macro_f1(counts_B3C: np.ndarray) -> np.ndarray:
    """Computes macro-F1 of B clients, float64 `[B]`, over classes that occur or are predicted at each; NaN without
    any.
    """
    counted_BC = counts_B3C[:, SUPPORT] + counts_B3C[:, PREDICTED]
    seen_BC = counted_BC > 0
    f1_BC = 2 * counts_B3C[:, CORRECT] / np.maximum(counted_BC, 1)
    classes_B = seen_BC.sum(1)
    mean_B = np.full(len(classes_B), np.nan)
    # NumPy adds rows of one length in the order in which it adds each of them alone.
    for classes in np.unique(classes_B[classes_B > 0]):
        same_classes = classes_B == classes
        mean_B[same_classes] = f1_BC[same_classes][seen_BC[same_classes]].reshape(-1, classes).mean(1)
    return mean_B


class ByClient(NamedTuple):
    """The numbers of B clients by part P, `[B, P]`: rows and rightly predicted ones int64, macro-F1 and metrics, but
    accuracy, float64; the counts of all of them together, int64 `[P, 3, C]`; and of metrics that are parts of wholes
    counts and what was kept, int64 `[B, P, C]`.
    """

    rows_BP: np.ndarray
    correct_BP: np.ndarray
    f1_BP: np.ndarray
    values_BP: dict[str, np.ndarray]
    pooled_PKC: np.ndarray
    parts: dict[str, tuple[np.ndarray, np.ndarray]]


def by_client(table: ScoreTable, metrics: Sequence[str] = (ACCURACY,)) -> ByClient:
    """Computes the numbers of the clients of a table, which has some, by part; metrics by their names among them."""
    kept = metrics_beyond_counts(metrics)
    blocks: list[tuple[np.ndarray, ...]] = []
    of_parts = {m: place for place, m in enumerate(kept, -len(kept)) if m in OF_FEATURES and OF_FEATURES[m].of_parts}
    blocks_of: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {metric: [] for metric in of_parts}
    pooled: Any = 0
    for counts_BPKC in table.blocks():
        parts = range(counts_BPKC.shape[1])
        right_BP = counts_BPKC[:, :, CORRECT].sum(2)
        by_part = [counts_BPKC[:, part] for part in parts]
        f1_BP = np.stack([macro_f1(counts_B3C) for counts_B3C in by_part], 1)
        values = [
            np.stack([values_of(metric, counts[:, SUPPORT], counts[:, place]) for counts in by_part], 1)
            for place, metric in enumerate(kept, -len(kept))
        ]
        blocks.append((counts_BPKC[:, :, SUPPORT].sum(2), right_BP, f1_BP, *values))
        for metric, place in of_parts.items():
            blocks_of[metric].append((counts_BPKC[:, :, SUPPORT], counts_BPKC[:, :, place]))
        pooled = pooled + counts_BPKC[:, :, :KINDS].sum(0)
    rows_BP, correct_BP, f1_BP, *values = (np.concatenate(of_blocks) for of_blocks in zip(*blocks))
    of_metric = {**dict(zip(kept, values)), F1: f1_BP}
    values_BP = {metric_key(m): of_metric[m] for m in metrics if m != ACCURACY}
    joined = {}
    for metric, of_blocks in blocks_of.items():
        counts, kepts = zip(*of_blocks)
        joined[metric] = np.concatenate(counts), np.concatenate(kepts)
    return ByClient(rows_BP, correct_BP, f1_BP, values_BP, pooled, joined)


def summarize(
    scores: Mapping[int, np.ndarray],
    items_B: Sequence[int] | np.ndarray,
    parts: Sequence[str] = PARTS,
    metrics: Sequence[str] = (ACCURACY,),
) -> dict[str, Any]:
    """Summarizes what clients predict: their accuracies, weighted in every way that a run shows, and further metrics.

    A client without rows of a part has no accuracy there, and no weight.

    Args:
        scores: Counts of each client, `[parts, 3, C]`: rows of a class, rows predicted as it, right ones; behind these
            three the counts that further metrics are made from.
        items_B: Rows or graphs of each of these clients, in ascending order of clients.
        parts: Names of the parts, in the order of the counts.
        metrics: What is computed; the first one chooses rounds.

    Returns:
        For every part with rows: accuracy weighted by all items (`nodes`, as OpenFGL and FedGTA's code), by evaluated
        rows (`rows`), the plain mean over clients (`clients`); macro-F1 of the pooled counts (`f1`) and its mean over
        clients (`f1_clients`); minimum, median, maximum over clients. For each metric but accuracy: its means over
        clients (`over_clients`), and the one that chooses rounds (`metric`). Numbers to be predicted have no classes,
        so that only such metrics are there, and rows are the numbers that the data gives.
    """
    result: dict[str, Any] = {}
    if not scores:
        return result
    numbers = by_client(ScoreTable.of(scores), metrics)
    for part, name in enumerate(parts):
        scored = numbers.rows_BP[:, part] > 0
        if not scored.any():
            continue
        right, rows, size = numbers.correct_BP[scored, part], numbers.rows_BP[scored, part], np.array(items_B)[scored]
        accuracy = right / rows
        result[name] = {}
        if not are_targets(metrics):
            result[name] = {
                "nodes": float((size * accuracy).sum() / size.sum()),
                "rows": float(right.sum() / rows.sum()),
                "clients": float(accuracy.mean()),
                "f1": float(macro_f1(numbers.pooled_PKC[None, part])[0]),
                "f1_clients": float(numbers.f1_BP[scored, part].mean()),
                "min": float(accuracy.min()),
                "median": float(np.median(accuracy)),
                "max": float(accuracy.max()),
            }
        for key, value_BP in numbers.values_BP.items():
            result[name][key] = over_clients(value_BP[scored, part], size, rows)
            if key in numbers.parts:
                count_BPC, kept_BPC = numbers.parts[key]
                result[name][key] |= means_of_parts(count_BPC[scored, part], kept_BPC[scored, part], size)
        if numbers.values_BP:
            result[name][CHOSEN_BY] = metric_key(metrics[0])
    return result


def are_targets(metrics: Sequence[str]) -> bool:
    """Whether metrics are of what are no classes, so that there is no accuracy."""
    return not OF_FEATURES.keys().isdisjoint(metrics)


def constant_shares(table: ScoreTable, items_N: np.ndarray) -> Mapping[str, float]:
    """Computes the test accuracy of always saying one class, by mean over clients, as `summarize` names them.

    Any method has to be above it. The class is the best one for each mean.

    Args:
        table: Counts of clients.
        items_N: All items of every client, int64 `[N]`.

    Returns:
        By mean. Empty if no client has test items, or one is not in `items_N`.
    """
    test = PARTS.index("test")
    if not len(table) or table.clients.max() >= len(items_N):
        return {}
    support_BC = np.concatenate([counts_BPKC[:, test, SUPPORT] for counts_BPKC in table.blocks()]).astype(np.float64)
    rows_B = support_BC.sum(1)
    scored = rows_B > 0
    if not scored.any():
        return {}
    share_BC = support_BC[scored] / rows_B[scored, None]
    weights = {"nodes": items_N[table.clients][scored], "rows": rows_B[scored], "clients": np.ones(scored.sum())}
    return {mean: float((weight_B @ share_BC).max() / weight_B.sum()) for mean, weight_B in weights.items()}
