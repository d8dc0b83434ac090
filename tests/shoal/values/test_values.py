"""Values of small runs, against runs of all coalitions from scratch, and what they refuse."""

import csv
import itertools
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.needs import needs
from support.small_runs import run_small
from support.user_graph import user_graph

from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.records.run_folder import read_summary
from shoal.pages.report import report
from shoal.past.fork import fork
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.values.client_values import ClientValues, read_values
from shoal.values.values import value_clients
from shoal.values.values_page import values_sections


def scores_from_scratch(folder: Path, whole: Path, clients: int, **changes: Any) -> dict[frozenset[int], Fraction]:
    """Validation accuracy of the server's model by coalition, of runs by the same config, each from its beginning."""
    scores, items = dict[frozenset[int], Fraction](), sum_of(whole)
    for size in range(1, clients + 1):
        for who in itertools.combinations(range(clients), size):
            out = [i for i in range(clients) if i not in who]
            participation = {**changes.get("participation", {}), "without": out}
            made = run_small(
                folder, **{**changes, "participation": participation, "name": f"c{'-'.join(map(str, who))}"}
            )
            accuracy = read_summary(made)["scopes"]["global"]["final"]["val"]["rows"]
            scores[frozenset(who)] = Fraction(round(accuracy * items), items)
    return scores


def sum_of(run: Path) -> int:
    """The number of validation items, by the summary of the store's split."""
    store, split = PastRun(run).store, PastRun(run).config.data.split_name
    return sum(len(store.split(split, client).val) for client in range(store.clients))


def shapley(scores: dict[frozenset[int], Fraction], first: Fraction, clients: int) -> list[Fraction]:
    added = [Fraction(0)] * clients
    for order in itertools.permutations(range(clients)):
        before, so_far = first, frozenset[int]()
        for client in order:
            so_far |= {client}
            added[client] += scores[so_far] - before
            before = scores[so_far]
    return [each / math.factorial(clients) for each in added]


def value(run: Path, method: Any = "shapley", **options: Any) -> ClientValues:
    return value_clients(PastRun(run), method, **options)


@pytest.mark.parametrize("changes", [{}, {"participation": {"ratio": 0.3}, "rounds": 4, "partition": {"clients": 4}}])
def test_exact_values_are_means_over_orders_of_runs_from_scratch(changes: dict[str, Any], tmp_path: Path) -> None:
    changes = {"partition": {"clients": 3}, "train": {"lr": 0.3}, **changes}
    clients = changes["partition"]["clients"]
    whole = run_small(tmp_path, **changes)
    found, items = value(whole, "exact"), sum_of(whole)
    scores = scores_from_scratch(tmp_path / "scratch", whole, clients, **changes)
    assert found.first is not None
    assert sum(found.items) == items
    first = Fraction(round(found.first * items / 100), items)
    expected = shapley(scores, first, clients)
    assert len(set(scores.values())) > 2
    by_client = dict(zip(found.clients, found.values))
    for client in range(clients):
        assert by_client.get(client, 0.0) == pytest.approx(float(100 * expected[client]), abs=1e-12)
    assert not any(found.halves)
    # Sampling takes all coalitions where they fit.
    again = value(whole)
    assert (list(again.values), again.cost.new) == (list(found.values), 0)


def test_the_first_model_scores_as_it_does_before_the_first_round(tmp_path: Path) -> None:
    """A learning rate of nearly nothing leaves the first model as it is, so that nobody adds anything."""
    whole = run_small(tmp_path, train={"lr": 1e-12})
    found = value(whole, "exact")
    assert found.first == pytest.approx(found.last)
    assert found.first > 0
    assert not any(found.values)


def test_what_clients_add_at_each_client_adds_up_and_is_on_the_page(
    tmp_path: Path, printed: Callable[..., str]
) -> None:
    whole, out = run_small(tmp_path, train={"lr": 0.3}), tmp_path / "values.csv"
    assert values_sections(whole) == []
    said = printed("values", whole, "--method", "exact", "--part", "test", "--out", out)
    kept = read_values(whole)
    assert kept is not None
    items = np.array(kept.items)
    assert np.array(kept.at_clients) @ items / items.sum() == pytest.approx(np.array(kept.values))
    assert kept.first is not None
    assert sum(kept.values) == pytest.approx(kept.last - kept.first)
    final = read_summary(whole)["scopes"]["global"]["final"]["test"]["rows"]
    assert kept.last == pytest.approx(100 * final)
    rows = list(csv.DictReader(out.open()))
    assert [int(row["client"]) for row in rows] == [kept.clients[p] for p in kept.order]
    for row, p in zip(rows, kept.order):
        assert float(row["value"]) == kept.values[p]
        assert [float(row[f"on client {j}"]) for j in range(4)] == list(kept.at_clients[p])
        own, rest = kept.at_clients[p][kept.clients[p]], items.sum() - items[kept.clients[p]]
        others = (kept.values[p] * items.sum() - own * items[kept.clients[p]]) / rest
        assert float(row["on itself"]) == own
        assert float(row["on others"]) == pytest.approx(others)
    assert "all 16 coalitions" in said
    sections = values_sections(whole)
    ordered, at_clients = (drawing.drawn.axes for drawing in sections[0].drawings)
    assert [text.get_text() for text in ordered[0].texts][::2] == [f"client {kept.clients[p]}" for p in kept.order]
    (image,) = at_clients[0].images
    assert np.asarray(image.get_array()) == pytest.approx(np.array(kept.at_clients))
    assert "Values of clients" in report([whole], None, kinds=("svg",)).read_text()
    (whole / "values.json").write_text("{}")
    with refused(whole / "values.json", says="shoal values writes it again"):
        report([whole], None)


