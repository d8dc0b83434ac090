import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.algorithms.client import ClientInfo
from shoal.algorithms.protocol import Reduce
from shoal.engine.messages.cell import Cell, one_by_one
from shoal.engine.rounds.sampling import IN_BATCHES, evaluation_cell, form_cells


def infos(models: list[int]) -> list[ClientInfo]:
    return [ClientInfo(i, 10, 2, 3, model) for i, model in enumerate(models)]


@given(st.data())
def test_cells_are_a_partition_into_runs_of_one_model(data: st.DataObject) -> None:
    models = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=40))
    cohort = sorted(data.draw(st.sets(st.sampled_from(range(len(models))), min_size=1)))
    size = data.draw(st.one_of(st.just("auto"), st.integers(1, 9)))
    cells = form_cells(cohort, infos(models), size)
    assert sorted(i for cell in cells for i in cell) == cohort
    for cell in cells:
        assert cell == sorted(cell)
        assert len({models[i] for i in cell}) == 1
        if size != "auto":
            assert 1 <= len(cell) <= size
    for model in set(models):
        of_model = [cell for cell in cells if models[cell[0]] == model]
        assert all(len(cell) == len(of_model[0]) for cell in of_model[:-1])
        assert [i for cell in of_model for i in cell] == [i for i in cohort if models[i] == model]


@pytest.mark.parametrize(
    ("clients", "size"), [(1, 1), (31, 1), (63, 1), (64, 2), (100, 3), (500, 15), (512, 16), (4000, 16)]
)
def test_automatic_size(clients: int, size: int) -> None:
    assert len(form_cells(range(clients), infos([0] * clients), "auto")[0]) == size


@pytest.mark.parametrize(("clients", "size"), [(1, 1), (15, 1), (50, 6), (500, 62), (1024, 128), (4000, 128)])
def test_automatic_size_of_batches(clients: int, size: int) -> None:
    assert len(form_cells(range(clients), infos([0] * clients), IN_BATCHES)[0]) == size


def test_no_clients_no_cells() -> None:
    assert form_cells([], infos([0]), "auto") == []


def test_moments_stay_behind_at_an_evaluation() -> None:
    w = torch.ones(2)
    states = {
        1: {"model.w": w, "model.opt.step": torch.zeros(1), "c": w},
        2: {"copilot.opt.step": w},
        7: {"model.w": w},
    }
    cell = evaluation_cell(3, [1, 2, 4], states, {2: {"w": w}, 9: {"w": w}}, 1.0)
    assert {i: set(tree) for i, tree in cell.states.items()} == {1: {"model.w", "c"}, 2: set()}
    assert set(cell.inboxes) == {2}
    assert cell.score == {1, 2, 4}
    assert (cell.phase, cell.train) == ("", False)


def test_clients_of_a_cell_one_by_one() -> None:
    w = torch.ones(2)
    cell = Cell(
        3,
        [1, 2, 4],
        "train",
        {"w": Reduce.MEAN},
        True,
        private={2: {"w": w}},
        states={1: {"model.w": w}},
        inboxes={4: {"c": w}},
        score=frozenset({1, 4}),
        cost=6.0,
    )
    singles = one_by_one(cell)
    assert [list(single.ids) for single in singles] == [[1], [2], [4]]
    assert [single.cost for single in singles] == [2.0] * 3
    assert [single.score for single in singles] == [{1}, set(), {4}]
    for name in ("private", "states", "inboxes"):
        whole, parts = getattr(cell, name), [getattr(single, name) for single in singles]
        assert all(part.keys() <= set(single.ids) for part, single in zip(parts, singles))
        assert {i: tree for part in parts for i, tree in part.items()} == whole
    for single in singles:
        assert (single.round, single.phase, single.up, single.train) == (3, "train", {"w": Reduce.MEAN}, True)
