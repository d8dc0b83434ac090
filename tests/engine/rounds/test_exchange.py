"""One phase on clients: who is asked with what, what comes back, what is mixed, and what all of it costs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Make, Start, Views
from torch import Tensor

from shoal.algorithms.base import Client, Received, Upload
from shoal.algorithms.client import ClientInfo
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Ask, Mix, Reduce
from shoal.engine.messages.cell import Outcome
from shoal.engine.rounds import reduction
from shoal.engine.rounds.costs import Live, Meter, Watch, unwatched
from shoal.engine.rounds.exchange import Exchange, Federation
from shoal.engine.rounds.reduction import UploadsHere
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState

NAN = float("nan")


@dataclass(frozen=True)
class Echo(FedAvg):
    """Clients send what they were given and count their visits; some fail in phase `p`."""

    client_models = "personal"
    failing: tuple[int, ...] = ()

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        i = client.info.client
        if i in self.failing and phase == "p":
            raise RuntimeError(f"client {i}")
        tell = received.get("tell", torch.tensor(-1.0))
        inbox = client.inbox.get("c", torch.tensor(-1.0))
        size = torch.full((i % 3,), float(i))
        return Upload({"tell": tell, "inbox": inbox, "list": size, "sum": torch.tensor(float(i))}, {"sum": 1.0 + i})


PLACE = f"{__file__}, line {Echo.upload.__code__.co_firstlineno + 4}, in upload()"
UP = {"tell": Reduce.STACK, "inbox": Reduce.STACK, "list": Reduce.GATHER, "sum": Reduce.MEAN}


@pytest.fixture
def echo(start: Start) -> Start:
    def echo(failing: Sequence[int] = (), **keys: Any) -> Server:
        method = {"algorithm.name": f"{__file__}:Echo", "algorithm.failing": list(failing)}
        return start({**method, "engine.on_client_error": "skip", **keys})

    return echo


def exchange_of(server: Server, cohort: Sequence[int], watch: Watch = unwatched, cell_size: Any = 1) -> Exchange:
    """The exchange of a server's next round with some cohort."""
    number = server.state.round + 1
    meter = Meter(number, server.infos, server._pool, watch)
    next_state = server.state.next_state(number)
    return Exchange(Federation(server.infos, cell_size, server._pool), server.state, next_state, cohort, meter)


def never(client: int) -> bool:
    return False


def always(client: int) -> bool:
    return True


@pytest.mark.parametrize("cell_size", [1, 2, "auto"])
def test_everybody_is_given_its_own_and_answers_in_order(echo: Start, cell_size: Any) -> None:
    server, ids = echo(), [0, 1, 2, 4, 5]
    exchange = exchange_of(server, ids, cell_size=cell_size)
    next_state = exchange.next_state
    next_state.inboxes[4] = {"c": torch.tensor(7.0)}
    private = {2: {"tell": torch.tensor(2.0)}, 3: {"tell": torch.tensor(3.0)}}
    replies = exchange.ask(Ask("p", UP, {"tell": torch.tensor(9.0)}, private, train=False), never)
    assert replies.ids == ids
    assert replies["tell"].tolist() == [9, 9, 2, 9, 9]
    assert replies["inbox"].tolist() == [-1, -1, -1, 7, -1]
    assert [t.tolist() for t in replies.lists["list"]] == [[], [1.0], [2.0] * 2, [4.0], [5.0] * 2]
    assert replies["sum"].item() == pytest.approx((0 + 2 + 6 + 20 + 30) / (1 + 2 + 3 + 5 + 6))
    assert exchange._held == {}
    assert next_state.touched == dict.fromkeys(ids, False)
    # An inbox stays until a newer one takes its place.
    assert next_state.inboxes[4]["c"] == 7
    # States go on to the next phase, and are the next state's alone.
    exchange.ask(Ask("p", {}, train=False), never)
    assert {i: float(tree["visits"]) for i, tree in next_state.clients.items()} == dict.fromkeys(ids, 2)
    assert server.state.clients == {}


