"""What acts beside a method, on two hosts of which one is lost, and after a resume: the bits of one process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from support.errors import refused
from support.fixtures import Keys, Start
from support.same_bits import assert_same_runs, assert_same_scores, assert_same_trees

from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState

ROUNDS = 3
CLIENT = {"privacy.unit": "client", "privacy.noise": 0.5, "privacy.clip": 0.05, "participation.ratio": 0.5}
LATE = {
    "devices.kind": "phones", "devices.network": "consumer", "participation.count": 3,
    "participation.over_selection": 1.4, "participation.dropout": 0.2, "participation.deadline": 0.2,
    "participation.availability.kind": "weibull", "participation.availability.period": 6,
    "participation.availability.share": 0.8, "model.name": "sgc", "propagation.hops": 0,
}  # fmt: skip
# Golden runs of all others are made on hosts, too, and some of these lose one.
CASES: dict[str, Keys] = {
    "oort": {**LATE, "participation.selection": "oort"},
    "geometric_median, int8": {
        "attack.kind": "gaussian", "attack.share": 0.34, "participation.ratio": 0.5,
        "aggregation.kind": "geometric_median", "communication.upload": "int8",
    },
    "privacy, banded": {
        **CLIENT, "algorithm.name": "scaffold", "privacy.mechanism": "banded", "participation.draw": "cyclic",
        "privacy.quantile": 0.5, "privacy.noise": 0.2,
    },
    "masks": {"secure.kind": "masks", "algorithm.name": "scaffold", "participation.ratio": 0.5},
}  # fmt: skip


def pool_of(hosts: list[Any], server: Server, folder: Path) -> RayPool:
    """A pool on the hosts for the job of a server, under a name that no test has used."""
    pool = RayPool(hosts, replace(server.job, id=f"{folder}"), 60.0, 4)
    pool.require_data(range(6))
    return pool


def numbers(line: dict[str, Any]) -> dict[str, Any]:
    """What a line of a round says but for how long it took and where."""
    left_out = {"seconds", "hosts", "memory", "retries"}
    return {name: value for name, value in line.items() if name not in left_out}


@pytest.mark.parametrize("keys", CASES.values(), ids=CASES)
def test_same_bits_on_two_hosts_of_which_one_is_lost_and_after_a_resume(
    hosts: list[Any], start: Start, tmp_path: Path, keys: Keys
) -> None:
    keys = {"rounds": 2 * ROUNDS, "evaluation.every": ROUNDS, **keys}
    here = start(keys)
    pool = pool_of(hosts, here, tmp_path)
    away = Server(pool.job, here.plan, pool)
    for _ in range(ROUNDS):
        assert numbers(here.round()) == numbers(away.round())
    again = start({**keys, "engine.cell_size": 1}, state=FederationState.from_tensors(*here.state.to_tensors()))
    ray.kill(hosts[0], no_restart=False)
    for _ in range(ROUNDS):
        line = numbers(here.round())
        assert numbers(again.round()) == line
        assert numbers(away.round()) == line
    assert_same_runs(again, here)
    # States of clients may lie on hosts.
    assert_same_trees({0: here.state.server}, {0: away.state.server})
    assert_same_scores(here, away)
    for part, tree in here.state.extras.items():
        for other in (again, away):
            assert_same_trees({0: tree}, {0: other.state.extras.get(part, {})})


def test_what_a_client_keeps_on_its_host_is_refused_where_draws_count(
    hosts: list[Any], start: Start, tmp_path: Path
) -> None:
    server = start({**CLIENT, "algorithm.name": "scaffold", "train.opt_state": "reset"})
    pool = pool_of(hosts, server, tmp_path)
    with refused(says="take train.opt_state=keep, with which draws do not count, or participation.ratio=1"):
        Server(pool.job, server.plan, pool).round()
