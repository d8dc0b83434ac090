"""Rounds whose hidden sums have too few answers: they change nothing, the run goes on, and its records say so."""

import logging
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.errors import refused
from support.needs import has, needs
from support.small_runs import small_run
from support.stages import phase_of
from support.toy_method import NAME as TOY

from shoal.algorithms.protocol import Ask, Reduce
from shoal.cli.readers import read_run
from shoal.engine.config.config import Config, parse_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import CHECKPOINTS, read_summary
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.stage import SkipRound
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import RunPlan, plan_of
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import show_run
from shoal.engine.stages.secure.hidden_sums import SecureSums
from shoal.engine.stages.secure.section import SecureOptions
from shoal.past.ledger import ledger
from shoal.past.rewind import PastRun

Start = Callable[..., Server]
MASKED = {"secure.kind": "masks"}
LATE = {
    "devices__kind": "phones", "devices__network": "consumer", "participation__over_selection": 1.6,
}  # fmt: skip
DROPPING = {**MASKED, "participation.dropout": 0.4, "rounds": 8}


def tensors(state: FederationState) -> Any:
    """What clients and the server keep."""
    return {
        **{("server", name): t for name, t in state.server.items()},
        **{(i, name): t for i, tree in state.clients.items() for name, t in tree.items()},
    }


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(t, other[name]) for name, t in one.items())


@pytest.mark.parametrize(("kind", "threshold"), [("masks", 0.1), ("masks", 0.6), ("masks", 1.0), ("homomorphic", 0.7)])
def test_threshold_counts_all_that_were_asked(start: Start, kind: str, threshold: float) -> None:
    server = start({**DROPPING, "secure.kind": kind, "secure.threshold": threshold, "algorithm.name": "scaffold"})
    read = []
    for _ in range(8):
        before = tensors(server.state)
        line = server.round()
        asked = line["participation"]["drawn"]
        answered, needed = asked - line["participation"]["dropped"], max(2, math.ceil(threshold * asked))
        read.append(answered >= needed)
        assert line["secure"] == {"asked": 6, "answered": answered, "needed": needed, "read": read[-1]}
        assert same(before, tensors(server.state)) == (not read[-1])
        assert (len(line["cohort"]) == answered) == read[-1]
        if not read[-1]:
            assert (line["cohort"], line["loss"], line["bytes_up"], line["bytes_down"]) == ([], None, 0, 0)
            assert sorted(i for those in line["missing"].values() for i in those) == list(range(6))
        assert server.state.round == line["round"]
    assert any(read)
    assert threshold < 0.6 or not all(read)


def test_rounds_with_one_answer_and_with_none_are_skipped(start: Start) -> None:
    server = start({**DROPPING, "participation.dropout": 0.8, "participation.count": 3, "rounds": 12})
    lines = [server.round() for _ in range(12)]
    answered = {line["secure"]["answered"] for line in lines}
    assert {0, 1, 2} <= answered
    assert all(line["secure"]["read"] == (line["secure"]["answered"] >= 2) for line in lines)
    assert all("scopes" in line for line in lines[-1:])


def test_rounds_that_are_read_are_those_of_a_run_without_the_skipped_ones(start: Start) -> None:
    keys = {**DROPPING, "secure.threshold": 0.6, "train.optimizer": "sgd", "rounds": 4}
    server, plain = start(keys), start({key: value for key, value in keys.items() if "secure" not in key})
    for number in range(1, 5):
        line = server.round()
        # What another run did in a round that is skipped here is undone.
        before = plain.state
        plain.round()
        if not line["secure"]["read"]:
            plain.state = before.next_state(number)
        torch.testing.assert_close(server.state.server["w"], plain.state.server["w"], rtol=1e-5, atol=1e-6)


def test_clients_that_fail_count_as_asked_and_a_skipped_round_leaves_all_as_it_was(start: Start) -> None:
    keys: dict[str, Any] = {"algorithm.name": TOY, "algorithm.client": -1, "engine.on_client_error": "skip", **MASKED}
    for first, needed in ((1, 2), (3, 4), (4, 4)):
        keys |= {"secure.threshold": 0.1 if first == 1 else 0.6}
        whole = start(keys)
        whole.round()
        server = start({**keys, "algorithm.first": first}, state=whole.state)
        before = tensors(server.state)
        line = server.round()
        read = first >= needed
        assert line["secure"] == {"asked": 6, "answered": first, "needed": needed, "read": read}
        assert sorted(map(int, line["failures"])) == list(range(first, 6))
        assert same(before, tensors(server.state)) == (not read)
        if not read:
            assert line["missing"] == {"unread": list(range(first))}
            assert (line["cohort"], line["loss"], line["bytes_up"]) == ([], None, 0)
        assert start(keys, state=server.state).round()["secure"]["read"]


def test_a_resume_after_a_skipped_round_has_the_same_bits(start: Start) -> None:
    keys = {**DROPPING, "secure.threshold": 0.6, "algorithm.name": "scaffold"}
    whole, again = start(keys), start(keys)
    for _ in range(8):
        line = whole.round()
        again.round()
        if not line["secure"]["read"]:
            again = start(keys, state=FederationState.from_tensors(*again.state.to_tensors()))
    assert same(tensors(whole.state), tensors(again.state))


