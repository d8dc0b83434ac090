"""Rounds of small federations in this process: scopes by brute force, the method's generator, and going on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from support.small_cells import require_same_tree, tensors_of
from torch import Tensor

from shoal.algorithms.base import Client, Context, Mix, Received, Requests, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Ask, Reduce
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.costs import Pool
from shoal.engine.rounds.scoring import summarize
from shoal.engine.rounds.server import Exchange, Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.store.view import View

Start = Callable[..., Server]
CountsOf = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Watched(FedAvg):
    """FedAvg whose server keeps every client's model after its last training."""

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial, "models": ctx.initial.repeat(len(ctx.clients), 1)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MEAN, "models": Reduce.STACK}, shared={"w": server["w"]})
        server["w"] = got["w"]
        server["models"][got.ids] = got["models"]

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"w": client.model.w, "models": client.model.w}, super().upload(client, received, phase).weight)


class Shuffled:
    """A pool whose cells finish in another order than they were given."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        order = np.random.default_rng(len(cells)).permutation(len(cells)).tolist()
        for position in order:
            for _, outcome in self.pool.run_cells([cells[position]], shared):
                yield position, outcome


@pytest.mark.parametrize(("every", "cell_size"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_scopes_of_a_method_with_a_model(
    start: Start, views: Callable[..., list[View]], counts_of: CountsOf, every: int, cell_size: int
) -> None:
    keys = {"algorithm.name": f"{__file__}:Watched", "participation.ratio": 0.34, "rounds": 7, "train.lr": 0.05}
    server = start({**keys, "evaluation.every": every, "engine.cell_size": cell_size})
    data, models = views(server), [server._initial] * 6
    trained: dict[int, Tensor] = {}
    evaluated, absent = [], 0
    for number in range(1, 8):
        line = server.round()
        cohort = server.cohort(number)
        assert line["cohort"] == cohort
        for i in cohort:
            models[i] = server.state.server["w"].clone()
            trained[i] = server.state.server["models"][i].clone()
        assert server.state.downloads.keys() == set(server.state.newest.values())
        if "scopes" not in line:
            continue
        evaluated.append(number)
        absent += 6 - len(trained)
        current = server.state.server["w"]
        truth = {
            "served": {i: counts_of(server, data[i], models[i]) for i in range(6)},
            "trained": {i: counts_of(server, data[i], trained.get(i, server._initial)) for i in range(6)},
            "global": {i: counts_of(server, data[i], current) for i in range(6)},
        }
        nodes = dict.fromkeys(range(6), 30)
        assert line["scopes"] == {scope: summarize(counts, nodes) for scope, counts in truth.items()}
        assert any(not np.array_equal(truth["served"][i], truth["global"][i]) for i in range(6))
    assert evaluated == (list(range(1, 8)) if every == 1 else [3, 6, 7])
    assert absent > 0


@pytest.mark.parametrize("name", ["fedgta", "fedavg", "local"])
def test_scopes_do_not_depend_on_how_often_one_looks(start: Start, name: str) -> None:
    keys = {"algorithm.name": name, "participation.ratio": 0.34, "rounds": 6}
    often, seldom = start({**keys, "evaluation.every": 1}), start({**keys, "evaluation.every": 3})
    for number in range(1, 7):
        lines = often.round(), seldom.round()
        if number % 3 == 0:
            assert lines[0]["scopes"] == lines[1]["scopes"]
            assert set(lines[0]["scopes"]) == {"trained", "served", *(["global"] if name == "fedavg" else [])}


@pytest.mark.parametrize("name", ["fedgta", "fedavg"])
def test_the_order_in_which_cells_finish_changes_nothing(run: Start, name: str) -> None:
    keys = {"algorithm.name": name, "engine.cell_size": 1, "participation.ratio": 0.7}
    require_same_tree(tensors_of(run(keys, rounds=3, pool=Shuffled)), tensors_of(run(keys, rounds=3)))


def test_the_loss_is_the_mean_over_training_rows(start: Start, views: Callable[..., list[View]]) -> None:
    keys = {"train.optimizer": "sgd", "train.lr": 1e-20, "train.dropout": 0.0, "model.name": "sgc"}
    server = start({**keys, "participation.ratio": 0.7})
    line = server.round()
    data = views(server)
    weight, bias = server._initial[:20].view(4, 5), server._initial[20:]
    rows = [(data[i].hop(2)[data[i].train] @ weight.T + bias, data[i].label[data[i].train]) for i in line["cohort"]]
    logits, y = (torch.cat(parts) for parts in zip(*rows))
    assert line["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, y).item(), rel=1e-5)


def test_a_round_in_which_nobody_is_online(start: Start, tmp_path: Path) -> None:
    np.save(tmp_path / "trace.npy", np.array([[1, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]]))
    server = start({"algorithm.name": "fedgta", "participation.trace": str(tmp_path / "trace.npy"), "rounds": 4})
    before, lines = tensors_of(server), []
    for number in range(1, 5):
        lines.append(server.round())
        if number % 2 == 0:
            require_same_tree(tensors_of(server), before)
        before = tensors_of(server)
    assert [line["cohort"] for line in lines] == [[0, 1, 3], [], [0, 1, 3], []]
    assert lines[0]["scopes"]["served"] == lines[1]["scopes"]["served"]
    assert (lines[1]["bytes_up"], lines[1]["bytes_down"], lines[1]["loss"]) == (0, 0, None)


@dataclass(frozen=True)
class Spoils(FedAvg):
    """FedAvg that mixes, too; in round 2 client 3 fails, or the server makes a number that is not finite somewhere."""

    where: str = ""
    # A number as text: a config holds no NaN.
    value: str = "nan"

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial, "c": torch.zeros(2)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        def bad(where: str) -> float:
            return float(self.value) if ctx.round == 2 and where == self.where else 1.0

        shared = {"w": server["w"], "c": torch.tensor([1.0, bad("shared")])}
        private = {cohort[1]: {"own": torch.tensor(bad("private"))}}
        got = yield Ask("train", {"w": Reduce.MEAN, "z": Reduce.MIX}, shared, private)
        # The state is changed before the mixing fails.
        server["w"] = got["w"]
        rows = torch.ones(len(cohort), len(cohort))
        rows[0, 0] = bad("rows")
        yield Mix("z", rows * (2e38 if bad("result") != 1 else 1), dst=cohort)
        server["c"] = torch.tensor([1.0, bad("state")])

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if self.where == "upload" and client.info.client == 3 and "visits" in client.state:
            raise RuntimeError("out of\n ideas")
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        sent = super().upload(client, received, phase)
        return Upload({**sent.entries, "z": torch.ones(3)}, sent.weight)


@pytest.mark.parametrize(
    ("where", "places", "says"),
    [
        ("upload", ["round 2, client 3"], "in upload(): RuntimeError: out of ideas"),
        ("shared", [], "round 2: Spoils: the download 'c' holds NaN or infinity"),
        ("private", [], "round 2: Spoils: the download of client 1, 'own' holds NaN or infinity"),
        ("rows", [], "round 2: Spoils: the matrix of Mix 'z' holds NaN or infinity"),
        ("result", [], "round 2: Spoils: the result of Mix 'z' holds NaN or infinity"),
        ("state", [], "round 2: Spoils: the server's state 'c' holds NaN or infinity"),
    ],
)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_round_that_fails_is_named_and_not_committed(
    start: Start, where: str, value: str, places: list[str], says: str
) -> None:
    server = start({"algorithm.name": f"{__file__}:Spoils", "algorithm.where": where, "algorithm.value": value})
    server.round()
    state, plain = server.state, server.state.to_tensors()[1]
    before = {name: t.clone() for name, t in tensors_of(server).items()}
    for _ in range(2):
        with refused(*places, says=says):
            server.round()
        assert server.state is state
    require_same_tree(tensors_of(server), before)
    assert state.to_tensors()[1] == plain
    assert (state.round, float(state.clients[3]["visits"])) == (1, 1)
    assert (state.server["c"].tolist(), state.inboxes[4]["z"].tolist()) == ([1, 1], [6, 6, 6])


@dataclass(frozen=True)
class Talks(FedAvg):
    """Two phases and two products; keeps what it saw of them."""

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        seen = {"cohort": torch.tensor(list(cohort))}
        first = yield Ask("first", {"size": Reduce.STACK, "many": Reduce.GATHER}, train=False)
        few = [i for i in cohort if i % 2]
        second = yield Ask("second", {"size": Reduce.MEAN, "mixed": Reduce.MIX}, train=False, to=few)
        product = yield Mix("mixed", torch.ones(len(second.ids)))
        lengths = torch.tensor([len(t) for t in first.lists["many"]])
        seen |= {"ids": torch.tensor(first.ids), "sizes": first["size"], "lengths": lengths}
        seen |= {"few": torch.tensor(second.ids), "mean": second["size"], "weight": second.weights["size"]}
        server.update(seen, product=product)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        i = client.info.client
        size = torch.tensor(float(i if phase == "first" else 10 * i))
        entries = {"size": size, "many": torch.ones(i + 1), "mixed": torch.full((2,), float(i))}
        return Upload(entries, {"size": 1.0 + i})


def test_answers_of_phases_and_products_reach_the_generator(start: Start, exchange_of: Callable[..., Exchange]) -> None:
    server = start({"algorithm.name": f"{__file__}:Talks"})
    exchange = exchange_of(server, [0, 1, 3, 4])
    server.run_method(exchange, server._context(1), lambda client: False)
    state = {name: t.tolist() for name, t in exchange.next_state.server.items() if name != "w"}
    assert state == {
        "cohort": [0, 1, 3, 4],
        "ids": [0, 1, 3, 4],
        "sizes": [0, 1, 3, 4],
        "lengths": [1, 2, 4, 5],
        "few": [1, 3],
        "mean": pytest.approx((2 * 10 + 4 * 30) / 6),
        "weight": 6.0,
        "product": [4.0, 4.0],
    }
    # What the server committed last is not touched.
    assert server.state.server.keys() == {"w"}


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm.name": "fedgta"},
        {"algorithm.name": "fedavg"},
        {"algorithm.name": "local", "model.name": "mlp"},
        {"model.name": "sgc", "train.schedule": {"name": "CosineAnnealingWarmRestarts", "T_0": 2}},
    ],
)
@pytest.mark.parametrize("stop", [1, 3])
def test_a_run_goes_on_from_a_stored_state(start: Start, keys: dict[str, Any], stop: int) -> None:
    keys = {**keys, "participation.ratio": 0.5, "evaluation.every": 2, "rounds": 5}
    through, first = start(keys), start(keys)
    lines = [through.round() for _ in range(5)]
    for _ in range(stop):
        first.round()
    tensors, plain = first.state.to_tensors()
    stored = {key: t.clone() for key, t in tensors.items()}
    second = start(keys, state=FederationState.from_tensors(stored, plain))
    again = [second.round() for _ in range(5 - stop)]
    for line in (*lines, *again):
        del line["seconds"]
    assert again == lines[stop:]
    require_same_tree(tensors_of(second), tensors_of(through))


@pytest.mark.parametrize(
    "keys",
    [
        *({"model.name": "sgc", "engine.trainer": path} for path in ("autograd", "analytic", "batched")),
        # It divides by the rate of the round.
        {"model.name": "sgc", "algorithm.name": "scaffold"},
    ],
)
def test_a_schedule_gives_each_round_its_rate(start: Start, keys: dict[str, Any]) -> None:
    keys = {**keys, "train.optimizer": "sgd", "rounds": 3, "train.lr": 0.4}
    server = start({**keys, "train.schedule": {"name": "ExponentialLR", "gamma": 0.25}})
    state = None
    for rate in (0.4, 0.1, 0.025):
        assert server.round()["lr"] == pytest.approx(rate)
        alone = start({**keys, "train.lr": rate}, state=state)
        assert "lr" not in alone.round()
        state = alone.state
        require_same_tree(tensors_of(server), tensors_of(alone))


NAMES = st.sampled_from(["w", "opt.exp_avg", "proto/head", "c"])
TENSORS = st.builds(lambda n, seed: torch.arange(n) * seed, st.integers(0, 4), st.integers(-3, 3))
TREES = st.dictionaries(NAMES, TENSORS, min_size=1)
IDS = st.integers(0, 200_000)
COUNTS = st.integers(0, 99).map(lambda n: np.full((2, 3, 4), n))


def assert_equal(left: object, right: object) -> None:
    assert type(left) is type(right)
    if isinstance(left, dict) and isinstance(right, dict):
        assert left.keys() == right.keys()
        for name in left:
            assert_equal(left[name], right[name])
    elif isinstance(left, Tensor) and isinstance(right, Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, np.ndarray):
        np.testing.assert_array_equal(left, right)
    else:
        assert left == right


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        FederationState,
        round=st.integers(0, 10**6),
        server=TREES,
        clients=st.dictionaries(IDS, TREES),
        inboxes=st.dictionaries(IDS, TREES),
        downloads=st.dictionaries(IDS, TREES),
        newest=st.dictionaries(IDS, st.integers(0, 99)),
        scores=st.dictionaries(
            st.sampled_from(["trained", "served", "global"]), st.dictionaries(IDS, COUNTS, min_size=1)
        ),
        touched=st.dictionaries(IDS, st.booleans()),
        evaluated=st.sampled_from(["", "0f"]),
    )
)
def test_tensors_and_back(state: FederationState) -> None:
    tensors, plain = state.to_tensors()
    assert all(isinstance(t, Tensor) for t in tensors.values())
    assert_equal(vars(FederationState.from_tensors(tensors, plain)), vars(state))
