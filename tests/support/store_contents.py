"""What a store holds, to compare two of them."""

import json
from pathlib import Path
from typing import Any

from shoal.storage.files.checksummed_json import SEAL
from shoal.storage.files.digest import digest
from shoal.storage.store.manifest import NAME


def contents(store: Path) -> dict[str, Any]:
    """Checksum of every file; of the manifest all but when and with what it was made."""
    found: dict[str, Any] = {}
    for path in sorted(store.rglob("*")):
        if path.name == NAME:
            found[NAME] = {**json.loads(path.read_text()), "provenance": None, SEAL: None}
        elif path.is_file():
            found[str(path.relative_to(store))] = digest(path)
    return found
