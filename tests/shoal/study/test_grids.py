"""Grids of two keys: cells by hand, keys without effect, and what makes no grid."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest
from scipy.stats import t

from shoal.pages import figures
from shoal.pages.figures import Drawing
from shoal.study.grids import Grid, make_grid
from shoal.study.groups import Group, Row, group_runs
from shoal.study.main_score import MainScore

SCORE = "deployed.best.test"
EDGES, SHARE, CLIENTS = "data.cross_edges", "data.cross_share", "partition.clients"
SHARES: tuple[dict[str, str], ...] = (
    # Coupled axes give a key without effect a value, too.
    {EDGES: "drop", SHARE: "1.0"},
    *({EDGES: "hops", SHARE: share} for share in ("1.0", "0.25")),
)


def score(method: str, share: Mapping[str, str], clients: int, seed: int) -> float:
    """A score that rises by what is kept, falls by clients, and has some noise of seeds of its own a method."""
    kept = float(share[SHARE]) if share[EDGES] == "hops" else 0.0
    gain = (method == "fedavg") * (0.01 * clients * (1 - kept) + 0.002 * seed)
    return 0.5 + 0.1 * kept - 0.001 * clients + 0.001 * seed + gain


def rows() -> list[Row]:
    every = product(("fedavg", "local"), ("louvain", "random"), SHARES, (5, 10), range(3))
    return [
        Row(
            {"algorithm": m, "partition.method": p, **share, CLIENTS: str(n), "seed": str(seed)},
            {SCORE: score(m, share, n, seed) + 0.05 * (p == "random")},
        )
        for m, p, share, n, seed in every
    ]


def label(group: Group, keys: Sequence[str]) -> str:
    return ", ".join(group.columns[key] for key in keys if key in group.columns)


def grid_of(of: Sequence[Row], reference: Mapping[str, str]) -> Grid | None:
    groups = group_runs(of)
    return make_grid(groups, MainScore(groups), (CLIENTS, SHARE), reference, label)


def test_cells_are_differences_to_a_method_at_the_same_settings() -> None:
    grid = grid_of(rows(), {"algorithm": "local"})
    assert grid is not None
    # Runs without edges between clients have no share of them: they are what the switch says.
    assert (grid.columns.values, grid.columns.switch) == (("drop", "0.25", "1.0"), EDGES)
    assert (grid.rows.key, grid.rows.values) == (CLIENTS, ("5", "10"))
    assert list(grid.panels) == ["fedavg, louvain", "fedavg, random"]
    for cells in grid.panels.values():
        for (r, n), (c, kept) in product(enumerate((5, 10)), enumerate((0, 0.25, 1))):
            by_seed = [0.01 * n * (1 - kept) + 0.002 * seed for seed in range(3)]
            half = t.ppf(0.975, 2) * np.std(by_seed, ddof=1) / 3**0.5
            assert cells.middle[r, c] == pytest.approx(100 * np.mean(by_seed))
            assert cells.half[r, c] == pytest.approx(100 * half)


def test_a_setting_is_a_reference_and_differs_from_itself_by_nothing() -> None:
    grid = grid_of(rows(), {EDGES: "hops", SHARE: "1.0"})
    assert grid is not None
    assert list(grid.panels) == ["fedavg, louvain", "fedavg, random", "local, louvain", "local, random"]
    assert grid.panels["local, random"].middle == pytest.approx(np.array([[-10, -7.5, 0]] * 2))
    assert grid.panels["fedavg, random"].middle[1] == pytest.approx(np.array([0, 0, 0]), abs=1e-9)
    assert np.nan_to_num(grid.panels["local, random"].half) == pytest.approx(np.zeros((2, 3)), abs=1e-9)


def test_without_a_reference_cells_are_scores_and_a_cell_may_be_missing() -> None:
    some = [row for row in rows() if row.columns["algorithm"] == "local"]
    some = [row for row in some if {CLIENTS: "5", **SHARES[1]}.items() - row.columns.items()]
    assert grid_of(some, {}) is None
    grid = grid_of([*some, *(row for row in rows() if row.columns["partition.method"] == "random")], {})
    assert grid is not None
    assert not grid.reference
    assert np.isnan(grid.panels["local, louvain"].middle[0, 2])
    assert grid.panels["local, louvain"].middle[1, 2] == pytest.approx(100 * score("local", SHARES[1], 10, 1))


def test_values_that_go_together_are_no_grid() -> None:
    coupled = [Row({CLIENTS: str(n), SHARE: str(n / 10)}, {SCORE: 0.5}) for n in range(1, 9)]
    assert grid_of(coupled, {}) is None


@pytest.mark.parametrize("reference", [{"algorithm": "local"}, {}])
def test_the_figure_has_a_number_in_each_cell_and_one_scale(reference: dict[str, str]) -> None:
    drawn: list[Drawing] = []
    grid = grid_of(rows(), reference)
    assert grid is not None
    figures.grid(drawn, "grid", "Gain", grid, ("clients", "share"), "points")
    *panels, bar = drawn[0].drawn.axes
    assert [axes.get_title() for axes in panels] == list(grid.panels)
    limits = {image.get_clim() for axes in panels for image in axes.images}
    assert len(limits) == 1
    for axes, cells in zip(panels, grid.panels.values()):
        numbers = [float(text.get_text().split("\n")[0]) for text in axes.texts]
        assert numbers == pytest.approx(cells.middle.ravel(), abs=0.051)
        assert [float(text.get_text().split("±")[1]) for text in axes.texts] == pytest.approx(
            cells.half.ravel(), abs=0.051
        )
    assert bar.get_ylabel() == "points"
    (low, high) = limits.pop()
    assert (low == -high) == bool(reference)
    assert "highest 10.2 at clients 10, share drop" in drawn[0].text or not reference
