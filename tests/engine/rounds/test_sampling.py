"""Who takes part in which round, when clients are evaluated, and in which cells they are visited."""

import math
from collections import Counter
from contextlib import nullcontext
from fractions import Fraction
from heapq import heapreplace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from support.small_cells import cell_of

from shoal.algorithms.client import ClientInfo
from shoal.algorithms.protocol import Reduce
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.messages.cell import Training, one_by_one
from shoal.engine.rounds.sampling import (
    IN_BATCHES,
    Plan,
    Schedule,
    draw_cohort,
    evaluation_cell,
    form_cells,
    require_cohorts,
    require_sample,
)

W = torch.ones(2)


@given(st.integers(1, 60), st.fractions(Fraction(1, 99), 1, max_denominator=99), st.integers(0, 9))
def test_size_order_and_repetition(clients: int, ratio: Fraction, seed: int) -> None:
    cohort = draw_cohort(clients, ParticipationOptions(float(ratio)), seed, 3)
    # In exact arithmetic: 0.29 * 100 is 28.999… as a float.
    assert len(cohort) == max(1, math.floor(clients * ratio))
    assert cohort == sorted(set(cohort))
    assert set(cohort) <= set(range(clients))
    assert draw_cohort(clients, ParticipationOptions(float(ratio)), seed, 3) == cohort


@pytest.mark.parametrize(("clients", "ratio"), [(10, 0.3), (7, 0.15)])
def test_clients_are_drawn_alike(clients: int, ratio: float) -> None:
    rounds, how = 3000, ParticipationOptions(ratio)
    counts = Counter(i for number in range(rounds) for i in draw_cohort(clients, how, 0, number))
    p = max(1, int(clients * ratio)) / clients
    deviation = math.sqrt(rounds * p * (1 - p))
    assert all(abs(counts[i] - rounds * p) < 4.5 * deviation for i in range(clients))


def test_count_wins_over_ratio_and_only_those_online_take_part() -> None:
    assert len(draw_cohort(20, ParticipationOptions(ratio=1.0, count=3), 0, 1)) == 3
    assert draw_cohort(4, ParticipationOptions(count=9), 0, 1) == [0, 1, 2, 3]
    online = np.zeros((2, 10), dtype=bool)
    online[0, [1, 4, 7, 8]] = True
    online[1, 5] = True
    how = ParticipationOptions(ratio=0.3)
    assert len(draw_cohort(10, how, 0, 1, online)) == 3
    assert set(draw_cohort(10, how, 0, 1, online)) <= {1, 4, 7, 8}
    assert draw_cohort(10, how, 0, 2, online) == draw_cohort(10, how, 0, 4, online) == [5]
    assert draw_cohort(10, ParticipationOptions(ratio=0.3, at_least=2), 0, 2, online) == []


@pytest.mark.parametrize(
    ("how", "key"),
    [
        ({"count": 4}, None),
        ({"count": 5}, "participation.count"),
        ({"ratio": 0.25}, None),
        ({"ratio": 0.24}, "participation.ratio"),
    ],
)
def test_cohorts_that_cannot_be_are_refused(how: dict[str, float], key: str | None) -> None:
    with refused(key) if key else nullcontext():
        require_cohorts(ParticipationOptions(**how), 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("evaluated", [3, 8, "cohort", "all"])
def test_samples_are_drawn_anew_and_the_last_round_is_whole(evaluated: int | str) -> None:
    schedule = Schedule(Plan(40, ParticipationOptions(ratio=0.5), 1, "auto", evaluated=evaluated), 8, 5)
    samples = [schedule.sample(number) for number in range(1, 41)]
    assert samples[-1] is None
    if evaluated in (8, "all"):
        assert samples == [None] * 40
        return
    assert all(len(sample) == (evaluated if evaluated == 3 else 4) for sample in samples[:-1])
    assert all(sample == sorted(set(sample)) for sample in samples[:-1])
    assert {i for sample in samples[:-1] for i in sample} == set(range(8))
    assert [schedule.cohort(number) for number in range(1, 40)] == samples[:-1] or evaluated == 3
    require_sample(evaluated, 8)
    with refused("evaluation.clients", says="3 of 2 clients") if evaluated == 3 else nullcontext():
        require_sample(evaluated, 2)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_schedule_against_the_whole_table(data: st.DataObject) -> None:
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


def infos(models: list[int]) -> list[ClientInfo]:
    return [ClientInfo(i, 10, 2, 3, model) for i, model in enumerate(models)]


@given(st.data())
def test_cells_are_a_partition_into_runs_of_one_model(data: st.DataObject) -> None:
    models = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=40))
    cohort = sorted(data.draw(st.sets(st.sampled_from(range(len(models))))))
    size = data.draw(st.one_of(st.just("auto"), st.integers(1, 9)))
    cells = [cell.ids for cell in form_cells(cohort, infos(models), size)]
    assert sorted(i for cell in cells for i in cell) == cohort
    for cell in cells:
        assert cell == sorted(cell)
        assert len({models[i] for i in cell}) == 1
        assert size == "auto" or 1 <= len(cell) <= size
    for model in {models[i] for i in cohort}:
        of_model = [cell for cell in cells if models[cell[0]] == model]
        assert all(len(cell) >= len(later) for cell, later in pairwise(of_model))
        assert [i for cell in of_model for i in cell] == [i for i in cohort if models[i] == model]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("auto", {(1, 1): [1], (31, 1): [8, 2], (500, 1): [16], (500, 8): [16, 4], (500, 33): [4, 1], (500, 512): [1]}),
        (IN_BATCHES, {(1, 1): [1], (15, 1): [1], (50, 1): [8], (500, 64): [64], (1024, 1): [128], (4000, 512): [128]}),
    ],
)
def test_automatic_sizes(name: str, sizes: dict[tuple[int, int], list[int]]) -> None:
    """For a number of clients on a number of hosts, without the last cell, which has what is left."""
    for (clients, hosts), expected in sizes.items():
        cells = [len(cell.ids) for cell in form_cells(range(clients), infos([0] * clients), name, hosts)]
        assert sorted(set(cells[: len(cells) - 1] or cells), reverse=True) == expected


