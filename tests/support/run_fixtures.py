"""Configs on a small block model, a federation of three small graphs, hosts, and parts of a round."""

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
import yaml
from integration.golden_digests import write_graph
from support import toy_method
from support.other_device.device import load
from support.small_runs import small_run
from support.unpacked import contents_of, unpack

from shoal.cli.main import command
from shoal.engine.cluster.cluster import share_tensors
from shoal.engine.cluster.ray_backend import await_hosts, start_hosts
from shoal.engine.config.config import Config, parse_config
from shoal.engine.hosts import host
from shoal.engine.messages.job import Job
from shoal.engine.rounds.server import Server
from shoal.storage.options.split_codes import TEST, TRAIN, VAL

MakeConfig = Callable[..., dict[str, Any]]


@pytest.fixture
def plain(tmp_path: Path) -> MakeConfig:
    """Plain values of a config on a block model of 400 nodes, with dotted keys changed."""

    def make(**changes: Any) -> dict[str, Any]:
        options = {"nodes": 400, "features": 5, "classes": 4, "degree": 6.0}
        config: dict[str, Any] = {
            "name": "prepared",
            "data": {"dataset": "sbm", "store": str(tmp_path / "store"), "root": str(tmp_path), "options": options},
            "partition": {"method": "metis", "clients": 5},
            "propagation": {"hops": 2},
            "algorithm": {"name": "fedavg"},
        }
        for key, value in changes.items():
            section, name = key.split("__")
            config.setdefault(section, {})[name] = value
        return config

    return make


@pytest.fixture
def make_config(plain: MakeConfig) -> Callable[..., Config]:
    return lambda **changes: parse_config(plain(**changes), "test")


@dataclass(frozen=True)
class Drawn:
    """A graph as it was drawn: undirected edges `[E, 2]`, features `[N, 5]`, labels and parts `[N]`."""

    edges: np.ndarray
    x: np.ndarray
    y: np.ndarray
    split: np.ndarray


@dataclass(frozen=True)
class ThreeDomains:
    """Graphs whose first two thirds, the first third and the first two thirds are clients 0 and 1, 2, 3 and 4.

    Two of four classes occur in the second; no node of the third is for validation. The keys are over those of
    `configure`.
    """

    graphs: tuple[Drawn, ...]
    keys: dict[str, Any]


def _draw(folder: Path, seed: int, nodes: int, classes: int, validates: bool) -> Drawn:
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=nodes)
    y[:classes] = np.arange(classes)
    x = (np.eye(4, 5)[y] + 0.8 * rng.standard_normal((nodes, 5))).astype(np.float32)
    # A ring, and edges from anywhere to anywhere: most neighbours of a node are at other clients, or at none.
    ring = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes], axis=1)
    far = rng.integers(nodes, size=(6 * nodes, 2))
    alike = (y[far[:, 0]] == y[far[:, 1]]) | (rng.random(6 * nodes) < 0.1)
    edges = np.concatenate([ring, far[alike]])
    edges = np.unique(np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1), axis=0)
    split = rng.choice(np.array([TRAIN, VAL if validates else TEST, TEST], dtype=np.int8), size=nodes)
    folder.mkdir()
    for name, array in {"edge_index": edges.T, "x": x, "y": y, "split": split}.items():
        np.save(folder / f"{name}.npy", array)
    return Drawn(edges, x, y, split)


def _domains(root: Path, sizes: dict[str, tuple[int, int, bool]], options: dict[str, Any]) -> ThreeDomains:
    keys = {"data.dataset": ["files"] * len(sizes), "data.path": [str(root / name) for name in sizes]}
    keys |= {"data.store": str(root / "store"), "data.split": "public"}
    keys |= {"partition.method": "index", "model.name": "sgc"}
    graphs = tuple(_draw(root / name, seed, *how) for seed, (name, how) in enumerate(sizes.items()))
    return ThreeDomains(graphs, {**keys, **options})


