"""METIS, and its process: its result is METIS's, and a signal ends what it is meant for."""

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
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused

from shoal.partition.methods.by_label import by_random
from shoal.partition.methods.metis import _in_own_process, by_metis, part_graph
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.quality import quality


def test_cuts_far_fewer_edges_of_cora_than_chance_in_balanced_parts(cora):
    metis = quality(cora, by_metis(cora, PartitionOptions("metis", 10)), 10)
    chance = quality(cora, by_random(cora, PartitionOptions("random", 10)), 10)
    assert metis.cut_fraction < 0.15
    assert chance.cut_fraction > 0.85
    assert metis.balance <= 1.05


@pytest.mark.parametrize("imbalance", [1.01, 1.3])
def test_imbalance_is_passed_on(cora, imbalance):
    assignment = by_metis(cora, PartitionOptions("metis", 10, imbalance=imbalance))
    largest = np.bincount(assignment).max() / (cora.nodes / 10)
    assert largest <= imbalance + 0.01
    if imbalance == 1.3:
        assert largest > 1.05


def test_without_edges_parts_are_even_blocks(make_graph):
    assert by_metis(make_graph(7, []), PartitionOptions("metis", 3)).tolist() == [0, 0, 0, 1, 1, 2, 2]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_tiny_graph_leaves_a_client_empty(make_graph, data):
    nodes = data.draw(st.integers(2, 12))
    clients = data.draw(st.integers(1, nodes))
    node = st.integers(0, nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=30))
    assignment = by_metis(make_graph(nodes, edges), PartitionOptions("metis", clients))
    assert set(assignment.tolist()) == set(range(clients))


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

    with refused("partition", says="METIS failed"):
        _in_own_process(fail, 3)
    assert "MemoryError" in capfd.readouterr().err
    with refused("partition", says="METIS was ended by SIGKILL"):
        _in_own_process(lambda: os.kill(os.getpid(), signal.SIGKILL), 3)  # type: ignore[arg-type, return-value]


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 20
    while not (children := psutil.Process(process.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(children, timeout=10)[1]
