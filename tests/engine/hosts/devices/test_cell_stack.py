"""Cells that are trained as one stack: the numbers of visits to the bit, on any device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.errors import refused
from support.needs import needs
from support.same_bits import assert_same_runs, assert_same_scores

from shoal.algorithms.base import Client, Pull, Received, Trainer
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.feddc import FedDC
from shoal.algorithms.methods.feddistill import FedDistill
from shoal.algorithms.methods.fedopt import FedOPT
from shoal.algorithms.methods.fedproc import FedProc
from shoal.algorithms.methods.fedproto import FedProto, FedProtoAveraged
from shoal.algorithms.methods.fedprox import FedProx
from shoal.algorithms.methods.fedtgp import FedTGP
from shoal.algorithms.methods.fpl import FPL
from shoal.algorithms.methods.moon import MOON
from shoal.algorithms.methods.scaffold import SCAFFOLD
from shoal.algorithms.protocol import Tree, Upload
from shoal.algorithms.rng import CPU
from shoal.engine.hosts import host
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.hosts.devices.cell_stack import CellStacks, Stack, needs_no_visits
from shoal.engine.hosts.host import Visit
from shoal.engine.rounds.server import Server

Run = Callable[..., Server]
KEYS: dict[str, Any] = {
    "engine.trainer": "batched",
    "engine.cell_size": 4,
    "evaluation.every": 100,
    "train.dropout": 0.3,
}
SGD = {"train.optimizer": "sgd", "train.lr": 0.1}
# Client 5, in the second cell, has no training node.
CASES: dict[str, dict[str, Any]] = {
    "adam": {},
    "momentum": {"train.optimizer": "sgd", "train.lr": 0.1, "train.momentum": 0.9},
    "sgd, in turns": {"train.optimizer": "sgd", "participation.ratio": 0.7, "algorithm.weight": "train"},
    "adam, in turns": {"participation.ratio": 0.7, "engine.cell_size": 3},
    "moments begun anew": {"train.opt_state": "reset", "algorithm.name": "fedopt"},
    "pulled": {"algorithm.name": "fedprox", "algorithm.mu": 0.5, "participation.ratio": 0.7, "engine.cell_size": 3},
    "variates": {"algorithm.name": "scaffold", "participation.ratio": 0.7, "engine.cell_size": 3},
    "variates, by steps": {"algorithm": {"name": "scaffold", "weight": "train", "eta": 0.5}, **SGD},
    "no variates": {"algorithm": {"name": "scaffold", "variate": "off"}},
    "variates, moments begun anew": {"algorithm.name": "scaffold", "train.opt_state": "reset"},
    "drifts": {"algorithm.name": "feddc", "participation.ratio": 0.7, "engine.cell_size": 3},
    "drifts, by steps": {"algorithm": {"name": "feddc", "weight": "nodes"}, **SGD},
    "drifts after": {"algorithm": {"name": "feddc", "sends": "after", "alpha": 0.0}, "engine.cell_size": 6},
    "no drifts": {"algorithm": {"name": "feddc", "sends": "off", "alpha": 0.0, "variate": "off"}},
    "graphs": {"model.name": "gcn", "train.dropout": 0.0, "engine.cell_size": 6},
    "scored": {"evaluation.every": 1, "engine.cell_size": 3},
    "scored, in turns": {"evaluation.every": 2, "participation.ratio": 0.7, "model.name": "gcn", "train.dropout": 0.0},
    "a schedule of rates": {"train.schedule": {"name": "ExponentialLR", "gamma": 0.5}, "engine.cell_size": 8},
}


@pytest.fixture(autouse=True)
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves methods of ours unwatched, as outside of tests: guards look at visits."""
    monkeypatch.setenv("SHOAL_CHECK_ALWAYS", "0")


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    """Calls something where no cell is trained as a stack."""

    def visited(call: Callable[..., Server], *received: Any, **more: Any) -> Server:
        with monkeypatch.context() as patch:
            patch.setattr(CellStacks, "takes", lambda self, cell: False)
            return call(*received, **more)

    return visited


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[Stack]:
    """Stacks that gave results."""
    made: list[Stack] = []
    result = Stack.result

    def noted(self: Stack) -> Any:
        found = result(self)
        made.append(self)
        return found

    monkeypatch.setattr(Stack, "result", noted)
    return made


