"""Rows by hand: a row in two calls, blocks of any size, and a file that holds more than counts."""

from pathlib import Path

import numpy as np
import pytest

from shoal.storage.kernels.edge_keys import KeyLayout
from shoal.storage.out_of_core.csr_files import INDICES, INDPTR, CsrWriter

LAYOUT = KeyLayout(4)


def pairs(*ends: tuple[int, int]) -> np.ndarray:
    return np.array([source << 2 | target for source, target in ends], dtype=np.uint64)


@pytest.mark.parametrize("block", [1, 2, 100])
def test_a_row_in_two_calls(block: int, tmp_path: Path) -> None:
    with CsrWriter(tmp_path, LAYOUT, 0, block) as csr:
        csr.append(pairs((0, 1), (0, 2)), 0, 1)
        csr.append(pairs((0, 3), (2, 0)), 0, 3)
        csr.append(pairs((3, 0)), 3, 4)
        assert csr.entries == 5
        csr.finish()
    indptr, indices = np.load(tmp_path / INDPTR), np.load(tmp_path / INDICES)
    assert (indptr.dtype, indices.dtype) == (np.int64, np.int32)
    assert indptr.tolist() == [0, 3, 3, 4, 5]
    assert indices.tolist() == [1, 2, 3, 0, 0]


def test_entries_that_do_not_count_are_cut_off(tmp_path: Path) -> None:
    with CsrWriter(tmp_path, LAYOUT, 0, 100) as csr:
        csr.append(pairs((0, 1)), 0, 2)
        csr.save()
        csr.append(pairs((2, 0), (3, 0), (3, 1)), 2, 4)
    with CsrWriter(tmp_path, LAYOUT, 1, 100) as csr:
        csr.append(pairs((2, 3)), 2, 4)
        csr.finish()
    assert np.load(tmp_path / INDPTR).tolist() == [0, 1, 1, 2, 2]
    assert np.load(tmp_path / INDICES).tolist() == [1, 3]
