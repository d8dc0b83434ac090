"""One phase on clients: who is asked with what, what comes back, and what is left of those that fail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.base import Client, Received, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Ask, Reduce
from shoal.engine.rounds.costs import Live
from shoal.engine.rounds.server import Exchange, Server
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

Start = Callable[..., Server]
ExchangeOf = Callable[..., Exchange]

PLACE = f"{__file__}, line 37, in upload()"


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


UP = {"tell": Reduce.STACK, "inbox": Reduce.STACK, "list": Reduce.GATHER, "sum": Reduce.MEAN}


@pytest.fixture
def echo(start: Start) -> Callable[..., Server]:
    def echo(failing: Sequence[int] = (), **keys: Any) -> Server:
        method = {"algorithm.name": f"{__file__}:Echo", "algorithm.failing": list(failing)}
        return start({**method, "engine.on_client_error": "skip", **keys})

    return echo


def never(client: int) -> bool:
    return False


@pytest.mark.parametrize("cell_size", [1, 2, "auto"])
def test_everybody_is_given_its_own_and_answers_in_order(
    echo: Callable[..., Server], exchange_of: ExchangeOf, cell_size: int | str
) -> None:
    exchange = exchange_of(echo(), [0, 1, 2, 4, 5], cell_size=cell_size)
    exchange.next_state.inboxes[4] = {"c": torch.tensor(7.0)}
    private = {2: {"tell": torch.tensor(2.0)}, 3: {"tell": torch.tensor(3.0)}}
    replies = exchange.ask(Ask("p", UP, {"tell": torch.tensor(9.0)}, private, train=False), never)
    assert replies.ids == [0, 1, 2, 4, 5]
    assert replies["tell"].tolist() == [9, 9, 2, 9, 9]
    assert replies["inbox"].tolist() == [-1, -1, -1, 7, -1]
    assert [t.tolist() for t in replies.lists["list"]] == [[], [1.0], [2.0] * 2, [4.0], [5.0] * 2]
    assert replies["sum"].item() == pytest.approx((0 + 2 + 6 + 20 + 30) / (1 + 2 + 3 + 5 + 6))
    assert exchange._held == {}
    assert exchange.next_state.touched == dict.fromkeys([0, 1, 2, 4, 5], False)
    assert {i: float(tree["visits"]) for i, tree in exchange.next_state.clients.items()} == dict.fromkeys(
        [0, 1, 2, 4, 5], 1
    )
    # It stays until a newer one takes its place.
    assert exchange.next_state.inboxes[4]["c"] == 7


def test_a_phase_may_ask_others_than_the_cohort(echo: Callable[..., Server], exchange_of: ExchangeOf) -> None:
    exchange = exchange_of(echo(), [0, 1])
    replies = exchange.ask(Ask("p", {"sum": Reduce.MEAN}, train=False, to=[5, 3, 3]), never)
    assert replies.ids == [3, 5]
    assert exchange.cohort == [0, 1]
    replies = exchange.ask(Ask("p", {"sum": Reduce.MEAN}, train=False, to=[]), never)
    assert (replies.ids, replies.entries, exchange._held) == ([], {}, {})


def test_states_go_from_phase_to_phase(echo: Callable[..., Server], exchange_of: ExchangeOf) -> None:
    server = echo()
    exchange = exchange_of(server, [0, 1])
    for _ in range(3):
        exchange.ask(Ask("p", {}, train=False), never)
    assert [float(exchange.next_state.clients[i]["visits"]) for i in (0, 1)] == [3, 3]
    # The draft's alone.
    assert server.state.clients == {}


def test_those_that_do_not_come_back_are_evaluated_after_training(
    echo: Callable[..., Server],
    exchange_of: ExchangeOf,
    views: Callable[..., list[View]],
    counts_of: Callable[..., Any],
) -> None:
    server = echo()
    exchange = exchange_of(server, [0, 1, 3], cell_size=2)
    exchange.ask(Ask("p", {}), lambda client: client != 1)
    next_state = exchange.next_state
    assert next_state.touched == {0: True, 1: False, 3: True}
    assert next_state.scores["trained"].keys() == {0, 3}
    for i in (0, 3):
        w = next_state.clients[i]["model.w"]
        assert not torch.equal(w, server._initial)
        np.testing.assert_array_equal(next_state.scores["trained"][i], counts_of(server, views(server)[i], w))
    # Without training nobody is.
    exchange.ask(Ask("p", {}, train=False), lambda client: True)
    assert next_state.touched == {0: False, 1: False, 3: False}


def test_what_only_an_evaluation_reads_is_not_sent(
    echo: Callable[..., Server],
    exchange_of: ExchangeOf,
    views: Callable[..., list[View]],
    counts_of: Callable[..., Any],
) -> None:
    """Other parameters than those that were trained are scored; what the client keeps and sends is of the training."""
    server = echo()
    w = torch.linspace(-1, 1, len(server._initial))
    exchange = exchange_of(server, [0, 1, 3], cell_size=2)
    exchange.ask(Ask("p", {}, {"w": server._initial}, score_with={"w": w}), lambda client: client != 1)
    next_state = exchange.next_state
    assert next_state.scores["trained"].keys() == {0, 3}
    for i in (0, 3):
        assert not torch.equal(next_state.clients[i]["model.w"], w)
        np.testing.assert_array_equal(next_state.scores["trained"][i], counts_of(server, views(server)[i], w))
    assert exchange._meter._bytes_down == 3 * server._initial.nbytes
    # A phase that another one of the same training follows has no scores.
    exchange.ask(Ask("p", {}, score=False, score_with={"w": w}), lambda client: True)
    assert next_state.scores["trained"] == {}
    assert next_state.touched == {0: False, 1: False, 3: False}


def test_who_fails_takes_no_further_part_and_is_as_before(echo: Callable[..., Server], exchange_of: ExchangeOf) -> None:
    server = echo(failing=[1, 4])
    server.state.clients[1] = {"visits": torch.tensor(5.0)}
    server.state.inboxes[1] = {"c": torch.tensor(6.0)}
    exchange = exchange_of(server, [0, 1, 3], cell_size=2)
    exchange.next_state.put_into_inbox(1, "c", torch.tensor(8.0))
    replies = exchange.ask(Ask("p", UP), lambda client: True)
    next_state = exchange.next_state
    assert replies.ids == [0, 3]
    assert exchange.cohort == [0, 3]
    assert next_state.clients[1] == {"visits": torch.tensor(5.0)}
    assert next_state.inboxes[1] == {"c": torch.tensor(6.0)}
    assert 1 not in next_state.scores["trained"]
    assert exchange._meter.failures[1][0] == f"round 1, client 1: {PLACE}: RuntimeError: client 1"
    # Nor in a later phase, in which it would not fail.
    replies = exchange.ask(Ask("q", UP, to=[1, 3]), never)
    assert replies.ids == [3]
    # A client that was no part of the cohort may fail, too.
    exchange.ask(Ask("p", UP, to=[3, 4]), never)
    assert exchange._meter.failures.keys() == {1, 4}
    assert exchange.cohort == [0, 3]
    assert 4 not in next_state.clients


def test_nobody_answers(echo: Callable[..., Server], exchange_of: ExchangeOf) -> None:
    exchange = exchange_of(echo(failing=range(6)), [2, 3], cell_size=2)
    with pytest.raises(ShoalError) as ended:
        exchange.ask(Ask("p", UP), never)
    line = f"no client of the cohort answered; the first: round 1, client 2: {PLACE}: RuntimeError: client 2"
    assert str(ended.value) == line
    assert "in upload" in ended.value.detail


@pytest.mark.parametrize("fresh", [True, False])
def test_evaluation_alone(
    echo: Callable[..., Server],
    exchange_of: ExchangeOf,
    views: Callable[..., list[View]],
    counts_of: Callable[..., Any],
    fresh: bool,
) -> None:
    """After a download; fresh clients bring nothing of their own."""
    server = echo()
    exchange = exchange_of(server, [])
    own = server._initial + 1
    exchange.next_state.clients = {i: {"model.w": own} for i in range(6)}
    before = dict(exchange.next_state.clients)
    found = exchange.score([1, 2, 5], {}, fresh=fresh)
    assert found.keys() == {1, 2, 5}
    for i, counts in found.items():
        np.testing.assert_array_equal(counts, counts_of(server, views(server)[i], server._initial if fresh else own))
    received: Tree = {"w": server._initial - 1}
    for i, counts in exchange.score([1], received, fresh=fresh).items():
        np.testing.assert_array_equal(counts, counts_of(server, views(server)[i], received["w"]))
    assert exchange.next_state.clients == before
    assert (exchange.next_state.touched, exchange.next_state.scores) == ({}, {})


def test_visits_and_bytes_are_counted(echo: Callable[..., Server], exchange_of: ExchangeOf) -> None:
    seen: list[Live] = []
    exchange = exchange_of(echo(), [0, 1, 2], watch=seen.append, cell_size=2)
    shared = {"tell": torch.tensor(9.0)}
    private: dict[int, dict[str, Tensor]] = {1: {"more": torch.zeros(4)}}
    exchange.ask(Ask("p", UP, shared, private), never)
    assert [(live.visits, live.expected) for live in seen] == [(2, 3), (3, 3)]
    # Two scalars and a sum with its weight, and a list of `i mod 3`, each of four bytes.
    assert seen[-1].bytes_up == 3 * 16 + 4 * (0 + 1 + 2)
    assert seen[-1].bytes_down == 3 * 4 + 16
    exchange.score([0], {})
    assert (seen[-1].visits, seen[-1].expected) == (4, 4)
    line = exchange._meter.line(exchange.cohort, None)
    assert line["loss"] > 0