def fetched(server: Server) -> Server:
    """Brings states to the processor that stayed on a device."""
    server.state.clients = {i: {name: t.cpu() for name, t in of.items()} for i, of in server.state.clients.items()}
    return server


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("device", ["there", pytest.param("here", marks=pytest.mark.exhaustive(4))])
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_of_visits(
    run: Run, visited: Any, stacks: list[Stack], request: Any, case: str, device: str
) -> None:
    if device == "there":
        request.getfixturevalue("there")
    keys = {**KEYS, **CASES[case]}
    alone = visited(run, keys, rounds=4)
    assert not stacks
    together = run(keys, rounds=4)
    assert_same_runs(fetched(together), alone)
    assert together.state.first_losses == alone.state.first_losses
    assert_same_scores(together, alone)
    clients = 4 if "participation.ratio" in keys else 6
    assert len(stacks) == 4 * -(-clients // keys["engine.cell_size"])


@pytest.mark.usefixtures("there", "keyed")
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "feddc", "moon"])
@pytest.mark.parametrize("model", ["mlp", "gcn"])
def test_the_numbers_of_clients_one_by_one(run: Run, stacks: list[Stack], model: str, method: str) -> None:
    """With what each drops, drawn by keys; and neither the share nor the pull is without effect.

    What SCAFFOLD and FedDC add up differs in the last bits from round to round.
    """
    keys = {**KEYS, "model.name": model, "train.optimizer": "sgd", "train.lr": 0.1, "algorithm.name": method}
    keys |= {"algorithm.mu": 1.0} if method == "fedprox" else {}
    rounds = 2 if method in ("fedavg", "fedprox") else 3
    together = run(keys, rounds=rounds)
    assert len(stacks) == 2 * rounds
    alone = run({**keys, "engine.trainer": "autograd"}, rounds=rounds)
    torch.testing.assert_close(together.state.server, alone.state.server, rtol=1e-5, atol=1e-6)
    for other in ({"train.dropout": 0.31}, {"algorithm.mu": 1.1} if method == "fedprox" else {}):
        changed = run({**keys, **other}, rounds=rounds).state.server["w"]
        assert not other or (changed - alone.state.server["w"]).abs().max() > 1e-4


def test_lines_of_metrics_are_those_of_visits(start: Run, visited: Any, stacks: list[Stack]) -> None:
    stacked, alone = start(KEYS), start(KEYS)
    for _ in range(2):
        one, other = stacked.round(), visited(alone.round)
        for name in ("loss", "cohort", "bytes_up", "bytes_down", "client_bytes"):
            assert one[name] == other[name]
    assert stacks


@pytest.mark.parametrize("device", ["here", "there"])
@pytest.mark.parametrize(("epochs", "says"), [(1, "NaN or infinity in 'w'"), (2, "the training loss is NaN")])
def test_clients_that_are_not_sound_are_named_and_left_out(
    start: Run, visited: Any, stacks: list[Stack], request: Any, device: str, epochs: int, says: str
) -> None:
    """Two with infinite moments, one a cell; the others are added up without them."""
    if device == "there":
        request.getfixturevalue("there")
    keys = {**KEYS, "train.epochs": epochs, "engine.on_client_error": "skip"}

    def run() -> Server:
        server = start(keys)
        server.round()
        for client in (1, 4):
            kept = server.state.clients[client]
            infinite = torch.full_like(kept["model.opt.exp_avg"], float("inf"))
            server.state.clients[client] = {**kept, "model.opt.exp_avg": infinite}
        lines.append(server.round())
        return server

    lines: list[dict[str, Any]] = []
    together, alone = run(), visited(run)
    assert len(stacks) == 4
    assert_same_runs(fetched(together), alone)
    assert [line["cohort"] for line in lines] == [[0, 2, 3, 5]] * 2
    assert lines[0]["failures"].keys() == lines[1]["failures"].keys() == {"1", "4"}
    assert [line[0] for line in lines[0]["failures"].values()] == [line[0] for line in lines[1]["failures"].values()]
    with refused("round 2, client 1", says=says):
        keys.pop("engine.on_client_error")
        run()


