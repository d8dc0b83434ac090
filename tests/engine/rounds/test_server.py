"""Rounds of small federations in this process: scopes by brute force, the method's generator, and going on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from support.fixtures import CountsOf, Start, Views
from support.needs import needs
from support.small_cells import Watched as WatchedPool
from support.small_cells import require_same_tree, tensors_of
from torch import Tensor

from shoal.algorithms.base import Client, Context, Mix, Received, Requests, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Ask, Reduce
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds import state as state_module
from shoal.engine.rounds.state import FederationState, read_scores
from shoal.engine.scores.counts import summarize
from shoal.engine.scores.table import ScoreTable


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


class Shuffled(WatchedPool):
    """A pool whose cells finish in another order than they were given."""

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        order = np.random.default_rng(len(cells)).permutation(len(cells)).tolist()
        for position in order:
            for _, outcome in self.pool.run_cells([cells[position]], shared):
                yield position, outcome


@pytest.mark.parametrize(("every", "cell_size"), [(1, 2), (3, 1)])
def test_scopes_of_a_method_with_a_model(
    start: Start, views: Views, counts_of: CountsOf, every: int, cell_size: int
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
        parameters = {"deployed": models, "trained": [trained.get(i, server._initial) for i in range(6)]}
        parameters["global"] = [current] * 6
        truth = {scope: {i: counts_of(server, data[i], w[i]) for i in range(6)} for scope, w in parameters.items()}
        assert line["scopes"] == {scope: summarize(counts, [30] * 6) for scope, counts in truth.items()}
        assert any(not np.array_equal(truth["deployed"][i], truth["global"][i]) for i in range(6))
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
            assert set(lines[0]["scopes"]) == {"trained", "deployed", *(["global"] if name == "fedavg" else [])}


@pytest.mark.parametrize("name", ["fedgta", "fedavg"])
def test_the_order_in_which_cells_finish_changes_nothing(run: Start, name: str) -> None:
    keys = {"algorithm.name": name, "engine.cell_size": 1, "participation.ratio": 0.7}
    require_same_tree(tensors_of(run(keys, rounds=3, pool=Shuffled)), tensors_of(run(keys, rounds=3)))


@needs("availability")
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
    assert lines[0]["scopes"]["deployed"] == lines[1]["scopes"]["deployed"]
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
        # The state is changed in place before the mixing fails.
        server["w"].copy_(got["w"])
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
    ("where", "says"),
    [
        ("upload", "in upload(): RuntimeError: out of ideas"),
        ("shared", "round 2: Spoils: the download 'c' holds NaN or infinity"),
        ("private", "round 2: Spoils: the download of client 1, 'own' holds NaN or infinity"),
        ("rows", "round 2: Spoils: the matrix of Mix 'z' holds NaN or infinity"),
        ("result", "round 2: Spoils: the result of Mix 'z' holds NaN or infinity"),
        ("state", "round 2: Spoils: the server's state 'c' holds NaN or infinity"),
    ],
)
@pytest.mark.parametrize("value", ["nan", pytest.param("inf", marks=pytest.mark.exhaustive(6))])
def test_a_round_that_fails_is_named_and_not_committed(start: Start, where: str, value: str, says: str) -> None:
    server = start({"algorithm.name": f"{__file__}:Spoils", "algorithm.where": where, "algorithm.value": value})
    server.round()
    state, plain = server.state, server.state.to_tensors()[1]
    before = {name: t.clone() for name, t in tensors_of(server).items()}
    for _ in range(2):
        with refused(*(["round 2, client 3"] if where == "upload" else []), says=says):
            server.round()
        assert server.state is state
    require_same_tree(tensors_of(server), before)
    assert state.to_tensors()[1] == plain
    assert (state.round, float(state.clients[3]["visits"])) == (1, 1)
    assert (state.server["c"].tolist(), state.inboxes[4]["z"].tolist()) == ([1, 1], [6, 6, 6])


@pytest.mark.parametrize("name", ["fedgta", "fedavg", "local"])
@pytest.mark.parametrize("stop", [1, 3])
def test_a_run_goes_on_from_a_stored_state(start: Start, name: str, stop: int) -> None:
    schedule = {"name": "CosineAnnealingWarmRestarts", "T_0": 2}
    keys = {"algorithm.name": name, "participation.ratio": 0.5, "evaluation.every": 2, "rounds": 5}
    keys |= {"model.name": "sgc", "train.schedule": schedule} if name == "fedavg" else {}
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


# Scaffold divides by the rate of the round.
@pytest.mark.parametrize("path", ["autograd", "analytic", "batched", "scaffold"])
def test_a_schedule_gives_each_round_its_rate(start: Start, path: str) -> None:
    own = {"algorithm.name": path} if path == "scaffold" else {"engine.trainer": path}
    keys = {**own, "model.name": "sgc", "train.optimizer": "sgd", "rounds": 3, "train.lr": 0.4}
    server = start({**keys, "train.schedule": {"name": "ExponentialLR", "gamma": 0.25}})
    state = None
    for rate in (0.4, 0.1, 0.025):
        assert server.round()["lr"] == pytest.approx(rate)
        alone = start({**keys, "train.lr": rate}, state=state)
        assert "lr" not in alone.round()
        state = alone.state
        require_same_tree(tensors_of(server), tensors_of(alone))


@pytest.mark.parametrize("epochs", [1, 12])
def test_a_loss_without_bounds_ends_the_run(start: Start, epochs: int) -> None:
    """From round to round, also of a run that goes on, or from epoch to epoch."""
    keys = {"model.name": "mlp", "train.optimizer": "sgd", "train.lr": 1e3, "train.epochs": epochs}
    server = start(keys)
    if epochs == 1:
        server.round()
        server = start(keys, state=FederationState.from_tensors(*server.state.to_tensors()))
        server.round()
    with refused(f"round {server.state.round + 1}, client 0", says="over a million times the first"):
        server.round()


MODEL = """
import os
import torch
from torch import nn
import shoal

