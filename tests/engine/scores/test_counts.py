"""Counts, ranks and summaries against scikit-learn and pairs compared one by one, and whole rounds by dense algebra."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score
from support.errors import refused
from support.fixtures import MakeClient, MakeView, Start
from support.plain_fedavg import dense_sgc
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Client, Received
from shoal.engine.scores.counts import (
    CORRECT,
    PREDICTED,
    SUPPORT,
    average_precisions,
    macro_f1,
    mean_auc,
    scores_of,
    summarize,
    twice_wins,
)
from shoal.engine.scores.measures import measures_of
from shoal.storage.options.split_codes import TEST, VAL

CLASSES = 4
NAN, INF = float("nan"), float("inf")
Pairs = list[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), max_size=30)
# Scores of two classes and the class: few whole numbers, so that there are many ties.
ROWS = st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(0, 1)), max_size=25)


def table(pairs: Pairs) -> np.ndarray:
    counts = np.zeros((3, CLASSES), dtype=np.int64)
    for truth, predicted in pairs:
        counts[SUPPORT, truth] += 1
        counts[PREDICTED, predicted] += 1
        counts[CORRECT, truth] += truth == predicted
    return counts


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 99), st.integers(1, 500), st.integers(1, 300), st.integers(0, 400))
def test_many_clients_score_as_each_alone_to_the_bit(seed: int, clients: int, classes: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    # Of some clients' many classes few occur.
    occurs = rng.random((clients, classes)) < rng.random((clients, 1))
    support, predicted = (rng.integers(0, rows + 1, (clients, classes)) * occurs for _ in range(2))
    correct = rng.integers(0, np.minimum(support, predicted) + 1)
    counts = np.stack([support, predicted, correct], axis=1)
    np.testing.assert_array_equal(macro_f1(counts), [macro_f1(one[None])[0] for one in counts])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(PAIRS, PAIRS, st.integers(1, 500)), max_size=6))
def test_summaries_are_those_of_scikit_learn(clients: list[tuple[Pairs, Pairs, int]]) -> None:
    scores = {7 * i: np.stack([table(val), table(test)]) for i, (val, test, _) in enumerate(clients)}
    found = summarize(scores, [nodes for _, _, nodes in clients])
    parts = {name: [(client[part], client[2]) for client in clients if client[part]]
             for part, name in enumerate(("val", "test"))}  # fmt: skip
    assert found.keys() == {name for name, rows in parts.items() if rows}
    for name in found:
        rows = parts[name]
        accuracies = [accuracy_score(*zip(*pairs)) for pairs, _ in rows]
        pooled = list(zip(*(pair for pairs, _ in rows for pair in pairs)))
        f1 = partial(f1_score, average="macro", zero_division=0)
        expected = {"clients": np.mean(accuracies), "f1_clients": np.mean([f1(*zip(*pairs)) for pairs, _ in rows])}
        expected |= {"rows": accuracy_score(*pooled), "f1": f1(*pooled), "median": np.median(accuracies)}
        expected |= {"nodes": np.average(accuracies, weights=[nodes for _, nodes in rows])}
        expected |= {"min": min(accuracies), "max": max(accuracies)}
        assert found[name] == pytest.approx(expected)


@dataclass(frozen=True)
class Says(Algorithm):
    """Gives the scores that it is told."""

    scores: object = None

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        return self.scores  # type: ignore[return-value]


@pytest.fixture
def classes_of(make_view: MakeView, make_client: MakeClient) -> Callable[[object], list[int]]:
    """Classes that two rows are predicted to be of, of three."""
    client = make_client(make_view(2, [], [0, 1], [], 3), nn.Linear(1, 1))
    return lambda scores: scores_of(Says(scores), client, None, "all", 2).argmax(1).tolist()


def test_the_largest_score_wins(classes_of: Callable[[object], list[int]]) -> None:
    # The second pair has classes that are ruled out.
    for rows, classes in (([[1.0, 2, 0], [0, 0, 0]], [1, 0]), ([[-INF, -5, -INF], [3, -INF, 3]], [1, 0])):
        assert classes_of(torch.tensor(rows)) == classes_of(torch.tensor(rows).half()) == classes


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        *(
            (torch.tensor([[0.0, 1, 2], row]), "predictions of 'all' are NaN or infinite, so no class wins")
            for row in ([NAN, 0.0, 1.0], [0.0, NAN, NAN], [INF, 0.0, 1.0], [-INF, -INF, -INF])
        ),
        (torch.ones(2, 2), "in predict(): gives float32 [2, 2] for 'all', expected scores [2, 3]"),
        (torch.ones(3, 3), "in predict(): gives float32 [3, 3] for 'all', expected scores [2, 3]"),
        (torch.ones(2, 3) > 0, "in predict(): gives bool [2, 3] for 'all', expected scores [2, 3], as float32"),
        (torch.ones(2), "in predict(): gives float32 [2] for 'all', expected scores [2, 3]"),
        (None, "in predict(): gives None for 'all', expected scores [2, 3]"),
    ],
)
def test_scores_of_no_class_or_of_another_shape(classes_of: Callable[..., list[int]], scores: Any, says: str) -> None:
    with refused(says=says):
        classes_of(scores)


def pairs_one_by_one(key_N: list[float], label: list[int], c: int) -> int:
    """Pairs of a row of the class and one of another: 2 for each in which the first has the larger key, 1 for a tie."""
    rows = range(len(label))
    return sum(
        2 * (key_N[i] > key_N[j]) + (key_N[i] == key_N[j])
        for i, j in itertools.product(rows, rows)
        if label[i] == c and label[j] != c
    )


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(2, 6), st.booleans())
def test_ranks_against_scikit_learn(seed: int, rows: int, classes: int, tied: bool) -> None:
    rng = np.random.default_rng(seed)
    # Of whole rows that occur several times, ties are ties in every class.
    chosen = rng.integers(rows // 4 + 1 if tied else rows, size=rows)
    score = rng.normal(size=(rows, classes)).astype(np.float32)[chosen]
    # The last of several classes does not occur, and counts in no mean.
    label = rng.integers(max(classes - 1, 2), size=rows)
    wins = twice_wins(torch.from_numpy(score), torch.from_numpy(label))
    orders = np.arange(rows), rng.permutation(rows)
    precisions, other = (average_precisions(*map(torch.from_numpy, (score[of], label[of]))) for of in orders)
    assert (wins.dtype, precisions.dtype) == (np.int64, np.float64)
    # The same bits in any order.
    assert precisions.tobytes() == other.tobytes()
    power = np.exp(score.astype(np.float64))
    probability = power / power.sum(1, keepdims=True)
    support = np.bincount(label, minlength=classes)
    scored = [c for c in range(classes) if 0 < support[c] < rows]
    for c in range(classes):
        assert wins[c] == (pairs_one_by_one(probability[:, c].tolist(), label.tolist(), c) if c in scored else 0)
        expected = average_precision_score(label == c, probability[:, c]) if c in scored else 0
        assert precisions[c] == pytest.approx(expected, abs=1e-12)
    areas = [roc_auc_score(label == c, probability[:, c]) for c in scored]
    assert mean_auc(support, wins) == (pytest.approx(np.mean(areas)) if scored else None)


def test_ranks_of_extreme_scores() -> None:
    scores = torch.tensor([[50.0, 0.0], [60.0, 0.0], [0.0, 50.0], [0.0, 60.0]])
    assert torch.softmax(scores.double(), 1)[:2, 0].tolist() == [1.0, 1.0]
    # Of four pairs three are won; of those at 60 and 50 the probabilities are the same number.
    assert twice_wins(scores, torch.tensor([1, 0, 0, 1])).tolist() == [6, 6]
    # A class without a chance comes last, one without a rival first.
    scores = torch.tensor([[1.0, -INF, 0.0], [-INF, 2.0, -INF], [0.5, 0.5, 0.5], [3.0, -INF, -INF]])
    probability = torch.softmax(scores.double(), 1)
    for label in itertools.product(range(3), repeat=4):
        found = twice_wins(scores, torch.tensor(label))
        assert found.tolist() == [pairs_one_by_one(probability[:, c].tolist(), list(label), c) for c in range(3)]
    ruled_out = torch.tensor([[1.0, -INF], [-INF, 2.0], [3.0, -INF]])
    found = average_precisions(ruled_out, torch.tensor([1, 0, 0]))
    assert found.tolist() == pytest.approx([(1 / 2 + 2 / 3) / 2, 1 / 3])
    half = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float16, requires_grad=True)
    assert twice_wins(half, torch.tensor([1, 0])).tolist() == [2, 2]


OFFICIAL = {"roc_auc": roc_auc_score, "average_precision": average_precision_score}
BOTH = pytest.mark.parametrize("metric", OFFICIAL)
PARTS = {"val": [VAL], "test": [TEST], "both": [VAL, TEST]}
# Clients of the fixture `two_classes`: their graph, and their nodes in it.
HELD = [(0, slice(0, 20)), (0, slice(20, 40)), (0, slice(40, 60)), (1, slice(0, 20)), (1, slice(20, 40))]


def expected_over(metric: str, clients: list[tuple[np.ndarray, np.ndarray, int]]) -> dict[str, Any]:
    """Weightings over clients of labels, scores of class 1, and a number of items."""
    defined = [client for client in clients if len(set(client[0].tolist())) == 2]
    if not defined:
        return {**dict.fromkeys(("nodes", "rows", "clients", "min", "median", "max")), "ranked": 0}
    values = [OFFICIAL[metric](label, score) for label, score, _ in defined]
    by_nodes = np.average(values, weights=[items for _, _, items in defined])
    by_rows = np.average(values, weights=[len(label) for label, _, _ in defined])
    means = {"nodes": by_nodes, "rows": by_rows, "clients": np.mean(values), "median": np.median(values)}
    return {**means, "min": min(values), "max": max(values), "ranked": len(values)}


def counts_of(metric: str, label: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Counts of one part of a client."""
    support = np.bincount(label, minlength=2)
    last = measures_of([metric], {})[metric](torch.from_numpy(scores).reshape(-1, 2), torch.from_numpy(label))
    return np.stack([support, support, support, last])


