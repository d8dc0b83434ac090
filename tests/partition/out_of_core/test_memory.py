import pytest

from shoal.partition.out_of_core.memory import BLOCK, BUCKET, Memory, metis_bytes
from shoal.storage.errors import ShoalError

MIB = 1 << 20


def test_without_a_limit_buffers_have_their_useful_size_and_metis_any():
    memory = Memory.of(None, 10**9)
    assert (memory.block, memory.bucket) == (BLOCK, BUCKET)
    memory.require_metis(10**9, 10**11, 500)


def test_buffers_shrink_with_the_limit():
    small, large = Memory.of(200 * MIB, 10**6), Memory.of(400 * MIB, 10**6)
    assert 1 <= small.block < large.block <= BLOCK
    assert 1 <= small.bucket < large.bucket <= BUCKET


def test_a_limit_below_the_nodes_names_what_would_do():
    with pytest.raises(ShoalError, match=r"^engine.memory_limit is 100MiB, .* at least (\d+)MiB: raise it") as error:
        Memory.of(100 * MIB, 10**7)
    enough = int(str(error.value).split("at least ")[1].split("MiB")[0])
    Memory.of(enough * MIB, 10**7)
    with pytest.raises(ShoalError):
        Memory.of((enough - 1) * MIB, 10**7)


def test_a_coarsest_graph_too_large_for_metis_names_what_would_do():
    memory = Memory.of(1024 * MIB, 10**6)
    with pytest.raises(ShoalError, match=r"for 500 clients the coarsest graph \(100000 nodes, 10000000 edges\) needs"):
        memory.require_metis(100_000, 20_000_000, 500)
    Memory.of(metis_bytes(100_000, 20_000_000), 10**6).require_metis(100_000, 20_000_000, 500)


def test_too_many_coarse_nodes_are_refused():
    with pytest.raises(ShoalError, match=r"^engine.memory_limit is 200MiB, but contracting 1000000 nodes to 9000000"):
        Memory.of(200 * MIB, 10**6).require_contraction(10**6, 9 * 10**6)
