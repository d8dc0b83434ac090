"""Rounds of masked uploads against plain ones: equal sums, with dropouts, and nothing plain at the server."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from support.errors import refused
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.protocol import Reduce, Tree, Upload
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.config.round_sections import SecureOptions
from shoal.engine.messages.cell import Cell, Outcome, PartialSum
from shoal.engine.rounds.costs import Pool
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.engine.uploads.masks import BITS, Masks

Start = Callable[..., Server]
MASKED = {"secure.kind": "masks"}
UP = {"w": Reduce.MEAN}
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg in which clients from `first` on fail when they upload."""

    first: int = 100

    def upload(self, client: Client, received: Tree, phase: str) -> Upload:
        if client.info.client >= self.first:
            raise RuntimeError("lost")
        return super().upload(client, received, phase)


class Watched:
    """A pool that keeps what comes to the server."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self.seen = pool, list[Outcome]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        for position, outcome in self._pool.run_cells(cells, shared):
            self.seen.append(replace(outcome, sums={places: replace(of) for places, of in outcome.sums.items()}))
            yield position, outcome


def watched(start: Start, **keys: Any) -> tuple[Server, list[Outcome]]:
    pools: list[Watched] = []

    def watch(pool: Pool) -> Pool:
        pools.append(Watched(pool))
        return pools[0]

    return start({"engine.cell_size": 1, **keys}, pool=watch), pools[0].seen


def numbers(outcome: Outcome) -> list[Tensor]:
    """All tensors in an outcome of one client."""
    parts = [
        torch.as_tensor(t) for part in outcome.sums.values() for t in (*part.total.values(), *part.weight.values())
    ]
    return [*parts, *outcome.tensors.values(), *(t for of in outcome.lists.values() for t in of)] + [
        t for of in outcome.states.values() for t in of.values()
    ]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedproto"])
def test_rounds_are_the_plain_ones_to_the_rounding(start: Start, method: str) -> None:
    plain, masked = (start({"algorithm.name": method, **keys}) for keys in ({}, MASKED))
    before = {name: t.clone() for name, t in plain.state.server.items()}
    for server in (plain, masked):
        server.round()
    assert any(not torch.equal(before.get(name, torch.empty(0)), t) for name, t in plain.state.server.items())
    for name, t in plain.state.server.items():
        torch.testing.assert_close(masked.state.server[name], t, rtol=1e-6, atol=2e-7)


def test_nothing_that_arrives_at_the_server_is_like_a_plain_upload(start: Start) -> None:
    keys = {"train.optimizer": "sgd", "train.momentum": 0.0}
    plain, uploads = watched(start, **keys)
    masked, seen = watched(start, **keys, **MASKED)
    plain.round()
    masked.round()
    sent = [outcome for outcome in seen if outcome.sums]
    assert len(sent) == len(masked.cohort(1)) > 2
    of_client = {o.ids[0]: next(iter(o.sums.values())).total["w"].double() for o in uploads if o.sums}
    for outcome in sent:
        assert not outcome.states.get(outcome.ids[0])
        found = numbers(outcome)
        assert [t.dtype for t in found] == [torch.int64, torch.int64]
        assert int(found[1].abs()) > 2**40
        for w in of_client.values():
            assert not torch.equal(found[0], (w * 2**BITS).round().long())
            # Five deviations of the correlation of independent numbers; a client without training items sends zeros.
            assert not w.any() or abs(np.corrcoef(found[0].double(), w)[0, 1]) < 5 / len(w) ** 0.5


def test_two_exchanges_and_two_rounds_draw_other_masks() -> None:
    one = Upload({"w": torch.zeros(64)}, {})
    streams = [(0, 1, "train", 1), (0, 1, "train", 2), (0, 2, "train", 1), (1, 1, "train", 1)]
    drawn = [Masks(SecureOptions("masks"), stream, (0, 1)).masked(0, one, UP).entries["w"] for stream in streams]
    for place, first in enumerate(drawn):
        assert all(not bool((first == second).any()) for second in drawn[place + 1 :])


@pytest.mark.parametrize("lost", [[], [3], [0, 4, 7], list(range(2, 9))])
@pytest.mark.parametrize("by_row", [False, True])
def test_sums_of_survivors_are_within_the_bound(lost: list[int], by_row: bool) -> None:
    rng = np.random.default_rng(0)
    masks = Masks(SecureOptions("masks", threshold=0.2), (5, 1, "train", 1), tuple(range(9)))
    values, weights = rng.normal(size=(9, 4, 3)), rng.uniform(0, 9, (9, 4, 1) if by_row else 9)
    survivors = [client for client in masks.clients if client not in lost]
    total, weight = torch.zeros(4, 3, dtype=torch.int64), torch.zeros(weights[0].shape, dtype=torch.int64)
    for client in survivors:
        upload = Upload({"w": torch.tensor(values[client])}, {"w": torch.tensor(weights[client])})
        sent = masks.masked(client, upload, UP)
        total, weight = total + sent.entries["w"], weight + torch.as_tensor(sent.weight["w"])
        assert sent.upload_bytes == {"w": 8 * (12 + weights[client].size)}
    whole = PartialSum(0, {"w": total}, {"w": weight})
    masks.unmask(whole, survivors)
    bound = len(survivors) * 2.0 ** -(BITS + 1) + 1e-12
    exact = sum(values[client] * weights[client] for client in survivors)
    assert np.abs(whole.total["w"].numpy() - exact).max() <= bound
    assert np.abs(np.asarray(whole.weight["w"]) - sum(weights[client] for client in survivors)).max() <= bound


@pytest.mark.parametrize("answered", [5, 4, 2])
def test_rounds_with_dropouts_are_those_of_the_survivors(start: Start, answered: int) -> None:
    keys = {"algorithm.name": f"{__file__}:Failing", "algorithm.first": answered, "engine.on_client_error": "skip"}
    plain, masked = (start({**keys, **more}) for more in ({}, {**MASKED, "secure.threshold": 0.1}))
    for server in (plain, masked):
        assert server.round()["cohort"] == list(range(answered))
    torch.testing.assert_close(masked.state.server["w"], plain.state.server["w"], rtol=1e-6, atol=2e-7)


def test_too_few_survivors_are_refused_and_commit_nothing(start: Start) -> None:
    keys = {"algorithm.name": f"{__file__}:Failing", "engine.on_client_error": "skip", **MASKED}
    for first, threshold, says in (
        (1, 0.1, "1 of 6 clients answered, and a sum is read of 2"),
        (3, 0.6, "3 of 6 clients answered, and a sum is read of 4"),
    ):
        server = start({**keys, "algorithm.first": first, "secure.threshold": threshold})
        with refused(says=says):
            server.round()
        assert server.state.round == 0
    with refused(says="masks hide a client among others"):
        start({**MASKED, "participation.count": 1}).round()


def test_same_bits_on_two_hosts_after_a_kill_and_a_resume(hosts: list[Any], start: Start, tmp_path: Path) -> None:
    keys = {**MASKED, "algorithm.name": "scaffold", "participation.ratio": 0.5, "rounds": 6}
    here = start(keys)
    pool = RayPool(hosts, replace(here.job, id=f"{tmp_path}"), 60.0, 4)
    pool.require_data(range(6))
    away = Server(replace(here.job, id=f"{tmp_path}"), here.plan, pool)
    for server in (here, away):
        server.round()
    again = start({**keys, "engine.cell_size": 1}, state=FederationState.from_tensors(*here.state.to_tensors()))
    ray.kill(hosts[0], no_restart=False)
    for server in (here, away, again):
        server.round()
    for other in (away, again):
        assert all(torch.equal(t, other.state.server[name]) for name, t in here.state.server.items())


def test_what_has_no_masked_sum_is_refused() -> None:
    masks = Masks(SecureOptions("masks"), (0, 1, "train", 1), (0, 1))
    for value, weight, says in (
        (float("nan"), 1.0, "NaN or infinity in 'w'"),
        (2.0**38, 1.0, "masks add up numbers below 1.37e+11"),
        (1.0, 2.0**-26, "masks round weights to 2^-24"),
    ):
        with refused(says=says):
            masks.masked(0, Upload({"w": torch.tensor([value])}, {"w": weight}), UP)


# Of methods that need another model than that of the run.
NEED: dict[str, dict[str, Any]] = {
    "fedgkc": {"algorithm.copilot": {"name": "gcn", "hidden": 8}},
    "fggp": {"model.name": "gcn"},
    "fedsage_plus": {"model.name": "sage", "algorithm.generator_rounds": 2},
    "fedsage_plus_fedgta": {"model.name": "sage", "algorithm.generator_rounds": 2},
    "fedgcn": {"model.name": "gcn", "algorithm.hops": 0},
}


def test_the_catalogue_names_the_methods_that_masks_refuse(start: Start) -> None:
    text = (ROOT / "docs" / "catalogue.md").read_text()
    (line,) = re.findall(r"`secure: masks` refuses ([^:]*):", text, re.DOTALL)
    refuses = set(re.findall(r"`(\w+)`", line))
    # `fedgpl` and `fedstar` are for graphs; the others send nothing.
    for name in METHODS.keys() - {"local", "global", "fedgpl", "fedstar"}:
        keys = {**MASKED, "algorithm.name": name, **NEED.get(name, {})}
        if name in refuses:
            with refused("secure.kind", says="masks add up means, and "):
                start(keys).round()
        else:
            start(keys).round()
