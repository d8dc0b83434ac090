"""Random streams keyed by what they are for, so that no result depends on which process draws first."""

import hashlib


def key(*parts: int | str) -> int:
    """A 63-bit seed from e.g. (run seed, round, client, purpose)."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
