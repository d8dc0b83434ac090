"""Whole runs on a second device: every tensor of a visit lies there, and the numbers are those of the processor.

The device computes in the memory of the processor; what mixes its tensors with others fails, as on a GPU. It takes
generators of the processor, and would run any operator that a GPU lacks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
from support.needs import needs
from support.other_device.device import load
from support.other_device.device_cases import GRAPHS, KEYS, METHODS, MIXED, MODELS, NO_DRAWN
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shoal.algorithms import client as client_module
from shoal.algorithms.base import Algorithm, Client, Output, Received, Trainer, Tree
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.engine.hosts import host
from shoal.engine.hosts.device import DeviceLost
from shoal.engine.hosts.host import Host, Visit, _CellAtWork
from shoal.engine.hosts.opened_job import OpenedJob
from shoal.engine.messages.cell import Outcome
from shoal.engine.rounds.server import Server
from shoal.storage.shards.view import View

Run = Callable[..., Server]
CPU = torch.device("cpu")
# Reading shards, handing on, and rows of hops that do not fit the cache; a graph's matrices before they are moved;
# initial parameters; the check of uploads.
# What travels in one copy is put together and taken apart there. Training rows of every class are counted there, so
# that nobody waits for how much an upload weighs.
ON_PROCESSOR = {
    "from_file", "lift_fresh", "detach", "_to_copy", "clone", "view", "slice", "split_with_sizes", "index_select",
    "sparse_compressed_tensor", "crow_indices", "col_indices", "values", "uniform_", "zero_", "fill_", "ones",
    "sum", "ne", "all", "where", "zeros_like", "empty", "copy_", "gt", "lt", "any", "unsqueeze",
}  # fmt: skip
# Factors of low rank are made and multiplied there, so that server and clients have the same ones; nodes that look
# alike are looked for there.
OWN = {
    "fedkd": {
        *("isfinite", "_linalg_eigh", "linalg_vector_norm", "clamp_min", "div", "flip", "alias", "cumsum", "mul", "t"),
        *("cat", "mm", "select", "split_with_sizes"),
    },
    # Likenesses of all pairs are made there, some at a time.
    "adafgl": {"mm", "permute"},
    "fggp": {"div", "index", "linalg_vector_norm", "mm", "nonzero", "select", "t"},
}
# What torch 2.13 has no kernel for on GPUs, of all that these runs call with `Tensor.is_cuda` left alone.
NOT_ON_GPUS = {"_sparse_mm_reduce_impl", "_sparse_mm_reduce_impl_backward"}


class Operators(TorchDispatchMode):
    """Sees that tensors of the processor are read, but not computed with, also backward; single numbers may be."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.elsewhere: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert op.overloadpacket.__name__ not in NOT_ON_GPUS
        result = op(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, result))
        tensors = [t for t in leaves if isinstance(t, Tensor) and t.dim() and not t.is_meta]
        if tensors and all(t.device != self.device for t in tensors):
            self.elsewhere.add(op.overloadpacket.__name__)
        return result


@pytest.fixture(scope="module")
def other() -> torch.device:
    return load()


@pytest.fixture(scope="module")
def here(run: Run) -> Run:
    """Runs a config on the processor, once for all tests that compare with it."""
    done: dict[str, Server] = {}

    def here(keys: Mapping[str, Any]) -> Server:
        name = repr(sorted(keys.items()))
        if name not in done:
            done[name] = run(keys)
        return done[name]

    return here


