"""Who is evaluated at the end of a round, and that no score outlives the model it was counted with."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Context, Mix, Received, Requests, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Ask, Reduce
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.costs import Pool
from shoal.engine.rounds.scoring import summarize
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.store.view import View

Start = Callable[..., Server]
EVERYONE = list(range(6))


class Seen:
    """A pool that remembers which clients were evaluated without a visit of another kind."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.evaluated: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterable[tuple[int, Outcome]]:
        self.evaluated += [i for cell in cells if not cell.phase for i in cell.ids]
        return self.pool.run_cells(cells, shared)


def evaluated(server: Server) -> list[int]:
    """Runs a round and says who was evaluated beside it."""
    server._pool.evaluated.clear()  # type: ignore[attr-defined]
    server.round()
    return sorted(server._pool.evaluated)  # type: ignore[attr-defined]


def test_what_a_client_trains_and_keeps_is_evaluated_at_the_end_of_its_visit(start: Start) -> None:
    server = start({"algorithm.name": "local", "participation.ratio": 0.34}, pool=Seen)
    # Those that were never asked have their initial model, and keep it.
    assert evaluated(server) == sorted(set(EVERYONE) - set(server.cohort(1)))
    for _ in range(3):
        assert evaluated(server) == []


def test_the_servers_model_is_evaluated_everywhere_once(start: Start) -> None:
    server = start({"participation.ratio": 0.34}, pool=Seen)
    assert evaluated(server) == sorted([*EVERYONE, *(set(EVERYONE) - set(server.cohort(1)))])
    # The cohort was given this very model, the others have what they had.
    for _ in range(3):
        assert evaluated(server) == EVERYONE


@dataclass(frozen=True)
class EverySecond(FedAvg):
    """FedAvg whose server goes back to the model that it had, in every second round."""

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        before = server["w"].clone()
        yield from super().round(server, ctx, cohort)
        if ctx.round % 2 == 0:
            server["w"] = before


EVERY_SECOND = {"algorithm.name": f"{__file__}:EverySecond", "participation.ratio": 0.34, "train.lr": 0.5}


def test_the_servers_model_is_not_evaluated_again_before_it_changes(
    start: Start, views: Callable[..., list[View]], counts_of: Callable[..., np.ndarray]
) -> None:
    server = start(EVERY_SECOND, pool=Seen)
    for number in range(1, 7):
        seen = evaluated(server)
        if number > 1:
            assert seen == ([] if number % 2 == 0 else EVERYONE)
        w = server.state.server["w"]
        truth = {i: counts_of(server, view, w) for i, view in enumerate(views(server))}
        for i in EVERYONE:
            np.testing.assert_array_equal(server.state.scores["global"][i], truth[i])
        for i in server.cohort(number):
            np.testing.assert_array_equal(server.state.scores["served"][i], truth[i])
        # What a checkpoint keeps says which model that was.
        tensors, plain = server.state.to_tensors()
        server = start(EVERY_SECOND, state=FederationState.from_tensors(tensors, plain), pool=Seen)


@dataclass(frozen=True)
class Mute(EverySecond):
    """Client 2 cannot be evaluated."""

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        if client.info.client == 2:
            raise RuntimeError("no luck")
        return super().predict(client, received, part)


def test_one_without_counts_is_asked_again(start: Start) -> None:
    keys = {"algorithm.name": f"{__file__}:Mute", "engine.on_client_error": "skip"}
    server = start({**EVERY_SECOND, **keys}, pool=Seen)
    evaluated(server)
    assert set(evaluated(server)) == {2}
    assert server.state.scores["global"].keys() == set(EVERYONE) - {2}


def test_a_download_that_is_the_servers_model_still_is_evaluated_once(start: Start) -> None:
    server = start({**EVERY_SECOND, "participation.ratio": 0.5, "evaluation.every": 2}, pool=Seen)
    received: set[int] = set()
    for number in (1, 2):
        received |= set(server.cohort(number))
        seen = evaluated(server)
    # Those of round 1 were given what the server has after round 2, those never asked have their initial model.
    assert set(server.cohort(1)) - set(server.cohort(2))
    assert seen == sorted([*EVERYONE, *(set(EVERYONE) - received)])


def test_what_waits_in_an_inbox_is_evaluated(start: Start) -> None:
    server = start({"algorithm.name": "fedgta", "participation.ratio": 0.34}, pool=Seen)
    assert evaluated(server) == EVERYONE
    for number in (2, 3):
        assert evaluated(server) == server.cohort(number)


def test_between_evaluations_nobody_is(start: Start) -> None:
    server = start({"participation.ratio": 0.34, "evaluation.every": 3, "rounds": 4}, pool=Seen)
    first = [evaluated(server) for _ in range(2)]
    assert first == [[], []]
    cohorts = {i for number in (1, 2, 3) for i in server.cohort(number)}
    # Clients of earlier rounds were given older models, each evaluated with its own.
    assert evaluated(server) == sorted([*EVERYONE, *(set(EVERYONE) - set(server.cohort(3)))])
    assert len(server.cohort(3)) < len(cohorts)
    assert server.state.touched == {}


@dataclass(frozen=True)
class Fails(Algorithm):
    """Clients train models of their own; one fails in some round, before it trains or after it."""

    client_models = "personal"
    client: int = 2
    in_round: int = -1
    in_phase: str = "train"

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        number = torch.tensor(ctx.round)
        yield Ask("train", {}, {"round": number})
        yield Ask("after", {}, {"round": number}, train=False)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if (client.info.client, int(received["round"]), phase) == (self.client, self.in_round, self.in_phase):
            raise RuntimeError
        return Upload({})


