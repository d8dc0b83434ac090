"""Values of a run's own uploads, against orders of clients round by round, and what they refuse."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from support.errors import refused
from support.needs import needs
from support.small_runs import run_small

from shoal.attacks.seen_uploads import seen_round
from shoal.past.rewind import PastRun
from shoal.values.client_values import ClientValues
from shoal.values.uploads import UploadGame
from shoal.values.values import value_clients

# Of Linux: what a process maps.
MAPPINGS = Path("/proc/self/maps")
FAST = {"train": {"lr": 0.3}}


def value(run: Path, **options: Any) -> ClientValues:
    return value_clients(PastRun(run), "uploads", **options)


def values_by_orders(run: Path, part: str) -> tuple[np.ndarray, float]:
    """Values in points by client, from means of the uploads that attacks see, over all orders; and right items at last.

    Models are matrices here, and predictions products with the rows of the hop that SGC reads.
    """
    past = PastRun(run)
    value_N = np.zeros(past.store.clients)
    for number in range(1, len(past.lines) + 1):
        seen = seen_round(past, number, range(past.store.clients))
        clients = [seen.client(i) for i in range(past.store.clients)]
        hops: list[Any] = [client.model.gathered(part) for client in clients]
        rows = [inputs[-1].double().numpy() for inputs in hops]
        labels = [client.data.label[getattr(client.data, part)].numpy() for client in clients]
        classes, items = clients[0].info.classes, sum(map(len, labels))

        def right(w: np.ndarray, rows: Sequence[np.ndarray] = rows, labels: Sequence[np.ndarray] = labels) -> float:
            weight, bias = w[:-classes].reshape(classes, -1), w[-classes:]  # noqa: B023
            return float(sum(((x @ weight.T + bias).argmax(1) == y).sum() for x, y in zip(rows, labels)))

        sent = {m.client: (m.entries["w"].double().numpy(), float(m.weights["w"])) for m in seen.sent}
        before = seen.sent[0].received["w"].double().numpy()
        score = {frozenset[int | None](): right(before)}
        for size in range(1, len(sent) + 1):
            for who in itertools.combinations(sent, size):
                mean = sum(sent[i][0] * sent[i][1] for i in who) / sum(sent[i][1] for i in who)
                score[frozenset(who)] = right(np.asarray(mean))
        for order in itertools.permutations(sent):
            for place, client in enumerate(order):
                assert client is not None
                gain = score[frozenset(order[: place + 1])] - score[frozenset(order[:place])]
                value_N[client] += 100 * gain / items / math.factorial(len(sent))
        last = score[frozenset(sent)]
    return value_N, last


@pytest.mark.parametrize(("clients", "part"), [(4, "val"), (2, "test")])
def test_values_are_means_over_orders_summed_over_rounds(clients: int, part: str, tmp_path: Path) -> None:
    run = run_small(tmp_path, rounds=4, participation={"count": clients}, **FAST)
    expected, last = values_by_orders(run, part)
    found = value(run, part=part)
    assert found.first is not None
    assert np.ptp(expected) > 1
    assert [dict(zip(found.clients, found.values)).get(i, 0.0) for i in range(4)] == pytest.approx(list(expected))
    assert sum(found.values) == pytest.approx(found.last - found.first)
    assert found.last == pytest.approx(100 * last / sum(found.items))
    assert not any(found.halves)
    # All coalitions but the empty ones, whose models are those of rounds before.
    assert found.cost.coalitions == 4 * (2**clients - 1) + 1
    work = 4 / (3 * 3 * 4 * clients)
    assert found.cost.trainings == pytest.approx(1 + work * found.cost.coalitions)


def test_drawn_coalitions_come_near_with_their_intervals(tmp_path: Path) -> None:
    run = run_small(tmp_path, partition={"clients": 7}, rounds=1, **FAST)
    exact, drawn = value(run), value(run, trainings=6.5)
    assert list(value(run, trainings=6.5).values) == list(drawn.values)
    assert drawn.cost.trainings <= 6.5
    assert drawn.cost.coalitions < exact.cost.coalitions
    assert min(drawn.halves) > 0
    assert np.abs(np.subtract(drawn.values, exact.values)).max() < 2 * max(drawn.halves)
    assert spearmanr(drawn.values, exact.values).statistic > 0.5
    # Where all of them fit, all are taken.
    assert list(value(run, trainings=40.0).values) == list(exact.values)


@pytest.mark.skipif(not MAPPINGS.exists(), reason="the system does not list what a process maps")
def test_uploads_are_mapped_and_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_small(tmp_path, **FAST)
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    game = UploadGame(PastRun(run), "val")
    lines = [line.split() for line in MAPPINGS.read_text().splitlines() if str(scratch) in line]
    ends = [[int(end, 16) for end in line[0].split("-")] for line in lines]
    held = [t for round in game.rounds for tree in (round.after, *round.totals.values()) for t in tree.values()]
    assert len(held) == 4 * len(game.rounds) + len(game.rounds)
    assert all(any(start <= t.data_ptr() < end for start, end in ends) for t in held)
    game.close()
    assert not list(scratch.iterdir())


def test_the_command_keeps_them_for_the_page(tmp_path: Path, printed: Callable[..., str]) -> None:
    run = run_small(tmp_path, **FAST)
    said = printed("values", run, "--method", "uploads", "--out", tmp_path / "values.csv")
    assert "uploads: all coalitions in each round" in said
    assert (run / "values.json").exists()
    assert not (run / "coalitions.jsonl").exists()
    assert len((tmp_path / "values.csv").read_text().splitlines()) == 5


@needs("robust")
@pytest.mark.parametrize("change", [{"aggregation": "median"}, {"algorithm": {"name": "fedopt"}}])
def test_a_server_that_takes_no_mean_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with refused("--method", says="no weighted mean of uploads"):
        value(run_small(tmp_path, **change, **FAST))


def test_options_of_other_methods_are_refused(tmp_path: Path) -> None:
    with refused("--tolerance"):
        value(run_small(tmp_path), tolerance=1.0)