@pytest.fixture
def run_there(run: Run, other: torch.device, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a config on the device, and sees that a visit has all its tensors there and leaves none behind."""
    receive, run_cell, run_cells = Visit.__init__, _CellAtWork.visit_clients, Host.run_cells
    visited: list[int] = []

    def begin_there(self: Visit, opened: OpenedJob, client_id: int, *args: Any) -> None:
        receive(self, opened, client_id, *args)
        visited.append(client_id)
        client, data = self.client, self.client.data
        for model in client.models.values():
            require_on(other, [model.w, *model.module.parameters(), data.label, data.train, data.degree])
        received = tree_leaves(vars(self.received) if is_dataclass(self.received) else self.received)
        tensors = [t for t in received if isinstance(t, Tensor)]
        parameters = [p for module in received if isinstance(module, nn.Module) for p in module.parameters()]
        require_on(other, [*tensors, *parameters, *client.state.values(), *client.inbox.values()])

    def run_cell_there(self: _CellAtWork) -> Any:
        with Operators(other) as operators:
            result = run_cell(self)
        job = self._opened.job
        # The noise of hostile clients is the same on any device.
        drawn = {"randn"} if "attack" in job.stages else set()
        assert operators.elsewhere <= ON_PROCESSOR | OWN.get(job.method.name, set()) | drawn
        return result

    def run_cells_there(self: Host, *args: Any) -> Iterator[Outcome | None]:
        for outcome in run_cells(self, *args):
            assert outcome is not None
            totals = [part.total for part in outcome.sums.values()]
            for tree in (*totals, outcome.tensors, *outcome.states.values()):
                require_on(CPU, tree.values())
            yield outcome

    def run_there(keys: Mapping[str, Any]) -> Server:
        # Torch starts the devices' threads when a process first goes backward, which may have been before this one.
        with monkeypatch.context() as patch, torch.autograd.set_multithreading_enabled(False):
            patch.setattr(host, "take_device", lambda name, share, precision: other)
            patch.setattr(Visit, "__init__", begin_there)
            patch.setattr(_CellAtWork, "visit_clients", run_cell_there)
            patch.setattr(Host, "run_cells", run_cells_there)
            # Libraries take the branch of GPUs, too.
            patch.setattr(Tensor, "is_cuda", property(lambda t: t.device == other))
            server = run(keys)
        assert visited
        return server

    return run_there


def require_on(device: torch.device, tensors: Iterable[Tensor]) -> None:
    for t in tensors:
        assert t.device == device


def assert_same(there: Server, here: Server) -> None:
    """Sees, too, that what is found lies on the processor."""
    found, expected = ({"server": of.state.server, **of.state.clients} for of in (there, here))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


PAIRS: dict[str, dict[str, Any]] = {
    "coupled": {"model.name": "gcn", "algorithm.name": "fedproto"},
    "coupled, batches": {"model.name": "gin", "train.batch_size": 5},
    "hops": {"model.name": "gamlp"},
    "hops, batches": {"model.name": "sgc", "train.batch_size": 5, "algorithm.name": "fedtgp"},
}
MANY = {f"method {name}": keys for name, keys in METHODS.items()}
MANY |= {f"model {name}": keys for name, keys in MODELS.items()}
OF_MIXED = [name for name in METHODS if "fedavg" not in name and name not in NO_DRAWN]
MANY |= {f"list of models {name}": {**METHODS[name], **MIXED} for name in OF_MIXED}


@pytest.mark.exhaustive(30)
@pytest.mark.parametrize("name", MANY)
def test_methods_and_models(here: Run, run_there: Run, name: str) -> None:
    keys = {**KEYS, **MANY[name]}
    assert_same(run_there(keys), here(keys))


@pytest.mark.parametrize(
    ("task", "own"),
    [
        *(("weighted", {"algorithm.name": "fedgta", "model.name": model}) for model in ("gcn", "sgc")),
        *(pytest.param("graph_task", own, marks=pytest.mark.exhaustive, id=name) for name, own in GRAPHS.items()),
        *(pytest.param("edge_task", own, id=f"pairs, {name}") for name, own in PAIRS.items()),
    ],
)
def test_other_tasks(here: Run, run_there: Run, request: pytest.FixtureRequest, task: str, own: dict[str, Any]) -> None:
    keys = {**KEYS, **request.getfixturevalue(task), **own}
    assert_same(run_there(keys), here(keys))


@needs("hostile", "robust")
@pytest.mark.parametrize(
    ("reduction", "attack"), [("median", "scaled"), ("krum", "label_flip"), ("norm_bound", "gaussian")]
)
def test_hostile_clients_there(here: Run, run_there: Run, attack: str, reduction: str) -> None:
    keys = {**KEYS, "attack.kind": attack, "aggregation.kind": reduction, "model.name": "sgc"}
    keys |= {"aggregation.share": 0.0} if reduction == "krum" else {}
    assert_same(run_there(keys), here(keys))


@needs("privacy")
def test_a_clip_that_adapts_there(here: Run, run_there: Run) -> None:
    keys = {**KEYS, "privacy.unit": "client", "privacy.noise": 0.2, "privacy.quantile": 0.5, "model.name": "sgc"}
    found = [run(keys) for run in (run_there, here)]
    assert_same(*found)
    assert found[0].state.extras["privacy"]["clip"] == found[1].state.extras["privacy"]["clip"] != 1.0


@pytest.mark.exhaustive(20)
@pytest.mark.parametrize("method", METHODS)
def test_a_server_there(run: Run, here: Run, other: torch.device, method: str) -> None:
    """The method's server part computes on the device, and leaves its state on the processor."""
    keys = {**KEYS, **METHODS[method]}
    with torch.autograd.set_multithreading_enabled(False):
        there = run(keys, device=other)
    assert_same(there, here(keys))


STREAMED = {name: {"algorithm.name": name} for name in ("fedavg", "class_means", "fedpg")}
STREAMED |= {"batched": {"engine.trainer": "batched"}, "gcn": {"model.name": "gcn"}}
STREAMED |= {"sage, neighbours drawn": {"model.name": "sage", "model.fanouts": [3, 2], "train.batch_size": 4}}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("room", "places"), [(0, {"cpu"}), (2000, {"cpu", "other"}), (2**20, {"other"})])
@pytest.mark.parametrize("name", STREAMED)
def test_hops_too_large_for_the_cache(
    here: Run, run_there: Run, monkeypatch: pytest.MonkeyPatch, name: str, room: int, places: set[str]
) -> None:
    """A hop of a client has 600 bytes, a matrix about 2,000; what does not fit is streamed, seven rows at a time."""
    keys = {**KEYS, **STREAMED[name]}
    expected = here(keys)
    nearest = View._on_device_if_it_fits
    found: set[str] = set()

    def nearest_seen(self: View, k: int) -> Tensor:
        hop = nearest(self, k)
        found.add(hop.device.type)
        return hop

    monkeypatch.setattr(View, "_on_device_if_it_fits", nearest_seen)
    monkeypatch.setattr(client_module, "ROWS_AT_A_TIME", 7)
    monkeypatch.setattr(host, "cache_bytes", lambda device, share, on_processor: room)
    assert_same(run_there(keys), expected)
    # A matrix as large as the room takes all of it when it passes, and leaves it to the next hop.
    emptied = name.startswith("sage") and room == 2000
    assert found == (places - {"cpu"} if emptied else places)


def test_train_creates_tensors_on_the_device(run_there: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(self: FedAvg, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        one = torch.ones(())
        return trainer.fit(client, received, term=lambda: one * client.model.flat.w.sum() * 0)

    monkeypatch.setattr(FedAvg, "train", train)
    run_there(KEYS)


def test_a_tensor_on_the_wrong_device_names_the_client(run_there: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(self: Algorithm, out: Output, y: Tensor, w: Tensor, down: Tree) -> Tensor:
        return F.cross_entropy(out.logits_NC, y.cpu())

    monkeypatch.setattr(Algorithm, "loss", loss)
    with refused(says="two devices"):
        run_there(KEYS)


def test_a_lost_device_is_no_client_fault(run_there: Run, other: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where failed clients are left out, this one ends the process all the same."""

    def fails(*_: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Algorithm, "loss", fails)
    monkeypatch.setattr(torch.get_device_module(other), "synchronize", fails)
    with refused(says="the GPU answers this process no more: CUDA error: device-side", kind=DeviceLost):
        run_there({**KEYS, "engine.on_client_error": "skip"})
