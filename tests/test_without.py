"""A checkout without one of its features: all modules are imported; `tests/without.py` alone tries more."""

import subprocess
import sys
from datetime import date

import pytest
from without import FEATURES, ROOT

from shoal.engine.sections.sections import SECTIONS
from shoal.features.features import FEATURES as AROUND

# Another one on each day.
TODAY = sorted(FEATURES)[date.today().toordinal() % len(FEATURES)]


def try_without(feature: str, *more: str) -> None:
    command = [sys.executable, ROOT / "tests" / "without.py", feature, *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"without {feature}: all of it holds" in done.stdout


def test_every_feature_has_one_section() -> None:
    declared = [path.parent for path in (ROOT / "engine").rglob("section.py") if path.parent.name != "sections"]
    around = [path.parent for path in (ROOT / "shoal").glob("*/feature.py") if path.parent.name != "features"]
    assert (len(declared), len(around)) == (len(SECTIONS), len(AROUND))
    code = {ROOT / name for feature in FEATURES.values() for name in feature.code}
    assert {*declared, *around} <= code


def test_modules_are_imported_without_a_feature() -> None:
    try_without(TODAY, "--only-imports")


@pytest.mark.slow
@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_rest_stands_without_a_feature(feature: str) -> None:
    try_without(feature)
