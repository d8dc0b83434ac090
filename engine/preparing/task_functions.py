"""What runs on a machine for a task, in a file without Ray and torch, which would take each worker seconds to load."""

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
    """The results of items. A machine that is given up may still write: unfinished files have names with `apart`."""
    write_apart(apart)
    yield from work(given, items)


def seen(mark: str, signs: Mapping[str, Sign]) -> int | None:
    """Bytes of memory of this machine; None: it sees no mark, or other files."""
    with suppress(OSError):
        if Path(mark).exists() and all(sign_of(Path(path)) == sign for path, sign in signs.items()):
            return machine_memory()
    return None


def sign_of(path: Path) -> Sign:
    """What tells one file from another: its size, and when it was changed."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def sent(array: np.ndarray) -> Extent | np.ndarray:
    """What is sent of a memory map: where its values lie."""
    return extent_of(array) or np.array(array)


def received(values: Extent | np.ndarray) -> np.ndarray:
    """The memory map of another process, in this one."""
    return values.open_map() if isinstance(values, Extent) else values
