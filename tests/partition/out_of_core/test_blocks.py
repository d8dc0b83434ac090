import numpy as np
import pytest

from shoal.partition.out_of_core.blocks import Level, blocks
from shoal.storage.files import mapped
from shoal.storage.files.mapped import read


def rows_of(level, entries):
    """Every row as (node, neighbours, weights, node weight), put together from the blocks."""
    rows = []
    for b in blocks(level, entries):
        for row in range(len(b.indptr) - 1):
            part = slice(b.indptr[row], b.indptr[row + 1])
            rows.append((b.first + row, b.indices[part].tolist(), b.weights[part].tolist(), int(b.node_weights[row])))
    return rows


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("entries", [1, 2, 5, 100])
def test_blocks_hold_every_row_once_in_order(monkeypatch, rows, entries):
    monkeypatch.setattr(mapped, "ROWS", rows)
    level = Level(
        np.array([0, 2, 2, 7, 8, 8]),
        np.arange(8, dtype=np.int32),
        np.arange(10, 18, dtype=np.int32),
        np.arange(20, 25, dtype=np.int32),
    )
    assert rows_of(level, entries) == [
        (0, [0, 1], [10, 11], 20),
        (1, [], [], 21),
        (2, [2, 3, 4, 5, 6], [12, 13, 14, 15, 16], 22),
        (3, [7], [17], 23),
        (4, [], [], 24),
    ]


def test_blocks_are_as_large_as_allowed():
    level = Level(np.array([0, 2, 4, 9, 10]), np.zeros(10, dtype=np.int32))
    assert [len(b.indices) for b in blocks(level, 4)] == [4, 5, 1]


@pytest.mark.parametrize("cut", [slice(None), slice(3, None), slice(3, 50)])
def test_a_map_and_a_slice_of_it_are_read_from_the_file(tmp_path, cut):
    np.save(tmp_path / "array.npy", np.arange(100, dtype=np.int32))
    array = np.load(tmp_path / "array.npy", mmap_mode="r")[cut][1:]
    got = read(array, 5, 20)
    np.testing.assert_array_equal(got, np.arange(100)[cut][1:][5:20])
    assert not isinstance(got, np.memmap)


def test_every_other_entry_of_a_map_is_read_through_it(tmp_path):
    np.save(tmp_path / "array.npy", np.arange(100, dtype=np.int32))
    array = np.load(tmp_path / "array.npy", mmap_mode="r")[::2]
    np.testing.assert_array_equal(read(array, 5, 20), np.arange(10, 40, 2))
