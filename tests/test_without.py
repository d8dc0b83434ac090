"""A checkout without one of its features: all modules are imported; `tests/without.py` alone tries more."""

import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from without import FEATURES, ROOT

from shoal.engine.sections.sections import SECTIONS

# Another one on each day.
TODAY = sorted(FEATURES)[date.today().toordinal() % len(FEATURES)]


def try_without(feature: str, *more: str) -> None:
    command = [sys.executable, ROOT / "tests" / "without.py", feature, *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"without {feature}: all of it holds" in done.stdout


def test_every_feature_has_one_section() -> None:
    folders = {path.parent for path in (ROOT / "engine" / "stages").glob("*/section.py")}
    assert len(folders) == len(SECTIONS)
    code = {ROOT / Path(name) for feature in FEATURES.values() for name in feature.code}
    assert folders <= code


def test_modules_are_imported_without_a_feature() -> None:
    try_without(TODAY, "--only-imports")


@pytest.mark.slow
@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_rest_stands_without_a_feature(feature: str) -> None:
    try_without(feature)
