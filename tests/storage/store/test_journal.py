"""A journal keeps whole lines and forgets the one that a kill cut off."""

from contextlib import suppress
from pathlib import Path

import pytest
from support.errors import refused

from shoal.storage.errors import ShoalError
from shoal.storage.store.writer import Journal

ENTRIES = [{"a": 1}, {"rows": 12, "of": [1, 2]}]


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_line_that_was_cut_off_is_forgotten(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "j"
    Journal(path).append({"a": 1})
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-cut])
    assert Journal(path).entries == [{"a": 1}]
    assert path.read_bytes() == whole


@pytest.mark.parametrize("line", [b"\xff", b'{"a": 1}', b"7", b"", b"{", b'{"a": NaN}'])
def test_a_foreign_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "j"
    Journal(path).append({"a": 1})
    before = path.read_bytes()
    path.write_bytes(before + line + b"\n" + before)
    with refused(path, says="line 2 is damaged"):
        Journal(path)
    with refused(path, says="; do this"):
        Journal(path, "do this")


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """A bit may make an end of a line, and what stands behind it one that a kill cut off; no entry ever is another."""
    path = tmp_path / "j"
    for entry in ENTRIES:
        Journal(path).append(entry)
    assert Journal(path).entries == ENTRIES
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with suppress(ShoalError):
            found = Journal(path).entries
            assert found == ENTRIES[: len(found)]
