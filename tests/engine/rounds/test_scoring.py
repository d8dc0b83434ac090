"""Counts and summaries against scikit-learn and hand-computed tables."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Client, Received
from shoal.engine.rounds.scoring import CORRECT, PREDICTED, SUPPORT, macro_f1, predicted_classes, score, summarize
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

CLASSES = 4
Pairs = list[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), max_size=30)


def table(pairs: Pairs) -> np.ndarray:
    counts = np.zeros((3, CLASSES), dtype=np.int64)
    for truth, predicted in pairs:
        counts[SUPPORT, truth] += 1
        counts[PREDICTED, predicted] += 1
        counts[CORRECT, truth] += truth == predicted
    return counts


@settings(deadline=None)
@given(PAIRS.filter(bool))
def test_macro_f1_is_that_of_scikit_learn(pairs: Pairs) -> None:
    truth, predicted = zip(*pairs)
    (found,) = macro_f1(table(pairs)[None])
    assert found == pytest.approx(f1_score(truth, predicted, average="macro", zero_division=0))


def macro_f1_of_one(counts: np.ndarray) -> float:
    """As clients' scores were computed before all of them were in one go."""
    support, predicted, correct = counts
    seen = (support + predicted) > 0
    return float(np.mean(2 * correct[seen] / (support + predicted)[seen])) if seen.any() else float("nan")


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 99), st.integers(1, 500), st.integers(1, 300), st.integers(0, 400))
def test_many_clients_score_as_each_alone_to_the_bit(seed: int, clients: int, classes: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    # Of some clients' many classes few occur.
    share = rng.random((clients, 1))
    occurs = rng.random((clients, classes)) < share
    support, predicted = (rng.integers(0, rows + 1, (clients, classes)) * occurs for _ in range(2))
    correct = rng.integers(0, np.minimum(support, predicted) + 1)
    counts = np.stack([support, predicted, correct], axis=1)
    np.testing.assert_array_equal(macro_f1(counts), [macro_f1_of_one(one) for one in counts])
    (pooled,) = macro_f1(counts.sum(0, keepdims=True))
    np.testing.assert_array_equal(pooled, macro_f1_of_one(counts.sum(0)))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(PAIRS, PAIRS, st.integers(1, 500)), min_size=1, max_size=6))
def test_summaries_are_those_of_scikit_learn(clients: list[tuple[Pairs, Pairs, int]]) -> None:
    scores = {7 * i: np.stack([table(val), table(test)]) for i, (val, test, _) in enumerate(clients)}
    found = summarize(scores, {7 * i: nodes for i, (_, _, nodes) in enumerate(clients)})
    for part, name in enumerate(("val", "test")):
        rows = [(client[part], client[2]) for client in clients if client[part]]
        assert (name in found) == bool(rows)
        if not rows:
            continue
        accuracies = [accuracy_score(*zip(*pairs)) for pairs, _ in rows]
        pooled = list(zip(*(pair for pairs, _ in rows for pair in pairs)))
        expected = {
            "nodes": np.average(accuracies, weights=[nodes for _, nodes in rows]),
            "rows": accuracy_score(*pooled),
            "clients": np.mean(accuracies),
            "f1": f1_score(*pooled, average="macro", zero_division=0),
            "f1_clients": np.mean([f1_score(*zip(*p), average="macro", zero_division=0) for p, _ in rows]),
            "min": min(accuracies),
            "median": np.median(accuracies),
            "max": max(accuracies),
        }
        assert found[name] == pytest.approx(expected)


