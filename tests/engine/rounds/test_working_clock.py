"""The clock of work against numba's own record of a kernel's first call."""

import time

import numba
import numpy as np
import pytest

from shoal.engine.rounds.costs import Kernel, kernels_compiled, note_kernels, seconds_of_kernels, working_clock


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


@numba.njit
def _outer(x: np.ndarray) -> float:
    return _inner(x) + 1


@numba.njit
def _inner(x: np.ndarray) -> float:
    return float(x.max())


def test_kernels_are_noted_as_they_begin_once_each() -> None:
    noted: list[Kernel] = []
    before, x = kernels_compiled(), np.ones(3)
    note_kernels(noted.append)
    try:
        _outer(x)
        _outer(x)
    finally:
        note_kernels()
    # Both, and none of numba's own that they call.
    assert noted == [(before + 1, "outer"), (before + 2, "inner")]
    _inner(x[::2])
    assert len(noted) == 2
    assert kernels_compiled() == before + 3
