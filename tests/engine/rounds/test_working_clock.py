"""The clock of work against numba's own record of a kernel's first call."""

import time

import numba
import numpy as np
import pytest

from shoal.engine.rounds.costs import seconds_of_kernels, working_clock


@numba.njit
def _part(x: np.ndarray) -> float:
    return float(x.sum())


@numba.njit
def _whole(x: np.ndarray) -> float:
    return _part(x) + _part(x[::2])


def test_making_kernels_ready_is_no_work() -> None:
    x = np.ones(8)
    ready, worked, began = seconds_of_kernels(), working_clock(), time.perf_counter()
    assert _whole(x) == 12
    ready, worked, took = seconds_of_kernels() - ready, working_clock() - worked, time.perf_counter() - began
    (signature,) = _whole.signatures
    # With the kernel that it calls.
    recorded = _whole.get_metadata(signature)["timers"]["compiler_lock"]
    assert ready == pytest.approx(recorded, rel=0.2)
    assert worked == pytest.approx(took - ready, abs=1e-3)
    before = seconds_of_kernels()
    _whole(x)
    assert seconds_of_kernels() == before
