"""The best and the second best of what may be compared: methods on the same data, with the same model and options."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from shoal.engine.studies.groups import Group, varied

Ties = Literal["shown", "exact"]
Place = tuple[int, int]
METHOD = "algorithm"
# Sections of the items that are scored, and of who holds them: numbers of other ones are never compared.
OF_DATA = ("data", "partition", "task", "evaluation")


def shared_keys(groups: Sequence[Group]) -> list[str]:
    """The keys whose values groups must share to be compared: all that vary, but those of the method.

    A key that each method has one value of, as a rate that validation chose for it, belongs to the method. Where
    methods do not vary, all keys but those of the data are compared.
    """
    keys = varied(groups)
    of_method = [key for key in keys if _section(key) == METHOD]
    shared = [key for key in keys if key not in of_method and (of_method or _section(key) in OF_DATA)]
    for key in [key for key in shared if _section(key) not in OF_DATA]:
        others = [*of_method, *(other for other in shared if other != key)]
        values = {tuple(group.columns.get(other) for other in others) for group in groups}
        if len(values) == len({tuple(group.columns.get(other) for other in (*others, key)) for group in groups}):
            shared.remove(key)
    return shared


def marked(
    values: Mapping[Place, float], equal: Callable[[float, float], bool], not_worse: Callable[[Place, Place], bool]
) -> tuple[list[Place], list[Place]]:
    """Places of the best, and of the second best, of values that are compared; none of a single one.

    With the highest come those that are equal to it or `not_worse(place, highest)`; the highest of the rest, with its
    equals, is the second best.
    """
    if len(values) < 2:
        return [], []
    top = max(values, key=values.__getitem__)
    best = [place for place, v in values.items() if equal(v, values[top]) or not_worse(place, top)]
    rest = {place: value for place, value in values.items() if place not in best}
    return best, [place for place, value in rest.items() if equal(value, max(rest.values()))]


def _section(key: str) -> str:
    return key.partition(".")[0]
