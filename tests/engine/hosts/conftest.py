"""Two host actors on Ray, and jobs of the small federation that can do them harm."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from other_device import load

from engine.hosts import host, tensor_transport
from engine.hosts.host_actor import await_hosts, start_hosts
from engine.rounds.server import Server
from engine.wire.job import Job

METHOD = """
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from algorithms.methods.fedavg import FedAvg
from algorithms.protocol import Upload

@dataclass(frozen=True)
class Harmful(FedAvg):
    '''FedAvg that says which process a client was in, and does one of its clients harm so many times.'''
    keeps_model: ClassVar[bool] = True
    client: int = -1
    kind: str = "raises"
    times: int = 10**9
    folder: str = ""

    def upload(self, client, given, phase):
        if client.info.client == self.client and (before := len(os.listdir(self.folder))) < self.times:
            (Path(self.folder) / str(before)).touch()
            if self.kind == "raises":
                raise RuntimeError("no luck")
            if self.kind == "hangs":
                threading.Event().wait()
            os._exit(1)
        sent = super().upload(client, given, phase)
        return Upload({**sent.entries, "process": torch.tensor(os.getpid())}, sent.weight)
"""


# Of a file, not of the session: other tests of this process start a Ray of their own.
@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Any]]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    tensor_transport.register()
    actors = start_hosts(2, cpus=1, gpus=0)
    await_hosts(actors)
    yield actors
    ray.shutdown()


@pytest.fixture
def job_of(start: Callable[..., Server], tmp_path: Path) -> Callable[..., Job]:
    """Gives a job that no host knows yet, of a method one of whose clients does harm."""
    numbers = itertools.count()

    def job_of(keys: dict[str, Any] | None = None, **harm: Any) -> Job:
        number = next(numbers)
        file, marks = tmp_path / "harmful.py", tmp_path / f"marks{number}"
        file.write_text(METHOD)
        marks.mkdir()
        options = {"name": f"{file}:Harmful", "folder": str(marks), **harm}
        job = start({**{f"algorithm.{name}": value for name, value in options.items()}, **(keys or {})}).job
        return replace(job, id=f"{tmp_path.name}-{number}")

    return job_of


@pytest.fixture
def with_own_store(tmp_path: Path) -> Callable[[Job], Job]:
    """Gives a job a copy of its store, whose files may be taken away."""

    def with_own_store(job: Job) -> Job:
        return replace(job, store=str(shutil.copytree(job.store, tmp_path / "store")))

    return with_own_store


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hosts compute on the second device."""
    other = load()
    monkeypatch.setattr(host, "take_device", lambda name, share, precision: other)
    # Autograd may have started its threads before there was this device.
    with torch.autograd.set_multithreading_enabled(False):
        yield