def test_a_phase_may_ask_others_than_the_cohort(echo: Start) -> None:
    exchange = exchange_of(echo(), [0, 1])
    replies = exchange.ask(Ask("p", {"sum": Reduce.MEAN}, train=False, to=[5, 3, 3]), never)
    assert (replies.ids, exchange.cohort) == ([3, 5], [0, 1])
    replies = exchange.ask(Ask("p", {"sum": Reduce.MEAN}, train=False, to=[]), never)
    assert (replies.ids, replies.entries, exchange._held) == ([], {}, {})


@pytest.mark.parametrize("other", [True, False])
def test_those_that_do_not_come_back_are_evaluated_after_training(
    echo: Start, views: Views, counts_of: Make, other: bool
) -> None:
    """With the parameters they trained, or `other` ones, which they neither keep nor are sent."""
    server = echo()
    data = views(server)
    w = torch.linspace(-1, 1, len(server._initial))
    exchange = exchange_of(server, [0, 1, 3], cell_size=2)
    score_with = {"w": w} if other else {}
    exchange.ask(Ask("p", {}, {"w": server._initial}, score_with=score_with), lambda client: client != 1)
    next_state = exchange.next_state
    assert next_state.touched == {0: True, 1: False, 3: True}
    assert next_state.scores["trained"].keys() == {0, 3}
    for i in (0, 3):
        own = next_state.clients[i]["model.w"]
        assert not torch.equal(own, server._initial)
        assert not torch.equal(own, w)
        expected = counts_of(server, data[i], w if other else own)
        np.testing.assert_array_equal(next_state.scores["trained"][i], expected)
    assert exchange.meter._bytes_down == 3 * server._initial.nbytes
    # A phase that another one of the same training follows has no scores.
    exchange.ask(Ask("p", {}, score=False, score_with={"w": w}) if other else Ask("p", {}, train=False), always)
    assert (next_state.scores["trained"] == {}) == other
    assert next_state.touched == {0: False, 1: False, 3: False}


def test_who_fails_takes_no_further_part_and_is_as_before(echo: Start) -> None:
    server = echo(failing=[1, 4])
    server.state.clients[1] = {"visits": torch.tensor(5.0)}
    server.state.inboxes[1] = {"c": torch.tensor(6.0)}
    exchange = exchange_of(server, [0, 1, 3], cell_size=2)
    exchange.next_state.put_into_inbox(1, "c", torch.tensor(8.0))
    replies = exchange.ask(Ask("p", UP), always)
    next_state = exchange.next_state
    assert replies.ids == exchange.cohort == [0, 3]
    assert next_state.clients[1] == {"visits": torch.tensor(5.0)}
    assert next_state.inboxes[1] == {"c": torch.tensor(6.0)}
    assert 1 not in next_state.scores["trained"]
    assert exchange.meter.failures[1][0] == f"round 1, client 1: {PLACE}: RuntimeError: client 1"
    # Nor in a later phase, in which it would not fail.
    assert exchange.ask(Ask("q", UP, to=[1, 3]), never).ids == [3]
    # A client that was no part of the cohort may fail, too.
    exchange.ask(Ask("p", UP, to=[3, 4]), never)
    assert exchange.meter.failures.keys() == {1, 4}
    assert exchange.cohort == [0, 3]
    assert 4 not in next_state.clients
    exchange = exchange_of(echo(failing=range(6)), [2, 3], cell_size=2)
    with refused(says=f"no client of the cohort answered; the first: round 1, client 2: {PLACE}: RuntimeError: client"):
        exchange.ask(Ask("p", UP), never)


@pytest.mark.parametrize("fresh", [True, False])
def test_evaluation_alone(echo: Start, views: Views, counts_of: Make, fresh: bool) -> None:
    """After a download; fresh clients bring nothing of their own."""
    server = echo()
    exchange, data, own = exchange_of(server, []), views(server), server._initial + 1
    exchange.next_state.clients = {i: {"model.w": own} for i in range(6)}
    before = dict(exchange.next_state.clients)
    w = server._initial if fresh else own
    expected = {i: counts_of(server, data[i], w) for i in (1, 2, 5)}
    np.testing.assert_equal(dict(exchange.score([1, 2, 5], {}, fresh)), expected)
    sent = server._initial - 1
    np.testing.assert_equal(dict(exchange.score([1], {"w": sent}, fresh)), {1: counts_of(server, data[1], sent)})
    assert exchange.next_state.clients == before
    assert (exchange.next_state.touched, exchange.next_state.scores) == ({}, {})