# What these read of clients' rows is computed for all at once, which rounds otherwise.
OF_EMBEDDINGS: dict[str, dict[str, Any]] = {
    "moon": {"algorithm.name": "moon"},
    "fpl": {"algorithm": {"name": "fpl", "tau": 0.2, "cluster_from": 1, "weight": "train"}},
    "fedproto": {"algorithm.name": "fedproto"},
    "fedtgp": {"algorithm": {"name": "fedtgp", "server_steps": 5}},
    "fedproto, averaged": {"algorithm.name": "fedproto_averaged"},
    "graphs": {"algorithm.name": "fedproto_averaged", "model.name": "gcn", "train.dropout": 0.0},
}


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("device", ["here", "there"])
@pytest.mark.parametrize("case", OF_EMBEDDINGS)
def test_the_numbers_of_visits_to_rounding(
    start: Run, visited: Any, stacks: list[Stack], request: Any, case: str, device: str
) -> None:
    """With bytes to the last one; a client has no training row, and may be alone in a cell."""
    if device == "there":
        request.getfixturevalue("there")
    keys = {**KEYS, **SGD, **OF_EMBEDDINGS[case], "participation.ratio": 0.7, "engine.cell_size": 3}
    keys |= {"evaluation.every": 2}
    together, alone = start(keys), start(keys)
    for _ in range(5):
        one, other = together.round(), visited(alone.round)
        for name in ("cohort", "bytes_up", "bytes_down", "client_bytes"):
            assert one[name] == other[name]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    fetched(together), fetched(alone)
    torch.testing.assert_close(together.state.server, alone.state.server, rtol=1e-5, atol=2e-6)
    kept = ({i: tree for i, tree in of.state.clients.items() if tree} for of in (together, alone))
    torch.testing.assert_close(*kept, rtol=1e-5, atol=2e-6)
    assert_same_scores(together, alone)
    assert len(stacks) >= 5


@pytest.mark.parametrize("device", ["here", "there"])
@pytest.mark.parametrize(("case", "entry"), [("moon", "w"), ("fpl", "w"), ("fedtgp", "proto")])
def test_what_is_sent_beside_a_model_is_sound(
    start: Run, visited: Any, stacks: list[Stack], request: Any, case: str, entry: str, device: str
) -> None:
    """Two have infinite moments, one a cell; of the others alone are sums and stacks."""
    if device == "there":
        request.getfixturevalue("there")
    keys = {**KEYS, **OF_EMBEDDINGS[case], "engine.on_client_error": "skip", "train.epochs": 1}
    keys |= {"train.optimizer": "sgd", "train.lr": 0.1, "train.momentum": 0.9}
    lines, servers = [], []
    for at in (lambda call: call(), visited):
        server = start(keys)
        at(server.round)
        for client in (1, 4):
            kept = server.state.clients[client]
            name = next(name for name in kept if "momentum" in name)
            server.state.clients[client] = {**kept, name: torch.full_like(kept[name], float("inf"))}
        lines.append(at(server.round))
        servers.append(fetched(server))
    assert len(stacks) >= 2
    assert lines[0]["cohort"] == lines[1]["cohort"] == [0, 2, 3, 5]
    for client in ("1", "4"):
        assert f"NaN or infinity in '{entry}'" in lines[0]["failures"][client][0]
        assert lines[0]["failures"][client][0] == lines[1]["failures"][client][0]
    torch.testing.assert_close(servers[0].state.server, servers[1].state.server, rtol=1e-5, atol=2e-6)


