"""Keys that are laid over a config: options of a section, sections, and words that stand for a section.

Which sections there are, and what a word stands for in each, comes from the classes of their options.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple, get_args, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel
from yaml import MarkedYAMLError, YAMLError

from shoal.engine.config.config_text import announce, require_small
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import Named

# YAML, OmegaConf and its grammar raise these on arbitrary text.
UNREADABLE = (OmegaConfBaseException, YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError)
# Such keys of a mapping can be parts of a dotted key.
PLAIN = re.compile(r"\w+")
# A section has, by dotted key, the class of its options.
Sections = Mapping[str, type]
# Keys with dots between their parts; OmegaConf reads brackets, too.
DOTTED = re.compile(r"\w+(\.\w+)*")
SCALARS = (str, int, float, bool, type(None))
# OmegaConf takes such a text for a value that is missing, or for one that names another.
MISSING, NAMES_ANOTHER = "???", "${"


class Given(NamedTuple):
    """The keys that were laid over a config.

    Attributes:
        keys: Dotted keys, and sections that were given as a whole.
        words: Of the keys those that a word for their section gave, as `attack=sign_flip` does `attack.kind`.
    """

    keys: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()


class _Unit(NamedTuple):
    """A key, or a section that is given as a whole, with a value, maybe that of a word; and what the user wrote."""

    key: str
    value: Any
    shown: str
    by_word: bool = False


def sections_of(options: type, at: str = "") -> Iterator[tuple[str, type]]:
    """Yields dotted keys of sections, at any depth, with the class of their options; of lists that of their entries."""
    names = options.model_fields if issubclass(options, BaseModel) else [field.name for field in fields(options)]  # type: ignore[arg-type]
    hints = get_type_hints(options)
    for name in names:
        for cls in _classes(hints[name]):
            if issubclass(cls, Named):
                yield at + name, cls
            elif is_dataclass(cls):
                yield at + name, cls
                yield from sections_of(cls, f"{at}{name}.")


def _classes(hint: Any) -> Iterator[type]:
    """Yields the classes in a type, of a container those of its entries."""
    inner = get_args(hint)
    if not inner and isinstance(hint, type):
        yield hint
    for part in inner:
        yield from _classes(part)


def word_key(section: type) -> str | None:
    """Returns the key of a section for whose value a word alone may stand; None: it has none."""
    return getattr(section, "short", None)


def with_long_forms(plain: Any, sections: Sections, at: str = "") -> Any:
    """Returns plain values, of a config or of a section `at` a key, with mappings in place of words for sections."""
    if at and at not in sections:
        return plain
    if isinstance(plain, Mapping):
        return {
            name: with_long_forms(value, sections, f"{at}.{name}".lstrip(".")) if isinstance(name, str) else value
            for name, value in plain.items()
        }
    short = word_key(sections[at]) if at else None
    if short is None:
        return plain
    if isinstance(plain, list | tuple) and issubclass(sections[at], Named):
        return [with_long_forms(entry, sections, at) for entry in plain]
    return {short: plain} if isinstance(plain, str) else plain


def lay_over(
    raw: DictConfig | dict[str, Any],
    given: Sequence[tuple[str, str, Any]],
    sections: Sections,
    typed: Collection[str] | None = None,
) -> Given:
    """Puts plain values into a config in long form; where a key is given twice, the last value holds.

    A word for a section is the value of one of its keys, so that options may stand before or behind it. Where options
    belong to a name, as those of a method do, a section that is given takes the place of the one before, and options
    that go with that one are named.

    Args:
        raw: Changed in place.
        given: What the user wrote, a dotted key, and its value.
        typed: What is named of it is what these replace; None: all.

    Raises:
        ShoalError: A value cannot be set there.
        NeedsOmegaConf: `raw` is plain, and a value cannot be laid over it so.
    """
    units = [unit for shown, key, value in given for unit in _units(key, value, shown, sections)]
    whole = {unit.key: number for number, unit in enumerate(units) if _of_a_name(unit.key, sections)}
    units = [unit for number, unit in enumerate(units) if whole.get(unit.key, number) == number]
    before = {key: _remove(raw, key) for key in whole}
    # A list is there before options of its entries, and what is no mapping drops none that are given.
    for unit in sorted(units, key=lambda unit: unit.key not in whole or isinstance(unit.value, Mapping)):
        try:
            if isinstance(raw, dict):
                _update(raw, unit.key, unit.value)
            else:
                OmegaConf.update(raw, unit.key, unit.value, force_add=True)
        except UNREADABLE as error:
            raise ShoalError(
                unit.shown,
                f"cannot be set: {reason_of(error)}; an entry of a list is named by its place, as in model.0.hidden=32",
            ) from error
    by = {unit.key: unit.shown for unit in units}
    for key, old in before.items():
        if typed is None or by[key] in typed:
            _name_what_goes(key, old, _select(raw, key), sections[key])
    names = frozenset(unit.key for unit in units)
    return Given(names | before.keys(), frozenset(unit.key for unit in units if unit.by_word))


def _units(key: str, value: Any, shown: str, sections: Sections) -> Iterator[_Unit]:
    """Yields the keys that a value is for: of a section's mapping those in it, at any depth."""
    section = sections.get(key)
    if section is None or _of_a_name(key, sections):
        yield _Unit(key, with_long_forms(value, sections, key), shown)
    elif isinstance(value, str) and (short := word_key(section)):
        yield _Unit(f"{key}.{short}", value, shown, by_word=True)
    elif isinstance(value, Mapping) and value and all(PLAIN.fullmatch(str(name)) for name in value):
        for name, inner in value.items():
            yield from _units(f"{key}.{name}", inner, shown, sections)
    else:
        yield _Unit(key, value, shown)