@BOTH
@settings(deadline=None, max_examples=60)
@given(clients=st.lists(st.tuples(ROWS, st.integers(1, 90)), min_size=1, max_size=6))
def test_metric_of_clients_is_that_of_scikit_learn(metric: str, clients: list[tuple[list[Any], int]]) -> None:
    drawn = []
    for rows, items in clients:
        scores = np.array([row[:2] for row in rows], dtype=np.float32).reshape(-1, 2) / 2
        drawn.append((np.array([row[2] for row in rows], dtype=np.int64), scores, items))
    counts = {3 * i: counts_of(metric, label, scores)[None] for i, (label, scores, _) in enumerate(drawn)}
    items_of = [items for _, _, items in drawn]
    found = summarize(counts, items_of, ["test"], [metric])
    if not any(len(label) for label, _, _ in drawn):
        assert found == {}
        return
    expected = expected_over(metric, [(label, s[:, 1] - s[:, 0], items) for label, s, items in drawn if len(label)])
    assert found["test"][metric] == pytest.approx(expected, abs=1e-12)
    json.dumps(found, allow_nan=False)
    # The rest is what it is without.
    plain = summarize({i: of[:, :3] for i, of in counts.items()}, items_of, ["test"])
    assert {key: value for key, value in found["test"].items() if key not in (metric, "metric")} == plain["test"]


