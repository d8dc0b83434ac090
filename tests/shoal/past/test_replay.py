"""One visit made again has the bits of the run's, whatever its method, and says so where it has not."""

import io
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from integration.golden_digests import COUPLED, MOST, config_of, matrix, write_graph
from support.errors import refused
from support.needs import needs
from support.same_runs import require_same_runs
from support.small_runs import run_small

from shoal.algorithms.methods.registry.names import METHODS
from shoal.engine.records.client_scores import read_upload_digests
from shoal.engine.records.metrics import read_metrics
from shoal.engine.runs.run import run
from shoal.engine.runs.verify import verify_run
from shoal.past.fork import fork
from shoal.past.replay import replay, tables

# Uploads that are made again are compared with their digests.
pytestmark = needs("digests")

MINE = """
from dataclasses import dataclass
from shoal import Algorithm, Ask, Reduce, Upload

@dataclass(frozen=True)
class Mine(Algorithm):
    scale: float = 1.0

    def setup(self, ctx):
        return {"w": ctx.initial}

    def round(self, server, ctx, cohort):
        got = yield Ask("train", {"w": Reduce.MEAN}, shared={"w": server["w"]})
        server["w"] = got["w"]

    def train(self, client, received, trainer, phase):
        marked = client.info.client
        return trainer.fit(client, received)

    def upload(self, client, received, phase):
        return Upload({"w": self.scale * client.model.w}, {"w": float(client.info.train)})

    def global_model(self, server):
        return {"w": server["w"]}
"""


def made(folder: Path, **changes: Any) -> Path:
    kept = {"keep_digests": True, **changes.pop("run", {})}
    return run_small(folder, **{"participation": {"ratio": 0.5}, "rounds": 4, **changes, "run": kept})


def require_replayed(folder: Path, numbers: Sequence[int]) -> None:
    """Replays the first and the last client of some rounds."""
    cohorts = {line["round"]: line["cohort"] for line in read_metrics(folder)}
    for number in numbers:
        for client in {cohorts[number][0], cohorts[number][-1]}:
            found = replay(folder, number, client)
            assert found.recorded, (folder, number, client)
            assert found.equal, found.verdict


QUICK = ("fedgta participation 0.3", "fedavg stacked")
# Of hidden sums no digest is kept, and only visits of synchronous rounds are replayed.
OTHERS = [name for name, keys in matrix().items() if not {"secure", "schedule"} & keys.keys() and name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.exhaustive(100)) for name in OTHERS)])
def test_replayed_visits_of_golden_runs_have_their_digests(tmp_path: Path, name: str) -> None:
    graph = write_graph(tmp_path / "graph")
    require_replayed(run(config_of(name, matrix()[name], graph, run__keep_digests=True)), [3, 4])


def test_visits_of_selected_clients_are_replayed(tmp_path: Path) -> None:
    part = {"count": 2, "selection": "loss", "dropout": 0.1}
    on_devices = {"devices": {"kind": "phones", "network": "consumer"}}
    require_replayed(made(tmp_path, participation={"ratio": 1.0, **part}, **on_devices, run={"keep": 2}), [2, 4])


# Its store has edges between clients, as that of no golden run.
FEDGCN = {"algorithm": {"name": "fedgcn"}, "model": {**COUPLED, "head": "conv"}, "data": {"cross_edges": "two_hop"}}


def one_of(method: str) -> dict[str, Any]:
    """The first golden run of a method in which some clients take part; `global` has one client."""
    found = [each for each in matrix().values() if each.get("algorithm", {"name": "fedavg"})["name"] == method]
    return next((each for each in found if "participation" in each), {**FEDGCN, **MOST} if not found else found[0])


@pytest.mark.exhaustive(20)
@pytest.mark.parametrize("method", METHODS)
def test_forks_and_visits_of_every_method_have_the_bits_of_the_run(tmp_path: Path, method: str) -> None:
    graph = write_graph(tmp_path / "graph")
    whole = run(config_of(method, one_of(method), graph, run__keep_digests=True))
    assert method == "global" or any(len(line["cohort"]) < 6 for line in read_metrics(whole))
    require_replayed(whole, [4])
    forked = fork(whole, 2, [])
    assert [line["round"] for line in read_metrics(forked)] == [1, 2, 3, 4]
    require_same_runs(whole, forked)


def test_a_visit_shows_losses_gradients_and_confusions(tmp_path: Path) -> None:
    folder = made(tmp_path, train={"epochs": 3, "lr": 0.1}, participation={"ratio": 1.0})
    found = replay(folder, 2, 1)
    (visit,) = found.visits
    assert len(visit.steps) == 3
    assert visit.steps[-1][0] == pytest.approx(visit.loss)
    assert visit.steps[0][0] > visit.loss
    assert all(norm > 0 for _, norm in visit.steps)
    assert {part: counts.sum() for part, counts in visit.before.items()} == {
        part: counts.sum() for part, counts in visit.after.items()
    }
    assert np.trace(visit.after["train"]) >= np.trace(visit.before["train"])
    text = "\n".join(table.text() for table in tables(found))
    assert f"round 2, client 1, phase {visit.phase}: loss {visit.loss:.6g}" in text
    assert "accuracy" in text


@pytest.mark.slow
def test_a_visit_of_a_two_host_run_is_replayed_here(tmp_path: Path) -> None:
    on_ray = {"engine": {"backend": "ray", "hosts": 2}, "resources": {"cpus_per_host": 0.5}}
    require_replayed(made(tmp_path, **on_ray), [1, 4])


