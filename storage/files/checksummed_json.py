"""JSON that says whether it is as it was written: every object carries a digest of itself."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from shoal.storage.errors import ShoalError
from shoal.storage.files.digest import text_digest

SEAL = "seal"


def sealed(plain: Mapping[str, Any], indent: int | None = None) -> str:
    """Writes strict JSON of an object, its seal as the last key; a record in it is an object of its fields.

    Raises ValueError: a number is NaN or infinite.
    """
    # The JSON is read back, so that a key which is a number has the form that a reader will see.
    kept = json.loads(json.dumps(plain, allow_nan=False, default=asdict))
    return json.dumps({**kept, SEAL: _seal(kept)}, indent=indent, allow_nan=False)


def unsealed(text: str | bytes) -> dict[str, Any]:
    """Reads the object without its seal. Raises ValueError: not JSON, no object, or not as it was written."""
    try:
        plain = json.loads(text)
    except RecursionError:
        raise ValueError("brackets in brackets without end") from None
    if not isinstance(plain, dict):
        raise ValueError("not an object")
    if plain.pop(SEAL, None) != _seal(plain):
        raise ValueError("changed since it was written")
    return plain


def require_format(where: object, text: str | bytes, reads: int, oldest: int | None = None) -> None:
    """Raises ShoalError if the `format` of a JSON is neither the one that this Shoal `reads` nor from `oldest` on.

    It is called before the checksum is compared, which another version may make in another way. A text that is no JSON
    passes, as the checksum tells.
    """
    with suppress(ValueError, RecursionError):
        plain = json.loads(text)
        got = plain.get("format", reads) if isinstance(plain, dict) else reads
        if got != reads and got not in range(reads if oldest is None else oldest, reads):
            way_out = "upgrade Shoal" if isinstance(got, int) and got > reads else "use the Shoal that wrote it"
            raise ShoalError(where, f"format {got} of another version of Shoal, this one reads {reads}; {way_out}")


def _seal(plain: Mapping[str, Any]) -> str:
    return text_digest(json.dumps(plain, sort_keys=True))[:16]