def _of_a_name(key: str, sections: Sections) -> bool:
    """Returns whether the options of a section belong to its name: another name has others."""
    return key in sections and issubclass(sections[key], Named)


def _select(raw: DictConfig | dict[str, Any], key: str) -> Any:
    return _select_plain(raw, key) if isinstance(raw, dict) else OmegaConf.select(raw, key)


def _remove(raw: DictConfig | dict[str, Any], key: str) -> Any:
    """Takes a section out of a config, and returns its plain value; None: it has none."""
    above, _, name = key.rpartition(".")
    holder = _select(raw, above) if above else raw
    if not isinstance(holder, DictConfig | dict) or name not in holder:
        return None
    old = holder[name] if isinstance(holder, dict) else OmegaConf.to_container(holder)[name]  # type: ignore[call-overload,index]
    del holder[name]
    return old


def _name_what_goes(key: str, old: Any, new: Any, section: type) -> None:
    """Says which options of the old section are not in the new one, unless a list takes its place, which shows it."""
    if isinstance(new, ListConfig | list):
        return
    entries = {f"{key}.{place}": entry for place, entry in enumerate(old)} if isinstance(old, list) else {key: old}
    for at, entry in entries.items():
        options = dict(entry) if isinstance(entry, Mapping) else {}
        name = options.pop(word_key(section), None)
        stay = new if at == key and isinstance(new, DictConfig | dict) else {}
        for option, value in options.items():
            default = section.model_fields.get(option)  # type: ignore[attr-defined]
            if option not in stay and (default is None or value != default.default):
                announce(
                    f"{at}.{option}",
                    f"belongs to {key} {name}, and {key} is given anew; it is left out",
                )


@lru_cache(maxsize=4096)
def override_of(text: str) -> tuple[str, str, Any]:
    """Returns the text `key.sub=value`, its dotted key, and its plain value. Raises ShoalError: it has none."""
    key, value = text.split("=", 1)
    try:
        require_small(value)
        plain = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={value}"]))["value"]  # type: ignore[call-overload,index]
    except UNREADABLE as error:
        raise ShoalError(text, f"cannot be set: {reason_of(error)}") from error
    return text, key, plain


def reason_of(error: Exception) -> str:
    """Returns the text of an error on one line; its type where it has none."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        hint = "; indent by spaces, not by tabs" if "cannot start any token" in str(error.problem) else ""
        return f"line {error.problem_mark.line + 1}: {error.problem}{hint}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


class NeedsOmegaConf(Exception):
    """A value that is not laid over plainly."""


def is_plain(value: Any) -> bool:
    """Returns whether a value is of mappings with texts as keys, lists and scalars, none of which names another."""
    if type(value) is dict:
        return all(type(key) is str and NAMES_ANOTHER not in key and is_plain(inner) for key, inner in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return type(value) in SCALARS and not (type(value) is str and (value == MISSING or NAMES_ANOTHER in value))


def _select_plain(raw: dict[str, Any], key: str) -> Any:
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


def _update(raw: dict[str, Any], key: str, value: Any) -> None:
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
