""" "Did you mean" suggestions for unknown names."""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

# An acronym of three letters has no typing errors: with one letter changed it is another name.
SHORTEST = 4
# The share of letters that a key and a wrong one have in common: `dropout` is not `head_dropout`.
CLOSE = 0.75


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Suggests the known key that is most like a wrong one; an empty text where none is."""
    names = {name.lower(): name for name in known}
    return suggest([names[close] for close in difflib.get_close_matches(wrong.lower(), names, n=1, cutoff=CLOSE)])


def did_you_mean_at(wrong: str, known: Iterable[str]) -> str:
    """Suggests, for a name in a wrong place, dotted names that end with it."""
    return suggest(keys_named(wrong, known))


def keys_named(name: str, known: Iterable[str]) -> list[str]:
    """Lists dotted names whose last part is a name, but for case and separators."""
    return [key for key in known if plain_name(key.rpartition(".")[2]) == plain_name(name)]


def did_you_mean_name(wrong: str, known: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """Suggests a name that is known elsewhere, too: of datasets, methods, models. Similar sounds are no match.

    A match is the same but for case and separators, or has one typing error. `also` has other names of what is known,
    as `plain_name` writes them.
    """
    names = list(known)
    same = {plain_name(name): name for name in names} | dict(also or {})
    if plain_name(wrong) in same:
        return suggest([same[plain_name(wrong)]])
    return suggest([name for name in names if _is_typo(_words(wrong), _words(name))])


def form_meant(name: str, example: str) -> str:
    """Says the form that is meant: of a file of the user's with a class in it, of several names a sweep; or nothing."""
    if "," in name:
        return "several values are for shoal sweep; "
    file, _, of_class = name.rpartition(".")
    if file and of_class[:1].isupper() and Path(f"{file}.py").is_file():
        return f"write {file}.py:{of_class}; "
    return f"write {name}:{example}, the class in the file; " if name.endswith(".py") else ""


def plain_name(name: str) -> str:
    """Writes a name without case and separators; a plus sign is the word."""
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    """Splits a name into words, in lower case; `fed` is one, so that what follows is looked at alone."""
    return re.findall("[a-z]+|[0-9]+", re.sub("^fed", "fed ", name.lower().replace("+", " plus ")))


def _is_typo(wrong: list[str], name: list[str]) -> bool:
    """Whether two names differ in one word, by one typing error in it; numbers have none."""
    if len(wrong) != len(name):
        return False
    different = [(typed, meant) for typed, meant in zip(wrong, name) if typed != meant]
    if len(different) != 1:
        return False
    typed, meant = different[0]
    if re.sub(r"(.)\1+", r"\1", typed) == re.sub(r"(.)\1+", r"\1", meant):
        return not typed.isdigit()
    if min(len(typed), len(meant)) < SHORTEST or not (typed.isalpha() and meant.isalpha()):
        return False
    return bool(_less(typed) & _less(meant))


def _less(word: str) -> set[str]:
    """Lists a word, and itself without each letter: two words with one typing error between them share one."""
    return {word, *(word[:i] + word[i + 1 :] for i in range(len(word)))}


def suggest(names: list[str]) -> str:
    """Returns the begin of a message, before what may be long: `did you mean 'lr'? `; nothing without a name."""
    return f"did you mean {' or '.join(map(repr, names))}? " if names else ""
