import math
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.config.sections import ParticipationOptions
from shoal.engine.rounds.sampling import draw_cohort, read_trace
from shoal.storage.errors import ShoalError


@given(st.integers(1, 60), st.fractions(Fraction(1, 99), 1, max_denominator=99), st.integers(0, 9))
def test_size_order_and_repetition(clients: int, ratio: Fraction, seed: int) -> None:
    cohort = draw_cohort(clients, ParticipationOptions(float(ratio)), seed, 3)
    # In exact arithmetic: 0.29 * 100 is 28.999… as a float.
    assert len(cohort) == max(1, math.floor(clients * ratio))
    assert cohort == sorted(set(cohort))
    assert set(cohort) <= set(range(clients))
    assert draw_cohort(clients, ParticipationOptions(float(ratio)), seed, 3) == cohort


def test_rounds_and_seeds_draw_apart() -> None:
    draws = {
        tuple(draw_cohort(100, ParticipationOptions(0.1), seed, number)) for seed in range(3) for number in range(1, 11)
    }
    assert len(draws) == 30


@pytest.mark.parametrize(("clients", "ratio"), [(10, 0.3), (7, 0.15)])
def test_clients_are_drawn_alike(clients: int, ratio: float) -> None:
    rounds = 3000
    counts = Counter(
        i for number in range(rounds) for i in draw_cohort(clients, ParticipationOptions(ratio), 0, number)
    )
    p = max(1, int(clients * ratio)) / clients
    deviation = math.sqrt(rounds * p * (1 - p))
    assert all(abs(counts[i] - rounds * p) < 4.5 * deviation for i in range(clients))


def test_count_wins_over_ratio() -> None:
    assert len(draw_cohort(20, ParticipationOptions(ratio=1.0, count=3), 0, 1)) == 3
    assert draw_cohort(4, ParticipationOptions(count=9), 0, 1) == [0, 1, 2, 3]


def test_only_those_online_take_part() -> None:
    online = np.zeros((2, 10), dtype=bool)
    online[0, [1, 4, 7, 8]] = True
    online[1, 5] = True
    how = ParticipationOptions(ratio=0.3)
    assert len(draw_cohort(10, how, 0, 1, online)) == 3
    assert set(draw_cohort(10, how, 0, 1, online)) <= {1, 4, 7, 8}
    assert draw_cohort(10, how, 0, 2, online) == [5]
    assert draw_cohort(10, how, 0, 4, online) == [5]
    assert draw_cohort(10, ParticipationOptions(ratio=0.3, at_least=2), 0, 2, online) == []


def test_trace_file(tmp_path: Path) -> None:
    np.save(tmp_path / "trace.npy", np.array([[1, 0, 1], [0, 1, 1]]))
    assert read_trace(str(tmp_path / "trace.npy"), 3).tolist() == [[True, False, True], [False, True, True]]
    with pytest.raises(ShoalError, match=r"trace\.npy: participation\.trace .* all 4 clients"):
        read_trace(str(tmp_path / "trace.npy"), 4)
    with pytest.raises(ShoalError, match=r"gone\.npy: participation\.trace cannot be read"):
        read_trace(str(tmp_path / "gone.npy"), 4)
