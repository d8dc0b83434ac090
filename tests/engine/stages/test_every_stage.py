"""What holds for every stage, alone and two at a time: the same bits in any cells and after a resume, and rounds in
which a client fails or none takes part.

A stage has a case as soon as its feature is in `SECTIONS`, or this file fails. Two hosts of which one is lost are in
`tests/engine/cluster/test_features_on_hosts.py`, other devices in `tests/engine/test_other_device.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.needs import needs
from support.same_bits import assert_same_runs, assert_same_trees
from support.toy_method import NAME as TOY

import shoal
from shoal.algorithms.protocol import Replies, Upload
from shoal.engine.messages.cell import Outcome
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.stage import make_stages
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import plan_of
from shoal.engine.sections.sections import SECTIONS

Start = Callable[..., Server]
Keys = Mapping[str, Any]
ROUNDS = 4
# Has a weight of more than 256 numbers, which compression sends in parts.
COMMON = {
    "model.name": "gamlp", "model.hidden": 64, "rounds": ROUNDS, "evaluation.every": ROUNDS, "train.epochs": 1,
}  # fmt: skip
SIGNS = f"{__file__}:Signs"
CASES: dict[str, Keys] = {
    "topk": {"communication.upload": "topk", "communication.ratio": 0.1},
    "int8": {"communication.upload": "int8"},
    "label_flip": {"attack.kind": "label_flip", "attack.share": 0.34},
    "backdoor": {"attack.kind": "backdoor", "attack.share": 0.34},
    "gaussian": {"attack.kind": "gaussian", "attack.share": 0.34},
    "median": {"aggregation.kind": "median"},
    "norm_bound": {"aggregation.kind": "norm_bound", "aggregation.bound": 0.5},
    "client": {"privacy.unit": "client", "privacy.noise": 0.3, "privacy.quantile": 0.5},
    "at client": {"privacy.unit": "client", "privacy.noise": 0.3, "privacy.where": "client"},
    "masks": {"secure.kind": "masks"},
    "digests": {"run.keep_digests": True},
    "signs": {"stages": [{"name": SIGNS}]},
}
# By the name of a feature among the stages of a job.
FEATURES = {
    "communication": ("topk", "int8"),
    "attack": ("label_flip", "backdoor", "gaussian"),
    "aggregation": ("median", "norm_bound"),
    "privacy": ("client", "at client"),
    "secure": ("masks",),
    "digests": ("digests",),
    "stages": ("signs",),
}
# A feature that was deleted takes its cases along.
PRESENT = {one.called or one.name for one in SECTIONS}
FEATURES = {feature: cases for feature, cases in FEATURES.items() if feature in PRESENT}
CASES = {case: CASES[case] for cases in FEATURES.values() for case in cases}
TOGETHER = [
    ("gaussian", "median"), ("gaussian", "masks"), ("topk", "norm_bound"), ("client", "masks"), ("client", "int8"),
    ("signs", "topk"), ("signs", "masks"), ("signs", "client"), ("signs", "median"), ("backdoor", "signs"),
    ("label_flip", "digests"), ("int8", "digests"),
]  # fmt: skip
PAIRS = {f"{one}, {other}": {**CASES[one], **CASES[other]} for one, other in TOGETHER if {one, other} <= CASES.keys()}


class Signs(shoal.Stage):
    """Signs of changes, of which clients and server keep something."""

    def at_client(self, upload: Upload, at: shoal.AtClient) -> Upload:
        entries, base = dict(upload.entries), at.received["w"]
        change = entries["w"] - base + at.kept.get("left", torch.zeros_like(base))
        coded = change.sign() * change.abs().mean()
        entries["w"], at.kept["left"] = base + coded, change - coded
        return Upload(entries, upload.weight, upload.upload_bytes)

    def after(self, replies: Replies, phase: shoal.Phase) -> Replies:
        phase.kept["rounds"] = phase.kept.get("rounds", torch.zeros(())) + 1
        phase.columns["signs"] = float(phase.kept["rounds"])
        return replies


class Whole(shoal.Stage):
    """The plain mean of all uploads, each of which it needs."""

    whole = True

    def reduce(self, outcomes: Sequence[Outcome], phase: shoal.Phase) -> Replies:
        ids, rows, weights = shoal.rows_of(outcomes)
        means = {entry: torch.stack(of).mean(0) for entry, of in rows.items()}
        return Replies(ids, means, {entry: torch.stack(of).sum() for entry, of in weights.items()})


def run_rounds(server: Server, rounds: int) -> list[dict[str, Any]]:
    lines = [server.round() for _ in range(rounds)]
    return [{key: value for key, value in line.items() if key not in ("seconds", "hosts", "memory")} for line in lines]


def assert_same(one: Server, other: Server) -> None:
    assert_same_runs(one, other)
    parts = [{part: tree for part, tree in server.state.extras.items() if tree} for server in (one, other)]
    assert parts[0].keys() == parts[1].keys()
    for part, tree in parts[0].items():
        assert_same_trees({0: tree}, {0: parts[1][part]})


def test_every_feature_has_a_case() -> None:
    with_stages = {one.called or one.name for one in SECTIONS if one.stages}
    assert FEATURES.keys() == with_stages
    assert CASES.keys() == {case for cases in FEATURES.values() for case in cases}


@pytest.mark.parametrize("case", CASES)
def test_job_has_the_stages_of_a_feature(start: Start, case: str) -> None:
    job = start({**COMMON, **CASES[case]}).job
    (feature,) = (name for name, cases in FEATURES.items() if case in cases)
    assert job.stages.keys() == {feature}
    assert make_stages(job)
    assert not make_stages(job.without_stage(feature))


@pytest.mark.parametrize("keys", [*CASES.values(), *PAIRS.values()], ids=[*CASES, *PAIRS])
def test_same_bits_in_other_cells_and_after_a_resume(start: Start, keys: Keys) -> None:
    keys = {**COMMON, **keys}
    whole = start({**keys, "engine.cell_size": 6})
    lines = run_rounds(whole, ROUNDS)
    apart = start({**keys, "engine.cell_size": 1})
    first = run_rounds(apart, 2)
    resumed = start({**keys, "engine.cell_size": 2}, state=FederationState.from_tensors(*apart.state.to_tensors()))
    assert lines == [*first, *run_rounds(resumed, 2)]
    assert_same(whole, resumed)


@pytest.mark.parametrize("keys", CASES.values(), ids=CASES)
def test_client_that_fails_leaves_nothing(start: Start, keys: Keys) -> None:
    failing = {**COMMON, **keys, "algorithm.name": TOY, "algorithm.client": 1, "engine.on_client_error": "skip"}
    if keys.get("privacy.where") == "client":
        # With noise at clients a failure is seen.
        with refused("engine.on_client_error"):
            start(failing)
        return
    server = start(failing)
    lines = run_rounds(server, 2)
    assert [line["cohort"] for line in lines] == [[0, 2, 3, 4, 5]] * 2
    assert 1 not in server.state.clients
    assert all(torch.isfinite(t).all() for t in server.state.server.values())


@needs("availability")
@pytest.mark.parametrize("keys", CASES.values(), ids=CASES)
def test_round_without_clients_changes_nothing(start: Start, keys: Keys, tmp_path: Path) -> None:
    online = np.ones((ROUNDS, 6), dtype=np.uint8)
    online[1] = 0
    np.save(tmp_path / "trace.npy", online)
    keys = {**COMMON, **keys, "participation.trace": str(tmp_path / "trace.npy")}
    if keys.get("privacy.unit") == "client":
        with refused("participation.trace"):
            start(keys)
        return
    server = start(keys)
    run_rounds(server, 1)
    before = server.state
    (line,) = run_rounds(server, 1)
    assert (line["cohort"], line["bytes_up"]) == ([], 0)
    assert_same_trees({0: before.server}, {0: server.state.server})
    assert_same_trees(before.clients, server.state.clients)
    assert run_rounds(server, 1)[0]["cohort"] == list(range(6))


@needs("users")
def test_stages_that_exclude_one_another_are_refused(start: Start, configure: Callable[..., Any]) -> None:
    for keys in (CASES[case] for case in ("masks", "client", "median") if case in CASES):
        with refused("stages", says="take one of them"):
            start({**COMMON, "stages": [{"name": f"{__file__}:Whole"}], **keys})
    plan_of(configure({**COMMON, "stages": [{"name": f"{__file__}:Whole"}]}, "plain"))
