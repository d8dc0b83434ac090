"""Classes that uploads tell, against labels of the store and gradients of plain torch; what noise and sums hide."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
from support.needs import needs
from support.ring_clients import ring_clients
from typer.testing import CliRunner

from shoal.attacks.properties import properties
from shoal.cli.cli import app
from shoal.past.rewind import PastRun
from shoal.storage.shards.view import Cache

ONE_CLASS = [[c] * 4 for c in (0, 0, 1, 1, 2, 2)]
# The fifth node of each tests.
MIXED = [[0, 0, 0, 1, 2], [1, 1, 1, 0, 0], [2, 2, 0, 1, 0], [0, 1, 2, 2, 1], [2, 2, 2, 2, 0]]
SGD = {"optimizer": "sgd", "lr": 0.5, "epochs": 1}
NODE = {
    "propagation": {"hops": 1, "r": 0.0, "max_degree": 2},
    "privacy": {"unit": "node", "noise": 100.0, "delta": 1e-3},
}


def guesses(run: Path, number: int = 1) -> dict[tuple[str, str], dict[str, float]]:
    """Numbers of the table by place and source."""
    table = properties(run, number)[0]
    return {(row[0], row[1]): dict(zip(table.heads[3:], map(float, row[3:]))) for row in table.rows}


def of_clients(run: Path, seen: str, source: str) -> np.ndarray:
    """True and guessed shares, `[2, clients, C]`."""
    lines = csv.reader(io.StringIO(properties(run, 1)[1].csv()))
    rows = np.array([row[5:] for row in lines if row[:2] == [seen, source]], float)
    return np.stack(np.split(rows, 2, axis=1))


@pytest.mark.parametrize(
    ("method", "sources"),
    [
        ("fedavg", {"classifier's weight", "classifier's bias"}),
        ("fedgta", {"classifier's weight", "classifier's bias"}),
        ("fedproto", {"counts of proto", "rows of proto"}),
        ("feddistill", {"counts of proto", "rows of proto"}),
        ("class_means", {"counts of mean", "rows of mean"}),
        ("fedtgp", {"counts", "rows of proto"}),
        ("fedpg", {"counts", "rows of proto"}),
    ],
)
def test_clients_of_one_class_each_are_told(tmp_path: Path, method: str, sources: set[str]) -> None:
    options = {"hops": 1} if method == "class_means" else {}
    run = ring_clients(tmp_path, ONE_CLASS, 2, algorithm={"name": method, **options})
    found = guesses(run)
    assert {source for place, source in found if place == "upload"} == sources
    for (place, source), numbers in found.items():
        if place == "upload":
            # Of models, absent classes do not all lose as much.
            assert numbers["distance"] < (10 if "classifier" in source else 0.1)
            assert numbers["AUC has class"] == numbers["AUC has more"] == 100
        else:
            assert numbers["AUC has class"] == 50
        # Of a client of class 0, other clients have 1, 2 and 2 in 5.
        assert numbers["of chance"] == pytest.approx(80.0)


def test_shares_are_those_of_labels_and_the_softmax_of_plain_torch(tmp_path: Path) -> None:
    run = ring_clients(tmp_path / "proto", MIXED, 4, algorithm={"name": "fedproto"})
    true, guessed = of_clients(run, "upload", "counts of proto")
    wanted = np.array([np.bincount(labels[:4], minlength=3) / 4 for labels in MIXED])
    assert true == pytest.approx(wanted)
    assert guessed == pytest.approx(wanted)
    run = ring_clients(tmp_path / "avg", MIXED, 4, train={**SGD, "weight_decay": 0.0})
    true, guessed = of_clients(run, "upload", "classifier's bias")
    past = PastRun(run)
    job, store = past.job, past.store
    w = job.initial(job.build_models(store, past.plan.algorithm)["model"][0], "model", 0)
    for client, labels in enumerate(MIXED):
        view = job.view(store, client, Cache(0))
        p = F.softmax(view.rows(1, view.train).float() @ w[:36].view(3, 12).T + w[36:], dim=1).mean(0)
        share = torch.tensor(np.bincount(labels[:4], minlength=3) / 4) - p
        share = share - share.min()
        assert guessed[client] == pytest.approx((share / share.sum()).numpy(), abs=1e-4)


@needs("privacy")
def test_noise_in_training_hides_classes_and_noise_of_the_server_does_not(tmp_path: Path) -> None:
    many = [[c] * 4 for c in (0, 1, 2) for _ in range(20)]
    node = guesses(ring_clients(tmp_path / "node", many, 2, **NODE))
    assert abs(node["upload", "classifier's bias"]["AUC has class"] - 50) < 15
    assert abs(node["upload", "classifier's weight"]["AUC has class"] - 50) < 15
    client = {"unit": "client", "noise": 100.0, "delta": 1e-3}
    noised = properties(ring_clients(tmp_path / "client", ONE_CLASS, 2, privacy=client), 1)[0]
    assert noised.rows[0][:2] == ("upload", "classifier's weight")
    assert noised.rows[0][5] == "100.0"
    assert "before the server adds noise" in noised.notes[0]
    client = {"unit": "client", "where": "client", "noise": 1000.0, "delta": 1e-3}
    noised = properties(ring_clients(tmp_path / "own", many, 2, privacy=client), 1)[0]
    assert abs(float(noised.rows[0][5]) - 50) < 15
    assert "with noise of its own" in noised.notes[0]


@needs("secure")
def test_hidden_sums_show_what_is_released_alone_to_rounding(tmp_path: Path) -> None:
    plain = properties(ring_clients(tmp_path / "plain", MIXED, 4), 1)[0]
    table = properties(ring_clients(tmp_path / "hidden", MIXED, 4, secure={"kind": "masks"}), 1)[0]
    assert [row[0] for row in table.rows] == ["released", "released"]
    assert table.rows == plain.rows[2:]
    assert "sums are hidden" in table.notes[0]


def test_later_rounds_tasks_of_graphs_and_two_calls(tmp_path: Path) -> None:
    run = ring_clients(tmp_path, MIXED, 4)
    assert guesses(run, 2) != guesses(run, 1)
    first, second = (properties(run, 1) for _ in range(2))
    assert [each.csv() for each in first] == [each.csv() for each in second]


def test_graphs_are_items_too(tmp_path: Path, configure: Any, graph_task: dict[str, Any]) -> None:
    from shoal.engine.runs.run import run

    keys = {**graph_task, "run.root": str(tmp_path / "runs"), "run.tensorboard": False, "rounds": 1}
    assert ("upload", "classifier's bias") in guesses(run(configure(keys)))


def test_runs_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    local = ring_clients(tmp_path / "local", MIXED, 4, algorithm={"name": "local"})
    with refused(local, "--round", says="no model comes and goes"):
        properties(local, 1)
    with refused(local, "--round", says="none is 3"):
        properties(local, 3)
    with refused(says="less than two clients"):
        properties(ring_clients(tmp_path / "one", [[0, 1, 2, 0]], 3), 1)
    asynchronous = ring_clients(
        tmp_path / "later", MIXED, 4, schedule={"name": "fedbuff", "concurrency": 2, "buffer": 2}
    )
    with refused(asynchronous, "schedule.name"):
        properties(asynchronous, 1)


def test_command_prints_guesses_and_writes_a_row_for_each_client(tmp_path: Path) -> None:
    run, out = ring_clients(tmp_path, MIXED, 4), tmp_path / "found.csv"
    shown = CliRunner().invoke(app, ["attack", str(run), "--kind", "properties", "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "upload: as the server is sent it" in " ".join(shown.output.split())
    assert len(out.read_text().splitlines()) == 1 + 4 * len(MIXED)
    for more, option in ((["--client", "1"], "--client"), (["--kind", "membership", "--round", "1"], "--round")):
        wrong = CliRunner().invoke(app, ["attack", str(run), "--kind", "properties", *more])
        assert option in str(wrong.exception)
