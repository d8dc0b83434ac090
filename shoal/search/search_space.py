"""The space of a search: keys with a range or a list of values, from the command line or a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.storage.errors import ShoalError
from shoal.study.study import NAME, axis_text, mapping_in, split

FORM = "a key of a space has the form key=low:high, key=low:high:log or key=a,b,c"


def read_space(parts: Sequence[str]) -> tuple[str, ...]:
    """Reads the keys of a space as `key=range`, from such words and from YAML files that map keys to ranges or lists.

    Raises ShoalError: a file is none, a key is named twice, or none is named.
    """
    space: list[str] = []
    for part in parts:
        plain = None if "=" in part else mapping_in(part)
        if plain is None and "=" not in part:
            raise ShoalError(Path(part), f"no file that maps keys to ranges; {FORM}")
        space += [part] if plain is None else [f"{key}={axis_text(value)}" for key, value in plain.items()]
    keys = [text.partition("=")[0] for text in space]
    if not keys:
        raise ShoalError("--space", f"names nothing; {FORM}")
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ShoalError("--space", twice, "is named twice; name it once")
    return tuple(space)


def distribution(text: str) -> Any:
    """Makes the Optuna distribution of a key of a space; both ends belong to a range; whole ends mean whole numbers.

    Raises ShoalError: it has another form.
    """
    from optuna import distributions as known

    key, _, values = text.partition("=")
    listed = [value for value in split(values) if value]
    low, *high = values.split(":")
    try:
        if not NAME.fullmatch(key) or not listed or high[1:] not in ([], ["log"]):
            raise ValueError
        if len(listed) > 1 or not high:
            return known.CategoricalDistribution(tuple(dict.fromkeys(listed)))
        make = known.IntDistribution if low.isdecimal() and high[0].isdecimal() else known.FloatDistribution
        kind: Any = int if make is known.IntDistribution else float
        return make(kind(low), kind(high[0]), log="log" in high)
    except ValueError as error:
        raise ShoalError("--space", text, "; ".join(filter(None, (str(error), FORM)))) from None


def texts_of(drawn: Mapping[str, Any]) -> dict[str, str]:
    """Writes drawn values as overrides of a config; real numbers have four digits."""
    return {key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in drawn.items()}


def ends_of(drawn: Any) -> list[str]:
    """Returns the values that a config must take: both ends of a range, or all of a list."""
    return [f"{end}" for end in (drawn.choices if hasattr(drawn, "choices") else (drawn.low, drawn.high))]
