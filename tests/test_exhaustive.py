"""The choice among cases of exhaustive tests: a share of each, the same every time, all on demand."""

import subprocess
import sys
from pathlib import Path

import pytest
from rooms import ROOT
from support import exhaustive
from support.exhaustive import some

CASES = """
import pytest

@pytest.mark.exhaustive
@pytest.mark.parametrize("case", range(25))
def test_a_tenth(case): pass

@pytest.mark.parametrize("case", [1, *(pytest.param(i, marks=pytest.mark.exhaustive(2)) for i in range(2, 6))])
def test_half_of_some(case): pass
"""


def test_some_keeps_a_share_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustive, "_every", False)
    assert [len(some(range(n))) for n in (0, 1, 2, 10, 11, 95)] == [0, 1, 1, 1, 2, 10]
    assert some(range(95)) == some(range(95)) == sorted(some(range(95))) != some(range(95), "another")
    assert len(some(range(95), one_in=3)) == 32
    monkeypatch.setattr(exhaustive, "_every", True)
    assert some(range(95)) == list(range(95))


@pytest.mark.parametrize(
    ("words", "chosen"),
    [((), 3 + 3), (("--exhaustive",), 30), (("-m", "exhaustive"), 29), (("test_cases.py::test_a_tenth",), 25)],
)
def test_choice_of_a_run_is_the_share_or_what_is_asked_for(tmp_path: Path, words: tuple[str, ...], chosen: int) -> None:
    (tmp_path / "conftest.py").write_text(
        "from support.exhaustive import choose, pytest_addoption, pytest_configure\n\n"
        "def pytest_collection_modifyitems(config, items):\n    choose(config, items)\n"
    )
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / 'tests'}\nmarkers = exhaustive\n")
    (tmp_path / "test_cases.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert said.splitlines()[-1].startswith(f"{chosen} passed"), said