class Net(shoal.Backbone):
    def __init__(self, features: int, *, hidden: int = 8):
        super().__init__(width=hidden)
        self.layer = LAYER

    def forward(self, x, edge_index):
        return self.layer(FIRST)
"""


@pytest.mark.parametrize(
    ("layer", "first", "says"),
    [
        ("nn.Linear(features, hidden)", "x + os.urandom(4)[0]", "Net) is not deterministic: the loss differs"),
        ("nn.Linear(features, hidden)", "torch.from_numpy(x.numpy().__imul__(2))", "Net) writes into client.data.x"),
        ("nn.Linear(features, hidden)", "exec('raise BaseException(3)')", "line 13: BaseException: 3"),
        ("nn.LazyLinear(hidden)", "x", "line 7: Net: the parameter layer.weight has no shape yet"),
        ("nn.Linear(features, hidden).double()", "x", "the parameter layer.weight has numbers of another type"),
    ],
)
def test_a_users_model_that_cannot_be_is_one_line(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: str, first: str, says: str
) -> None:
    """With a method of ours, which alone is checked in its first round."""
    monkeypatch.setenv("SHOAL_CHECK_ALWAYS", "0")
    (tmp_path / "net.py").write_text(MODEL.replace("LAYER", layer).replace("FIRST", first))
    with refused(says=says):
        start({"model": {"name": f"{tmp_path}/net.py:Net"}}).round()


def test_models_of_earlier_rounds_on_disk_are_the_same_bits(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any type and shape; those in files are not written again, and a resume puts them there, too."""
    keys = {"participation.ratio": 0.17, "evaluation.every": 3, "rounds": 6}
    held, spilled = start(keys), start(keys)
    tree = {"w": torch.ones(3).bfloat16(), "empty": torch.empty(0, 2), "flag": torch.tensor(True)}
    for number in range(1, 7):
        expected = held.round()["scopes"] if number % 3 == 0 else held.round() and None
        with monkeypatch.context() as patch:
            patch.setattr(state_module, "DOWNLOADS_IN_MEMORY", 0)
            assert spilled.round().get("scopes") == expected
            earlier = spilled.state.downloads.keys() - {number}
            assert spilled.state.on_disk == earlier
            again = FederationState.from_tensors(*spilled.state.to_tensors())
            assert again.on_disk == spilled.state.downloads.keys()
            mapped = state_module.on_disk({3: tree})[3]
            assert plain_of(mapped) == plain_of(tree)
            assert mapped["flag"].data_ptr() % 64 == 0
        assert plain_of(again.downloads) == plain_of(spilled.state.downloads) == plain_of(held.state.downloads)
    assert len(earlier) > 1


NAMES = st.sampled_from(["w", "opt.exp_avg", "proto/head", "c"])
TENSORS = st.builds(lambda n, seed: torch.arange(n) * seed, st.integers(0, 4), st.integers(-3, 3))
TREES = st.dictionaries(NAMES, TENSORS, min_size=1)
IDS = st.integers(0, 200_000)
COUNTS = st.integers(0, 99).map(lambda n: np.full((2, 3, 4), n))
TABLES = st.dictionaries(IDS, COUNTS, min_size=1).map(ScoreTable)


def plain_of(value: object) -> object:
    """Tensors and arrays as their type and numbers."""
    if isinstance(value, Mapping):
        return {name: plain_of(item) for name, item in value.items()}
    return (type(value), value.dtype, value.tolist()) if isinstance(value, Tensor | np.ndarray) else value


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        FederationState,
        round=st.integers(0, 10**6),
        server=TREES,
        **{name: st.dictionaries(IDS, TREES) for name in ("clients", "inboxes", "downloads")},
        newest=st.dictionaries(IDS, st.integers(0, 99)),
        scores=st.dictionaries(st.sampled_from(["trained", "global"]), TABLES),
        touched=st.dictionaries(IDS, st.booleans()),
        evaluated=st.sampled_from(["", "0f"]),
        first_losses=st.dictionaries(NAMES, st.floats(0, 9)),
    )
)
def test_tensors_and_back(state: FederationState) -> None:
    tensors, plain = state.to_tensors()
    assert all(isinstance(t, Tensor) for t in tensors.values())
    # A checkpoint of before there were columns.
    old = {f"scores/{scope}": np.stack(list(table.values())) for scope, table in state.scores.items()}
    old |= {f"scored/{scope}": torch.tensor(list(table)) for scope, table in state.scores.items()}
    assert plain_of(read_scores(old)) == plain_of(state.scores)
    assert plain_of(vars(FederationState.from_tensors(tensors, plain))) == plain_of(vars(state))
