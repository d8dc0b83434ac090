"""What left clients is as the run logged it, and each entry is told by how it is reduced."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needs import has, needs
from support.small_runs import run_small

from shoal.algorithms.protocol import Reduce
from shoal.engine.config.config import load_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.runs.run import run
from shoal.past.ledger import AVERAGED, BY_ROW, HIDDEN, HIDDEN_IN_A_SUM, MIXED, NOISY, OF_CLASSES, ledger

if has("privacy"):
    from shoal.engine.stages.privacy.accounting import epsilon_after


def made(folder: Path, **changes: Any) -> Path:
    return run_small(folder, **{"participation": {"ratio": 0.5}, "rounds": 4, **changes})


@pytest.mark.parametrize(
    ("method", "entries"),
    [
        ("fedavg", {"w": (Reduce.MEAN, AVERAGED)}),
        ("fedproto", {"proto": (Reduce.MEAN, BY_ROW)}),
        ("fedtgp", {"proto": (Reduce.STACK, OF_CLASSES)}),
        ("fedgta", {"w": (Reduce.MIX, MIXED)}),
    ],
)
def test_entries_are_those_of_the_method(tmp_path: Path, method: str, entries: dict[str, Any]) -> None:
    folder = made(tmp_path, algorithm={"name": method})
    found = {sent.entry: (sent.how, says) for sent, says in ledger(folder, 3).sent}
    assert {name: found[name] for name in entries} == entries
    assert read_metrics(folder)[-1]["round"] == 4


@needs("privacy")
def test_entries_of_hidden_clients_are_told_by_where_their_noise_is(tmp_path: Path) -> None:
    private = {"unit": "client", "noise": 30.0, "delta": 1e-3}
    rows = ledger(made(tmp_path, privacy=private, algorithm={"name": "fedproto"}))
    assert [(sent.entry, says) for sent, says in rows.sent] == [("proto", HIDDEN)]
    method = {"name": "fedgta", "confidence": "uniform"}
    mixed = ledger(made(tmp_path, privacy={**private, "where": "client"}, algorithm=method))
    assert [(sent.entry, sent.how, says) for sent, says in mixed.sent] == [
        ("w", Reduce.MIX, NOISY),
        ("h", Reduce.STACK, NOISY),
        ("m", Reduce.STACK, NOISY),
    ]
    assert mixed.epsilons == {n: epsilon_after(30.0, 1e-3, 1, 1, n) for n in (1, 2, 3, 4)}
    assert mixed.bound.endswith(
        "of a client (all its data replaced), delta 0.001; noise 30, clip 1.0, on each upload; 2 of 4 clients a round"
    )


@needs("secure")
@pytest.mark.parametrize("kind", ["masks", "homomorphic"])
def test_entries_that_are_hidden_have_the_shapes_of_plain_ones(tmp_path: Path, kind: str) -> None:
    found = [ledger(made(tmp_path, secure=secure)) for secure in ({}, {"kind": kind})]
    assert [[sent.shape for sent, _ in of.sent] for of in found] == [[(27,)]] * 2
    assert [says for of in found for _, says in of.sent] == [AVERAGED, HIDDEN_IN_A_SUM]


@needs("privacy")
def test_times_and_bytes_are_those_of_the_log(tmp_path: Path) -> None:
    hidden = {"unit": "client", "noise": 30.0, "delta": 1e-3}
    folder = made(tmp_path, privacy=hidden, train={"epochs": 1, "opt_state": "reset"})
    found = ledger(folder)
    cohorts = [line["cohort"] for line in read_metrics(folder)]
    assert found.times.tolist() == [sum(i in cohort for cohort in cohorts) for i in range(4)]
    # SGC from 8 features to 3 classes: 27 numbers of 4 bytes.
    assert found.bytes.tolist() == (found.times * 27 * 4).tolist()
    assert [says for _, says in found.sent] == [HIDDEN]
    assert found.epsilons == {n: epsilon_after(30.0, 1e-3, 2, 4, n) for n in (1, 2, 3, 4)}
    assert list(np.diff(list(found.epsilons.values())) > 0) == [True] * 3


@needs("privacy")
def test_command_prints_epsilon_with_its_unit_and_writes_tables(tmp_path: Path, printed: Callable[..., str]) -> None:
    folder = made(tmp_path, privacy={"unit": "client", "noise": 30.0, "delta": 1e-3})
    words = printed("privacy", folder, "--out", tmp_path / "ledger")
    # Clients keep Adam's moments.
    assert f"epsilon {epsilon_after(30.0, 1e-3, 4, 4, 4):.3g} of a client (all its data replaced), delta 0.001" in words
    assert (tmp_path / "ledger" / "epsilon.csv").read_text().startswith("after round,epsilon of a client\n1,")
    rows = (tmp_path / "ledger" / "clients.csv").read_text().splitlines()
    assert rows[1:] == [f"{i},{n},{n * 108}" for i, n in enumerate(ledger(folder).times.tolist())]


@needs("privacy")
def test_a_longer_run_does_not_go_on_with_the_noise_of_a_shorter_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"privacy": {"unit": "client", "epsilon": 5.0, "delta": 1e-3}}
    run(load_config(made(tmp_path, **keys), ["rounds=6"]), resume=True)
    assert "the noise for privacy.epsilon is that of all rounds" in " ".join(capsys.readouterr().err.split())
