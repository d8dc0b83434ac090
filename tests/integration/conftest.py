"""The undisturbed run and the three hosts, made once for all tests that need them."""

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.runs import Runs
from integration.three_hosts import Cluster, remove_namespaces


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the others are held against: in this process, from beginning to end."""
    return Runs(tmp_path_factory.mktemp("undisturbed"), tmp_path_factory.getbasetemp() / "data").here()


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="session")
def hosts() -> Iterator[Cluster]:
    """Three hosts that are up; namespaces and processes go at the end, whatever happens."""
    # A socket below this folder must have a short path.
    folder = Path(tempfile.mkdtemp(prefix="shoal-", dir="/tmp"))
    before = signal.signal(signal.SIGTERM, _end)
    remove_namespaces()
    try:
        try:
            cluster = Cluster(folder)
        except OSError as error:
            pytest.skip(f"network namespaces are not allowed here: {error}")
        cluster.heal()
        yield cluster
    finally:
        remove_namespaces()
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def cluster(hosts: Cluster) -> Cluster:
    """Three hosts, healed after the test before."""
    hosts.heal()
    return hosts
