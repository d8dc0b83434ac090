"""The loop of a run: servers that are lost in a row, checkpoints by time, and disks that are full."""

import contextlib
import ipaddress
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch
import yaml
from attack.wrong_methods import RAISES, WRONG, hook, require_line, write_method
from support.errors import refused
from support.forked import limited

from shoal.engine.cluster.ray_backend import RayBackend
from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.hosts.backend import LocalBackend, ServerLost
from shoal.engine.messages.job import Job, make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.client_scores import read_client_scores
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import LOG, SUMMARY
from shoal.engine.rounds.costs import Watch, unwatched
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import CLIENT_SCORES
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs import driver
from shoal.engine.runs.plan import plan_of
from shoal.engine.runs.run import run
from shoal.engine.screen.interrupt import Interrupted
from shoal.storage.errors import ShoalError

FAILS_LATE = "if ctx.round == 30:\n    raise RuntimeError('no luck')\nyield from super().round(server, ctx, cohort)"
LENGTH = ["rounds=4", "run.checkpoint_every=2"]
ON_RAY = ["engine.backend=ray", "engine.hosts=1"]
BACKEND = {"name": "b", "data": {"dataset": "sbm"}, "algorithm": "fedavg", "engine": {"backend": "ray", "hosts": 1}}
VARIABLE = {"ray": {"runtime_env": {"env_vars": {"OF_THE_RUN": 7}}}}


class LosesServers(LocalBackend):
    """It is lost as often as said, a round after a checkpoint: as round 4 begins, or as the next one starts."""

    def __init__(self, lost: int, as_it_starts: bool = False) -> None:
        super().__init__()
        self.lost, self.as_it_starts = lost, as_it_starts

    def lose(self) -> None:
        if self.lost:
            self.lost -= 1
            raise ServerLost("gone")

    def open(self, job: Job, plan: Plan, state: FederationState | None) -> None:
        if self.as_it_starts and state is not None:
            self.lose()
        super().open(job, plan, state)

    def round(self, watch: Watch) -> dict[str, Any]:
        if self.state().round == 3:
            self.lose()
        return super().round(watch)


@pytest.fixture(scope="module")
def backend() -> Iterator[RayBackend]:
    opened = RayBackend(parse_config({**BACKEND, **VARIABLE}, "test"))
    yield opened
    opened.close()


def numbers(folder: Path) -> list[object]:
    return [(line["round"], line["loss"], line["scopes"]) for line in read_metrics(folder)]


def test_ray_of_a_run_is_out_of_reach_and_has_names_and_variables(backend: RayBackend) -> None:
    backend.await_hosts()
    (host,) = ray.util.list_named_actors(all_namespaces=True)
    assert host["name"] == "host-0"
    assert host["namespace"].startswith("shoal-b-")
    listening, hosts = [], []
    for each in psutil.Process().children(recursive=True):
        # Ray's short-lived helpers end meanwhile.
        with contextlib.suppress(psutil.NoSuchProcess):
            listening += [c.laddr.ip for c in each.net_connections() if c.status == psutil.CONN_LISTEN]
            if each.cmdline()[:1] == ["ray::HostActor"]:
                hosts.append(each.environ())
    assert len(listening) > 3
    assert all(ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback for ip in listening)
    (environment,) = hosts
    assert environment["OF_THE_RUN"] == "7"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"setup: {RAISES}", marks=pytest.mark.slow),
        pytest.param("round: raise KeyboardInterrupt # here\nyield", marks=pytest.mark.slow),
        pytest.param("setup: sys.exit(0) # here", marks=pytest.mark.slow),
    ],
)
def test_wrong_method_on_a_server_of_its_own_is_one_line(
    configure: Callable[..., Config], backend: RayBackend, tmp_path: Path, name: str
) -> None:
    method, words = write_method(tmp_path, WRONG[name].text, *WRONG[name].words)
    config = configure({"model.name": "mlp", "engine.backend": "ray", "algorithm.name": method})
    job = make_job(config, prepare(config), tmp_path.name)

    def one_round() -> None:
        backend.open(job, plan_of(config), None)
        backend.round(unwatched)

    with pytest.raises(ShoalError) as caught:
        one_round()
    require_line(caught.value.line, words)
    if RAISES in name:
        assert "RuntimeError: no luck" in caught.value.detail


