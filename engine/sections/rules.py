"""Rules of effect: keys that mean something only where another key has certain values."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from shoal.algorithms.methods.registry.names import READ_HOPS_THEMSELVES
from shoal.algorithms.models.names import READ_HOPS
from shoal.storage.options.types import is_own

OWN = "my_file.py:Name"
# These methods have no uploads: each client trains alone, or there is one client.
WITHOUT_UPLOADS = ("local", "global")


class Rule(NamedTuple):
    """A rule on keys, which have an effect only where something `holds` of a config: another key has certain
    `values`, in words.

    Beside its default a key may have the value `given`, which says what is the case without it. `by_words`: the values
    are words of the other key. `beside`: the section of another feature, without which there is no rule.
    """

    keys: tuple[str, ...]
    other: str
    values: str
    holds: Callable[[Any], bool]
    given: Any = None
    by_words: bool = False
    beside: str = ""


def one_of(keys: str, other: str, *values: str) -> Rule:
    """Returns the rule of keys for some words of another key; where that has a list, for one of its entries."""

    read = attrgetter(other)

    def holds(config: Any) -> bool:
        value = read(config)
        names = value if isinstance(value, tuple) else (value,)
        return any(str(name).lower() in values or (OWN in values and is_own(str(name))) for name in names)

    return Rule(tuple(keys.split()), other, ", ".join(values), holds, by_words=True)


def acts_on_uploads(key: str, own_schedules: bool = False) -> tuple[Rule, ...]:
    """Returns the rules of a key that makes stages of uploads: the run has uploads, and a server that waits for all.

    `own_schedules`: cohorts may be those of a schedule of the user's, whose section refuses uploads of older models.
    """

    def waits(config: Any) -> bool:
        return bool(config.schedule.synchronous or (own_schedules and is_own(config.schedule.name)))

    return (
        Rule((key,), "schedule.name", "synchronous", waits),
        Rule((key,), "algorithm.name", "with uploads", lambda c: c.algorithm.name not in WITHOUT_UPLOADS),
    )


def reads_hops(config: Any) -> bool:
    """Returns whether a model, or the method, reads hops; those of the user may."""
    method = config.algorithm.name
    return (
        any(model.name in READ_HOPS or is_own(model.name) for model in config.models())
        or method in READ_HOPS_THEMSELVES
        or is_own(method)
    )
