import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.config.sizes import size

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (5.25 * 2**30, "5.2 GiB"),
        (2**40, "1.0 TiB"),
        (3000 * 2**40, "3000.0 TiB"),
    ],
)
def test_by_hand(count: float, text: str) -> None:
    assert size(count) == text


@given(st.integers(0, 2**52))
def test_size_shows_one_decimal(count: int) -> None:
    number, unit = size(count).split()
    assert abs(float(number) * UNITS[unit] - count) <= 0.0501 * UNITS[unit]
    assert count < 1024 * UNITS[unit] or unit == "TiB"
