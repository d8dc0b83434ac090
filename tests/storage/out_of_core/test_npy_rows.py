"""Rows written block by block are the file that numpy.save writes, also after an interruption."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.errors import refused

from shoal.storage.out_of_core.npy_rows import write_rows

X = np.arange(60, dtype=np.float32).reshape(20, 3)


def rows(size: int, until: int = 20) -> Callable[[int], Iterator[np.ndarray]]:
    return lambda first: (X[at : min(at + size, until)] for at in range(first, until, size))


@pytest.mark.parametrize("size", [1, 7, 20])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_is_what_numpy_writes(size: int, dtype: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "x.npy", X.shape, np.dtype(dtype), rows(size), 24, "test")
    np.save(tmp_path / "y.npy", X.astype(dtype))
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "y.npy"]


def test_goes_on_after_the_last_commit(tmp_path: Path) -> None:
    asked = []

    def breaks(first: int) -> Iterator[np.ndarray]:
        asked.append(first)
        for at, block in zip(range(first, 20, 2), rows(2)(first)):
            yield block
            if at == 8 and len(asked) == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(tmp_path / "x.npy", X.shape, X.dtype, breaks, 48, "test")
    assert not (tmp_path / "x.npy").exists()
    write_rows(tmp_path / "x.npy", X.shape, X.dtype, breaks, 48, "test")
    assert asked == [0, 8]
    assert np.array_equal(np.load(tmp_path / "x.npy"), X)


def test_too_few_rows_name_the_source(tmp_path: Path) -> None:
    with refused("there", says="17 rows, but 20 are announced"):
        write_rows(tmp_path / "x.npy", X.shape, X.dtype, rows(4, until=17), 48, "there")
    assert not (tmp_path / "x.npy").exists()