def test_a_loss_beyond_the_first_is_refused(start: Run, visited: Any, stacks: list[Stack]) -> None:
    w = 1e12 * torch.randn(24, generator=torch.Generator().manual_seed(0))

    def run() -> dict[str, Any]:
        server = start({**KEYS, "model.name": "sgc", "engine.on_client_error": "skip"})
        server.round()
        server.state.server["w"] = w
        return server.round()

    line, alone = run(), visited(run)
    assert line["cohort"] == alone["cohort"] == [5]
    for client, (told, _) in line["failures"].items():
        assert "over a million times the first" in told
        assert told == alone["failures"][client][0]
    assert len(stacks) == 4


@pytest.mark.parametrize("device", ["here", "there"])
def test_a_client_that_cannot_be_scored_is_left_out(
    start: Run, visited: Any, stacks: list[Stack], request: Any, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """Nothing of its training counts."""
    if device == "there":
        request.getfixturevalue("there")
    received = Visit.received_to_score

    def lost(self: Visit) -> Received:
        if self.client.info.client == 2:
            raise RuntimeError("no luck")
        return received(self)

    monkeypatch.setattr(Visit, "received_to_score", lost)
    keys = {**KEYS, "evaluation.every": 1, "engine.on_client_error": "skip"}
    servers = [start(keys), start(keys)]
    lines = [servers[0].round(), visited(servers[1].round)]
    assert_same_runs(fetched(servers[0]), servers[1])
    assert_same_scores(*servers)
    assert [line["cohort"] for line in lines] == [[0, 1, 3, 4, 5]] * 2
    assert "RuntimeError: no luck" in lines[0]["failures"]["2"][0]
    assert len(stacks) == 2


def test_what_fails_is_told_by_visits(start: Run, stacks: list[Stack]) -> None:
    """Moments of another shape are the failure of all in the batch; the next cell goes its way."""
    server = start({**KEYS, "engine.on_client_error": "skip"})
    server.round()
    server.state.clients[2] = {**server.state.clients[2], "model.opt.exp_avg": torch.ones(3)}
    line = server.round()
    assert line["cohort"] == [4, 5]
    assert "in one batch with clients [0, 1, 2, 3]: RuntimeError: exp_avg has shape [3]" in line["failures"]["0"][0]
    assert len(stacks) == 3


@dataclass(frozen=True)
class OwnUpload(FedAvg):
    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return super().upload(client, received, phase)


@dataclass(frozen=True)
class OwnReceive(FedAvg):
    def receive(self, client: Client, down: Tree) -> Received:
        return super().receive(client, down)


@dataclass(frozen=True)
class OwnWeight(FedAvg):
    def weight_of(self, client: Client) -> float:
        return 2 * super().weight_of(client)


@dataclass(frozen=True)
class OwnTraining(FedAvg):
    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        return trainer.fit(client, received)


@dataclass(frozen=True)
class OwnPull(FedAvg):
    def pull(self, client: Client, received: Received, options: Any) -> Pull | None:
        return None


@dataclass(frozen=True)
class Personal(FedAvg):
    client_models = "personal"


@dataclass(frozen=True)
class OwnRound(FedAvg):
    def global_model(self, server: Tree) -> Tree:
        return super().global_model(server)


@dataclass(frozen=True)
class OwnContrast(MOON):
    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        return super().train(client, received, trainer, phase)


@dataclass(frozen=True)
class OwnMeans(FedProto):
    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return super().upload(client, received, phase)


@dataclass(frozen=True)
class OwnVariate(SCAFFOLD):
    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return super().upload(client, received, phase)


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        *((cls, False) for cls in (OwnUpload, OwnReceive, OwnWeight, OwnTraining, OwnPull, Personal, OwnVariate)),
        *((cls, False) for cls in (OwnContrast, OwnMeans, FedProc, FedDistill)),
        *((cls, True) for cls in (FedAvg, OwnRound, FedOPT, FedProx, SCAFFOLD, FedDC, MOON, FPL)),
        *((cls, True) for cls in (FedProto, FedProtoAveraged, FedTGP)),
    ],
)
def test_methods_are_known_by_their_functions(method: type[FedAvg], plain: bool) -> None:
    assert needs_no_visits(method()) == plain


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"communication.upload": "topk", "communication.ratio": 0.5}, marks=needs("compression")),
        {"algorithm.name": f"{__file__}:OwnRound"},
        {"algorithm.name": "fedgta"},
        {"engine.trainer": "autograd"},
    ],
)
def test_what_needs_a_visit_has_one(start: Run, stacks: list[Stack], keys: dict[str, Any]) -> None:
    """Stages on uploads, a user's method, others' uploads, and clients one by one."""
    start({**KEYS, **keys}).round()
    assert not stacks


