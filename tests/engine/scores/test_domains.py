"""Numbers by domain and on whole graphs: against scikit-learn, and the model by dense algebra on all edges."""

import json
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_auc_score
from support.fixtures import MakeClient, Start
from support.plain_fedavg import dense_sgc
from support.small_cells import Watched as Seen
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Client, Received
from shoal.algorithms.client import ClientInfo
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.engine.rounds.server import Server
from shoal.engine.scores.counts import summarize
from shoal.engine.scores.domains import Domains, score_graph
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import Cache, View
from shoal.storage.store.manifest import DomainRecord

CLASSES = 3
RECORDS = [DomainRecord("de", 90, [0, 2]), DomainRecord("pt", 40, [2, 1]), DomainRecord("ru", 70, [3, 2])]
NODES = {0: 30, 1: 20, 2: 40, 3: 10, 4: 50}
GRAPHS = [ClientInfo(5 + place, record.nodes, 0, CLASSES) for place, record in enumerate(RECORDS)]


@dataclass(frozen=True)
class Told(Algorithm):
    """Gives the scores that lie in the features."""

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        rows: Tensor = getattr(client.data, part)
        return client.data.x[rows]


class Rows:
    """Labels and scores of the rows of each part, drawn."""

    def __init__(self, seed: int, val: int, test: int, classes: int = CLASSES) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = val, test
        self.label = rng.integers(classes, size=val + test)
        self.scores = rng.integers(-4, 5, size=(val + test, CLASSES)).astype(np.float32) / 2
        self.scores += 0.7 * np.eye(CLASSES, dtype=np.float32)[self.label]

    def counts(self, make_client: MakeClient) -> np.ndarray:
        nodes, val = sum(self.sizes), self.sizes[0]
        none, every = np.zeros(0, dtype=np.int32), np.arange(nodes)
        starts = np.zeros(nodes + 1, dtype=np.int32)
        shard = Shard(0, every, self.label.astype(np.int32), starts, none, self.scores)
        view = View("rows", shard, Split(none, every[:val], every[val:]), [], CLASSES, Cache(0))
        return score_graph(Told(), make_client(view, nn.Linear(1, 1)), {})

    def part(self, name: str) -> slice:
        val = self.sizes[0]
        return {"val": slice(0, val), "test": slice(val, None), "both": slice(None)}[name]

    def expected(self, part: str) -> dict[str, Any] | None:
        truth, scores = self.label[self.part(part)], self.scores[self.part(part)].astype(np.float64)
        if not len(truth):
            return None
        predicted = scores.argmax(1)
        probability = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        ranked = [c for c in range(CLASSES) if 0 < (truth == c).sum() < len(truth)]
        areas = [roc_auc_score(truth == c, probability[:, c]) for c in ranked]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # predicted classes that do not occur
            found = {"balanced": balanced_accuracy_score(truth, predicted)}
        found |= {"accuracy": accuracy_score(truth, predicted), "majority": np.bincount(truth).max() / len(truth)}
        found |= {"f1": f1_score(truth, predicted, average="macro", zero_division=0)}
        return found | {"auc": np.mean(areas) if areas else None}


# Sizes of validation and test, and how many classes occur: nobody validates in the second, one class is in the third.
CASES = [(20, 31, 3), (0, 25, 2), (17, 12, 1)]


