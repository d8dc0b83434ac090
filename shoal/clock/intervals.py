"""Means over seeds with the half-width of their interval, and with the digits that it leaves."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

CONFIDENCE = 0.95
# Smaller numbers are written with a power of ten.
SMALL = 1e-5


def format_interval(values: Sequence[float], text: Callable[[float], str] | None = None) -> str:
    """Formats a mean, with the half-width of its interval by Student's t if values differ; `-` without values.

    Without `text` the half-width has two digits and the mean as many decimals; a mean without one has three digits.
    """
    if not values:
        return "-"
    if len(set(values)) == 1:
        return text(values[0]) if text is not None else format_number(values[0])
    # SciPy's statistics take a second to import, so only a table that needs them does.
    from scipy.stats import t

    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    if text is not None:
        return f"{text(fmean(values))} ± {text(half)}"
    if half < SMALL:
        return f"{format_number(fmean(values))} ± {half:.2g}"
    decimals = _decimals(half, 2)
    return f"{fmean(values):,.{decimals}f} ± {half:,.{decimals}f}"


def format_number(number: float) -> str:
    """Formats a number with three digits, or all of them before the point."""
    if number == 0:
        return "0"
    return f"{number:.3g}" if abs(number) < SMALL else f"{number:,.{_decimals(number, 3)}f}"


def _decimals(number: float, digits: int) -> int:
    """Returns how many decimals a number needs to have so many digits."""
    # A number that is rounded up, as 9.996, has one digit more before the point.
    rounded = float(f"{abs(number):.{digits - 1}e}")
    return max(digits - 1 - math.floor(math.log10(rounded)), 0)
