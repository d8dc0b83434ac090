"""`benchmarks/memory.py`: the memory of children counts, and a page that a fork shares counts once."""

import gc
import os
import time
from pathlib import Path

import numpy as np
import pytest

BLOCK, SLACK = 96 << 20, 12 << 20


def test_peak_counts_what_a_fork_adds_and_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from memory import Peak

    shared = np.ones(BLOCK, dtype=np.int8)
    ends, keeps = os.pipe()
    # A collection would write into pages that both processes share, each of which is then there twice.
    request.addfinalizer(gc.enable)
    gc.collect()
    gc.disable()
    with Peak() as peak:
        child = os.fork()
        if not child:
            os.close(keeps)
            own = np.ones(BLOCK, dtype=np.int8)
            os.read(ends, 1)
            os._exit(int(own[0] + shared[0] != 2))
        stop = time.monotonic() + 20
        while peak.highest - peak.start < BLOCK - SLACK and time.monotonic() < stop:
            os.sched_yield()
        os.close(keeps)
        assert os.waitpid(child, 0)[1] == 0
    os.close(ends)
    assert BLOCK - SLACK < peak.bytes < BLOCK + SLACK
