"""What is made apart does not lie between the blocks that training takes and gives back."""

import subprocess
import sys
import threading

from support.errors import refused

from shoal.storage.errors import ShoalError
from shoal.storage.store.cache import apart

# Blocks that stay, each made among larger ones that go; what the process holds beyond the former, in MB.
GROWTH = """
import psutil, torch
from shoal.engine.hosts.device import keep_freed_memory
from shoal.storage.store.cache import apart
keep_freed_memory()
make = {}
def step():
    blocks = [torch.zeros(400_000) for _ in range(3)]
def visit():
    kept.append(make(lambda: torch.zeros(3_000)))
    step()
kept = []
for _ in range(10):
    visit()
before = psutil.Process().memory_info().rss
for _ in range(200):
    visit()
print((psutil.Process().memory_info().rss - before) / 1e6)
"""


def growth(make: str) -> float:
    done = subprocess.run([sys.executable, "-c", GROWTH.format(make)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_memory_does_not_grow_by_more_than_what_stays() -> None:
    assert growth("apart") < 10


def test_it_waits_and_gives_back_what_was_made_or_raised() -> None:
    assert apart(threading.current_thread) is not threading.current_thread()
    # What is made may itself want something made.
    assert apart(lambda: apart(threading.current_thread)) is apart(threading.current_thread)
    with refused(says="no such shard"):
        apart(fail)


def fail() -> None:
    raise ShoalError("no such shard")