def test_weightings_by_hand() -> None:
    # 3 of 4 test rows right on 10 nodes, 1 of 1 on 90 nodes, no test row on 1000 nodes.
    scores = {
        0: np.stack([table([]), table([(0, 0), (1, 1), (2, 2), (2, 0)])]),
        1: np.stack([table([]), table([(3, 3)])]),
        2: np.stack([table([(0, 1)]), table([])]),
    }
    found = summarize(scores, {0: 10, 1: 90, 2: 1000})
    assert found["test"]["nodes"] == pytest.approx(0.1 * 0.75 + 0.9)
    assert found["test"]["rows"] == pytest.approx(4 / 5)
    assert found["test"]["clients"] == pytest.approx(0.875)
    # Classes 0..3: 2/3, 1, 2/3, 1.
    assert found["test"]["f1"] == pytest.approx(10 / 12)
    assert found["val"] == dict.fromkeys(found["val"], 0.0)


def test_nobody_has_rows() -> None:
    assert summarize({0: np.zeros((2, 3, CLASSES), dtype=np.int64)}, {0: 5}) == {}
    assert summarize({}, {}) == {}
    assert np.isnan(macro_f1(np.zeros((1, 3, CLASSES), dtype=np.int64)))


@dataclass(frozen=True)
class Oracle(Algorithm):
    """Scores given for every node, not by the model."""

    shift: int = 0

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        rows: Tensor = getattr(client.data, part)
        return torch.eye(CLASSES)[(client.data.label[rows] + self.shift) % CLASSES]


@pytest.mark.parametrize("shift", [0, 1])
def test_counts_are_of_what_the_method_predicts(
    make_view: Callable[..., View], make_client: Callable[..., Client], shift: int
) -> None:
    labels = [0, 1, 2, 3, 3, 1, 1, 0]
    client = make_client(make_view(8, [], labels, [0, 1], CLASSES), nn.Linear(8, CLASSES))
    val, test = score(Oracle(shift), client, {})
    assert not val.any()
    np.testing.assert_array_equal(test, table([(y, (y + shift) % CLASSES) for y in labels[2:]]))


@dataclass(frozen=True)
class Says(Algorithm):
    """Gives the scores that it is told."""

    scores: object = None

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        return self.scores  # type: ignore[return-value]


NAN, INF = float("nan"), float("inf")


def classes_of(scores: object, make_view: Callable[..., View], make_client: Callable[..., Client]) -> list[int]:
    client = make_client(make_view(2, [], [0, 1], [], 3), nn.Linear(1, 1))
    return predicted_classes(Says(scores), client, None, "all", 2).tolist()


@pytest.mark.parametrize(
    ("rows", "classes"),
    [
        ([[1.0, 2, 0], [0, 0, 0]], [1, 0]),
        # A class that is ruled out.
        ([[-INF, -5, -INF], [3, -INF, 3]], [1, 0]),
    ],
)
def test_the_largest_score_wins(
    rows: list[list[float]], classes: list[int], make_view: Callable[..., View], make_client: Callable[..., Client]
) -> None:
    assert classes_of(torch.tensor(rows), make_view, make_client) == classes
    assert classes_of(torch.tensor(rows).half(), make_view, make_client) == classes


@pytest.mark.parametrize("row", [[NAN, 0.0, 1.0], [0.0, NAN, NAN], [INF, 0.0, 1.0], [-INF, -INF, -INF]])
def test_a_row_in_which_no_class_wins(
    row: list[float], make_view: Callable[..., View], make_client: Callable[..., Client]
) -> None:
    with pytest.raises(ShoalError, match=r"^predictions of 'all' are NaN or infinite, so no class wins; a smaller"):
        classes_of(torch.tensor([[0.0, 1, 2], row]), make_view, make_client)


@pytest.mark.parametrize(
    ("scores", "found"),
    [(torch.ones(2, 2), r"\[2, 2\]"), (torch.ones(3, 3), r"\[3, 3\]"), (torch.ones(2), r"\[2\]"), (None, "NoneType")],
)
def test_scores_of_another_shape(
    scores: object, found: str, make_view: Callable[..., View], make_client: Callable[..., Client]
) -> None:
    with pytest.raises(ShoalError, match=rf"in predict\(\): gives {found} for 'all', expected scores \[2, 3\]$"):
        classes_of(scores, make_view, make_client)
