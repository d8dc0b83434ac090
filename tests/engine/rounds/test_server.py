"""Rounds of small federations in this process, and what is evaluated when, against brute force."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.base import Client, Context, Mix, Received, Requests, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Ask, Reduce
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.costs import Pool
from shoal.engine.rounds.scoring import summarize
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
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


@dataclass(frozen=True)
class Lottery(FedAvg):
    """FedAvg that trains every other client of its cohort and serves them all."""

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MEAN}, shared={"w": server["w"]}, to=cohort[::2])
        server["w"] = got["w"]


@dataclass(frozen=True)
class Fails(FedAvg):
    """Fails at client 3, on the server, or by its messages, in round 2."""

    where: str = "upload"

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        server["w"] += 1
        yield from super().round(server, ctx, cohort)
        if ctx.round == 2 and self.where == "mix":
            yield Mix("w", torch.ones(6))

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if self.where == "upload" and client.info.client == 3 and client.state.get("visits", torch.zeros(())) > 0:
            raise RuntimeError("out of\n ideas")
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        return super().upload(client, received, phase)


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


def tensors(server: Server) -> Tree:
    return server.state.to_tensors()[0]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("cell_size", [1, 2])
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


def test_the_whole_cohort_is_served(start: Start, views: Callable[..., list[View]], counts_of: CountsOf) -> None:
    server = start({"algorithm.name": f"{__file__}:Lottery", "participation.ratio": 0.7, "train.lr": 0.05})
    for number in range(1, 5):
        server.round()
        for i in server.cohort(number):
            counts = counts_of(server, views(server)[i], server.state.server["w"])
            np.testing.assert_array_equal(server.state.scores["served"][i], counts)


@pytest.mark.parametrize("name", ["fedgta", "fedavg", "local"])
def test_only_clients_that_took_part_are_evaluated_again(start: Start, name: str) -> None:
    server = start({"algorithm.name": name, "participation.ratio": 0.34})
    server.round()
    for number in range(2, 5):
        before = server.state.scores["served"]
        server.round()
        same = {i for i in range(6) if server.state.scores["served"][i] is before[i]}
        assert same == set(range(6)) - set(server.cohort(number))


def test_scopes_do_not_depend_on_how_often_one_looks(start: Start) -> None:
    for name in ("fedgta", "fedavg", "local"):
        keys = {"algorithm.name": name, "participation.ratio": 0.34, "rounds": 6}
        often, seldom = start({**keys, "evaluation.every": 1}), start({**keys, "evaluation.every": 3})
        for number in range(1, 7):
            lines = often.round(), seldom.round()
            if number % 3 == 0:
                assert lines[0]["scopes"] == lines[1]["scopes"]
                assert set(lines[0]["scopes"]) == {"trained", "served", *(["global"] if name == "fedavg" else [])}


@pytest.mark.parametrize("name", ["fedgta", "fedavg"])
def test_cell_size_changes_rounding_only(run: Start, name: str) -> None:
    keys = {"algorithm.name": name, "train.optimizer": "sgd", "train.lr": 0.1}
    one, four = (tensors(run({**keys, "engine.cell_size": size}, rounds=3)) for size in (1, 4))
    assert one.keys() == four.keys()
    for entry, tensor in one.items():
        torch.testing.assert_close(tensor, four[entry], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["fedgta", "fedavg"])
def test_the_order_in_which_cells_finish_changes_nothing(run: Start, name: str) -> None:
    keys = {"algorithm.name": name, "engine.cell_size": 1, "participation.ratio": 0.7}
    inorder, shuffled = tensors(run(keys, rounds=3)), tensors(run(keys, rounds=3, pool=Shuffled))
    assert inorder.keys() == shuffled.keys()
    assert all(torch.equal(tensor, shuffled[entry]) for entry, tensor in inorder.items())


def test_seeds_change_everything_and_nothing_else_does(run: Start) -> None:
    first, again, other = (run({"seed": seed}, rounds=2).state.server["w"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_loss_is_the_mean_over_training_rows(start: Start, views: Callable[..., list[View]]) -> None:
    keys = {"train.optimizer": "sgd", "train.lr": 1e-20, "train.dropout": 0.0, "model.name": "sgc"}
    server = start({**keys, "participation.ratio": 0.7})
    line = server.round()
    data = views(server)
    weight, bias = server._initial[:20].view(4, 5), server._initial[20:]
    rows = [(data[i].hop(2)[data[i].train] @ weight.T + bias, data[i].label[data[i].train]) for i in line["cohort"]]
    logits, y = (torch.cat(parts) for parts in zip(*rows))
    assert line["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, y).item(), rel=1e-5)


def test_a_failing_client_is_named_and_the_state_stays(start: Start) -> None:
    server = start({"algorithm.name": f"{__file__}:Fails"})
    server.round()
    before, state = {name: t.clone() for name, t in tensors(server).items()}, server.state
    for _ in range(2):
        with pytest.raises(
            ShoalError, match=r"^round 2, client 3: .*py, line 66, in upload\(\): RuntimeError: out of ideas$"
        ) as caught:
            server.round()
        assert ", in upload\n" in caught.value.detail
        assert server.state is state
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(server).items())


def test_mixing_what_nobody_uploaded_for_it_is_refused(start: Start) -> None:
    server = start({"algorithm.name": f"{__file__}:Fails", "algorithm.where": "mix"})
    server.round()
    with pytest.raises(ShoalError, match=r"^round 2: Fails: Mix\('w'\) before any Ask uploaded it as Reduce\.MIX"):
        server.round()
    assert server.state.round == 1


def test_a_round_in_which_nobody_is_online(start: Start, tmp_path: Path) -> None:
    np.save(tmp_path / "trace.npy", np.array([[1, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]]))
    server = start({"algorithm.name": "fedgta", "participation.trace": str(tmp_path / "trace.npy"), "rounds": 4})
    before, lines = server.state, []
    for number in range(1, 5):
        lines.append(server.round())
        if number % 2 == 0:
            assert all(torch.equal(t, before.to_tensors()[0][name]) for name, t in tensors(server).items())
        before = server.state
    assert [line["cohort"] for line in lines] == [[0, 1, 3], [], [0, 1, 3], []]
    assert lines[0]["scopes"]["served"] == lines[1]["scopes"]["served"]
    assert (lines[1]["bytes_up"], lines[1]["bytes_down"], lines[1]["loss"]) == (0, 0, None)
