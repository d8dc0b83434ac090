"""The server's model on whole graphs: against the model by dense algebra on all edges, and never as a client."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, roc_auc_score
from torch import Tensor

from shoal.algorithms.base import Context, Received, Requests, Tree
from shoal.algorithms.client import Client
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.costs import Pool
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.store.store import Store

Start = Callable[..., Server]
CLIENTS, GRAPHS, CLASSES = [0, 1, 2, 3, 4], [5, 6, 7], 4


class Seen:
    """A pool that remembers who was visited, and for what."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.trained: set[int] = set()
        self.evaluated: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterable[tuple[int, Outcome]]:
        for cell in cells:
            self.evaluated += [] if cell.phase else cell.ids
            self.trained |= set(cell.ids) if cell.phase else set()
            # A whole graph brings nothing of its own.
            assert not {*cell.states, *cell.inboxes, *cell.private} & set(GRAPHS)
        return self.pool.run_cells(cells, shared)


@pytest.fixture
def started(start: Start, three_domains: Any) -> Start:
    def started(keys: dict[str, Any] | None = None, **more: Any) -> Server:
        return start({**three_domains.keys, **(keys or {})}, **more)

    return started


def logits(graph: Any, w: np.ndarray) -> np.ndarray:
    """SGC of two hops on a whole graph: (D^-1/2 (A + I) D^-1/2)^2 X W + b, dense and in float64."""
    nodes = len(graph.y)
    adjacency = np.eye(nodes)
    adjacency[graph.edges[:, 0], graph.edges[:, 1]] = adjacency[graph.edges[:, 1], graph.edges[:, 0]] = 1
    scale = adjacency.sum(1) ** -0.5
    operator = scale[:, None] * adjacency * scale
    weight, bias = w[:-CLASSES].reshape(CLASSES, 5), w[-CLASSES:]
    return operator @ operator @ graph.x @ weight.T + bias


def expected_counts(graph: Any, w: np.ndarray) -> np.ndarray:
    found, score = np.zeros((3, 4, CLASSES), dtype=np.int64), logits(graph, w)
    for part, codes in enumerate(([VAL], [TEST], [VAL, TEST])):
        rows = np.flatnonzero(np.isin(graph.split, codes))
        for i in rows:
            predicted = score[i].argmax()
            found[part, 0, graph.y[i]] += 1
            found[part, 1, predicted] += 1
            found[part, 2, graph.y[i]] += graph.y[i] == predicted
            for c in range(CLASSES):
                for j in rows:
                    if graph.y[i] == c != graph.y[j]:
                        chance = [np.exp(score[k, c]) / np.exp(score[k]).sum() for k in (i, j)]
                        found[part, 3, c] += 2 * (chance[0] > chance[1]) + (chance[0] == chance[1])
    return found


def test_predictions_are_those_of_the_model_on_all_edges(started: Start, three_domains: Any) -> None:
    server = started({"rounds": 3}, pool=Seen)
    assert [(info.client, info.nodes) for info in server.graphs] == [(5, 60), (6, 40), (7, 36)]
    assert [info.train for info in server.graphs] == [(g.split == TRAIN).sum() for g in three_domains.graphs]
    for _ in range(3):
        line = server.round()
    w = server.state.server["w"].double().numpy()
    for number, graph in zip(GRAPHS, three_domains.graphs):
        np.testing.assert_array_equal(server.state.scores["domains"][number], expected_counts(graph, w))
    found = line["scopes"]["domains"]["both"]["domains"]
    assert list(found) == ["north", "south", "west"]
    assert list(line["scopes"]["domains"]["val"]["domains"]) == ["north", "south"]
    for graph in three_domains.graphs:
        rows = graph.split != TRAIN
        score, truth = logits(graph, w)[rows], graph.y[rows]
        chance = np.exp(score) / np.exp(score).sum(1, keepdims=True)
        assert found[graph.name]["accuracy"] == pytest.approx(accuracy_score(truth, score.argmax(1)))
        areas = [roc_auc_score(truth == c, chance[:, c]) for c in np.unique(truth)]
        assert found[graph.name]["auc"] == pytest.approx(np.mean(areas))
    # It learns: none of this is the answer of a constant.
    assert line["scopes"]["domains"]["both"]["auc"] > 0.65
    # Whole graphs are no clients.
    assert server._pool.trained == set(CLIENTS)  # type: ignore[attr-defined]
    assert line["cohort"] == CLIENTS
    assert server.state.clients.keys() | server.state.newest.keys() == set(CLIENTS)
    assert all(scores.keys() == set(CLIENTS) for scope, scores in server.state.scores.items() if scope != "domains")