def test_short_rounds_of_one_call_have_the_numbers_of_one_process(
    configure: Callable[..., Config], backend: RayBackend, tmp_path: Path
) -> None:
    keys = {"rounds": 40, "evaluation.every": 7, "participation.ratio": 0.5}
    config = configure({**keys, "engine.backend": "ray"})
    job, here, lines, at_once = make_job(config, prepare(config), tmp_path.name), LocalBackend(), [], []
    for each in (backend, here):
        each.open(job, plan_of(config), None)
    while len(lines) < 40:
        until = min(len(lines) + 10, 40)
        at_once.append(list(backend.rounds(unwatched, until)))
        lines += at_once[-1]
        assert len(lines) <= until
    assert max(map(len, at_once)) > 1
    expected = [here.round(unwatched) for _ in range(40)]
    for numbers in (("round",), ("cohort",), ("loss",), ("bytes_up",)):
        assert [[line[name] for name in numbers] for line in lines] == [[line[n] for n in numbers] for line in expected]
    assert [line.get("scopes") for line in lines] == [line.get("scopes") for line in expected]
    assert [CLIENT_SCORES in line for line in lines] == ["scopes" in line for line in expected]
    assert torch.equal(backend.state().server["w"], here.state().server["w"])


def test_failure_after_rounds_of_the_same_call_comes_after_their_lines(
    configure: Callable[..., Config], backend: RayBackend, tmp_path: Path
) -> None:
    method, _ = write_method(tmp_path, hook("round", FAILS_LATE).text)
    config = configure({"engine.backend": "ray", "algorithm.name": method, "rounds": 40, "evaluation.every": 40})
    backend.open(make_job(config, prepare(config), tmp_path.name), plan_of(config), None)
    numbers = list[int]()

    def rounds_until_it_fails() -> None:
        while True:
            numbers.extend(line["round"] for line in backend.rounds(unwatched, 40))
            assert backend.state().round == numbers[-1]

    with pytest.raises(ShoalError, match=r"^round 30: Wrong: ") as caught:
        rounds_until_it_fails()
    assert numbers == list(range(1, 30))
    assert "RuntimeError: no luck" in caught.value.detail


@pytest.mark.parametrize(
    ("keys", "stops"),
    [
        (["run.checkpoint_every=4"], [4, 4, 8]),
        (["run.checkpoint_every=4", "run.keep_best=true"], [1, 4, 5]),
        (["run.checkpoint_every=4", "callbacks=[early_stopping]"], [1, 4, 5]),
        (["run.checkpoint_every=4", "callbacks=[csv]"], [4, 4, 8]),
    ],
)
def test_rounds_of_a_call_end_where_the_driver_reads_the_state(tiny: Path, keys: list[str], stops: list[int]) -> None:
    asked = dict[int, int]()

    class Asked(LocalBackend):
        def rounds(self, watch: Watch, until: int) -> Iterator[dict[str, Any]]:
            asked[self.state().round] = until
            return super().rounds(watch, until)

    run(load_config(tiny, ["rounds=6", *keys]), backend=Asked())
    assert [asked[done] for done in (0, 3, 4)] == [min(stop, 6) for stop in stops]


