"""What disks, copies and hands do to files, at random and the same for the same seed."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Rng = np.random.Generator
MOST_FLIPS, LONGEST_STRETCH = 8, 512
DIGITS = b"0123456789"


def damaged(path: Path, number: int, rng: Rng) -> str:
    """Damages a file so that its bytes are others than before, or it is gone; says what was done.

    Consecutive numbers go through all damages; one swaps the file with another of its suffix that lies beside it.
    """
    before = path.read_bytes()
    what = DAMAGES[number % len(DAMAGES)](path, before, rng)
    if path.exists() and path.read_bytes() == before:
        what = flipped(path, before + b"\0", rng) if not before else flipped(path, before, rng)
    return f"{path.name}: {what}"


def flipped(path: Path, before: bytes, rng: Rng) -> str:
    """One to eight different bits."""
    content = bytearray(before)
    bits = rng.choice(8 * len(content), size=min(rng.integers(1, MOST_FLIPS + 1), 8 * len(content)), replace=False)
    for bit in bits.tolist():
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return f"bits {sorted(bits.tolist())} flipped"


def digit_changed(path: Path, before: bytes, rng: Rng) -> str:
    """A digit of a text is another one, which leaves JSON what it is."""
    places = [at for at, byte in enumerate(before) if byte in DIGITS]
    if not places:
        return flipped(path, before + b"\0", rng)
    at, content = places[rng.integers(len(places))], bytearray(before)
    content[at] = DIGITS[(DIGITS.index(content[at]) + rng.integers(1, 10)) % 10]
    path.write_bytes(content)
    return f"digit {at} is {chr(content[at])} and was {chr(before[at])}"


def overwritten(path: Path, before: bytes, rng: Rng) -> str:
    """A stretch of zeros, or of noise."""
    start, length = rng.integers(len(before) + 1), rng.integers(1, LONGEST_STRETCH)
    count = len(before[start : start + length])
    noise = rng.integers(2)
    stretch = rng.bytes(count) if noise else bytes(count)
    path.write_bytes(before[:start] + stretch + before[start + count :])
    return f"{'noise' if noise else 'zeros'} of {count} bytes at {start}"


def truncated(path: Path, before: bytes, rng: Rng) -> str:
    """Cut off anywhere, the beginning included."""
    size = int(rng.integers(len(before) + 1))
    os.truncate(path, size)
    return f"{size} of {len(before)} bytes are left"


def without_a_piece(path: Path, before: bytes, rng: Rng) -> str:
    """A piece inside is gone, and what follows moves up."""
    start, length = rng.integers(len(before) + 1), rng.integers(1, LONGEST_STRETCH)
    path.write_bytes(before[:start] + before[start + length :])
    return f"without {length} bytes from {start}"


def extended(path: Path, before: bytes, rng: Rng) -> str:
    """More bytes at the end: noise, zeros, or the end of the file once more."""
    count = int(rng.integers(1, LONGEST_STRETCH))
    more = (rng.bytes(count), bytes(count), before[-count:])[rng.integers(3)]
    path.write_bytes(before + more)
    return f"{len(more)} bytes longer"


def swapped(path: Path, before: bytes, rng: Rng) -> str:
    """Changes places with another file of the folder."""
    others = sorted(p for p in path.parent.iterdir() if p.is_file() and p.suffix == path.suffix and p != path)
    if not others:
        return truncated(path, before, rng)
    other = others[rng.integers(len(others))]
    path.write_bytes(other.read_bytes())
    other.write_bytes(before)
    return f"swapped with {other.name}"


def deleted(path: Path, before: bytes, rng: Rng) -> str:
    """Gone."""
    path.unlink()
    return "deleted"


DAMAGES: list[Callable[[Path, bytes, Rng], str]] = [flipped, digit_changed, overwritten, truncated]
DAMAGES += [without_a_piece, extended, swapped, deleted]
# Every damage once, and five times more where there are minutes.
SOME, MORE = range(len(DAMAGES)), range(len(DAMAGES), 6 * len(DAMAGES))
some_seeds = pytest.mark.parametrize(
    "seeds", [pytest.param(SOME, id="some"), pytest.param(MORE, id="more", marks=pytest.mark.slow)]
)


def folder_in_memory() -> Path:
    """Gone with the process; thousands of runs that each write to a disk and wait for it would take minutes."""
    name = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    atexit.register(shutil.rmtree, name, ignore_errors=True)
    return Path(name)


class Snapshot:
    """The files below a folder as they are now, to be put back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def changed(self) -> set[Path]:
        """Files whose bytes are others, and files that are gone."""
        return {path for path, content in self.files.items() if not path.is_file() or path.read_bytes() != content}

    def restore(self) -> None:
        """Puts back what changed, and removes what came."""
        for path in self.changed():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.files[path])
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.files:
                path.unlink()
