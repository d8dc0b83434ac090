"""A journal keeps whole lines and forgets the one that a kill cut off."""

from pathlib import Path

import pytest

from storage.errors import ShoalError
from storage.journal import Journal


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    assert journal.entries == []
    journal.append({"a": 1})
    journal.append({"b": [2, 3]})
    assert journal.entries == Journal(tmp_path / "j").entries == [{"a": 1}, {"b": [2, 3]}]


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_line_that_was_cut_off_is_forgotten(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "j"
    Journal(path).append({"a": 1})
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-cut])
    assert Journal(path).entries == [{"a": 1}]
    assert path.read_bytes() == whole


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"\xff\n")
    with pytest.raises(ShoalError, match=r"j: damaged"):
        Journal(tmp_path / "j")