def test_interrupted_it_trains_no_coalition_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, trained, before = run_small(tmp_path), list[int](), LocalBackend.round

    def counted(self: LocalBackend, watch: Any) -> dict[str, Any]:
        if len(trained) == stop:
            raise ShoalError("killed")
        line = before(self, watch)
        trained.append(len(line["cohort"]))
        return line

    monkeypatch.setattr(LocalBackend, "round", counted)
    stop = 10
    with pytest.raises(ShoalError, match="killed"):
        value(whole, "exact")
    stop = 1000
    found = value(whole, "exact")
    # One round of three was lost: coalitions but the empty one have three rounds each.
    assert len(trained) == 3 * 15 + 1
    # All members are visited in each round.
    assert found.cost.trainings == sum(math.comb(4, size) * size for size in range(5)) / 4 == 8
    file = whole / "coalitions.jsonl"
    kept = file.read_bytes()
    trained.clear()
    assert value(whole, "exact").values == found.values
    assert trained == []
    # A torn line is trained again, and so is all of another machine or content.
    file.write_bytes(kept[:-20])
    assert value(whole, "exact").values == found.values
    assert len(trained) == 3
    head = json.loads(kept.splitlines()[0])
    assert head["players"] == [0, 1, 2, 3]
    file.write_bytes(kept.replace(head["environment"]["torch"].encode(), b"0.0.0"))
    trained.clear()
    assert value(whole, "exact").values == found.values
    assert len(trained) == 45


def test_one_client_has_all_of_the_value_and_one_without_visits_none(tmp_path: Path) -> None:
    alone = value(run_small(tmp_path, partition={"clients": 1}, train={"lr": 0.3}))
    assert alone.first is not None
    assert list(alone.values) == pytest.approx([alone.last - alone.first])
    found = value(run_small(tmp_path / "few", participation={"count": 1}, rounds=2), "leave-one-out")
    assert len(found.clients) + len(found.others) == 4
    assert found.others
    assert f"never asked, value 0: {len(found.others)} clients" in found.table().text()


def test_a_client_without_training_items_adds_nothing(tmp_path: Path) -> None:
    nodes = np.arange(48)
    # Client 2 has nodes to be scored alone.
    split = np.where(nodes % 2, VAL, np.where(nodes % 3 == 2, TEST, TRAIN)).astype(np.int8)
    path = user_graph(tmp_path, 48, "graph", assignment=nodes % 3, split=split)
    data = {"dataset": "files", "path": path, "split": "public", "options": {}}
    found = value(
        run_small(tmp_path, data=data, partition={"method": "file", "clients": 3}, train={"lr": 0.3}), "exact"
    )
    values = dict(zip(found.clients, found.values))
    assert values[2] == 0
    assert any(values.values())
    assert found.items[2] > 0


def test_leaving_out_is_what_influence_measures(tmp_path: Path) -> None:
    whole = run_small(tmp_path, train={"lr": 0.3})
    found = value(whole, "leave-one-out", part="test")
    from shoal.influence.influence import influence

    for each in influence(whole, scope="global").found:
        gain = sum(map(sum, each.gains))
        assert found.values[each.client] == pytest.approx(100 * gain / sum(found.items))


@needs("compression", "robust")
@pytest.mark.parametrize(
    "stage",
    [
        {"communication": {"upload": "int8"}},
        {"aggregation": "median"},
    ],
)
def test_stages_act_on_coalitions_as_on_runs(stage: dict[str, Any], tmp_path: Path) -> None:
    changes = {"partition": {"clients": 3}, "train": {"lr": 0.3}, **stage}
    whole = run_small(tmp_path, **changes)
    found = value(whole, "leave-one-out")
    items = sum(found.items)
    for p, client in enumerate(found.clients):
        made = run_small(tmp_path, **changes, participation={"without": [client]}, name=f"without-{client}")
        both = (read_summary(path)["scopes"]["global"]["final"]["val"]["rows"] for path in (whole, made))
        with_it, without = (round(accuracy * items) for accuracy in both)
        assert found.values[p] == pytest.approx(100 * (with_it - without) / items)


@needs("privacy")
def test_privacy_of_clients_is_refused(tmp_path: Path) -> None:
    private = run_small(tmp_path, privacy={"unit": "client", "clip": 1.0, "noise": 0.1})
    with refused(private, "privacy.unit"):
        value(private)


def test_what_has_no_values_is_refused(tmp_path: Path) -> None:
    whole = run_small(tmp_path, rounds=1)
    for option, method in (("precision", "exact"), ("trainings", "leave-one-out"), ("tolerance", "shapley")):
        with refused(f"--{option}"):
            value(whole, method, **{option: 1.0})
    with refused("--trainings"):
        value(whole, trainings=2.0)
    own = run_small(tmp_path, rounds=1, algorithm={"name": "local"})
    with refused(own, "algorithm.name"):
        value(own)
    central = run_small(tmp_path, rounds=1, algorithm={"name": "global"})
    with refused(central, "algorithm.name"):
        value(central)
    forked = fork(run_small(tmp_path, name="parent"), 2, [])
    with refused(forked, says="is a fork"):
        value(forked)
    (whole / "summary.json").unlink()
    with refused(whole, says="not finished"):
        value(whole)