def test_only_clients_of_a_method_s_own_choice_are_asked() -> None:
    sums = SecureSums(SecureOptions("masks", 0.75), 0, "Mine", without=[9])
    up = {"w": Reduce.MEAN}

    def ask(ask: Ask, ids: Sequence[int], failed: Sequence[int]) -> Any:
        return sums.before(phase_of(ask, range(6), ids, lost=frozenset({7, 8, 9, *failed})))

    with pytest.raises(SkipRound) as skipped:
        ask(Ask("a", up), [0, 1, 2, 3, 4], [5])
    assert skipped.value.columns == {"secure": {"asked": 8, "answered": 5, "needed": 6, "read": False}}
    assert ask(Ask("a", up), [0, 1, 2, 3, 4, 5], []).adder.clients == (0, 1, 2, 3, 4, 5, 7, 8)
    # The whole cohort, in words or not, is no choice.
    assert ask(Ask("a", up, to=[0, 1, 2, 3, 4, 5]), [0, 1, 2, 3, 4, 5], []).adder.clients[-1] == 8
    assert ask(Ask("a", up, to=[0, 1, 2]), [0, 1, 2], [5]).adder.clients == (0, 1, 2)
    with pytest.raises(SkipRound) as skipped:
        ask(Ask("a", up, to=[0, 1, 5]), [0, 1], [5])
    assert skipped.value.columns["secure"]["asked"] == 3
    assert ask(Ask("a", {}), [0], []) is None


@pytest.mark.parametrize(
    ("place", "keys"),
    [
        ("secure.kind", {"participation__count": 1}),
        ("secure.kind", {"participation__without": [0, 1, 2, 3]}),
        (
            "secure.threshold",
            {**LATE, "secure__threshold": 0.9, "participation__count": 3},
        ),
        ("secure.threshold", {"participation__without": [0], "secure__threshold": 0.9}),
    ],
)
def test_runs_in_which_no_round_could_be_read_are_refused(
    make_config: Callable[..., Config], place: str, keys: dict[str, Any]
) -> None:
    with refused(place):
        plan_of(make_config(secure__kind="masks", **keys))


@needs("privacy")
def test_skips_that_no_epsilon_covers_are_refused(make_config: Callable[..., Config]) -> None:
    def plan(**keys: Any) -> RunPlan:
        private = {"privacy__unit": "client", "privacy__noise": 9.0, "secure__kind": "masks"}
        return RunPlan.of(make_config(**private, **keys))

    plan()
    plan(participation__draw="poisson", participation__count=4, privacy__where="client")
    with refused("secure.kind", says="which poisson draws too often for privacy.delta"):
        plan(participation__draw="poisson", participation__count=4)
    plan(participation__draw="poisson", participation__count=80, partition__clients=200)
    with refused("engine.on_client_error", says="take fail"):
        plan(engine__on_client_error="skip")


def test_a_run_says_how_many_rounds_it_skipped_and_its_readers_know_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"participation": {"dropout": 0.4}, "secure": {"kind": "masks", "threshold": 0.7}, "rounds": 6}
    with caplog.at_level(logging.WARNING):
        folder = run(parse_config(small_run(tmp_path, **changes), "a small run"))
    lines = read_metrics(folder)
    skipped = [line for line in lines if not line["secure"]["read"]]
    assert 0 < len(skipped) < 6
    said = [record.message for record in caplog.records if "is skipped" in record.message]
    answers = skipped[0]["secure"]
    assert len(said) == len(skipped)
    assert said[0] == (
        f"round {skipped[0]['round']} is skipped: {answers['answered']} of 4 clients asked answered, and a sum is read "
        "of 3 or more (secure.threshold)"
    )
    assert read_summary(folder)["secure"] == {"rounds": 6, "skipped": len(skipped)}
    capsys.readouterr()
    show_run(folder)
    assert f"hidden sums: {len(skipped)} of 6 rounds had too few answers" in " ".join(capsys.readouterr().out.split())
    number = skipped[0]["round"]
    with refused(folder, "--round", says=f"round {number} was skipped"):
        ledger(folder, number)
    if has("attacks"):
        with refused(folder, "--round", says=f"round {number} was skipped"):
            read_run("properties", {"round": number}, folder)
    # Clients that answered in vain took their time and sent what others send.
    if has("clock"):
        from shoal.clock.report import Asked, ClockedRun

        clocked = ClockedRun.of(folder, Asked.of("phones", "consumer", None, None, 0))
        sent = dict(zip((line["round"] for line in lines), clocked.columns()["bytes_up"]))
        unread = next(line for line in skipped if line["missing"].get("unread"))
        whole = next(line for line in lines if line["secure"]["read"])
        ratio = len(unread["missing"]["unread"]) / len(whole["cohort"])
        assert sent[unread["round"]] == pytest.approx(sent[whole["round"]] * ratio)
    # Rounds that are trained once more are skipped as well.
    shutil.rmtree(folder / CHECKPOINTS)
    (past := PastRun(folder)).after(5)
    assert past.trained == 5
