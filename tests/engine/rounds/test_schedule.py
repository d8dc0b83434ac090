"""Cohorts and evaluations of a run, against a table of all its rounds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.config.sections import ParticipationOptions
from shoal.engine.rounds.sampling import Plan, Schedule, draw_cohort


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_against_the_whole_table(data: st.DataObject) -> None:
    rounds, every, clients = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    how, seed = ParticipationOptions(ratio=data.draw(st.sampled_from([0.2, 0.5, 1.0]))), data.draw(st.integers(0, 5))
    online = None
    if data.draw(st.booleans()):
        online = np.random.default_rng(seed).random((data.draw(st.integers(1, 4)), clients)) < 0.6
    schedule = Schedule(Plan(rounds, how, every, "auto", online), clients, seed)
    table = {number: draw_cohort(clients, how, seed, number, online) for number in range(1, rounds + 1)}
    evaluated = [number for number in table if number % every == 0 or number == rounds]
    # In any order, as any round is known now.
    for number in data.draw(st.permutations(sorted(table))):
        assert schedule.cohort(number) == table[number]
        assert schedule.evaluates(number) == (number in evaluated)
        end = min(later for later in evaluated if later >= number)
        for client in range(clients):
            again = any(client in table[later] for later in range(number + 1, end + 1))
            assert schedule.is_last_visit(client, number) == (not again)


def test_the_last_round_is_evaluated() -> None:
    schedule = Schedule(Plan(7, ParticipationOptions(), 3, 1), 2, 0)
    assert [number for number in range(1, 8) if schedule.evaluates(number)] == [3, 6, 7]
    assert [number for number in range(1, 8) if schedule.is_last_visit(0, number)] == [3, 6, 7]