@pytest.fixture(scope="session")
def two_classes(tmp_path_factory: pytest.TempPathFactory) -> ThreeDomains:
    """Two graphs of two classes: clients 0 to 2 are thirds of the first, 3 and 4 halves of the second.

    Test nodes of client 4 are of class 1 only, and nobody of the second graph is for validation.
    """
    root = tmp_path_factory.mktemp("two_classes")
    options = {"train.lr": 0.02, "train.epochs": 1, "participation.ratio": 0.6, "partition.clients": [3, 2]}
    domains = _domains(root, {"north": (60, 2, True), "south": (40, 2, False)}, options)
    south = domains.graphs[1]
    south.split[(np.arange(40) >= 20) & (south.y == 0) & (south.split == TEST)] = TRAIN
    np.save(root / "south/split.npy", south.split)
    return domains


@pytest.fixture(scope="session")
def three_domains(tmp_path_factory: pytest.TempPathFactory) -> ThreeDomains:
    sizes = {"north": (60, 4, True), "south": (40, 2, True), "west": (36, 4, False)}
    options = {"train.lr": 0.1, "partition.clients": [2, 1, 2], "partition.chunks": 3}
    return _domains(tmp_path_factory.mktemp("domains"), sizes, options)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A sound config whose store and runs lie in a folder of the test."""
    plain = small_run(tmp_path, name="tiny", rounds=2, data={"store": str(tmp_path / "store")})
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a command and gives its exit status."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["shoal", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            command()
        return int(end.value.code or 0)

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], status: Callable[..., int]) -> Callable[..., str]:
    """Runs a command that must fail, and returns its one line."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert status(*arguments) == 2
        (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("shoal: ")]
        return line

    return run


@pytest.fixture
def shoal(status: Callable[..., int]) -> Callable[..., None]:
    """Runs a command that must succeed."""

    def run(*arguments: object) -> None:
        assert status(*arguments) == 0

    return run


@pytest.fixture(scope="session")
def golden_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the graph of golden runs, whose stores and runs come to lie beside it."""
    return write_graph(tmp_path_factory.mktemp("golden") / "graph")


# Files that take them come last, see `pytest_collection_modifyitems`: there is one Ray in a process at a time.
@pytest.fixture(scope="session")
def hosts() -> Iterator[list[Any]]:
    # Ray merely counts the GPUs: no host of this session has one.
    ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    share_tensors()
    actors = start_hosts(2, cpus=1, gpus=0)
    await_hosts(actors, 120)
    yield actors
    ray.shutdown()


@pytest.fixture
def job_of(start: Callable[..., Server], tmp_path: Path) -> Callable[..., Job]:
    """Gives a job that no host knows yet, of a method one of whose clients does harm."""
    numbers = itertools.count()

    def job_of(keys: dict[str, Any] | None = None, **harm: Any) -> Job:
        number = next(numbers)
        marks = tmp_path / f"marks{number}"
        marks.mkdir()
        options = {"name": f"{toy_method.__file__}:Shown", "client": -1, "folder": str(marks), **harm}
        job = start({**{f"algorithm.{name}": value for name, value in options.items()}, **(keys or {})}).job
        return replace(job, id=f"{tmp_path.name}-{number}")

    return job_of


@pytest.fixture
def with_own_store(tmp_path: Path) -> Callable[[Job], Job]:
    """Gives a job a copy of its store, of which the files of any client may be taken away."""

    def with_own_store(job: Job) -> Job:
        unpack(shutil.copytree(job.store, tmp_path / "store"))
        own = replace(job, store=str(tmp_path / "store"))
        return replace(own, **contents_of(own))

    return with_own_store


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hosts compute on the second device."""
    other = load()
    monkeypatch.setattr(host, "take_device", lambda name, share, precision: other)
    # Autograd may have started its threads before there was this device.
    with torch.autograd.set_multithreading_enabled(False):
        yield
