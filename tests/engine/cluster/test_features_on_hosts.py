"""What acts beside a method, on two hosts of which one is lost, and after a resume: the bits of one process."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from support.errors import refused
from support.same_bits import assert_same_runs, assert_same_scores, assert_same_trees

from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState

Keys = Mapping[str, Any]
Start = Callable[..., Server]
ROUNDS = 3
HOSTILE = {"attack.kind": "gaussian", "attack.share": 0.34, "participation.ratio": 0.5}
CLIENT = {"privacy.unit": "client", "privacy.noise": 0.5, "privacy.clip": 0.05, "participation.ratio": 0.5}
MASKS = {"secure.kind": "masks", "algorithm.name": "scaffold", "participation.ratio": 0.5}
DRAWN = {"train.opt_state": "keep", "train.dropout": 0.5}
LATE = {
    "devices.kind": "phones", "devices.network": "consumer", "participation.count": 3,
    "participation.over_selection": 1.4, "participation.dropout": 0.2, "participation.deadline": 0.2,
    "participation.availability.kind": "weibull", "participation.availability.period": 6,
    "participation.availability.share": 0.8, "model.name": "sgc", "propagation.hops": 0,
}  # fmt: skip
CASES: dict[str, Keys] = {
    "oort": {**LATE, "participation.selection": "oort"},
    "geometric_median, int8": {
        **HOSTILE, "aggregation.kind": "geometric_median", "communication.upload": "int8",
    },
    "privacy, banded": {
        **CLIENT, "algorithm.name": "scaffold", "privacy.mechanism": "banded", "participation.draw": "cyclic",
        "privacy.quantile": 0.5, "privacy.noise": 0.2,
    },
    "masks": MASKS,
}  # fmt: skip
# Golden runs have their like on hosts by default: a schedule after a kill, an attack.
MORE: dict[str, Keys] = {
    "fedbuff": {
        **DRAWN, "schedule.name": "fedbuff", "schedule.buffer": 2, "schedule.concurrency": 4,
        "algorithm.name": "fedopt",
    },
    "backdoor": {
        "attack.kind": "backdoor", "attack.share": 0.4, "attack.target": 1, "attack.poison": 0.5,
        "model.name": "gcn", "participation.ratio": 0.7,
    },
    "fedasync": {**DRAWN, "schedule.name": "fedasync", "schedule.concurrency": 4, "schedule.mixing": 0.7},
    "tiers": {**DRAWN, "schedule.name": "tiers", "schedule.tiers": 3, "participation.ratio": 0.5},
    "loss": {**LATE, "participation.selection": "loss", "algorithm.name": "scaffold"},
    "late clients": {**LATE, "algorithm.name": "fedgta"},
    "trimmed": {**HOSTILE, "aggregation.kind": "trimmed", "algorithm.name": "scaffold"},
    "fltrust": {**HOSTILE, "aggregation.kind": "fltrust", "aggregation.root": 1, "participation.ratio": 1.0},
    "krum": {
        **HOSTILE, "aggregation.kind": "krum", "aggregation.share": 0.0, "participation.ratio": 0.9,
        "attack.kind": "label_flip",
    },
    "privacy, scaffold": {**CLIENT, "algorithm.name": "scaffold"},
    "privacy, fedproto": {**CLIENT, "algorithm.name": "fedproto"},
    "privacy at client": {
        **CLIENT, "algorithm.name": "fedgta", "algorithm.confidence": "uniform", "privacy.where": "client",
    },
    "homomorphic": {**MASKS, "secure.kind": "homomorphic"},
}  # fmt: skip
# Ciphertexts are pressed, and their sizes vary by a thousandth.
SIZES = {"bytes_up", "scalars_up", "client_bytes"}


def pool_of(hosts: list[Any], server: Server, folder: Path) -> RayPool:
    """A pool on the hosts for the job of a server, under a name that no test has used."""
    pool = RayPool(hosts, replace(server.job, id=f"{folder}"), 60.0, 4)
    pool.require_data(range(6))
    return pool


def numbers(line: dict[str, Any], keys: Keys) -> dict[str, Any]:
    """What a line of a round says but for how long it took and where."""
    left_out = {"seconds", "hosts", "memory", "retries", *(SIZES if keys.get("secure.kind") == "homomorphic" else ())}
    return {name: value for name, value in line.items() if name not in left_out}


@pytest.mark.parametrize(
    "keys",
    [*CASES.values(), *(pytest.param(keys, marks=pytest.mark.exhaustive) for keys in MORE.values())],
    ids=[*CASES, *MORE],
)
def test_same_bits_on_two_hosts_of_which_one_is_lost_and_after_a_resume(
    hosts: list[Any], start: Start, tmp_path: Path, keys: Keys
) -> None:
    keys = {"rounds": 2 * ROUNDS, "evaluation.every": ROUNDS, **keys}
    here = start(keys)
    pool = pool_of(hosts, here, tmp_path)
    away = Server(pool.job, here.plan, pool)
    for _ in range(ROUNDS):
        assert numbers(here.round(), keys) == numbers(away.round(), keys)
    again = start({**keys, "engine.cell_size": 1}, state=FederationState.from_tensors(*here.state.to_tensors()))
    ray.kill(hosts[0], no_restart=False)
    for _ in range(ROUNDS):
        line = numbers(here.round(), keys)
        assert numbers(again.round(), keys) == line
        assert numbers(away.round(), keys) == line
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