def fails(in_round: int, in_phase: str, **keys: Any) -> dict[str, Any]:
    method = {"name": f"{__file__}:Fails", "in_round": in_round, "in_phase": in_phase}
    # Steps so large that predictions change with every round.
    options = {"train.lr": 0.5, "rounds": 6, "engine.on_client_error": "skip", **keys}
    return {**{f"algorithm.{name}": value for name, value in method.items()}, **options}


@pytest.mark.parametrize("in_phase", ["train", "after"])
def test_a_client_that_failed_keeps_no_older_score_as_if_it_were_new(
    start: Start, views: Callable[..., list[View]], counts_of: Callable[..., np.ndarray], in_phase: str
) -> None:
    """It trained after the evaluation of round 3, and failed in the visit that would have been evaluated."""
    server = start({**fails(6, in_phase), "evaluation.every": 3})
    of_round: dict[int, np.ndarray] = {}
    for number in range(1, 7):
        line = server.round()
        assert ("failures" in line) == (number == 6)
        of_round[number] = counts_of(server, views(server)[2], server.state.clients[2]["model.w"])
    assert np.array_equal(of_round[5], of_round[6])
    assert not np.array_equal(of_round[3], of_round[6])
    nodes = dict.fromkeys(EVERYONE, 30)
    truth = {i: counts_of(server, view, server.state.clients[i]["model.w"]) for i, view in enumerate(views(server))}
    assert line["scopes"] == {scope: summarize(truth, nodes) for scope in ("trained", "served")}


def test_a_training_that_was_taken_back_counts_nowhere(
    start: Start, views: Callable[..., list[View]], counts_of: Callable[..., np.ndarray]
) -> None:
    """The client trained, was evaluated, and failed later in the round."""
    server = start(fails(2, "after"))
    server.round()
    w = server.state.clients[2]["model.w"].clone()
    line = server.round()
    assert line["failures"].keys() == {"2"}
    assert torch.equal(server.state.clients[2]["model.w"], w)
    counts = counts_of(server, views(server)[2], w)
    for scope in ("served", "trained"):
        np.testing.assert_array_equal(server.state.scores[scope][2], counts)
    # It goes on from there.
    server.round()
    again = counts_of(server, views(server)[2], server.state.clients[2]["model.w"])
    np.testing.assert_array_equal(server.state.scores["trained"][2], again)


@dataclass(frozen=True)
class Silent(FedAvg):
    """FedAvg whose client 2 cannot be evaluated once it was trained."""

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        client.state["trained"] = torch.ones(())
        return super().upload(client, received, phase)

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        if client.info.client == 2 and "trained" in client.state:
            raise RuntimeError("no luck")
        return super().predict(client, received, part)


def test_a_client_that_cannot_be_evaluated_has_no_counts_rather_than_old_ones(start: Start) -> None:
    server = start({"algorithm.name": f"{__file__}:Silent", "engine.on_client_error": "skip", "evaluation.every": 2})
    old = np.full((2, 3, 4), 7)
    server.state.scores.update({"trained": {2: old}, "served": dict.fromkeys(EVERYONE, old)})
    server.round()
    line = server.round()
    assert list(line["failures"]) == ["2"]
    assert 2 not in server.state.scores["trained"]
    assert 2 not in server.state.scores["served"]
    assert server.state.scores["served"].keys() == set(EVERYONE) - {2}
    assert not any(counts is old for scope in server.state.scores.values() for counts in scope.values())


@dataclass(frozen=True)
class Personal(Algorithm):
    """In round 1 client 0 is sent a model of its own, which it starts every visit from; others train what they have."""

    client_models = "personal"

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        yield Ask("train", {"w": Reduce.MIX})
        if ctx.round == 1:
            # What any training would undo.
            yield Mix("w", -torch.eye(len(cohort))[:1], dst=[0])
        # Of SGC the last entries are the biases of the classes: all are of class 2.
        server["w"] = torch.zeros_like(server["w"])
        server["w"][-2] = 1.0

    def receive(self, client: Client, down: Tree) -> Received:
        return super().receive(client, client.inbox or down)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"w": client.model.w})


@dataclass(frozen=True)
class Shared(Personal):
    """The same with a model of the server's, clients keeping none."""

    client_models = "global"

    def global_model(self, server: Tree) -> Tree:
        return {"w": server["w"]}


@pytest.mark.parametrize("name", ["Personal", "Shared"])
def test_an_older_inbox_is_served_still(
    start: Start, views: Callable[..., list[View]], counts_of: Callable[..., np.ndarray], name: str
) -> None:
    """Neither what the client trained in its last visit nor the server's model is what it would deploy."""
    server = start({"algorithm.name": f"{__file__}:{name}", "model": {"name": "sgc"}, "train.lr": 5.0}, pool=Seen)
    for _ in range(3):
        server.round()
    own = counts_of(server, views(server)[0], server.state.inboxes[0]["w"])
    np.testing.assert_array_equal(server.state.scores["served"][0], own)
    assert not np.array_equal(server.state.scores["trained"][0], own)
    if name == "Shared":
        assert not np.array_equal(server.state.scores["global"][0], own)
