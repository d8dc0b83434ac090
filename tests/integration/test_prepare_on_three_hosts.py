"""A prepare on three machines, of which one is lost in each step: the files of one process, to the last bit."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from integration.runs import PATIENCE, until
from integration.three_hosts import HEAD, Cluster

from shoal.engine.config.config import load_config
from shoal.engine.preparing.prepare import prepare

ON_CLUSTER = ("engine.backend=ray", f"ray.address={HEAD}", "engine.hosts=1")
TASK = "ray::work_on"


def config_of(folder: Path) -> Path:
    """Twenty buckets, twelve clients; large enough for every step to be worth a cluster."""
    config = {
        "name": "made",
        "data": {
            "dataset": "papers100m-like", "store": str(folder / "store"), "split": "public", "dtype": "float16",
            "options": {"scale": 0.005, "scratch": str(folder / "scratch")},
        },
        "partition": {"method": "random", "clients": 12},
        "propagation": {"hops": 3, "dtype": "float16"},
        "engine": {"backend": "local", "memory_limit": "96MiB"},
        "algorithm": {"name": "fedgta"},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "config.yaml"


def contents(folder: Path) -> dict[str, bytes]:
    files = [*(folder / "store").rglob("*.arrow"), *(folder / "scratch").rglob("csr/*.npy")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Made in one process."""
    folder = tmp_path_factory.mktemp("here")
    prepare(load_config(config_of(folder)))
    return contents(folder)


def started(cluster: Cluster, folder: Path) -> "subprocess.Popen[bytes]":
    command = cluster.inside(0, sys.executable, "-m", "shoal", "prepare", str(config_of(folder)), *ON_CLUSTER)
    return subprocess.Popen(command, env=cluster.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


BEGUN: dict[str, Callable[[Path], bool]] = {
    "sort": lambda folder: any((folder / "scratch").rglob("csr.unfinished/indices.npy")),
    "shards": lambda folder: (folder / "store/assignment.npy").exists(),
    "splits": lambda folder: (folder / "store/manifest.json").exists(),
    "hops": lambda folder: any((folder / "store").glob("splits/*/*")) and any((folder / "store").glob("hops/*/*")),
}


@pytest.mark.slow
@pytest.mark.parametrize("step", BEGUN)
def test_a_machine_is_lost(cluster: Cluster, tmp_path: Path, here: dict[str, bytes], step: str) -> None:
    process = started(cluster, tmp_path)
    until(lambda: BEGUN[step](tmp_path), process)
    lost = until(lambda: next((host for host in (1, 2) if cluster.process(host, TASK)), None), process)
    cluster.process(lost, "raylet").kill()
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.decode()
    assert "was lost; its work is done again" in errors.decode()
    assert contents(tmp_path) == here
    assert not [name for name in os.listdir(tmp_path / "store/clients") if "unfinished" in name]


@pytest.mark.slow
def test_the_driver_is_killed_in_each_step(cluster: Cluster, tmp_path: Path, here: dict[str, bytes]) -> None:
    for step in BEGUN:
        process = started(cluster, tmp_path)
        until(lambda step=step: BEGUN[step](tmp_path), process)
        process.kill()
        process.wait()
    process = started(cluster, tmp_path)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.decode()
    assert contents(tmp_path) == here
