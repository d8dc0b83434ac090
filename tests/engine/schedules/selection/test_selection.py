"""Selections of clients: whole rounds of FedAvg against rounds written out, and their laws on clients made by hand."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
from support.plain_fedavg import sgd_step
from support.small_runs import small_run

from shoal.algorithms.rng import key
from shoal.engine.config.config import parse_config
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import RunPlan
from shoal.engine.schedules.selection.selection import OURS, Known, require_choice
from shoal.storage.shards.view import Cache

Start = Callable[..., Server]
LR = 0.5
# Softmax regression on the features, by one step of plain SGD a round.
PLAIN = {"model.name": "sgc", "propagation.hops": 0, "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0, "algorithm.weight": "train", "participation.count": 3}
PLAIN |= {"rounds": 12, "evaluation.every": 3}
OWN = """
import torch
from beside import FIRST

def Turns(known, count, rng):
    turn = known.state.get("turn", torch.zeros(1))
    known.state["turn"] = turn + count
    assert (known.last[known.loss == 0] > 0).all() and (known.loss[known.last == 0] > 1e9).all()
    return [(FIRST + int(turn) + i) % len(known.items) for i in range(count)]

def Twice(known, count, rng):
    return [0, 0, 1]

def Many(known, count, rng):
    return known.online

def Nobody(known, count, rng):
    return [9]

def Text(known, count, rng):
    known.state["a"] = "b"
    return [1]

