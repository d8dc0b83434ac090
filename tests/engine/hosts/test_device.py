"""Where hosts compute and in which precision, and the memory of a process against the kernel's own book."""

import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Configure, Start

from shoal.engine.hosts.device import CONTEXT_BYTES, PeakMemory, resident, tensor_bytes, tree_memory
from shoal.engine.runs.run import run as run_config

BLOCK = 192 * 2**20
SLACK = BLOCK // 4
CHILD = f"import sys; held = b'x' * {BLOCK}; print('up', flush=True); sys.stdin.read()"
FREES = """
from shoal.engine.hosts.device import keep_freed_memory, resident
keep_freed_memory()
small, large = b"x" * (24 * 2**20), b"x" * (64 * 2**20)
held = resident()
del small
kept = resident()
del large
print(held - kept, kept - resident())
"""

CLOSES = """
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.hosts.device import keep_freed_memory, resident
backend = LocalBackend()
keep_freed_memory()
pieces = [b"x" * (24 * 2**20) for _ in range(40)]
last = b"x" * (24 * 2**20)
held = resident()
del pieces
kept = resident()
backend.close()
print(held - kept, kept - resident())
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_host_without_a_gpu_says_what_to_do(configure: Configure, tmp_path: Path) -> None:
    with refused("engine.device", "cuda", says="finds no GPU on this host"):
        run_config(configure({"engine.device": "cuda", "run.root": str(tmp_path)}))


def test_a_share_leaves_room_for_the_context() -> None:
    assert tensor_bytes(0.25, 80 * 2**30) == 20 * 2**30 - CONTEXT_BYTES
    with refused("resources.gpus_per_host", says="0.05 of a GPU of 8.0 GiB is less than the 0.7 GiB"):
        tensor_bytes(0.05, 8 * 2**30)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(
    ("model", "path"),
    [
        *product(("sgc", "gamlp", "mlp", "sign", "s2gc", "gbp"), ("autograd", "batched")),
        *product(("sgc", "mlp"), ("analytic",)),
    ],
)
def test_bfloat16_is_near_float32_and_keeps_parameters(run: Start, model: str, path: str) -> None:
    keys: dict[str, Any] = {"model.name": model, "engine.trainer": path, "train.dropout": 0.0, "rounds": 2}
    exact, rounded = (run({**keys, "engine.precision": precision}) for precision in ("float32", "bfloat16"))
    w, near = exact.state.server["w"], rounded.state.server["w"]
    assert {near.dtype, *(t.dtype for t in rounded.state.clients[0].values())} == {torch.float32}
    assert not torch.equal(w, near)
    assert float((w - near).norm() / w.norm()) < 0.05


def kernel_says(line: str, file: str) -> int:
    (found,) = [text for text in Path(f"/proc/self/{file}").read_text().splitlines() if text.startswith(line + ":")]
    return int(found.split()[1]) * 1024


def test_resident_is_what_the_kernel_says() -> None:
    before = resident()
    assert abs(before - kernel_says("VmRSS", "status")) < SLACK
    block = np.ones(BLOCK, dtype=np.int8)
    assert abs(resident() - before - block.nbytes) < SLACK


def test_children_count_and_leave_and_the_peak_stays() -> None:
    alone, memory = tree_memory(), PeakMemory(seconds=1000)
    assert alone >= kernel_says("Pss", "smaps_rollup") - SLACK
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"up\n"
        assert BLOCK - SLACK < tree_memory() - alone < BLOCK + SLACK
        # It is sampled once more by `stop`.
        assert BLOCK - SLACK < memory.stop() - alone < 2 * BLOCK
        child.stdin.close()
    assert tree_memory() - alone < SLACK
    assert memory.stop() == memory.peak > alone + SLACK


def test_freed_memory_is_kept() -> None:
    """A block of glibc's heap stays with a process of its own; one as large as a page map goes back."""
    done = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, check=True)
    small, large = (int(freed) for freed in done.stdout.split())
    assert small < 12 * 2**20
    assert large > 48 * 2**20


def test_the_end_of_a_run_gives_freed_memory_back() -> None:
    """A sweep has one process for all of its runs."""
    done = subprocess.run([sys.executable, "-c", CLOSES], capture_output=True, text=True, check=True)
    before, at_close = (int(freed) for freed in done.stdout.split())
    assert before < 24 * 2**20
    assert at_close > 480 * 2**20
