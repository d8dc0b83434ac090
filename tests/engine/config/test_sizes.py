from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.config.sizes import size

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@given(st.integers(0, 2**52))
def test_size_shows_one_decimal(count: int) -> None:
    number, unit = size(count).split()
    assert abs(float(number) * UNITS[unit] - count) <= 0.0501 * UNITS[unit]
    assert count < 1024 * UNITS[unit] or unit == "TiB"
    assert ("." in number) == (unit != "B")
