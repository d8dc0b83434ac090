"""METIS beside the process that asks: its result is METIS's, and a signal ends what it is meant for."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pymetis
import pytest

from shoal.partition.methods.metis import _in_own_process, part_graph
from shoal.partition.methods.options import PartitionOptions
from shoal.storage.errors import ShoalError

BUSY = """
import time
import numpy as np
from shoal.partition.methods.metis import _in_own_process
print("ready", flush=True)
_in_own_process(lambda: time.sleep(600), 3)
"""


def ring(nodes: int) -> pymetis.CSRAdjacency:
    ids = np.arange(nodes)
    neighbours = np.sort(np.stack([(ids - 1) % nodes, (ids + 1) % nodes], 1), 1)
    return pymetis.CSRAdjacency(np.arange(nodes + 1) * 2, neighbours.ravel())


def test_is_what_metis_gives() -> None:
    options = PartitionOptions("metis", 7, seed=3, imbalance=1.1)
    theirs = pymetis.part_graph(7, ring(500), recursive=False, options=pymetis.Options(seed=4, ufactor=100))
    ours = part_graph(ring(500), options)
    assert ours.tolist() == list(theirs[1])
    assert ours.dtype == np.int32


def test_a_failure_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> np.ndarray:
        raise MemoryError

    with pytest.raises(ShoalError, match=r"^partition: METIS failed; if memory is short"):
        _in_own_process(fail, 3)
    assert "MemoryError" in capfd.readouterr().err
    with pytest.raises(ShoalError, match=r"^partition: METIS was ended by SIGKILL"):
        _in_own_process(lambda: os.kill(os.getpid(), signal.SIGKILL), 3)  # type: ignore[arg-type, return-value]


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 20
    while not (children := psutil.Process(process.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(children, timeout=10)[1]
