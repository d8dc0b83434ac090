"""Memory of this process and its children, against blocks of known size and the kernel's own book."""

import subprocess
import sys

import numpy as np

from shoal.engine.hosts.device import PeakMemory, resident, tree_memory

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


def kernel_says(line: str, file: str) -> int:
    with open(f"/proc/self/{file}") as f:
        (found,) = [text for text in f if text.startswith(line + ":")]
    return int(found.split()[1]) * 1024


def test_resident_is_what_the_kernel_says() -> None:
    before = resident()
    assert abs(before - kernel_says("VmRSS", "status")) < SLACK
    block = np.ones(BLOCK, dtype=np.int8)
    assert abs(resident() - before - BLOCK) < SLACK
    assert block.nbytes == BLOCK


def test_children_count_and_leave() -> None:
    alone = tree_memory()
    assert alone >= kernel_says("Pss", "smaps_rollup") - SLACK
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"up\n"
        assert BLOCK - SLACK < tree_memory() - alone < BLOCK + SLACK
        child.stdin.close()
    assert tree_memory() - alone < SLACK


def test_the_peak_outlives_what_made_it() -> None:
    before = tree_memory()
    memory = PeakMemory(seconds=0.001)
    block = np.ones(BLOCK, dtype=np.int8)
    # It is sampled once more by `stop`, so the block is seen in any case.
    peak = memory.stop()
    assert BLOCK - SLACK < peak - before < 2 * BLOCK
    assert peak == memory.peak
    del block
    assert memory.stop() == peak


def test_freed_memory_is_kept() -> None:
    """A block of glibc's heap stays with a process of its own; one as large as a page map goes back."""
    done = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, check=True)
    small, large = (int(freed) for freed in done.stdout.split())
    assert small < 12 * 2**20
    assert large > 48 * 2**20
