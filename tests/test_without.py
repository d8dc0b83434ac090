"""What a checkout without one of its features needs: lists alone import it; `tests/without.py` tries the rest."""

import subprocess
import sys

import pytest
from rooms import all_imports
from without import FEATURES, ROOT, Feature

from shoal.engine.sections.sections import SECTIONS
from shoal.features.features import FEATURES as AROUND


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


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)
def test_lists_alone_import_a_feature(feature: Feature) -> None:
    imports = all_imports()
    own = {path for path in imports if any(path.is_relative_to(place) for place in feature.code)}
    assert own
    assert {str(path) for path in imports.keys() - own if imports[path] & own} <= set(feature.lists)


@pytest.mark.slow
@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_rest_stands_without_a_feature(feature: str) -> None:
    try_without(feature)
