"""How often a device is called, waited for and copied to or from in a round, on one made of the processor's memory.

The second round is counted: what a first one brings to the device for good is there.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.other_device.device import load
from support.other_device.device_counts import DeviceCounts
from torch import Tensor

from shoal.engine.config.config import parse_config
from shoal.engine.hosts import host
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.hosts.host import Host
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import plan_of

# Of a cell as it is on a GPU, and of one that is enough to see what a client costs.
MANY, FEW = 64, 8
Count = Callable[..., DeviceCounts]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counts")


@pytest.fixture
def count(store: Path, monkeypatch: pytest.MonkeyPatch) -> Count:
    """Counts the second round of hosts, of one cell of all clients; the server is not counted."""
    other = load()
    run_cells = Host.run_cells

    def count(clients: int = FEW, **sections: Any) -> DeviceCounts:
        plain: dict[str, Any] = {
            "name": "counts",
            "rounds": 100,
            "data": {
                "dataset": "sbm",
                "root": str(store),
                "store": str(store / f"store-{clients}"),
                "options": {"nodes": 40 * clients, "features": 16, "classes": 4, "degree": 6.0},
            },
            "partition": {"method": "random", "clients": clients},
            "propagation": {"hops": 2},
            "model": {"name": "sgc"},
            "algorithm": {"name": "fedavg"},
            "evaluation": {"every": 100},
        }
        engine = {"backend": "local", "cell_size": clients, "trainer": "batched"}
        plain |= {**sections, "engine": {**engine, **sections.get("engine", {})}}
        config = parse_config(plain, "test")
        counts = DeviceCounts(other)
        job = make_job(config, prepare(config), "counts")
        server = Server(job, plan_of(config), LocalBackend().enter(job))

        def counted(self: Host, *args: Any) -> Iterator[Any]:
            with counts:
                outcomes = list(run_cells(self, *args))
            yield from outcomes

        with torch.autograd.set_multithreading_enabled(False):
            server.round()
            with monkeypatch.context() as patch:
                patch.setattr(Host, "run_cells", counted)
                server.round()
        return counts

    monkeypatch.setattr(host, "take_device", lambda name, share, precision: other)
    return count


def test_a_stacked_cell_waits_once_and_copies_twice(count: Count) -> None:
    """In what its clients kept, out what they leave behind; beside that, a call of cells brings what all are sent."""
    counts = count(MANY)
    of_the_call = 1
    assert (counts.synchronisations, counts.copies) == (1, 2 + of_the_call)
    # No client has a launch of its own: parameters are lent to the batch, and stay in it.
    assert counts.launches < 1.5 * MANY


@pytest.mark.parametrize("model", ["gcn", "sage", "gcnii"])
def test_graphs_of_a_cell_side_by_side(count: Count, model: str) -> None:
    """As rows of hops: one wait, in and out; of launches, those of masks are drawn client by client."""
    counts = count(MANY, model={"name": model}, train={"dropout": 0.0})
    assert (counts.synchronisations, counts.copies) == (1, 3)
    assert counts.launches / MANY < 4.5


def test_a_loop_copies_as_often(count: Count) -> None:
    """Its clients' losses are looked at one by one."""
    counts = count(engine={"trainer": "autograd"})
    assert (counts.synchronisations, counts.copies) == (1 + FEW, 3)


@pytest.mark.parametrize("path", ["autograd", "batched"])
def test_scores_of_a_cell_cost_what_those_of_a_client_do(count: Count, path: str) -> None:
    """What they trained and the server's model: two calls of a cell each, no wait and no copy for the scores."""
    counts = count(evaluation={"every": 1}, engine={"trainer": path})
    losses = FEW if path == "autograd" else 0
    assert (counts.synchronisations, counts.copies) == (2 + losses, 5)
    # Beside two visits of each client: two copies of its parameters, and some operators for all.
    plain = count(engine={"trainer": path})
    assert counts.launches - plain.launches < 90 + (6 * FEW if path == "autograd" else 0)


def test_scores_of_graphs(count: Count) -> None:
    """As of rows: one pass for all, twice; beside it each client is visited once more."""
    keys = {"model": {"name": "gcn"}, "train": {"dropout": 0.0}}
    scored, plain = count(MANY, evaluation={"every": 1}, **keys), count(MANY, **keys)
    assert (scored.synchronisations, scored.copies) == (2, 5)
    assert (scored.launches - plain.launches) / MANY < 2.5


def test_what_is_streamed_is_not_waited_for(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cache the training rows of every client come in each round, selected on the processor."""
    monkeypatch.setattr(host, "cache_bytes", lambda device, share, on_processor: 0)
    counts = count()
    assert (counts.synchronisations, counts.copies) == (1, 3 + FEW)


def steps(device: torch.device) -> Sequence[tuple[Callable[[], Any], tuple[int, int, int]]]:
    """What may be done with a device, and what that is: launches, synchronisations, copies."""
    there, here = torch.ones(3, 2, device=device), torch.ones(3, 2)
    return [
        (lambda: there[1:].t(), (0, 0, 0)),
        (lambda: here + here, (0, 0, 0)),
        (lambda: there + there, (1, 0, 0)),
        (lambda: there.clone().copy_(there), (2, 0, 0)),
        (lambda: there.cpu(), (0, 1, 1)),
        (lambda: here.to(device, non_blocking=True), (0, 0, 1)),
        (lambda: there.copy_(here), (0, 1, 1)),
        (lambda: there.copy_(here, non_blocking=True), (0, 0, 1)),
        (lambda: torch.tensor([1.0, 2.0], device=device), (0, 1, 1)),
        (lambda: there.sum().item(), (1, 1, 0)),
        (lambda: there.nonzero(), (1, 1, 0)),
        (lambda: there[there > 0], (2, 1, 0)),
        (lambda: there[torch.zeros(2, dtype=torch.int64, device=device)], (2, 0, 0)),
    ]


def test_what_counts() -> None:
    device = load()
    for number, (step, expected) in enumerate(steps(device)):
        with DeviceCounts(device) as counts:
            step()
        assert tuple(counts.counts().values()) == expected, number


def test_backward_counts() -> None:
    x = torch.ones(3, device=load(), requires_grad=True)
    loss: Tensor = (x * 2).sum()
    with torch.autograd.set_multithreading_enabled(False), DeviceCounts(x.device) as counts:
        loss.backward()
    assert counts.launches >= 2
