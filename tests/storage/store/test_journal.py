"""A journal keeps whole lines and forgets the one that a kill cut off."""

import re
from pathlib import Path

import pytest

from shoal.storage.errors import ShoalError
from shoal.storage.store.writer import Journal

ENTRIES = [{"a": 1}, {"rows": 12, "of": [1, 2]}]


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    assert journal.entries == []
    journal.append({"a": 1})
    journal.append({"b": [2, 3]})
    assert journal.entries == Journal(tmp_path / "j").entries == [{"a": 1}, {"b": [2, 3]}]


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
    with pytest.raises(ShoalError, match=rf"^{path}: line 2 is damaged \(.*\); delete the folder it lies in, .*$"):
        Journal(path)
    with pytest.raises(ShoalError, match=rf"^{path}: line 2 is damaged \(.*\); do this$"):
        Journal(path, "do this")


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """A bit may make an end of a line, and what stands behind it one that a kill cut off; no entry ever is another."""
    path = tmp_path / "j"
    for entry in ENTRIES:
        Journal(path).append(entry)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = Journal(path).entries
        except ShoalError as error:
            assert re.match(rf"{path}: line \d is damaged", error.line)  # noqa: PT017
        else:
            assert found == ENTRIES[: len(found)]


def test_one_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "j").symlink_to("/proc/self/mem")
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/j: cannot be read: Input/output error; look at the disk .*$"):
        Journal(tmp_path / "j")