def test_servers_lost_in_a_row(tiny: Path) -> None:
    whole = run(load_config(tiny, [*LENGTH, "callbacks=[csv]"]))
    expected, scores = numbers(whole), read_client_scores(whole)
    backend = LosesServers(2, as_it_starts=True)
    folder = run(load_config(tiny, [*LENGTH, "callbacks=[csv]"]), fresh=True, backend=backend)
    assert folder == whole
    assert backend.lost == 0
    assert numbers(folder) == expected
    assert read_client_scores(folder) == scores
    assert sorted(set(scores["round"].to_pylist())) == [1, 2, 3, 4]
    # Rounds that were lost and run once more are there once.
    rows = (folder / "metrics.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["round", "1", "2", "3", "4"]
    assert (folder / LOG).read_text().count("server lost") == 2


def test_servers_lost_too_often(tiny: Path) -> None:
    often = driver.SERVERS_LOST + 1
    with refused(says=f"the server was lost {often} times in a row (gone); the newest checkpoint is"):
        run(load_config(tiny, LENGTH), backend=LosesServers(often))
    folder = run(load_config(tiny, LENGTH), resume=True)
    assert [line["round"] for line in read_metrics(folder)] == [1, 2, 3, 4]


def test_a_checkpoint_by_time(tiny: Path) -> None:
    keys = ["rounds=4", "run.checkpoint_every=100", "run.keep=9"]
    folder = run(load_config(tiny, keys))
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["round-000004"]
    folder = run(load_config(tiny, [*keys, "run.checkpoint_seconds=1e-9"]), fresh=True)
    assert len(list((folder / "checkpoints").iterdir())) == 4


STOPPED = """
import glob, os, signal, time
from dataclasses import dataclass
import torch
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Stopped(FedAvg):
    driver: int = 0
    runs: str = ""
    waits: int = 0

    def upload(self, client, received, phase):
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        if client.state["visits"] == 3 and client.info.client == 0:
            os.kill(self.driver, signal.SIGTERM)
        if client.state["visits"] == 3 and client.info.client == self.waits:
            end = time.monotonic() + 20
            while not glob.glob(f"{self.runs}/*/checkpoints/round-000002"):
                assert time.monotonic() < end, "nothing was kept"
                time.sleep(0.01)
        return super().upload(client, received, phase)
"""


# In this process the driver hears of it behind the cell; the last client waits for the checkpoint.
BACKENDS = {"local": ["algorithm.waits=3"], "ray": ON_RAY}


@pytest.mark.parametrize("where", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_asked_to_stop_in_mid_round_keeps_the_round_before_at_once(
    tiny: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """The third round does not end before a client of it sees the checkpoint of the second."""
    (tiny.parent / "stopped.py").write_text(STOPPED)
    method = [f"algorithm.name={tiny.parent / 'stopped.py'}:Stopped", f"algorithm.driver={os.getpid()}"]
    keys = [*method, f"algorithm.runs={tiny.parent / 'runs'}", "rounds=4", "engine.cell_size=1"]
    backend = request.getfixturevalue("backend") if where == "ray" else None
    with pytest.raises(Interrupted):
        run(load_config(tiny, [*keys, *BACKENDS[where]]), backend=backend)
    said = capsys.readouterr().err
    assert said.index("kept a checkpoint of round 2") < said.index("stopped after round 3; continue with: shoal run ")


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("limit", [0, 300, 2500, 9000])
def test_full_disk_is_one_line_and_resumable(tiny: Path, limit: int) -> None:
    plain = yaml.safe_load(tiny.read_text())
    plain["run"] |= {"tensorboard": True, "checkpoint_every": 1}
    tiny.write_text(yaml.safe_dump({**plain, "rounds": 6}))
    # No file may grow beyond this: what a full disk does, for a process of any user.
    status, errors = limited("run", tiny, limit="RLIMIT_FSIZE", most=limit)
    whole = run(load_config(tiny, [f"run.root={tiny.parent / 'whole'}", f"data.store={tiny.parent / 'store2'}"]))
    if status:
        assert status == 2, errors
        (line,) = [text for text in errors.splitlines() if text.startswith("shoal: ")]
        assert "File too large" in line or "cannot be written" in line
    assert "Traceback" not in errors
    runs = list((tiny.parent / "runs").iterdir()) if (tiny.parent / "runs").exists() else []
    started = any((folder / METRICS).exists() for folder in runs)
    folder = run(load_config(tiny), resume=started)
    assert numbers(folder) == numbers(whole)
    assert (folder / SUMMARY).exists()
    assert not list(tiny.parent.rglob("*.unfinished"))