def test_the_scope_of_whole_graphs(make_client: MakeClient) -> None:
    drawn = [Rows(seed, *case) for seed, case in enumerate(CASES)]
    scores = {5 + place: rows.counts(make_client) for place, rows in enumerate(drawn)}
    for counts in scores.values():
        assert (counts.dtype, counts.shape) == (np.int64, (3, 4, CLASSES))
        np.testing.assert_array_equal(counts[2, :3], counts[:2, :3].sum(0))
    found = Domains(RECORDS, GRAPHS).summarize_graphs(scores)
    assert list(found) == ["val", "test", "both"]
    for part, table in found.items():
        of = {record.name: rows.expected(part) for record, rows in zip(RECORDS, drawn)}
        named = {name: expected for name, expected in of.items() if expected is not None}
        assert table["domains"].keys() == named.keys()
        assert (part == "val") == ("pt" not in named)
        for name, expected in named.items():
            assert table["domains"][name] == pytest.approx(expected)
        means = {"clients": "accuracy", "f1_clients": "f1", "balanced": "balanced", "majority": "majority"}
        for key, rate in means.items():
            assert table[key] == pytest.approx(np.mean([expected[rate] for expected in named.values()]))
        areas = [expected["auc"] for expected in named.values() if expected["auc"] is not None]
        assert len(areas) == len(named) - 1
        assert table["auc"] == pytest.approx(np.mean(areas))
        labels = [rows.label[rows.part(part)] for record, rows in zip(RECORDS, drawn) if record.name in named]
        shares = [np.bincount(label, minlength=CLASSES) / len(label) for label in labels]
        assert table["constant"] == pytest.approx(np.mean(shares, axis=0).max())
        assert table["constant_class"] == np.mean(shares, axis=0).argmax()
        assert type(table["constant_class"]) is int
        nodes = [record.nodes for record in RECORDS if record.name in named]
        assert table["nodes"] == pytest.approx(np.average([e["accuracy"] for e in named.values()], weights=nodes))
        assert {"rows", "f1", "min", "median", "max"} < table.keys()
        json.dumps(table, allow_nan=False)


def test_no_area_where_every_domain_has_one_class(make_client: MakeClient) -> None:
    scores = {5: Rows(0, 3, 4, 1).counts(make_client), 7: Rows(1, 2, 2, 1).counts(make_client)}
    found = Domains(RECORDS, GRAPHS).summarize_graphs(scores)
    for table in found.values():
        assert table["auc"] is None
        assert list(table["domains"]) == ["de", "ru"]
        assert all(rates["auc"] is None for rates in table["domains"].values())
    # Domains whose graph could not be evaluated are in no mean; without any there are no numbers.
    assert Domains(RECORDS, GRAPHS).summarize_graphs({}) == {}


def test_other_scopes_by_the_clients_of_each_domain(make_client: MakeClient) -> None:
    # Clients 0 and 1 are of the first domain; nobody validates in the second; client 4 could not be evaluated.
    drawn = {0: Rows(1, 6, 9), 1: Rows(2, 0, 30), 2: Rows(3, 0, 12, 2), 3: Rows(4, 8, 5)}
    scores = {i: rows.counts(make_client)[:2, :3] for i, rows in drawn.items()}
    plain, found = (summarize(scores, [NODES[i] for i in drawn]) for _ in range(2))
    Domains(RECORDS, []).add_to(found, scores)
    members = {"de": [0, 1], "pt": [2], "ru": [3]}
    for part, names in {"val": ["de", "ru"], "test": ["de", "pt", "ru"]}.items():
        table = found[part]
        assert {key: value for key, value in table.items() if key not in ("balanced", "domains")} == plain[part]
        assert list(table["domains"]) == names
        for name in names:
            pooled = Rows(0, 0, 0)
            pooled.label = np.concatenate([drawn[i].label[drawn[i].part(part)] for i in members[name]])
            pooled.scores = np.concatenate([drawn[i].scores[drawn[i].part(part)] for i in members[name]])
            expected = pooled.expected("both")
            assert expected is not None
            del expected["auc"]
            alone = [rates for i in members[name] if (rates := drawn[i].expected(part)) is not None]
            for mean, rate in {"clients": "accuracy", "f1_clients": "f1"}.items():
                expected[mean] = np.mean([rates[rate] for rates in alone])
            assert table["domains"][name] == pytest.approx(expected)
        assert table["balanced"] == pytest.approx(np.mean([rates["balanced"] for rates in table["domains"].values()]))


CLIENTS, WHOLE, FOUR = [0, 1, 2, 3, 4], [5, 6, 7], 4


