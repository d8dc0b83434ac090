"""The metric of a run: of clients with drawn scores against scikit-learn, and of whole rounds by dense algebra."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from shoal.algorithms.protocol import MODEL, parameters_key
from shoal.engine.rounds.scoring import over_clients, ranked, ranks, summarize
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.options.split_codes import TEST, VAL

Start = Callable[..., Server]
OFFICIAL = {"roc_auc": roc_auc_score, "average_precision": average_precision_score}
METRICS = list(OFFICIAL)
PARTS = {"val": [VAL], "test": [TEST], "both": [VAL, TEST]}
# Clients of the fixture `two_classes`: their graph, and their nodes in it.
HELD = [(0, slice(0, 20)), (0, slice(20, 40)), (0, slice(40, 60)), (1, slice(0, 20)), (1, slice(20, 40))]
ROWS = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 1)), max_size=12)


def expected_over(metric: str, clients: list[tuple[np.ndarray, np.ndarray, int]]) -> dict[str, Any]:
    """Weightings over clients of labels, scores of class 1, and a number of items."""
    defined = [client for client in clients if len(set(client[0].tolist())) == 2]
    if not defined:
        return {**dict.fromkeys(("nodes", "rows", "clients", "min", "median", "max")), "ranked": 0}
    values = [OFFICIAL[metric](label, score) for label, score, _ in defined]
    return {
        "nodes": np.average(values, weights=[items for _, _, items in defined]),
        "rows": np.average(values, weights=[len(label) for label, _, _ in defined]),
        "clients": np.mean(values),
        "min": min(values),
        "median": np.median(values),
        "max": max(values),
        "ranked": len(values),
    }


def counts_of(metric: str, label: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Counts of one part of a client."""
    support = np.bincount(label, minlength=2)
    last = ranks(metric, torch.from_numpy(scores).reshape(-1, 2), torch.from_numpy(label))
    return np.stack([support, support, support, last])


@pytest.mark.parametrize("metric", METRICS)
@settings(deadline=None, max_examples=60)
@given(clients=st.lists(st.tuples(ROWS, st.integers(1, 90)), min_size=1, max_size=6))
def test_clients_are_ranked_as_by_scikit_learn(metric: str, clients: list[tuple[list[Any], int]]) -> None:
    drawn = []
    for rows, items in clients:
        scores = np.array([row[:2] for row in rows], dtype=np.float32).reshape(-1, 2) / 2
        drawn.append((np.array([row[2] for row in rows], dtype=np.int64), scores, items))
    counts = {3 * i: counts_of(metric, label, scores)[None] for i, (label, scores, _) in enumerate(drawn)}
    found = summarize(counts, {3 * i: items for i, (_, _, items) in enumerate(drawn)}, ["test"], metric)
    if not any(len(label) for label, _, _ in drawn):
        assert found == {}
        return
    expected = expected_over(metric, [(label, s[:, 1] - s[:, 0], items) for label, s, items in drawn if len(label)])
    assert found["test"][metric] == pytest.approx(expected, abs=1e-12)
    json.dumps(found, allow_nan=False)
    # The rest is what it is without.
    plain = summarize(
        {i: of[:, :3] for i, of in counts.items()}, {3 * i: items for i, (_, _, items) in enumerate(drawn)}, ["test"]
    )
    assert {key: value for key, value in found["test"].items() if key != metric} == plain["test"]


@pytest.mark.parametrize("metric", METRICS)
def test_defined_where_both_classes_occur(metric: str) -> None:
    score = np.array([[0.0, 1.0], [0.0, 2.0]], dtype=np.float32)
    cases = [([1, 1], score), ([0, 0], score), ([1], score[:1]), ([1, 0], score), ([0, 1], score)]
    counts = np.stack([counts_of(metric, np.array(label), scores) for label, scores in cases])
    found = ranked(metric, counts[:, 0], counts[:, -1])
    assert np.isnan(found[:3]).all()
    # The one of class 1 is below the other, and above it.
    assert found[3:].tolist() == [0.0 if metric == "roc_auc" else 0.5, 1.0]
    nobody = over_clients(found[:3], np.array([1, 2, 3]), np.array([2, 2, 1]))
    assert nobody.pop("ranked") == 0
    assert set(nobody.values()) == {None}


