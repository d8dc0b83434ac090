"""A mark for tests that need a feature: without its folder, as in a copy of `tests/without.py`, they are skipped.

They import what they need of the feature themselves, not at the top of their file. Tables of tests leave out rows whose
keys a config without the feature does not have.
"""

from typing import Any

import pytest
from without import FEATURES, ROOT

from shoal.engine.config.config import usual
from shoal.engine.config.key_reference import config_keys, sections
from shoal.engine.config.run_identity import flatten

KEYS = {*sections(), *(key.name for key in config_keys()), *flatten(usual().plain())}


def has(feature: str) -> bool:
    """Returns whether the checkout has all folders of a feature."""
    return all((ROOT / name).exists() for name in FEATURES[feature].code)


def has_keys(*keys: str) -> bool:
    """Returns whether a config has all these dotted keys, or sections; options of methods count as such keys.

    Always true in a whole checkout, where no row of a table may be lost.
    """
    return all(map(has, FEATURES)) or all(key in KEYS or key.startswith("algorithm.") for key in keys)


def has_schedules(*values: Any) -> bool:
    """Returns whether a config has those of some values that are names of schedules, or all of them."""
    return has("asynchronous") or not any(value in ("fedbuff", "fedasync", "tiers") for value in values)


def needs(*features: str) -> pytest.MarkDecorator:
    """Returns the mark of a test that needs some features."""
    absent = [feature for feature in features if not has(feature)]
    return pytest.mark.skipif(bool(absent), reason=f"the checkout is without {', '.join(absent)}")