def test_visits_and_bytes_are_counted(echo: Start) -> None:
    seen: list[Live] = []
    exchange = exchange_of(echo(), [0, 1, 2], watch=seen.append, cell_size=2)
    private: dict[int, dict[str, Tensor]] = {1: {"more": torch.zeros(4)}}
    exchange.ask(Ask("p", UP, {"tell": torch.tensor(9.0)}, private), never)
    assert [(live.visits, live.expected) for live in seen] == [(0, 3), (2, 3), (3, 3)]
    # Two scalars and a sum with its weight, and a list of `i mod 3`, each of four bytes.
    assert (seen[-1].bytes_up, seen[-1].bytes_down) == (3 * 16 + 4 * (0 + 1 + 2), 3 * 4 + 16)
    exchange.score([0], {})
    assert (seen[-1].visits, seen[-1].expected) == (1, 1)
    line = exchange.meter.line(exchange.cohort, None)
    assert line["client_bytes"] == {"up": [16, 20, 24], "down": [4, 20, 4]}
    # Where all have as many, the number stands once.
    assert exchange.meter.line([0, 2], None)["client_bytes"]["down"] == [4]
    assert exchange.meter.line([], None)["client_bytes"] == {"up": [], "down": []}
    seconds = line["seconds"]
    assert 0 < seconds["wait"] <= seconds["round"]


# Clients of 4, 0 and 12 training rows.
INFOS = [ClientInfo(i, 20, train, 3) for i, train in enumerate((4, 0, 12))]


@pytest.fixture
def meter(start: Start) -> Meter:
    """Of round 7, on a pool that has already worked."""
    pool = start()._pool
    pool.retried, pool.transfer = 3, 0.5
    return Meter(7, INFOS, pool, lambda live: None)


@pytest.mark.parametrize(
    ("losses", "mean"),
    [
        # A client that was trained again in a later phase of the round.
        ([{0: 2.0, 1: NAN}, {2: 1.0}, {2: 0.5}], (4 * 2 + 12 * 0.5) / 16),
        ([{0: NAN, 2: 3.0}], 3.0),
        *((losses, None) for losses in ([], [{1: NAN}], [{2: 1e308}])),
    ],
)
def test_the_loss_is_weighted_by_training_rows(meter: Meter, losses: list[dict[int, float]], mean: Any) -> None:
    for of_cell in losses:
        meter.keep_losses(Outcome(ids=list(of_cell), losses=list(of_cell.values())))
    assert meter.line([], None)["loss"] == (None if mean is None else pytest.approx(mean))


def test_the_line_of_a_round(meter: Meter) -> None:
    meter.count_cell(1, Outcome(seconds={"train": 2.0, "upload": 0.25, "evaluate": 0.0}))
    meter.count_cell(1, Outcome(seconds={"train": 1.0, "upload": 0.0, "evaluate": 0.5}, kernels=2e-5))
    meter.waited = 1e-4
    meter._pool.transfer, meter._pool.retried = 0.5 + 1e-5, 5
    outside = time.perf_counter()
    with meter.scoring():
        inside = time.perf_counter()
        sum(range(10_000))
        meter.waited += 1e-5
        least = time.perf_counter() - inside
    most = time.perf_counter() - outside
    line = meter.line([0, 2], None)
    seconds = line["seconds"]
    scoring = seconds.pop("scoring")
    # What it waits for meanwhile is no work of the server's.
    assert least <= scoring + 1e-5 <= most
    round_seconds = seconds.pop("round"), seconds.pop("aggregate") + scoring + 9e-5
    assert round_seconds[0] == pytest.approx(round_seconds[1])
    expected = {"train": 3.0, "upload": 0.25, "evaluate": 0.5, "hosts": 3.75, "transfer": 1e-5, "wait": 8e-5}
    # Those of a host in another process are no work of the round.
    assert seconds.pop("kernels") == pytest.approx(2e-5, abs=1e-9)
    assert seconds == pytest.approx(expected)
    assert (line["round"], line["cohort"], line["hosts"], line["retries"]) == (7, [0, 2], {"alive": 1, "of": 1}, 2)
    assert not line.keys() & {"failures", "notes", "scopes"}
    meter.failures[2] = "client 2: no luck", "traceback"
    meter.notes["margin"] = 0.5
    more = {"failures": {"2": meter.failures[2]}, "notes": {"margin": 0.5}, "scopes": {"deployed": {}}}
    line = meter.line([0], {"deployed": {}})
    assert {name: line[name] for name in more} == more


