"""Methods with a loss of their own, trained for several clients at once beside the loop: the same to rounding."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from shoal.algorithms.methods.fedpg.fedpg import FedPG
from shoal.algorithms.methods.fedprox import FedProx
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.training.batched.batched_model import BatchedReceived, form_of
from shoal.algorithms.training.batched.batched_training import BatchedTrainer
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
from shoal.storage.options.split_codes import TEST, TRAIN, VAL

Run = Callable[..., Server]
# By momentum, which does not make roundings of next to nothing large, as Adam does.
KEYS: dict[str, Any] = {
    "rounds": 3,
    "train.epochs": 2,
    "train.dropout": 0.3,
    "participation.ratio": 0.7,
    "engine.cell_size": 6,
    "train.optimizer": "sgd",
    "train.lr": 0.1,
    "train.momentum": 0.9,
}
CASES: dict[str, dict[str, Any]] = {
    "fedproto": {"algorithm": {"name": "fedproto", "lam": 3.0}, "model.name": "mlp"},
    "fedproto on graphs": {"algorithm": {"name": "fedproto", "lam": 3.0}, "model": {"name": "gcn", "head": "linear"}},
    "fedtgp": {"algorithm": {"name": "fedtgp", "lam": 3.0}, "model.name": "mlp"},
    "fedproto_averaged": {"algorithm": {"name": "fedproto_averaged", "lam": 3.0}, "model.name": "mlp"},
    "class means": {"algorithm": {"name": "class_means", "weight": 3.0}, "model.name": "mlp"},
    "class means on graphs": {"algorithm": {"name": "class_means", "weight": 3.0}, "model.name": "sage"},
    "fedprox": {"algorithm": {"name": "fedprox", "mu": 1.0}, "model.name": "gcn"},
    "fedpg": {"algorithm": {"name": "fedpg", "mu": 5.0}, "model.name": "mlp"},
    "fedpg on graphs": {
        "algorithm": {"name": "fedpg", "mu": 5.0, "hops": 1},
        "model.name": "gcn",
    },
    "fedpg, own targets": {"algorithm": {"name": "fedpg", "mu": 5.0, "targets": "own", "hops": 0}, "model.name": "mlp"},
    "fedpg by prototype": {
        "algorithm": {"name": "fedpg", "mu": 0.5, "alignment": "prototype", "pseudo_centres": 0.6, "noise": 0.5},
        "model.name": "gamlp",
    },
}


# Nodes of every client: one without edges, one with a single node, one without training nodes.
SIZES = [30, 17, 9, 4, 1, 12, 10]
SINGLE, WITHOUT_EDGES, WITHOUT_TRAINING = 4, 5, 6


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Keys of a graph whose clients have other numbers of training nodes, one of them without a class."""
    rng = np.random.default_rng(3)
    nodes, client_N = sum(SIZES), np.repeat(np.arange(len(SIZES)), SIZES)
    y = np.where(rng.random(nodes) < 0.5, client_N % 4, rng.integers(4, size=nodes))
    y[(client_N == 0) & (y == 2)] = 1
    split = np.array([(TRAIN, TRAIN, TEST, TRAIN, TRAIN, VAL)[i % 6] for size in SIZES for i in range(size)], np.int8)
    split[client_N == WITHOUT_TRAINING] = TEST
    edges = rng.integers(nodes, size=(2, 1500))
    alone = np.isin(client_N[edges], (SINGLE, WITHOUT_EDGES)).any(0)
    x = (np.eye(4, 5)[y] + 0.7 * rng.standard_normal((nodes, 5))).astype(np.float32)
    folder = tmp_path_factory.mktemp("uneven") / "graph"
    folder.mkdir()
    arrays = {"edge_index": edges[:, ~alone], "x": x, "y": y, "split": split, "assignment": client_N}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    store = str(folder.parent / "store")
    return {"data.path": str(folder), "data.store": store, "partition.clients": len(SIZES), "engine.cell_size": 7}


def distance(one: Server, other: Server) -> float:
    """Largest relative distance of what the server and the clients hold."""
    pairs = [(t, other.state.server[name]) for name, t in one.state.server.items()]
    pairs += [(t, other.state.clients[i][name]) for i, tree in one.state.clients.items() for name, t in tree.items()]
    return max(float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-9)) for a, b in pairs)


@pytest.mark.parametrize("case", CASES)
def test_whole_runs(run: Run, uneven: dict[str, Any], case: str) -> None:
    """Clients that come and go: some were sent prototypes, some none, one has no training node."""
    keys = {**KEYS, **uneven, **CASES[case]}
    loop, stacked = run({**keys, "engine.trainer": "autograd"}), run({**keys, "engine.trainer": "batched"})
    assert distance(stacked, loop) < 1e-4
    # What the term is worth.
    name, weight = next((key, value) for key, value in keys["algorithm"].items() if key != "name")
    without = {**keys, "algorithm": {**keys["algorithm"], name: 0.0}, "engine.trainer": "batched"}
    doubled = {**keys, "algorithm": {**keys["algorithm"], name: 2 * weight}, "engine.trainer": "batched"}
    assert min(distance(run(other), loop) for other in (without, doubled)) > 1e-3