def of_nodes(graph: Any, nodes: slice, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, scores of class 1 and parts of some nodes, whose edges to others are cut."""
    start, stop, _ = nodes.indices(len(graph.y))
    inside = ((graph.edges >= start) & (graph.edges < stop)).all(1)
    scores = dense_sgc(graph.edges[inside] - start, graph.x[nodes], w, 2)
    return graph.y[nodes], scores[:, 1] - scores[:, 0], graph.split[nodes]


def assert_numbers(found: dict[str, Any], metric: str, rows: list[Any]) -> None:
    """Of a scope, from labels, scores and parts of clients or graphs."""
    for part, numbers in found.items():
        clients = [(y[np.isin(split, PARTS[part])], s[np.isin(split, PARTS[part])], len(y)) for y, s, split in rows]
        assert numbers[metric] == pytest.approx(expected_over(metric, clients), abs=1e-9)


@BOTH
def test_metric_of_every_scope_of_whole_rounds(start: Start, two_classes: Any, metric: str) -> None:
    graphs = two_classes.graphs
    server, plain = start({**two_classes.keys, "evaluation.metrics": metric}), start(two_classes.keys)
    for _ in range(3):
        scopes, without = server.round()["scopes"], plain.round()["scopes"]
    assert scopes.keys() == {"trained", "deployed", "global", "domains"}
    w = server.state.server["w"].double().numpy()
    assert_numbers(scopes["global"], metric, [of_nodes(graphs[place], nodes, w) for place, nodes in HELD])
    assert scopes["global"]["test"][metric]["ranked"] == 4
    downloads = {i: server.state.downloads[r]["w"].double().numpy() for i, r in server.state.newest.items()}
    assert (len(downloads), len(set(server.state.newest.values()))) == (5, 2)
    deployed = [of_nodes(graphs[place], nodes, downloads[i]) for i, (place, nodes) in enumerate(HELD)]
    assert_numbers(scopes["deployed"], metric, deployed)
    assert scopes["domains"].keys() == {"val", "test", "both"}
    assert_numbers(scopes["domains"], metric, [of_nodes(graph, slice(None), w) for graph in graphs])
    # Beside accuracy, which is what it is without; areas of domains stand where they stood.
    assert metric not in json.dumps(without)
    for scope in scopes.values():
        for part in scope.values():
            del part[metric], part["metric"]
    assert scopes == without
