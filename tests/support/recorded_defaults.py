"""Defaults of all keys that change numbers; `python tests/support/recorded_defaults.py` records them.

The name of a run leaves out keys at their defaults. A default that changes, with the same `NUMBERS`, would give runs
with other numbers the same name: a test compares with what is recorded.
"""

import json
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.models.build import backbone, keywords
from shoal.algorithms.models.names import BACKBONES
from shoal.engine.callbacks.early_stopping import EarlyStopping
from shoal.engine.config.run_identity import NUMBERS, defaults
from shoal.storage.datasets.sources.source import DataSource

RECORDED = Path(__file__).with_suffix(".json")
REMEDY = "run python tests/support/recorded_defaults.py"


def all_defaults() -> dict[str, Any]:
    """Defaults of config keys, and of options of methods, models, datasets and early stopping, as JSON has them."""
    found: dict[str, Any] = dict(defaults())
    for name in METHODS:
        cls = type(load(describe(name, {})))
        found |= _of_fields(f"algorithm {name}", cls)
        found |= {f"algorithm {name}: form {form}": options for form, options in cls.forms.items()}
    for name in BACKBONES:
        for option in keywords(backbone(name)).values():
            if option.default is not option.empty:
                found[f"model {name}: {option.name}"] = option.default
    found |= _of_fields("data.options", DataSource) | _of_fields("callback early_stopping", EarlyStopping)
    plain: dict[str, Any] = json.loads(json.dumps(found, default=repr, sort_keys=True))
    return plain


def _of_fields(section: str, cls: Any) -> dict[str, Any]:
    named = [field for field in fields(cls) if field.default is not MISSING and not field.name.startswith("_")]
    return {f"{section}: {field.name}": field.default for field in named}


def main() -> None:
    """Writes the file; refuses where a default changed and `NUMBERS` did not."""
    old = json.loads(RECORDED.read_text()) if RECORDED.exists() else {"numbers": 0, "defaults": {}}
    now = all_defaults()
    changed = [key for key, value in old["defaults"].items() if now.get(key) != value]
    if changed and old["numbers"] == NUMBERS:
        sys.exit(f"raise NUMBERS in engine/config/run_identity.py: other defaults of {', '.join(changed)}")
    RECORDED.write_text(json.dumps({"numbers": NUMBERS, "defaults": now}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