def test_the_run_of_a_replay_stays_as_it_is(tmp_path: Path) -> None:
    folder = made(tmp_path, run={"keep": 1, "checkpoint_every": 4})
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    require_replayed(folder, [3])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_method_of_another_file_differs_and_exits_with_1(
    tmp_path: Path, status: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.py"
    file.write_text(MINE)
    folder = made(tmp_path, algorithm={"name": f"{file}:Mine"})
    client = read_metrics(folder)[2]["cohort"][0]
    for text, ended, says in (
        (MINE, 0, "is that of"),
        (MINE.replace("self.scale", "2 * self.scale"), 1, "differs from"),
    ):
        file.write_text(text)
        words = ["replay", folder, "--round", "3", "--client", client, f"algorithm.name={file}:Mine"]
        assert status(*words) == ended
        assert capsys.readouterr().out.splitlines()[-1] == f"round 3, client {client}: the upload {says} the run"


@pytest.fixture
def debugged(
    tmp_path: Path, status: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs a method of the user, and replays a visit with what is typed at pdb; gives its client, and what is printed.

    The upload is that of the run.
    """

    def debugged(text: str, typed: str, **changes: Any) -> tuple[int, str]:
        file = tmp_path / "my.py"
        file.write_text(text)
        folder = made(tmp_path, algorithm={"name": f"{file}:Mine"}, **changes)
        client = read_metrics(folder)[2]["cohort"][-1]
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        interrupts = signal.getsignal(signal.SIGINT)
        assert status("replay", folder, "--round", "3", "--client", client, "--pdb") == 0
        # Pdb takes the signal for itself.
        signal.signal(signal.SIGINT, interrupts)
        printed = capsys.readouterr().out
        assert f"client {client}: the upload is that of the run" in printed
        return client, printed

    return debugged


def test_pdb_stops_in_the_method_of_the_user(debugged: Callable[..., tuple[int, str]]) -> None:
    client, printed = debugged(MINE, "n\np marked + 1000\nc\nc\n")
    assert f"{1000 + client}" in printed
    assert "marked = client.info.client" in printed


def test_who_leaves_pdb_ends_the_replay(
    tmp_path: Path, status: Callable[..., int], monkeypatch: Any, capsys: Any
) -> None:
    folder = made(tmp_path)
    client = read_metrics(folder)[2]["cohort"][-1]
    capsys.readouterr()
    interrupts = signal.getsignal(signal.SIGINT)
    for typed in ("q\n", "n\nq\n", ""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert status("replay", folder, "--round", "3", "--client", client, "--pdb") == 130
        signal.signal(signal.SIGINT, interrupts)
        said = capsys.readouterr()
        assert "upload" not in said.out.rpartition("(Pdb)")[2]
        assert "shoal: " not in said.err


LOSS = """
from dataclasses import dataclass
from torch.nn.functional import cross_entropy
from shoal.algorithms.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    def loss(self, out, y, w, received):
        rows = 7000 + len(y)
        return cross_entropy(out.logits_NC, y)
"""


def test_pdb_stops_once_in_the_loss_of_the_user(debugged: Callable[..., tuple[int, str]]) -> None:
    """Of several steps the first stops; the table has the loss, and does not say that nothing was trained."""
    _, printed = debugged(LOSS, "n\np rows\nc\nc\n", train={"epochs": 3})
    assert re.search(r"\b70\d\d\b", printed)
    assert "no step of training" not in printed


def test_a_replay_that_cannot_be_names_why(tmp_path: Path, capsys: Any) -> None:
    folder = made(tmp_path, run={"checkpoint_every": 1, "keep": 9})
    cohort = read_metrics(folder)[2]["cohort"]
    other = next(i for i in range(4) if i not in cohort)
    with refused(folder, "--client", says=", ".join(map(str, cohort))):
        replay(folder, 3, other)
    with refused(folder, "--round"):
        replay(folder, 5, 0)
    capsys.readouterr()
    # A damaged checkpoint is passed over.
    (folder / "checkpoints/round-000002/state.safetensors").write_bytes(b"damaged")
    require_replayed(folder, [3])
    assert "round-000002: damaged" in capsys.readouterr().err
    with refused("data.split_seed"):
        replay(folder, 3, cohort[0], ["data.split_seed=5"])


def test_without_digests_nothing_is_compared(tmp_path: Path) -> None:
    folder = made(tmp_path, run={"keep_digests": False})
    assert read_upload_digests(folder, 3) == []
    found = replay(folder, 3, read_metrics(folder)[2]["cohort"][0])
    assert len(found.visits) == 1
    assert "run.keep_digests" in found.verdict


def test_digests_of_uploads_stay_after_a_kill_and_are_of_their_bytes(tmp_path: Path) -> None:
    whole = made(tmp_path)
    seen = [read_upload_digests(whole, number) for number in (1, 2, 3, 4)]
    assert all(len(of_round) == 2 for of_round in seen)
    assert len({digest for of_round in seen for *_, digest in of_round}) == 8
    (whole / "uploads.arrows").write_bytes((whole / "uploads.arrows").read_bytes()[:-40])
    assert [read_upload_digests(whole, number) for number in (1, 2, 3)] == seen[:3]
    with refused(whole / "uploads.arrows"):
        read_upload_digests(whole, 4)
    assert any("uploads.arrows" in fault for fault in verify_run(whole))


def test_a_visit_of_an_asynchronous_run_is_not_replayed(tmp_path: Path) -> None:
    folder = run_small(tmp_path, rounds=2, schedule={"name": "fedasync", "concurrency": 2})
    with refused(folder, "schedule.name", says="not those of fedasync"):
        replay(folder, 1, 0)
