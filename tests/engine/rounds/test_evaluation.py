"""Who is evaluated at the end of a round, and that no score outlives the model it was counted with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.fixtures import CountsOf, Start, Views
from support.small_cells import Watched, evaluated_in_a_round
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Context, Mix, Received, Requests, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Ask, Reduce
from shoal.engine.rounds.evaluation import newest
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.engine.scores.counts import summarize
from shoal.engine.scores.table import ScoreTable

Truth = Callable[[Server, int, Tensor], np.ndarray]
EVERYONE = list(range(6))
FEW = {"participation.ratio": 0.34}
SKIP = {"engine.on_client_error": "skip"}


@pytest.fixture
def truth(views: Views, counts_of: CountsOf) -> Truth:
    """Counts of a client with some parameters, row by row."""
    return lambda server, client, w: counts_of(server, views(server)[client], w)


@pytest.mark.parametrize("name", ["local", "fedavg", "fedgta"])
def test_only_what_changed_is_evaluated(start: Start, name: str) -> None:
    server = start({"algorithm.name": name, **FEW}, pool=Watched)
    first = evaluated_in_a_round(server)
    # Those that were never asked have their initial model, and keep it.
    absent = set(EVERYONE) - set(server.cohort(1))
    # With FedAvg the cohort was given the server's very model, the others have what they had; with FedGTA what waits in
    # an inbox is evaluated.
    assert first == {"local": sorted(absent), "fedavg": sorted([*EVERYONE, *absent]), "fedgta": EVERYONE}[name]
    for number in (2, 3, 4):
        expected = {"local": [], "fedavg": EVERYONE, "fedgta": server.cohort(number)}[name]
        assert evaluated_in_a_round(server) == expected


@pytest.mark.parametrize(("name", "clients"), [("local", "cohort"), ("fedavg", 2), ("fedgta", "cohort"), ("fedgta", 2)])
def test_a_sample_has_the_scores_of_a_full_evaluation(start: Start, name: str, clients: int | str) -> None:
    """In each evaluation, and all in the last; across a resume."""
    keys = {"algorithm.name": name, **FEW, "rounds": 5, "evaluation.every": 2, "train.lr": 0.3}
    full, server = start(keys), start(keys | {"evaluation.clients": clients}, pool=Watched)
    for number in range(1, 6):
        server._pool.evaluated.clear()  # type: ignore[attr-defined]
        expected, line, sample = full.round(), server.round(), server.schedule.sample(number)
        assert line.get("evaluated") == (len(sample) if sample is not None and number % 2 == 0 else None)
        assert set(server._pool.evaluated) <= set(EVERYONE if sample is None else sample)
        if sample is None:
            # In one order, which a summary keeps.
            assert list(line["scopes"].items()) == list(expected["scopes"].items())
        elif number % 2 == 0:
            of_sample = {scope: table.only(np.array(sample)) for scope, table in newest(full.state).items()}
            assert line["scopes"] == {scope: summarize(table, [30] * 2) for scope, table in of_sample.items()}
            assert set(server.client_scores()["client"].tolist()) == set(sample)
        if number == 3:
            # A checkpoint has tensors in the order of their names.
            tensors, plain = server.state.to_tensors()
            state = FederationState.from_tensors(dict(sorted(tensors.items())), plain)
            server = start(keys | {"evaluation.clients": clients}, state=state, pool=Watched)


@pytest.mark.parametrize(
    ("last", "clients", "evaluated"),
    [("sample", 2, {2: 2, 4: 2, 5: 2}), ("none", 2, {2: 2, 4: 2}), ("none", "all", {2: 6, 4: 6})],
)
def test_the_last_round_ends_as_is_asked(
    start: Start, last: str, clients: int | str, evaluated: dict[int, int]
) -> None:
    """Other rounds are as before, and so is what is trained."""
    keys = {**FEW, "rounds": 5, "evaluation.every": 2, "evaluation.clients": clients}
    whole, server = start(keys), start(keys | {"evaluation.last": last}, pool=Watched)
    for number in range(1, 6):
        server._pool.evaluated.clear()  # type: ignore[attr-defined]
        expected, line = whole.round(), server.round()
        assert ("scopes" in line) == (number in evaluated)
        assert len(set(server._pool.evaluated)) == evaluated.get(number, 0)  # type: ignore[attr-defined]
        assert line["loss"] == expected["loss"]
        if number < 5:
            assert line.get("scopes") == expected.get("scopes")
        elif number in evaluated:
            assert line["evaluated"] == len(server.schedule.sample(5) or ())
            of_sample = {i: whole.state.scores["global"][i] for i in server.schedule.sample(5) or ()}
            np.testing.assert_equal(dict(newest(server.state, list(of_sample))["global"]), of_sample)
    np.testing.assert_array_equal(server.state.server["w"], whole.state.server["w"])


@dataclass(frozen=True)
class EverySecond(FedAvg):
    """FedAvg whose server goes back to the model that it had, in every second round."""

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        before = server["w"].clone()
        yield from super().round(server, ctx, cohort)
        if ctx.round % 2 == 0:
            server["w"] = before


EVERY_SECOND = {"algorithm.name": f"{__file__}:EverySecond", "train.lr": 0.5, **FEW}


def test_the_servers_model_is_not_evaluated_again_before_it_changes(start: Start, truth: Truth) -> None:
    server = start(EVERY_SECOND, pool=Watched)
    for number in range(1, 7):
        seen = evaluated_in_a_round(server)
        if number > 1:
            assert seen == ([] if number % 2 == 0 else EVERYONE)
        expected = {i: truth(server, i, server.state.server["w"]) for i in EVERYONE}
        np.testing.assert_equal(dict(server.state.scores["global"]), expected)
        for i in server.cohort(number):
            np.testing.assert_array_equal(server.state.scores["deployed"][i], expected[i])
        # What a checkpoint keeps says which model that was.
        state = FederationState.from_tensors(*server.state.to_tensors())
        server = start(EVERY_SECOND, state=state, pool=Watched)


def test_a_download_that_is_the_servers_model_still_is_evaluated_once(start: Start) -> None:
    server = start({**EVERY_SECOND, "participation.ratio": 0.5, "evaluation.every": 2}, pool=Watched)
    assert evaluated_in_a_round(server) == []
    seen = evaluated_in_a_round(server)
    # Those of round 1 were given what the server has after round 2, those never asked have their initial model.
    assert set(server.cohort(1)) - set(server.cohort(2))
    assert seen == sorted([*EVERYONE, *(set(EVERYONE) - set(server.cohort(1)) - set(server.cohort(2)))])


@dataclass(frozen=True)
class Mute(EverySecond):
    """Client 2 cannot be evaluated, or only until it was trained."""

    once: bool = False

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if self.once:
            client.state["trained"] = torch.ones(())
        return super().upload(client, received, phase)

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        if client.info.client == 2 and (not self.once or "trained" in client.state):
            raise RuntimeError("no luck")
        return super().predict(client, received, part)


def test_one_that_cannot_be_evaluated_has_no_counts_and_is_asked_again(start: Start) -> None:
    server = start({**EVERY_SECOND, **SKIP, "algorithm.name": f"{__file__}:Mute"}, pool=Watched)
    evaluated_in_a_round(server)
    assert set(evaluated_in_a_round(server)) == {2}
    assert server.state.scores["global"].keys() == set(EVERYONE) - {2}
    # Also no old ones.
    server = start({"algorithm.name": f"{__file__}:Mute", "algorithm.once": True, "evaluation.every": 2, **SKIP})
    old = np.full((2, 3, 4), 7)
    tables = {"trained": ScoreTable({2: old}), "deployed": ScoreTable(dict.fromkeys(EVERYONE, old))}
    server.state.scores.update(tables)
    server.round()
    assert list(server.round()["failures"]) == ["2"]
    assert 2 not in server.state.scores["trained"]
    assert server.state.scores["deployed"].keys() == set(EVERYONE) - {2}
    assert not any((counts == 7).all() for scope in server.state.scores.values() for counts in scope.values())


@dataclass(frozen=True)
class Fails(Algorithm):
    """Clients train models of their own; client 2 fails in round 6, before it trains or after it."""

    client_models = "personal"
    in_phase: str = "train"

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        number = torch.tensor(ctx.round)
        yield Ask("train", {}, {"round": number})
        yield Ask("after", {}, {"round": number}, train=False)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if (client.info.client, int(received["round"]), phase) == (2, 6, self.in_phase):
            raise RuntimeError
        return Upload({})


@pytest.mark.parametrize("in_phase", ["train", "after"])
def test_a_client_that_failed_keeps_no_older_score_as_if_it_were_new(start: Start, truth: Truth, in_phase: str) -> None:
    """It trained after the evaluation of round 3, and failed in the visit that would have been evaluated."""
    method = {"algorithm.name": f"{__file__}:Fails", "algorithm.in_phase": in_phase}
    # Steps so large that predictions change with every round.
    server = start({**method, **SKIP, "train.lr": 0.5, "rounds": 6, "evaluation.every": 3})
    of_round: dict[int, np.ndarray] = {}
    for number in range(1, 7):
        line = server.round()
        assert ("failures" in line) == (number == 6)
        of_round[number] = truth(server, 2, server.state.clients[2]["model.w"])
    assert np.array_equal(of_round[5], of_round[6])
    assert not np.array_equal(of_round[3], of_round[6])
    expected = {i: truth(server, i, server.state.clients[i]["model.w"]) for i in EVERYONE}
    summary = summarize(expected, [30] * 6)
    assert line["scopes"] == {"trained": summary, "deployed": summary}


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
def test_an_older_inbox_is_served_still(start: Start, truth: Truth, name: str) -> None:
    """Neither what the client trained in its last visit nor the server's model is what it would deploy."""
    server = start({"algorithm.name": f"{__file__}:{name}", "model": {"name": "sgc"}, "train.lr": 5.0})
    for _ in range(3):
        server.round()
    own = truth(server, 0, server.state.inboxes[0]["w"])
    np.testing.assert_array_equal(server.state.scores["deployed"][0], own)
    for scope in ("trained", "global") if name == "Shared" else ("trained",):
        assert not np.array_equal(server.state.scores[scope][0], own)
