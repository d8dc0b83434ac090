"""Functions that tasks run on a machine, in a file without Ray and torch, which take each worker seconds to load."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine.config.sizes import machine_memory
from shoal.storage.files.atomic import write_apart
from shoal.storage.files.mapped import Extent, extent_of

Sign = tuple[int, int]


def work_on(work: Any, given: Any, items: Sequence[Any], apart: str) -> Iterator[Any]:
    """Yields the results of items. A machine that is given up may still write, under names with `apart`."""
    write_apart(apart)
    yield from work(given, items)


def look_for(mark: str, signs: Mapping[str, Sign]) -> int | None:
    """Looks for the mark and the files of a prepare; returns the machine's bytes of memory, None if they differ."""
    with suppress(OSError):
        if Path(mark).exists() and all(sign_of(Path(path)) == sign for path, sign in signs.items()):
            return machine_memory()
    return None


def sign_of(path: Path) -> Sign:
    """Returns the size of a file and the time of its last change, which tell it from another."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def to_extent(array: np.ndarray) -> Extent | np.ndarray:
    """Replaces a memory map by the place of its values, which is sent instead of them; copies other arrays."""
    return extent_of(array) or np.array(array)


def from_extent(values: Extent | np.ndarray) -> np.ndarray:
    """Maps the values of another process's memory map into this process."""
    return values.open_map() if isinstance(values, Extent) else values
