"""The conditions under which keys have an effect: the rules of the engine and of features, and the check of them."""

from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from pydantic import BaseModel

from shoal.engine.config.own_rules import OWN_RULES
from shoal.engine.sections.rules import OWN, Rule
from shoal.engine.sections.sections import list_rules
from shoal.storage.errors import ShoalError
from shoal.storage.options.masking import Sparsity
from shoal.storage.options.types import WithShortForm, is_own

# Errors of keys that a command was given name this.
COMMAND_LINE = "command line"
RULES = (*OWN_RULES, *list_rules())


class Overrides(NamedTuple):
    """The dotted keys that were laid over a config, and which of them excuse others that have no effect with them.

    Attributes:
        keys: All that were laid over it, none of which is excused.
        excusing: They excuse every key that the config had.
        words: They excuse keys of their own section, for which they stand.
        varied: They vary within a sweep, and excuse every key.
        source: Where they were given; empty: in the file of the config.
    """

    keys: frozenset[str] = frozenset()
    excusing: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    varied: frozenset[str] = frozenset()
    source: str = ""

    def gave(self, key: str) -> bool:
        """Returns whether a key, one inside of it, or its section is among them."""
        return _is_among(key, self.keys) or any(_is_among(name, (key,)) for name in self.keys)

    def place_of(self, key: str, file: str) -> str:
        """Returns what an error of a key names: where the key was given, or the file that it stands in."""
        return self.source if self.source and self.gave(key) else file

    def excuse(self, rule: Rule, key: str) -> bool:
        """Returns whether an override of another key, or some rows of a sweep, left idle what the file says."""
        if _is_among(rule.other, self.varied):
            return True
        inside = rule.other in self.words and key.startswith(f"{rule.other.rpartition('.')[0]}.")
        return (inside or _is_among(rule.other, self.excusing)) and not _is_among(key, self.keys)


NO_OVERRIDES = Overrides()


def require_effects(
    config: BaseModel,
    usual: BaseModel,
    where: str,
    among: Collection[str] | None = None,
    overrides: Overrides = NO_OVERRIDES,
) -> dict[str, str]:
    """Refuses a key that is set and has no effect; names it, and the key on which that depends.

    Args:
        usual: A config whose keys have their defaults, which are never refused.
        among: The keys, or sections of such, that were changed, and may have left others without effect; None: all.
        overrides: What excuses keys: these are given instead, with why they have no effect.
    """
    idle = [(rule, key) for rule, key in _of(among) if not rule.holds(config)]
    wrong = [(r, key) for r, key in idle if attrgetter(key)(config) not in (attrgetter(key)(usual), r.given)]
    excused = {
        key: f"is for {rule.other} {rule.values}, found {_show(attrgetter(rule.other)(config))}"
        for rule, key in wrong
        if overrides.excuse(rule, key)
    }
    wrong = [(rule, key) for rule, key in wrong if key not in excused]
    for rule, key in wrong[:1]:
        present, default = attrgetter(rule.other)(config), attrgetter(key)(usual)
        too = [name for other, name in wrong[1:] if other.other == rule.other]
        raise ShoalError(
            overrides.place_of(key, where),
            key,
            f"is for {rule.other} {rule.values}, found {_show(present)}; change that, or leave it at its default, "
            f"{_show(default)}" + (f", and so {', '.join(too)}" if too else ""),
        )
    return excused


def without_effect(keys: Mapping[str, str]) -> set[str]:
    """Lists, of a config's keys, options of a section that the word of its kind or name leaves without effect."""
    words = [(rule, keys.get(rule.other, ""), rule.values.split(", ")) for rule in RULES if rule.by_words]
    # A list is skipped, as its entries may have several words.
    idle = [
        rule
        for rule, word, values in words
        if word and word[0] not in "[{" and word.lower() not in values and not (OWN in values and is_own(word))
    ]
    options = {key for rule in idle for key in rule.keys if key.rpartition(".")[0] == rule.other.rpartition(".")[0]}
    return options & keys.keys()


def _of(among: Collection[str] | None) -> Iterator[tuple[Rule, str]]:
    for rule in RULES:
        for key in rule.keys:
            if among is None or _is_among(key, among) or _is_among(rule.other, among):
                yield rule, key


def _is_among(key: str, names: Collection[str]) -> bool:
    """Returns whether a key, or a section that it is in, is among some names."""
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def _show(value: Any) -> str:
    """Formats a value as a config has it, for a message."""
    if value is None:
        return "null"
    if isinstance(value, Sparsity):
        return "0 in all"
    if isinstance(value, WithShortForm):
        return str(getattr(value, value.short))
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_show, value))}]"
    return str(getattr(value, "name", value))
