"""`benchmarks/memory.py`: the memory of children counts, and a page that a fork shares counts once."""

import subprocess
import sys
from pathlib import Path

BLOCK, SLACK = 96 << 20, 12 << 20
# In a process of its own: threads and objects of others would write into shared pages, which are then there twice.
FORK = """
import gc, os, sys, time
import numpy as np
from memory import Peak

block, slack = map(int, sys.argv[1:])
shared = np.ones(block, dtype=np.int8)
ends, keeps = os.pipe()
gc.disable()
with Peak() as peak:
    child = os.fork()
    if not child:
        os.close(keeps)
        own = np.ones(block, dtype=np.int8)
        os.read(ends, 1)
        os._exit(int(own[0] + shared[0] != 2))
    stop = time.monotonic() + 20
    while peak.highest - peak.start < block - slack and time.monotonic() < stop:
        os.sched_yield()
    os.close(keeps)
    status = os.waitpid(child, 0)[1]
print(status, peak.bytes)
"""


def test_peak_counts_what_a_fork_adds_and_nothing_twice() -> None:
    command = [sys.executable, "-c", FORK, str(BLOCK), str(SLACK)]
    folder = Path(__file__).parents[2] / "benchmarks"
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    status, highest = map(int, done.stdout.split())
    assert status == 0
    assert BLOCK - SLACK < highest < BLOCK + SLACK