def test_other_scopes_are_divided_by_domain(started: Start, three_domains: Any) -> None:
    server = started({"rounds": 1})
    scopes = server.round()["scopes"]
    assert scopes.keys() == {"trained", "served", "global", "domains"}
    for scope in ("trained", "served", "global"):
        counts = server.state.scores[scope]
        north = (counts[0] + counts[1])[1]
        assert scopes[scope]["test"]["domains"]["north"]["accuracy"] == north[2].sum() / north[0].sum()
        assert list(scopes[scope]["val"]["domains"]) == ["north", "south"]
        assert "auc" not in scopes[scope]["test"]


@dataclass(frozen=True)
class EverySecond(FedAvg):
    """FedAvg whose server goes back to the model that it had, in every second round."""

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        assert [info.client for info in ctx.clients] == CLIENTS
        before = server["w"].clone()
        yield from super().round(server, ctx, cohort)
        if ctx.round % 2 == 0:
            server["w"] = before


def test_a_model_that_did_not_change_is_not_evaluated_again(started: Start) -> None:
    keys = {"algorithm.name": f"{__file__}:EverySecond", "rounds": 4}
    server = started(keys, pool=Seen)
    lines = []
    for number in range(1, 5):
        pool: Any = server._pool
        lines.append(server.round())
        assert [i for i in sorted(pool.evaluated) if i in GRAPHS] == ([] if number % 2 == 0 else GRAPHS)
        # From what a checkpoint keeps.
        tensors, plain = server.state.to_tensors()
        assert tensors["scores/domains"].dtype == torch.int64
        server = started(keys, state=FederationState.from_tensors(tensors, plain), pool=Seen)
    assert lines[1]["scopes"]["domains"] == lines[0]["scopes"]["domains"] != lines[2]["scopes"]["domains"]
    through = started(keys)
    assert [through.round()["scopes"]["domains"] for _ in range(4)] == [line["scopes"]["domains"] for line in lines]


def test_sampled_clients_and_rounds_without_evaluation(started: Start) -> None:
    server = started({"participation.ratio": 0.4, "evaluation.every": 3, "rounds": 4}, pool=Seen)
    assert [sorted(server.round().get("scopes", {})) for _ in range(2)] == [[], []]
    pool: Any = server._pool
    assert not pool.evaluated
    assert "domains" in server.round()["scopes"]
    assert [i for i in pool.evaluated if i in GRAPHS] == GRAPHS
    assert all(set(server.cohort(number)) <= set(CLIENTS) for number in range(1, 5))


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm.name": "local"},
        # Its server gives a part of a model.
        {"algorithm.name": "lg_fedavg", "model.name": "gcn", "model.hidden": 4},
        {"evaluation.domains": False},
    ],
)
def test_without_a_model_to_evaluate_there_is_no_such_scope(started: Start, keys: dict[str, Any]) -> None:
    server = started({**keys, "rounds": 1}, pool=Seen)
    line = server.round()
    # That a server's model is a part is known in a round; the graphs are there until then.
    if keys.get("algorithm.name") != "lg_fedavg":
        assert not server.graphs
        assert server.job.domains == ()
        assert server.job.graphs == ""
    assert "domains" not in line["scopes"]
    assert "domains" not in server.state.scores
    assert line["scopes"]["served"]["test"]["domains"].keys() == {"north", "south", "west"}
    pool: Any = server._pool
    assert not set(pool.evaluated) & set(GRAPHS)


@dataclass(frozen=True)
class Mute(FedAvg):
    """The second whole graph cannot be evaluated."""

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        if client.info.client == 6:
            raise RuntimeError("no luck")
        return super().predict(client, received, part)


def test_a_graph_that_cannot_be_evaluated_is_named_and_left_out(started: Start) -> None:
    keys = {"algorithm.name": f"{__file__}:Mute", "engine.on_client_error": "skip", "rounds": 2}
    server = started(keys, pool=Seen)
    for _ in range(2):
        line = server.round()
        ((number, (text, _)),) = line["failures"].items()
        assert number == "6"
        assert text.startswith(f"round {line['round']}, domain south: ")
        assert line["cohort"] == CLIENTS
        assert line["scopes"]["domains"]["test"]["domains"].keys() == {"north", "west"}


def test_one_graph_has_no_domains(start: Start) -> None:
    server = start({"rounds": 1})
    scopes = server.round()["scopes"]
    assert scopes.keys() == {"served", "trained", "global"}
    assert "domains" not in scopes["global"]["test"]
    assert "balanced" not in scopes["global"]["test"]
    assert Store(server.job.store_path).manifest.domains == []
