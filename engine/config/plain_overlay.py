"""Keys laid over plain values of a config, as `OmegaConf.update` lays them over its own, in a hundredth of its time.

What needs OmegaConf (a value that names another one, a key that a list lacks) is refused by `NeedsOmegaConf`.
"""

import re
from copy import deepcopy
from typing import Any

# Keys with dots between their parts; OmegaConf reads brackets, too.
DOTTED = re.compile(r"\w+(\.\w+)*")
SCALARS = (str, int, float, bool, type(None))
# OmegaConf takes such a text for a value that is missing, or for one that names another.
MISSING, NAMES_ANOTHER = "???", "${"


class NeedsOmegaConf(Exception):
    """A value that is not laid over plainly."""


def is_plain(value: Any) -> bool:
    """Returns whether a value is of mappings with texts as keys, lists and scalars, none of which names another."""
    if type(value) is dict:
        return all(type(key) is str and NAMES_ANOTHER not in key and is_plain(inner) for key, inner in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return type(value) in SCALARS and not (type(value) is str and (value == MISSING or NAMES_ANOTHER in value))


def select(raw: dict[str, Any], key: str) -> Any:
    """Returns the value at a dotted key, a place in a list by its number; None: there is none."""
    at: Any = raw
    for part in key.split("."):
        if isinstance(at, dict):
            at = at.get(part)
        elif isinstance(at, list) and part.isdecimal() and int(part) < len(at):
            at = at[int(part)]
        else:
            return None
    return at


def update(raw: dict[str, Any], key: str, value: Any) -> None:
    """Sets the value at a dotted key: mappings are merged, all else is replaced; mappings above it are made.

    Raises NeedsOmegaConf: the key or the value is not plain, or a list is to be where a mapping is, or the reverse.
    """
    if not DOTTED.fullmatch(key) or not is_plain(value):
        raise NeedsOmegaConf(key)
    at: Any = raw
    *above, last = key.split(".")
    for part in above:
        place = _place(at, part)
        if isinstance(at, dict) and not isinstance(at.get(part), dict | list):
            at[part] = {}
        at = at[place]
    _set(at, _place(at, last), value)


def _place(at: Any, part: str) -> str | int:
    if isinstance(at, dict):
        return part
    if isinstance(at, list) and part.isdecimal() and int(part) < len(at):
        return int(part)
    raise NeedsOmegaConf(part)


def _set(at: Any, place: str | int, value: Any) -> None:
    old = at.get(place) if isinstance(at, dict) else at[place]
    if isinstance(value, dict) and isinstance(old, dict):
        for key, inner in value.items():
            _set(old, key, inner)
    elif isinstance(value, dict | list) and isinstance(old, dict | list) and type(value) is not type(old):
        raise NeedsOmegaConf(str(place))
    else:
        at[place] = deepcopy(value)
