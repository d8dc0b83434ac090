"""What a cell that is trained as one stack costs: launches, waits, copies, bytes and Python calls."""

import cProfile
import pstats
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.other_device.device import load
from support.other_device.device_counts import DeviceCounts
from support.small_runs import small_run

from shoal.engine.config.config import parse_config
from shoal.engine.hosts import host
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import plan_of

MANY = 128


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """A server whose clients are one cell of the second device, after rounds that bring there what stays."""
    folder = tmp_path_factory.mktemp("many")

    def many(clients: int, rounds: int = 3, **more: Any) -> Server:
        own: dict[str, Any] = {
            "data": {"options": {"nodes": 40 * clients, "features": 64, "classes": 8, "degree": 6.0}}
        }
        own["data"]["store"] = str(folder / f"store-{clients}")
        own |= {"partition": {"method": "random", "clients": clients}, "propagation": {"hops": 0}}
        own |= {"model": {"name": "mlp", "hidden": 64}, "train": {"dropout": 0.0}, "evaluation": {"every": 1000}}
        own |= {"engine": {"trainer": "batched", "cell_size": clients}, **more}
        config = parse_config(small_run(folder, rounds=100, **own), "test")
        job = make_job(config, prepare(config), f"many-{clients}")
        server = Server(job, plan_of(config), LocalBackend().enter(job))
        for _ in range(rounds):
            server.round()
        return server

    with pytest.MonkeyPatch.context() as patch:
        other = load()
        patch.setattr(host, "take_device", lambda name, share, precision: other)
        patch.setenv("SHOAL_CHECK_ALWAYS", "0")
        with torch.autograd.set_multithreading_enabled(False):
            yield many


def on_device(server: Server) -> set[str]:
    return {t.device.type for tree in server.state.clients.values() for t in tree.values()}


WRITING = {"clone", "copy_", "_to_copy", "cat", "stack", "zeros_like", "add_", "addcmul", "index_select", "index_copy_"}


class Written(DeviceCounts):
    """Bytes, too, that copies, sums and fillings write on a device."""

    bytes = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(op, types, args, kwargs)
        name = op.overloadpacket.__name__
        if name in WRITING and result.device.type == "other":
            self.bytes += result.nbytes
        elif name == "_foreach_copy_":
            self.bytes += sum(t.nbytes for t in args[0])
        return result


def calls_of(server: Server) -> int:
    """Python calls of a round."""
    profile = cProfile.Profile()
    profile.runcall(server.round)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined, no-any-return]


def test_a_stack_costs_what_one_client_does(many: Callable[..., Server]) -> None:
    """Bounds of a round of one cell, the server's part included."""
    server, few, other = many(MANY), many(MANY // 4), load()
    with Written(other) as counts:
        server.round()
    with DeviceCounts(other) as of_few:
        few.round()
    # What all are sent, and sums, losses and largest numbers back; no state moves.
    assert (counts.copies, counts.synchronisations) == (2, 1)
    assert on_device(server) == {"other"}
    # Each level of the tree of sums is one more.
    assert of_few.launches <= counts.launches - 2 <= of_few.launches
    assert counts.launches <= 106
    # Of 8.1 times the parameters three are gradients, one in each step, two are sums, of half the rows in twice the
    # bytes and so on, two are moments, of which a round that fails has those before, and one is the download.
    parameters = server.state.server["w"].nbytes
    assert counts.bytes < 8.3 * MANY * parameters
    assert calls_of(server) < 48 * MANY


@pytest.mark.parametrize(
    ("method", "launches", "copied", "sums", "calls"),
    [
        ("scaffold", 132, 19.5, 2, 60),
        ("feddc", 142, 24.5, 2, 60),
        ("moon", 255, 10.5, 1, 60),
        ("fedproto", 215, 8, 1, 60),
        ("fedproto_averaged", 225, 9, 2, 60),
        # The servers of these two compute with every client's means, on the processor.
        ("fpl", 410, 9, 1, 75),
        ("fedtgp", 205, 8, 0, 320),
    ],
)
def test_rows_of_a_method_cost_what_one_client_does(
    many: Callable[..., Server], method: str, launches: int, copied: float, sums: int, calls: int
) -> None:
    """What clients keep stays on the device, too; MOON reads what they train on by two models more, others by one."""
    keys: dict[str, Any] = {"algorithm": {"name": method}}
    server, few, other = many(MANY, **keys), many(MANY // 4, **keys), load()
    with Written(other) as counts:
        server.round()
    with DeviceCounts(other) as of_few:
        few.round()
    # What all are sent is one copy, and the sums come back in one.
    assert (counts.copies, counts.synchronisations) == (2, 1)
    assert on_device(server) == {"other"}
    assert {name for tree in server.state.clients.values() for name in tree} > {"model.opt.exp_avg"}
    # Each level of a tree of sums is one more.
    assert of_few.launches <= counts.launches - 2 * sums <= of_few.launches
    assert counts.launches <= launches
    parameters = next(t.nbytes for t in server.state.clients[0].values() if t.dim())
    assert counts.bytes < copied * MANY * parameters
    assert calls_of(server) < calls * MANY


def test_other_clients_each_round_cost_the_same(many: Callable[..., Server]) -> None:
    """Each has come before: nothing is gathered or sent of it alone, and no state moves."""
    keys: dict[str, Any] = {"participation": {"ratio": 0.5}}
    server, few, other = many(2 * MANY, 20, **keys), many(MANY // 2, 20, **keys), load()
    assert server.cohort(21) != server.cohort(20)
    with Written(other) as counts:
        server.round()
    with DeviceCounts(other) as of_few:
        few.round()
    # Where the rows of clients lie is sent, too.
    assert (counts.copies, counts.synchronisations) == (3, 1)
    assert on_device(server) == {"other"}
    assert of_few.launches <= counts.launches - 2 <= of_few.launches
    assert counts.launches <= 106
    assert counts.bytes < 8.3 * MANY * server.state.server["w"].nbytes
    assert calls_of(server) < 60 * MANY


@pytest.mark.usefixtures("keyed")
def test_dropout_is_drawn_for_all_at_once(many: Callable[..., Server]) -> None:
    """Twenty operators a draw, whatever the number of clients, and their seeds in one copy."""
    keys: dict[str, Any] = {"train": {"dropout": 0.5}}
    server, few, other = many(MANY, **keys), many(MANY // 4, **keys), load()
    with DeviceCounts(other) as counts:
        server.round()
    with DeviceCounts(other) as of_few:
        few.round()
    assert (counts.copies, counts.synchronisations) == (3, 1)
    assert of_few.launches <= counts.launches - 2 <= of_few.launches
    assert counts.launches <= 106 + 3 * 20
    assert calls_of(server) < 60 * MANY