@pytest.fixture
def stayed(start: Run, there: None, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server after two rounds, with states that stay on the second device."""
    server = start(KEYS)
    for _ in range(2):
        server.round()
    return server


def on_device(server: Server) -> set[str]:
    return {t.device.type for tree in server.state.clients.values() for t in tree.values()}


def test_a_round_that_fails_leaves_states_that_stay_as_they_were(
    stayed: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on_device(stayed) == {"other"}
    before = {i: {name: t.cpu() for name, t in tree.items()} for i, tree in stayed.state.clients.items()}
    state = stayed.state

    def fail(*received: Any) -> None:
        raise RuntimeError("no server")

    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, "global_model", fail)
        with refused(says="no server"):
            stayed.round()
    assert stayed.state is state
    for i, tree in state.clients.items():
        for name, t in tree.items():
            assert torch.equal(t.cpu(), before[i][name])
    # Visits after it write to copies.
    with monkeypatch.context() as patch:
        patch.setattr(CellStacks, "takes", lambda self, cell: False)
        stayed.round()
    assert all(torch.equal(t.cpu(), before[i][name]) for i, tree in state.clients.items() for name, t in tree.items())
    assert on_device(stayed) == {"cpu"}


def test_states_that_stay_are_fetched_for_a_checkpoint(stayed: Server, run: Run, visited: Any) -> None:
    backend = LocalBackend()
    backend._server = stayed
    state = backend.state()
    assert {t.device for tree in state.clients.values() for t in tree.values()} == {CPU}
    assert on_device(stayed) == {"other"}
    tensors = state.to_tensors()[0]
    for name, t in visited(run, KEYS, rounds=2).state.to_tensors()[0].items():
        assert torch.equal(tensors[name], t)


@pytest.mark.parametrize("ratio", [0.7, 1.0])
def test_states_stay_where_there_is_room(start: Run, visited: Any, there: None, monkeypatch: Any, ratio: float) -> None:
    """Whatever the room, the numbers are the same; what is let go makes room for others."""
    keys = {**KEYS, "engine.cell_size": 3, "participation.ratio": ratio}
    found, alone = [], start(keys)
    for _ in range(5):
        visited(alone.round)
    size = sum(t.nbytes for t in alone.state.clients[0].values())
    # No states, those of one cell of three, or all.
    for states in (0, 3, 36):
        monkeypatch.setattr(host, "cache_bytes", lambda *received, room=4 * states * size: room)
        server = start(keys)
        for _ in range(5):
            server.round()
        found.append([t.device.type for tree in server.state.clients.values() for t in tree.values()].count("other"))
        assert_same_runs(fetched(server), alone)
    assert found[0] == 0
    # Clients who do not come again hold the memory of those who came with them.
    assert found[1] == 9 if ratio == 1.0 else 0 < found[1] <= 9
    assert found[2] == sum(map(len, alone.state.clients.values()))


# A cell as it is on a GPU.