def logits(nodes: int, edges: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """SGC of two hops: (D^-1/2 (A + I) D^-1/2)^2 X W + b, dense and in float64."""
    adjacency = np.eye(nodes)
    adjacency[edges[:, 0], edges[:, 1]] = adjacency[edges[:, 1], edges[:, 0]] = 1
    scale = adjacency.sum(1) ** -0.5
    operator = scale[:, None] * adjacency * scale
    return operator @ operator @ x @ w[:-2].reshape(2, 5).T + w[-2:]


def of_client(graphs: Any, client: int, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, scores of class 1 and parts of a client's nodes, whose edges to others are cut."""
    number, nodes = HELD[client]
    graph = graphs[number]
    inside = ((graph.edges >= nodes.start) & (graph.edges < nodes.stop)).all(1)
    score = logits(20, graph.edges[inside] - nodes.start, graph.x[nodes], w)
    return graph.y[nodes], score[:, 1] - score[:, 0], graph.split[nodes]


def assert_numbers(found: dict[str, Any], metric: str, rows: list[Any]) -> None:
    """Of a scope, from labels, scores and parts of clients or graphs."""
    for part, table in found.items():
        clients = [(y[np.isin(split, PARTS[part])], s[np.isin(split, PARTS[part])], len(y)) for y, s, split in rows]
        assert table[metric] == pytest.approx(expected_over(metric, clients), abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_every_scope_of_whole_rounds(start: Start, two_classes: Any, metric: str) -> None:
    keys, graphs = {**two_classes.keys, "evaluation.metric": metric}, two_classes.graphs
    server = start(keys)
    for _ in range(3):
        scopes = server.round()["scopes"]
    assert scopes.keys() == {"trained", "served", "global", "domains"}
    w = server.state.server["w"].double().numpy()
    assert_numbers(scopes["global"], metric, [of_client(graphs, i, w) for i in range(5)])
    assert scopes["global"]["test"][metric]["ranked"] == 4
    assert scopes["global"]["val"][metric]["ranked"] <= 3
    downloads = {i: server.state.downloads[r]["w"].double().numpy() for i, r in server.state.newest.items()}
    assert (len(downloads), len(set(server.state.newest.values()))) == (5, 2)
    assert_numbers(scopes["served"], metric, [of_client(graphs, i, downloads[i]) for i in range(5)])
    whole = []
    for graph in graphs:
        score = logits(len(graph.y), graph.edges, graph.x, w)
        whole.append((graph.y, score[:, 1] - score[:, 0], graph.split))
    assert scopes["domains"].keys() == {"val", "test", "both"}
    assert_numbers(scopes["domains"], metric, whole)
    # Beside accuracy, which is what it is without; areas of domains stand where they stood.
    plain = start(two_classes.keys)
    for _ in range(3):
        without = plain.round()["scopes"]
    assert metric not in json.dumps(without)
    for scope in scopes.values():
        for part in scope.values():
            del part[metric]
    assert scopes == without


def test_what_clients_trained(start: Start, two_classes: Any) -> None:
    keys = {**two_classes.keys, "algorithm.name": "local", "participation.ratio": 1.0, "evaluation.metric": "roc_auc"}
    server = start(keys)
    for _ in range(2):
        scopes = server.round()["scopes"]
    own = [server.state.clients[i][parameters_key(MODEL)].double().numpy() for i in range(5)]
    rows = [of_client(two_classes.graphs, i, w) for i, w in enumerate(own)]
    assert scopes.keys() == {"trained", "served"}
    for scope in scopes.values():
        assert_numbers(scope, "roc_auc", rows)


def test_a_state_goes_on_with_the_same_bits(start: Start, two_classes: Any) -> None:
    keys = {**two_classes.keys, "evaluation.metric": "average_precision"}
    through, first = start(keys), start(keys)
    expected = [through.round()["scopes"] for _ in range(4)]
    found = [first.round()["scopes"] for _ in range(2)]
    again = start(keys, state=FederationState.from_tensors(*first.state.to_tensors()))
    found += [again.round()["scopes"] for _ in range(2)]
    assert found == expected