def mixer_of(meter: Meter, held: Tensor) -> tuple[Exchange, FederationState]:
    next_state = FederationState(inboxes={4: {"other": torch.ones(1)}})
    exchange = Exchange(Federation([], 1, meter._pool), FederationState(), next_state, [], meter)
    exchange._held["w"] = UploadsHere([t.clone() for t in held])
    return exchange, next_state


@pytest.mark.parametrize("numbers", [1, 9, 2**20])
@pytest.mark.parametrize("shape", [(5, 8), (5, 2, 4), (5,)])
@pytest.mark.parametrize("once", [True, False])
def test_mix_is_the_product_of_numpy(
    meter: Meter, monkeypatch: Any, shape: tuple[int, ...], numbers: int, once: bool
) -> None:
    """Every client is in all rows, or each is in one, and the second row is empty."""
    for name in ("TILE", "LONGER"):
        monkeypatch.setattr(reduction, name, numbers)
    held, rows = torch.randn(shape), torch.rand(3, 5, dtype=torch.float64)
    if once:
        rows *= torch.tensor([0, 2, 0, 2, 0]) == torch.arange(3)[:, None]
    mixer, next_state = mixer_of(meter, held)
    assert mixer.mix(Mix("w", rows, dst=[4, 0, 2])) is None
    expected = np.tensordot(rows.numpy(), held.double().numpy(), axes=1)
    for row, client in enumerate([4, 0, 2]):
        mine = next_state.inboxes[client]["w"]
        assert mine.shape == expected.shape[1:]
        np.testing.assert_allclose(mine.numpy(), expected[row], rtol=1e-5, atol=1e-6)
        # An inbox holds its own row and no more.
        assert mine.untyped_storage().nbytes() == mine.nbytes
    assert next_state.inboxes[4].keys() == {"other", "w"}
    with refused(says="Mix('w') after clients were given its product; mix for the server first"):
        mixer.mix(Mix("w", rows))
    assert next_state.touched == dict.fromkeys(next_state.inboxes, False) == {4: False, 0: False, 2: False}
    assert meter.line([], None)["bytes_down"] == 3 * mine.nbytes
    # Without a destination the server has it.
    mixer, next_state = mixer_of(meter, held)
    for given, found in ((rows[0], expected[0]), (rows, expected)):
        product = mixer.mix(Mix("w", given))
        assert product is not None
        np.testing.assert_allclose(product.numpy(), found, rtol=1e-5, atol=1e-6)
    assert (next_state.inboxes.keys(), next_state.touched) == ({4}, {})


@pytest.mark.parametrize(
    ("mix", "line"),
    [
        (Mix("v", torch.ones(5)), "Mix('v') before any Ask uploaded it as Reduce.MIX"),
        (Mix("w", torch.ones(4)), "the matrix of Mix('w') is [4], expected [5]"),
        (Mix("w", torch.ones(2, 5), [0, 1, 2]), "the matrix of Mix('w') is [2, 5], expected [3, 5]"),
        (Mix("w", torch.ones(2, 4), [0, 1]), "the matrix of Mix('w') is [2, 4], expected [2, 5]"),
        (Mix("w", torch.ones(5), [0]), "the matrix of Mix('w') is [5], expected [1, 5]"),
        (Mix("w", torch.full((5,), NAN)), "the matrix of Mix 'w' holds NaN or infinity"),
        # Twice the largest number of float32.
        (Mix("w", torch.full((1, 5), 2e38), [0]), "the result of Mix 'w' holds NaN or infinity"),
    ],
)
def test_a_mix_that_does_not_fit_is_refused(meter: Meter, mix: Mix, line: str) -> None:
    mixer, next_state = mixer_of(meter, torch.ones(5, 2))
    with refused(says=line):
        mixer.mix(mix)
    assert next_state.inboxes.keys() == {4}
