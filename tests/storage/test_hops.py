from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage.errors import ShoalError
from storage.gather import gathered
from storage.graph import Graph
from storage.hops import write_hops
from storage.propagation import Kernel
from storage.shard import Shard, open_shard, write_shard


@pytest.fixture
def shard(tmp_path: Path, make_graph: Callable[..., Graph]) -> Shard:
    graph = make_graph(3, 25, 0.2)
    one = np.zeros(25, dtype=np.int32)
    ((_, part, x),) = gathered(graph, one, np.diff(graph.indptr), [0], "float32", 1 << 30)
    write_shard(tmp_path / "shard.arrow", 0, part, graph.y, x)
    return open_shard(tmp_path / "shard.arrow", 0)


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("float16", 2e-3)])
def test_columns_are_powers_of_the_dense_operator(tmp_path: Path, shard: Shard, dtype: str, close: float) -> None:
    write_hops(tmp_path / "hops.arrow", shard, Kernel(3, 0.5, dtype))
    batch = pa.ipc.open_file(str(tmp_path / "hops.arrow")).get_batch(0)
    assert batch.schema.names == ["hop1", "hop2", "hop3"]
    with_loops = np.eye(25)
    for row in range(25):
        with_loops[row, shard.indices[shard.indptr[row] : shard.indptr[row + 1]]] = 1
    scale = np.diag(with_loops.sum(1) ** -0.5)
    expected = shard.x
    for name in batch.schema.names:
        expected = scale @ with_loops @ scale @ expected
        found = np.stack(batch.column(name).to_numpy(zero_copy_only=False))
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=close, atol=close)


def test_what_does_not_fit_leaves_no_file(tmp_path: Path, shard: Shard) -> None:
    shard.x[:] = 6e4  # in private pages of this map, where a node with neighbours exceeds float16
    with pytest.raises(ShoalError, match=r"^propagation\.dtype: float16 ends at 65504, .*; use float32$"):
        write_hops(tmp_path / "hops.arrow", shard, Kernel(1, 1.0, "float16"))
    assert [p.name for p in tmp_path.iterdir()] == ["shard.arrow"]
