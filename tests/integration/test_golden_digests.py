"""No number changes unnoticed: weights, predictions, scores and bytes of short runs against recorded digests."""

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from integration.golden_digests import (
    config_of,
    digest_of,
    execute,
    matrix,
    record_here,
    records,
    write_graph,
)
from integration.server_here import ServerHere

from shoal.engine.config.config import parse_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.runs.run import run

SPLIT = "graphs fedgpl away "
# Every kind of request (reductions, downloads of single clients, no training, products of uploads), of evaluation, of
# task, and of cells. The rest is slow.
ON_HOSTS = [
    "fedsage_plus gcn", "fedgta stacked", f"{SPLIT}frozen", "edges fedavg gcn", "fml several models",
    "fedavg inductive gcn", "fedpg attention", "fggp participation 0.3", "adafgl gcn",
    "uploads topk", "attack scaled, int8, norm_bound", "masks", "privacy client, adaptive clip", "privacy node",
    "schedule fedbuff", "availability, deadline", "newcomers", "cross edges one_hop",
]  # fmt: skip
# What a method would keep beside its state is lost.
RESUMED = [
    "fedavg participation 0.3", "fedgta participation 0.3", "fedtgp gamlp", "fedpg attention", "fedgkc several models",
    "fggp participation 0.3", "graphs fedavg max sage", "edges fedavg sage", "gcfl_plus gamlp", "fedpub gcn",
    "fedgl gcn", "fgssl gcn", "adafgl gamlp", "fedsage_plus gcn", "graphs fedstar star", f"{SPLIT}round_accumulate",
    "uploads topk", "attack sign_flip, masks", "privacy client, adaptive clip", "privacy client, banded",
    "schedule fedasync", "schedule fedbuff", "schedule tiers", "availability, deadline", "selection oort", "newcomers",
]  # fmt: skip
# A round of many messages, and rounds in which what acts beside the method keeps something at clients or the server.
KILLED = [
    f"{SPLIT}per_client_avg",
    pytest.param("uploads topk", marks=pytest.mark.slow),
    pytest.param("privacy client, adaptive clip", marks=pytest.mark.slow),
    pytest.param("schedule fedbuff", marks=pytest.mark.slow),
    pytest.param("attack sign_flip, masks", marks=pytest.mark.slow),
]
Digests = dict[str, dict[str, object]]


def assert_recorded(name: str, digest: dict[str, object]) -> None:
    """Requires equal bits where a record of this kind of machine has the run, and nearly equal numbers elsewhere."""
    here = record_here()
    if here and name in here["runs"]:
        assert digest == here["runs"][name], name
        return
    recorded = [record["runs"][name] for record in records() if name in record["runs"]]
    # FedTGP's margins enlarge the rounding of another processor to 1.1 % of the loss.
    for key in ("loss", "norm"):
        assert digest[key] == pytest.approx(recorded[0][key], rel=2e-2), (name, key)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("golden") / "graph")


class InProcess(dict[str, dict[str, object]]):
    """Digests of runs in this process by name, each made when it is first asked for."""

    def __init__(self, graph: Path) -> None:
        super().__init__()
        self.graph = graph

    def __missing__(self, name: str) -> dict[str, object]:
        self[name] = execute(name, self.graph)
        return self[name]


@pytest.fixture(scope="module")
def in_process(graph: Path) -> Digests:
    return InProcess(graph)


@pytest.fixture(scope="module")
def two_hosts(graph: Path) -> Iterator[ServerHere]:
    session = ServerHere(config_of("hosts", {}, graph, engine__backend="ray", engine__hosts=2))
    yield session
    session.close()


def test_the_newest_record_is_whole() -> None:
    newest, *others = records()
    assert newest["runs"].keys() == matrix().keys()
    assert all(record["runs"].keys() <= matrix().keys() for record in others)
    for record in (newest, *others):
        assert len({run["sha256"] for run in record["runs"].values()}) == len(record["runs"])


def test_in_this_process(in_process: Digests) -> None:
    for name in matrix():
        assert_recorded(name, in_process[name])


@pytest.mark.parametrize(
    "same", ["fedavg gcn conv head", "fedavg sage conv head", "fedavg gat conv head", "fedavg gcnii", "fedproto gcn"]
)
def test_models_end_as_in_their_papers_where_no_embedding_is_read(graph: Path, in_process: Digests, same: str) -> None:
    method, model, *_ = same.split()
    plain = {"algorithm": {"name": method}, "model": {"name": model, "hidden": 8}}
    config = config_of(same, plain, graph, run__root=str(graph.parent / "as-in-papers"))
    assert digest_of(run(config)) == in_process[same]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ON_HOSTS)) for name in matrix()]
)
def test_on_two_hosts(graph: Path, two_hosts: ServerHere, in_process: Digests, name: str) -> None:
    assert on_hosts(name, graph, two_hosts, "on-hosts") == in_process[name]


def on_hosts(name: str, graph: Path, backend: ServerHere, root: str) -> dict[str, object]:
    more = {"engine__backend": "ray", "engine__hosts": 2, "run__root": str(graph.parent / root)}
    return execute(name, graph, backend, **more)


def a_process_of(backend: ServerHere) -> int:
    """Returns the process id of a host; one that was killed before may still be starting."""
    for host in itertools.islice(itertools.cycle(backend.ray.hosts), 1000):
        with contextlib.suppress(ray.exceptions.RayActorError):
            return ray.get(host.ping.remote(), timeout=60)
    raise AssertionError("no host answers")


@pytest.mark.parametrize("name", KILLED)
def test_host_killed_in_a_round(graph: Path, two_hosts: ServerHere, in_process: Digests, name: str) -> None:
    host = psutil.Process(a_process_of(two_hosts))

    def kill_before_the_third(phase: int) -> None:
        if phase == 3:
            host.kill()
            host.wait()

    two_hosts.before_phase = kill_before_the_third
    try:
        assert on_hosts(name, graph, two_hosts, "killed") == in_process[name]
    finally:
        two_hosts.before_phase = lambda phase: None
    (run,) = (graph.parent / "killed").glob("*")
    assert sum(line["retries"] for line in read_metrics(run)) >= 1
    shutil.rmtree(run.parent)


@pytest.mark.parametrize("name", RESUMED)
def test_stopped_and_resumed(graph: Path, name: str, in_process: Digests) -> None:
    config = config_of(name, matrix()[name], graph, run__root=str(graph.parent / "resumed"))
    plain = config.plain()
    with pytest.raises(KeyboardInterrupt):
        run(parse_config({**plain, "run": {**plain["run"], "max_seconds": 1e-9}}, name))
    assert digest_of(run(config, resume=True)) == in_process[name]