@given(st.integers(1, 40), st.integers(0, 3000))
def test_hosts_have_cells_and_end_together(hosts: int, more: int) -> None:
    """Clients of equal cost, each cell to the host that is first done with the larger ones."""
    clients = 12 * hosts + more
    sizes = [len(cell.ids) for cell in form_cells(range(clients), infos([0] * clients), "auto", hosts)]
    load = [0] * hosts
    for size in sorted(sizes, reverse=True):
        heapreplace(load, load[0] + size)
    assert len(sizes) >= 5 * hosts
    assert max(load) <= 1.1 * clients / hosts + 1


def test_what_only_trains_stays_behind_at_an_evaluation() -> None:
    states = {
        1: {"model.w": W, "model.opt.step": W, "compression/train/left/w": W, "c": W},
        2: {"copilot.opt.step": W},
        7: {"model.w": W},
    }
    cell = evaluation_cell(3, [1, 2, 4], states, {2: {"w": W}, 9: {"w": W}}, 1.0)
    assert {i: set(tree) for i, tree in cell.states.items()} == {1: {"model.w", "c"}, 2: set()}
    assert set(cell.inboxes) == {2}
    assert cell.score == {1, 2, 4}
    assert (cell.phase, cell.train) == ("", None)


def test_clients_of_a_cell_one_by_one() -> None:
    kept = {"private": {2: {"w": W}}, "states": {1: {"model.w": W}}, "inboxes": {4: {"c": W}}}
    cell = cell_of([1, 2, 4], {"w": Reduce.MEAN}, score=frozenset({1, 4}), cost=6.0, **kept)
    singles = one_by_one(cell)
    assert [(list(single.ids), single.cost, single.score) for single in singles] == [
        ([1], 2.0, {1}), ([2], 2.0, set()), ([4], 2.0, {4}),
    ]  # fmt: skip
    for single in singles:
        (client,) = single.ids
        own = {name: {i: tree for i, tree in whole.items() if i == client} for name, whole in kept.items()}
        assert {name: getattr(single, name) for name in kept} == own
        assert (single.round, single.phase, single.up, single.train) == (1, "train", {"w": Reduce.MEAN}, Training())


def test_poisson_cohorts_have_each_client_on_its_own() -> None:
    """Rates of clients and of pairs, within five standard errors of 4,000 rounds."""
    options, rounds = ParticipationOptions(count=3, draw="poisson"), 4000
    cohorts = [draw_cohort(10, options, 5, number, None, [2, 7]) for number in range(1, rounds + 1)]
    took = np.array([[client in cohort for client in range(10)] for cohort in cohorts])
    assert not took[:, [2, 7]].any()
    took = np.delete(took, [2, 7], axis=1).astype(float)
    q = 3 / 8
    assert (abs(took.mean(0) - q) < 5 * math.sqrt(q * (1 - q) / rounds)).all()
    both = took.T @ took / rounds - np.diag(took.mean(0)) + np.diag(np.full(8, q**2))
    assert (abs(both - q**2) < 5 * math.sqrt(q**2 * (1 - q**2) / rounds)).all()
    assert {len(cohort) for cohort in cohorts} >= set(range(8))
    assert all(cohort == sorted(cohort) for cohort in cohorts)
    assert draw_cohort(10, options, 5, 1, None, [2, 7]) == cohorts[0]


@given(st.integers(3, 60), st.floats(0.02, 1.0), st.integers(0, 9))
def test_cyclic_cohorts_are_groups_that_take_turns(clients: int, ratio: float, seed: int) -> None:
    newcomers = [1] if clients > 10 else []
    members, options = clients - len(newcomers), ParticipationOptions(ratio=ratio, draw="cyclic")
    asked, groups = max(1, int(members * ratio + 1e-9)), options.groups(members)
    cohorts = [draw_cohort(clients, options, seed, number, None, newcomers) for number in range(1, 2 * groups + 1)]
    assert cohorts[:groups] == cohorts[groups:]
    assert sorted(client for cohort in cohorts[:groups] for client in cohort) == [
        client for client in range(clients) if client not in newcomers
    ]
    sizes = [len(cohort) for cohort in cohorts]
    assert sizes[0] == min(sizes) >= max(sizes) - 1
    assert max(sizes) == options.size(members) <= asked
    # No fewer groups have cohorts of at most that size.
    assert members > (groups - 1) * asked


def test_groups_are_drawn_by_the_seed() -> None:
    options = ParticipationOptions(count=5, draw="cyclic")
    cohorts = [tuple(draw_cohort(20, options, seed, 1)) for seed in range(4000)]
    took = np.array([[client in cohort for client in range(20)] for cohort in cohorts]).astype(float)
    assert (abs(took.mean(0) - 1 / 4) < 5 * math.sqrt(3 / 16 / 4000)).all()
    assert draw_cohort(20, options, 7, 1) == list(cohorts[7])
