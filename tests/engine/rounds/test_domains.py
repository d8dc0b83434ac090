"""Numbers by domain against scikit-learn, and those of whole graphs from scores that are given row by row."""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_auc_score
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Client, Received
from shoal.algorithms.client import ClientInfo
from shoal.engine.rounds.domains import Domains, rates, score_graph
from shoal.engine.rounds.scoring import score, summarize
from shoal.storage.store.manifest import DomainRecord
from shoal.storage.store.shard import Shard
from shoal.storage.store.split import Split
from shoal.storage.store.view import Cache, View

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

    def counts(self, make_client: Callable[..., Client]) -> np.ndarray:
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
        power = np.exp(scores)
        probability = power / power.sum(1, keepdims=True)
        areas = [
            roc_auc_score(truth == c, probability[:, c]) for c in range(CLASSES) if 0 < (truth == c).sum() < len(truth)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # predicted classes that do not occur
            balanced = balanced_accuracy_score(truth, predicted)
        return {
            "accuracy": accuracy_score(truth, predicted),
            "f1": f1_score(truth, predicted, average="macro", zero_division=0),
            "balanced": balanced,
            "auc": np.mean(areas) if areas else None,
            "majority": np.bincount(truth).max() / len(truth),
        }


# Sizes of validation and test, and how many classes occur: nobody validates in the second, one class is in the third.
CASES = [(20, 31, 3), (0, 25, 2), (17, 12, 1), (4, 0, 3)]


@pytest.mark.parametrize(("val", "test", "classes"), CASES)
def test_a_whole_graph_by_scikit_learn(make_client: Callable[..., Client], val: int, test: int, classes: int) -> None:
    rows = Rows(val, val, test, classes)
    counts = rows.counts(make_client)
    assert (counts.dtype, counts.shape) == (np.int64, (3, 4, CLASSES))
    for part, name in enumerate(("val", "test", "both")):
        expected = rows.expected(name)
        assert counts[part, 0].sum() == (0 if expected is None else len(rows.label[rows.part(name)]))
        if expected is not None:
            assert rates(counts[part]) == pytest.approx(expected)
            # Without ranks there is no area.
            del expected["auc"]
            assert rates(counts[part, :3]) == pytest.approx(expected)
    # What a client's counts are, too.
    np.testing.assert_array_equal(counts[2, :3], counts[:2, :3].sum(0))


def whole(make_client: Callable[..., Client]) -> tuple[list[Rows], dict[int, np.ndarray]]:
    drawn = [Rows(seed, *case) for seed, case in enumerate(CASES[:3])]
    return drawn, {5 + place: rows.counts(make_client) for place, rows in enumerate(drawn)}


def test_the_scope_of_whole_graphs(make_client: Callable[..., Client]) -> None:
    drawn, scores = whole(make_client)
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
        shares = [np.bincount(rows.label[rows.part(part)], minlength=CLASSES) / len(rows.label[rows.part(part)])
                  for record, rows in zip(RECORDS, drawn) if record.name in named]  # fmt: skip
        assert table["constant"] == pytest.approx(np.mean(shares, axis=0).max())
        assert table["constant_class"] == np.mean(shares, axis=0).argmax()
        assert type(table["constant_class"]) is int
        nodes = [record.nodes for record in RECORDS if record.name in named]
        assert table["nodes"] == pytest.approx(np.average([e["accuracy"] for e in named.values()], weights=nodes))
        assert {"rows", "f1", "min", "median", "max"} < table.keys()
        json.dumps(table, allow_nan=False)


def test_the_best_class_for_all_domains_is_not_the_mean_of_the_best_of_each() -> None:
    def counts(*support: int) -> np.ndarray:
        found = np.zeros((3, 4, CLASSES), dtype=np.int64)
        found[1:, 0] = support
        return found

    # Shares of the classes: (6, 3, 1), (1, 5, 4), (0, 2, 8) tenths; their means 7/30, 10/30, 13/30.
    scores = {5: counts(6, 3, 1), 6: counts(10, 50, 40), 7: counts(0, 2, 8)}
    found = Domains(RECORDS, GRAPHS).summarize_graphs(scores)
    assert found.keys() == {"test", "both"}
    for table in found.values():
        assert (table["constant_class"], table["constant"]) == (2, pytest.approx(13 / 30))
        assert table["majority"] == pytest.approx((0.6 + 0.5 + 0.8) / 3)
        assert [rates["majority"] for rates in table["domains"].values()] == pytest.approx([0.6, 0.5, 0.8])
        assert table["balanced"] == 0.0


def test_no_area_where_every_domain_has_one_class(make_client: Callable[..., Client]) -> None:
    scores = {5: Rows(0, 3, 4, 1).counts(make_client), 7: Rows(1, 2, 2, 1).counts(make_client)}
    found = Domains(RECORDS, GRAPHS).summarize_graphs(scores)
    for table in found.values():
        assert table["auc"] is None
        assert list(table["domains"]) == ["de", "ru"]
        assert all(rates["auc"] is None for rates in table["domains"].values())
    # Domains whose graph could not be evaluated are in no mean; without any there are no numbers.
    assert Domains(RECORDS, GRAPHS).summarize_graphs({}) == {}


def test_other_scopes_by_the_clients_of_each_domain(make_client: Callable[..., Client]) -> None:
    # Clients 0 and 1 are of the first domain; nobody validates in the second; client 4 could not be evaluated.
    drawn = {0: Rows(1, 6, 9), 1: Rows(2, 0, 30), 2: Rows(3, 0, 12, 2), 3: Rows(4, 8, 5)}
    scores = {i: rows.counts(make_client)[:2, :3] for i, rows in drawn.items()}
    plain, found = summarize(scores, NODES), summarize(scores, NODES)
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


def test_rows_of_a_part_count_as_those_of_a_client(make_client: Callable[..., Client]) -> None:
    rows = Rows(9, 11, 14)
    none, every = np.zeros(0, dtype=np.int32), np.arange(25)
    shard = Shard(0, every, rows.label.astype(np.int32), np.zeros(26, dtype=np.int32), none, rows.scores)
    view = View("rows", shard, Split(none, every[:11], every[11:]), [], CLASSES, Cache(0))
    counts = score(Told(), make_client(view, nn.Linear(1, 1)), {})
    np.testing.assert_array_equal(rows.counts(make_client)[:2, :3], counts)