@pytest.fixture
def started(start: Start, three_domains: Any) -> Start:
    def started(keys: dict[str, Any] | None = None, **more: Any) -> Server:
        return start({**three_domains.keys, **(keys or {})}, **more)

    return started


def expected_counts(graph: Any, w: np.ndarray) -> np.ndarray:
    found, score = np.zeros((3, 4, FOUR), dtype=np.int64), dense_sgc(graph.edges, graph.x, w, FOUR)
    chance = np.exp(score) / np.exp(score).sum(1, keepdims=True)
    for part, codes in enumerate(([VAL], [TEST], [VAL, TEST])):
        rows = np.flatnonzero(np.isin(graph.split, codes))
        for i in rows:
            c, predicted = graph.y[i], score[i].argmax()
            found[part, :3, c] += [1, 0, c == predicted]
            found[part, 1, predicted] += 1
            others = chance[rows[graph.y[rows] != c], c]
            found[part, 3, c] += 2 * (chance[i, c] > others).sum() + (chance[i, c] == others).sum()
    return found


def test_predictions_are_those_of_the_model_on_all_edges(started: Start, three_domains: Any) -> None:
    server = started({"rounds": 3}, pool=Seen)
    assert [(info.client, info.nodes) for info in server.graphs] == [(5, 60), (6, 40), (7, 36)]
    assert [info.train for info in server.graphs] == [(g.split == TRAIN).sum() for g in three_domains.graphs]
    for _ in range(3):
        line = server.round()
    w = server.state.server["w"].double().numpy()
    for number, graph in zip(WHOLE, three_domains.graphs):
        np.testing.assert_array_equal(server.state.scores["domains"][number], expected_counts(graph, w))
    found = line["scopes"]["domains"]["both"]["domains"]
    assert list(found) == ["north", "south", "west"]
    assert list(line["scopes"]["domains"]["val"]["domains"]) == ["north", "south"]
    # Scopes of clients are divided by domain.
    assert line["scopes"].keys() == {"trained", "deployed", "global", "domains"}
    for scope in ("trained", "deployed", "global"):
        north = (server.state.scores[scope][0] + server.state.scores[scope][1])[1]
        tables = line["scopes"][scope]
        assert tables["test"]["domains"]["north"]["accuracy"] == north[2].sum() / north[0].sum()
        assert list(tables["val"]["domains"]) == ["north", "south"]
        assert "auc" not in tables["test"]
    # It learns: none of this is the answer of a constant.
    assert line["scopes"]["domains"]["both"]["auc"] > 0.65
    # Whole graphs are no clients.
    assert server._pool.trained == set(CLIENTS)  # type: ignore[attr-defined]
    assert line["cohort"] == CLIENTS
    assert server.state.clients.keys() | server.state.newest.keys() == set(CLIENTS)
    assert all(scores.keys() == set(CLIENTS) for scope, scores in server.state.scores.items() if scope != "domains")


# The server of LG-FedAvg gives a part of a model.
PART = {"algorithm.name": "lg_fedavg", "model.name": "gcn", "model.hidden": 4}


@pytest.mark.parametrize("keys", [{"algorithm.name": "local"}, {"evaluation.domains": False}, PART])
def test_without_a_model_to_evaluate_there_is_no_such_scope(started: Start, keys: dict[str, Any]) -> None:
    server = started({**keys, "rounds": 1}, pool=Seen)
    line = server.round()
    # That a server's model is a part is known in a round; the graphs are there until then.
    if keys.get("algorithm.name") != "lg_fedavg":
        assert (list(server.graphs), server.job.domains, server.job.graphs) == ([], (), "")
        assert server.job.open_graphs(server.job.open_store()) is None
    assert "domains" not in line["scopes"].keys() | server.state.scores.keys()
    assert line["scopes"]["deployed"]["test"]["domains"].keys() == {"north", "south", "west"}
    pool: Any = server._pool
    assert not set(pool.evaluated) & set(WHOLE)


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
