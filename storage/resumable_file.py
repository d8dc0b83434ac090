"""A file that a killed process left, written on."""

import os
from pathlib import Path
from typing import BinaryIO


def reopened(path: Path) -> BinaryIO:
    """The file with what it holds, to be read and written at any place; an empty one if there is none."""
    return path.open("r+b" if path.exists() else "w+b")


def to_disk(file: BinaryIO) -> None:
    """Waits until what was written cannot be lost with the machine's power."""
    file.flush()
    os.fsync(file.fileno())