def test_those_who_were_given_the_like_are_together(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, fit = [], BatchedTrainer.fit

    def noted(self: BatchedTrainer, clients: Any, *received: Any) -> torch.Tensor:
        sizes.append(len(clients))
        return fit(self, clients, *received)

    monkeypatch.setattr(BatchedTrainer, "fit", noted)
    keys = {**KEYS, **CASES["fedproto"], "participation.ratio": 1.0, "engine.trainer": "batched"}
    run(keys)
    # Client 5 has nothing to train.
    assert sizes == [5, 5, 5]


@dataclass(frozen=True)
class Nearer(FedProx):
    """One with another loss."""

    def loss(self, *received: Any) -> torch.Tensor:
        return 2 * super().loss(*received)


def test_a_new_loss_has_to_say_so_anew() -> None:
    assert FedProx.loss_of_several
    assert not Nearer.loss_of_several
    assert load(describe("fedtgp", {})).loss_of_several
    for name in ("moon", "feddistill"):
        method = load(describe(name, {}))
        assert not method.loss_of_several
        assert not method.plain_training


@dataclass(frozen=True)
class WithTerm(FedPG):
    """One with another term, which it says of each client alone."""

    loss_of_several: ClassVar[bool] = True

    def regularizer(self, client: Any, received: Any) -> Any:
        return None


@dataclass(frozen=True)
class WithTerms(WithTerm):
    """One that says it of several, too."""

    loss_of_several: ClassVar[bool] = True

    def regularizers(self, clients: Any, w_BP: Any, received: Any) -> Any:
        return None


def test_a_new_term_has_to_be_told_for_several() -> None:
    assert FedPG().trained_together()
    assert not FedPG(alignment="prototype", attention="node").trained_together()
    assert not WithTerm().trained_together()
    assert WithTerms().trained_together()


TERMS = """
from dataclasses import dataclass
from typing import ClassVar
from shoal.algorithms.base import BatchedTerm
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    loss_of_several: ClassVar[bool] = True

    def regularizer(self, client, received):
        return lambda: client.model.flat.w.sum()

    def regularizers(self, clients, w_BP, received):
        rows = [client.data.train for client in clients]
        RETURN
"""


@pytest.mark.parametrize(
    ("received", "line"),
    [
        ("return BatchedTerm(rows, lambda out: out.logits_NC.sum())", r"gives a term of shape \[\], wanted \[5\]"),
        (
            "return BatchedTerm(rows, lambda out: out.logits_NC.sum((1, 2))[:, None])",
            r"gives a term of shape \[5, 1\], wanted \[5\]: a number for each client",
        ),
        ("return BatchedTerm(rows[:1], None)", "gives rows of 1 clients, wanted those of 5"),
        ("return {}['missing']", r"KeyError: 'missing'"),
    ],
)
def test_a_wrong_term_of_several_is_named(run: Run, tmp_path: Path, received: str, line: str) -> None:
    (tmp_path / "mine.py").write_text(TERMS.replace("RETURN", received))
    keys = {**KEYS, "engine.trainer": "batched", "participation.ratio": 1.0}
    with pytest.raises(ShoalError, match=rf"clients \[0, 1, 2, 3, 4\]: .*mine\.py.*regularizers.*{line}"):
        run({**keys, "algorithm.name": f"{tmp_path / 'mine.py'}:Mine"})


def test_forms() -> None:
    two, three = torch.ones(2), torch.ones(3)
    assert form_of({"a": two, "b": None}) == form_of({"a": 2 * two, "b": None})
    for other in ({"a": three, "b": None}, {"a": two}, {"a": two, "b": two}, None, {"a": two.double(), "b": None}):
        assert form_of({"a": two, "b": None}) != form_of(other)
    assert form_of((two, 1.0)) != form_of((two, 2.0))
    assert form_of({"a": two}) != form_of([two])


def test_trees_of_several() -> None:
    """What all share is not copied."""
    shared = torch.ones(2)
    stacked = BatchedReceived([{"w": shared, "own": (torch.tensor(float(i)), None)} for i in range(3)])
    assert [tensor.shape for tensor in stacked.tensors] == [(2,), (3,)]
    assert stacked.tensors[0] is shared
    assert stacked.in_dims == [None, 0]
    one = stacked.of_one([shared, torch.tensor(2.0)])
    assert one["w"] is shared
    assert one["own"] == (torch.tensor(2.0), None)
    assert BatchedReceived([None, None]).of_one([]) is None
    # Of three, the first and the last of which have the same.
    mixed = BatchedReceived([[shared], [three := torch.tensor([3.0, 3.0])], [shared]])
    assert mixed.in_dims == [0]
    assert torch.equal(mixed.tensors[0], torch.stack([shared, three, shared]))