def Fails(known, count, rng):
    return [1 // 0]

def Guesses(known, count, rng):
    return known.sizes[:count]

def Two(known, count):
    return [0]
"""


def loss_of(server: Server, client: int, w: np.ndarray) -> float:
    """Mean cross-entropy over training rows; nan without any."""
    view = server.job.view(server.job.open_store(), client, Cache(0))
    classes = int(view.classes)
    weight, bias = torch.tensor(w[:-classes]).view(classes, -1), torch.tensor(w[-classes:])
    return float(F.cross_entropy(view.x[view.train].float() @ weight.T + bias, view.label[view.train]))


Selection = Callable[[int, dict[int, float], dict[int, int], dict[int, int], np.random.Generator], list[int]]


def highest(clients: Any, loss: dict[int, float], rng: np.random.Generator) -> list[int]:
    return sorted(rng.permutation(clients).tolist(), key=lambda i: -loss.get(i, math.inf))[:3]


def by_loss(
    number: int, loss: dict[int, float], last: dict[int, int], items: dict[int, int], rng: np.random.Generator
) -> list[int]:
    return highest(list(items), loss, rng)


def by_power_of_choice(
    number: int, loss: dict[int, float], last: dict[int, int], items: dict[int, int], rng: np.random.Generator
) -> list[int]:
    able = [i for i in items if items[i]]
    share = np.array([items[i] for i in able]) / sum(items.values())
    return highest(rng.choice(able, 4, replace=False, p=share), loss, rng)


def by_oort(
    number: int, loss: dict[int, float], last: dict[int, int], items: dict[int, int], rng: np.random.Generator
) -> list[int]:
    new, old = [i for i in items if i not in last], [i for i in items if i in last]
    explored = min(max(math.ceil(max(0.2, 0.9 * 0.98 ** (number - 1)) * 3), 3 - len(old)), len(new))
    found = rng.choice(new, explored, replace=False, p=[1 / len(new)] * len(new)).tolist() if new else []
    if explored == 3:
        return found
    raw = {i: items[i] * loss[i] for i in old}
    most = np.percentile(list(raw.values()), 95)
    util = {i: min(raw[i], most) + math.sqrt(0.1 * math.log(number) / last[i]) for i in old}
    cut = 0.95 * sorted(util.values(), reverse=True)[3 - explored - 1]
    high = [i for i in old if util[i] >= cut]
    share = np.array([util[i] for i in high])
    return found + rng.choice(high, 3 - explored, replace=False, p=share / share.sum()).tolist()


RIGHT: dict[str, Selection] = {"loss": by_loss, "oort": by_oort, "power_of_choice": by_power_of_choice}


@pytest.mark.parametrize("name", list(RIGHT))
def test_rounds_are_those_of_fedavg_on_selected_clients(start: Start, name: str) -> None:
    candidates = {"participation.candidates": 4} if name == "power_of_choice" else {}
    server = start({**PLAIN, "participation.selection": name, **candidates})
    w = server.state.server["w"].numpy().copy()
    items = {info.client: info.train for info in server.infos}
    assert not all(items.values())
    loss: dict[int, float] = {}
    last: dict[int, int] = {}
    cohorts = set()
    for number in range(1, 9):
        rng = np.random.default_rng(key(server.job.seed, number, "participation.selection"))
        cohort = sorted(RIGHT[name](number, loss, last, items, rng))
        line = server.round()
        assert line["cohort"] == cohort
        rows, sizes = [], []
        for client in cohort:
            last[client], loss[client] = number, 0.0
            if items[client]:
                loss[client] = loss_of(server, client, w)
                after, size = sgd_step(server, client, w, LR)
                rows.append(after)
                sizes.append(size)
        w = np.average(rows, axis=0, weights=sizes).astype(np.float32)
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=5e-6)
        known = server.state.extras["selection"]
        assert {i: r for i, r in enumerate(known["last round"].tolist()) if r} == last
        np.testing.assert_allclose([known["last loss"][i] for i in last], [loss[i] for i in last], atol=1e-5)
        cohorts.add(tuple(cohort))
    assert len(cohorts) > 2


def test_counts_of_clients_that_are_visited_are_those_of_a_whole_evaluation(start: Start) -> None:
    """No client is known to come back before the next evaluation, so each visit is scored."""
    keys = {**PLAIN, "participation.selection": "loss", "algorithm.name": "local"}
    del keys["algorithm.weight"]
    often, seldom = start({**keys, "evaluation.every": 1}), start({**keys, "evaluation.every": 4})
    for _ in range(4):
        line, other = often.round(), seldom.round()
    assert line["cohort"] == other["cohort"]
    assert line["scopes"]["deployed"] == other["scopes"]["deployed"]


def test_own_selection_has_its_state_in_checkpoints(start: Start, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "beside.py").write_text("FIRST = 1\n")
    keys = {**PLAIN, "participation.selection": f"{tmp_path / 'own.py'}:Turns"}
    server = start(keys)
    assert [server.round()["cohort"] for _ in range(3)] == [[1, 2, 3], [0, 4, 5], [1, 2, 3]]
    again = start(keys, state=FederationState.from_tensors(*server.state.to_tensors()))
    assert again.round()["cohort"] == server.round()["cohort"] == [0, 4, 5]


def test_selection_of_the_guide_takes_who_waited_longest(start: Start, tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs" / "participation.md").read_text()
    (tmp_path / "guide.py").write_text(text.split("```python\n")[1].split("```")[0])
    server = start({**PLAIN, "participation.selection": f"{tmp_path / 'guide.py'}:Select"})
    cohorts = [server.round()["cohort"] for _ in range(6)]
    assert [sorted(one + other) for one, other in zip(cohorts[::2], cohorts[1::2])] == [list(range(6))] * 3
    assert cohorts[0] == cohorts[2] == cohorts[4]


def test_run_is_known_by_the_text_of_its_selection(tmp_path: Path) -> None:
    def folder(text: str) -> Path:
        (tmp_path / "mine.py").write_text(text)
        own = {"selection": f"{tmp_path / 'mine.py'}:Mine"}
        return RunPlan.of(parse_config(small_run(tmp_path, participation=own), "x")).folder

    one = folder("def Mine(known, count, rng):\n    return [0]\n")
    assert folder("def Mine(known, count, rng):\n    return [1]\n") != one
    assert folder("def Mine(known, count, rng):\n    return [0]\n") == one


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("[0.0, 1.9, 2.0]", "0.0"),
        ("np.array([0, 1.5])", "np.float64(0.0)"),
        ("[True, False, True]", "True"),
        ("np.arange(3) > 0", "np.False_"),
        ("torch.tensor([0.0, 2.7])", "tensor(0.)"),
        ("torch.tensor([True, False])", "tensor(True)"),
        ("['1', '2']", "'1'"),
        ("[None]", "None"),
        ("np.array([0, 4])", ""),
        ("torch.tensor([0, 4])", ""),
        ("{0, 4}", ""),
    ],
)
def test_own_selection_gives_whole_numbers(start: Start, tmp_path: Path, given: str, shown: str) -> None:
    own = f"import numpy as np\nimport torch\n\ndef Gives(known, count, rng):\n    return {given}\n"
    (tmp_path / "own.py").write_text(own)
    server = start({**PLAIN, "participation.selection": f"{tmp_path / 'own.py'}:Gives"})
    if shown:
        with refused(says=f"{shown}, expected whole numbers"):
            server.round()
    else:
        assert server.round()["cohort"] == [0, 4]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Twice", "gives [0, 0, 1], expected 3 different clients"),
        ("Many", "gives [0, 1, 2, 3, 4, 5], expected 3 different"),
        ("Nobody", "gives [9], expected"),
        ("Text", "known.state"),
        ("Fails", "ZeroDivisionError"),
        ("Guesses", "no attribute 'sizes'; it has candidates, items, last, loss, online, round, seconds, state"),
        ("Two", "cannot be called as Two(known, count, rng)"),
        ("Missing", "has no class or function Missing"),
    ],
)
def test_wrong_own_selection_is_refused(start: Start, tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "beside.py").write_text("FIRST = 1\n")
    with refused(says=says):
        start({**PLAIN, "participation.selection": f"{tmp_path / 'own.py'}:{name}"}).round()


def known(**changes: Any) -> Known:
    """Forty clients online of fifty, all trained before, with losses that rise with their numbers."""
    columns: dict[str, Any] = {
        "round": 60, "online": np.arange(40), "items": np.full(50, 4), "loss": np.linspace(0.1, 5, 50),
        "last": np.full(50, 50.0), "seconds": np.ones(50), "candidates": None, "state": {},
    }  # fmt: skip
    return Known(**{**columns, **changes})


def drawn(name: str, count: int, times: int = 400, **changes: Any) -> np.ndarray:
    """How often each client is drawn."""
    rngs = map(np.random.default_rng, range(times))
    found = [list(OURS[name](known(**changes), count, rng)) for rng in rngs]
    assert all(len(one) == len(set(one)) == count for one in found)
    return np.bincount(np.concatenate(found), minlength=50) / times


def test_loss_takes_the_largest_online_and_power_of_choice_the_best_of_its_candidates() -> None:
    assert drawn("loss", 3).tolist() == [0] * 37 + [1] * 3 + [0] * 10
    rates = drawn("power_of_choice", 1, times=2000)
    # Of two of 40 drawn alike the larger is client i with the chance 2 i / (40 * 39).
    assert rates[39] == pytest.approx(2 / 40, abs=5 * math.sqrt(0.05 * 0.95 / 2000))
    assert (rates[40:] == 0).all()
    assert drawn("power_of_choice", 1, candidates=40).tolist() == [0] * 39 + [1] + [0] * 10
    items = np.full(50, 4)
    items[:20] = 0
    assert drawn("power_of_choice", 5, items=items)[:20].sum() == 0


def oort_by_hand(state: Known, count: int, rng: np.random.Generator) -> list[int]:
    """Draws as algorithm 1 of Oort does, client by client, with the numbers of section 4: 0.9, 0.98, 0.2, 0.95, 2."""
    online = state.online.tolist()
    new, old = [i for i in online if state.last[i] == 0], [i for i in online if state.last[i] > 0]
    share, number = 0.9, 1
    while number < state.round:
        share, number = share * 0.98, number + 1
    explored = min(max(math.ceil(max(share, 0.2) * count - 1e-9), count - len(old)), len(new))
    speed = np.array([1 / state.seconds[i] for i in new])
    chosen = rng.choice(new, explored, replace=False, p=speed / speed.sum()).tolist() if new else []
    exploited = min(count - explored, len(old))
    if not exploited:
        return chosen
    raw = {i: state.items[i] * state.loss[i] for i in old}
    ordered = sorted(raw.values())
    place = 0.95 * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    most = low + (place - math.floor(place)) * (high - low)
    times = sorted(state.seconds[i] for i in online)
    preferred = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
    utility = {i: min(raw[i], most) + math.sqrt(0.1 * math.log(state.round) / state.last[i]) for i in old}
    utility = {i: u * min(1.0, preferred / state.seconds[i]) ** 2 for i, u in utility.items()}
    cut = 0.95 * sorted(utility.values(), reverse=True)[exploited - 1]
    able = [i for i in old if utility[i] >= cut]
    weights = np.array([utility[i] for i in able])
    return chosen + rng.choice(able, exploited, replace=False, p=weights / weights.sum()).tolist()


def test_oort_draws_as_its_algorithm_on_devices_of_many_speeds() -> None:
    for seed in range(300):
        rng = np.random.default_rng(seed)
        online = np.sort(rng.permutation(50)[: rng.integers(12, 50)])
        number = int(rng.integers(2, 120))
        last = rng.integers(1, number, size=50).astype(np.float64)
        last[rng.random(50) < 0.3] = 0
        state = known(
            round=number,
            online=online,
            items=rng.integers(1, 30, size=50),
            loss=rng.random(50) * 3,
            last=last,
            seconds=rng.lognormal(0, 1, size=50),
        )
        right = oort_by_hand(state, 10, np.random.default_rng(seed))
        assert list(OURS["oort"](state, 10, np.random.default_rng(seed))) == right, seed


def test_oort_explores_fast_clients_and_avoids_slow_and_old_ones() -> None:
    new, seconds = np.full(50, 9.0), np.ones(50)
    new[:20], seconds[:10] = 0, 4.0
    rates = drawn("oort", 10, last=new, seconds=seconds)
    # In round 60 a share of 0.9 * 0.98^59 = 0.27 is new, three of ten; slow ones are drawn a quarter as often at first.
    assert rates[:20].sum() == pytest.approx(3)
    assert rates[10:20].sum() > 2 * rates[:10].sum() > 0
    slow = np.ones(50)
    slow[39] = 10.0
    # Its loss is the largest, and 0.01 of that less than any cut.
    assert drawn("oort", 4)[39] > 0.5
    assert drawn("oort", 4, seconds=slow)[39] == 0
    # With equal losses who was there last long ago is worth more.
    last = np.full(50, 59.0)
    last[7] = 1.0
    few = drawn("oort", 1, loss=np.full(50, 0.001), last=last)
    assert few[7] == 1


@pytest.mark.parametrize(
    ("how", "key"),
    [
        ({"selection": "oort"}, "participation.selection"),
        ({"selection": "loss", "count": 8}, "participation.selection"),
        ({"selection": "loss", "count": 4, "over_selection": 1.8}, "participation.selection"),
        ({"selection": "loss", "count": 4, "over_selection": 1.7}, None),
        ({"selection": "power_of_choice", "count": 3, "candidates": 2}, "participation.candidates"),
        ({"selection": "power_of_choice", "count": 3, "candidates": 9}, "participation.candidates"),
        ({"selection": "power_of_choice", "count": 3, "candidates": 3}, None),
        ({"selection": "power_of_choice", "count": 3, "candidates": 8}, None),
        (
            {"selection": "power_of_choice", "count": 4, "over_selection": 1.5, "candidates": 5},
            "participation.candidates",
        ),
        ({"selection": "mine.py:Mine"}, None),
    ],
)
def test_a_selection_without_a_choice_is_refused(tmp_path: Path, how: dict[str, Any], key: str | None) -> None:
    drawn = {"devices": {"kind": "phones", "network": "consumer"}} if "over_selection" in how else {}
    changes = {"participation": how, "partition": {"method": "random", "clients": 8}, **drawn}
    config = parse_config(small_run(tmp_path, **changes), "a small run")
    with nullcontext() if key is None else refused(key, says="8"):
        require_choice(config, 8)
