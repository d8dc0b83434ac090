from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.cluster.ray_pool import place


@given(st.data())
def test_place_assigns_every_cell_to_an_able_host(data: st.DataObject) -> None:
    hosts = data.draw(st.integers(1, 4))
    cells = data.draw(st.integers(0, 20))
    able = [
        data.draw(st.lists(st.integers(0, hosts - 1), min_size=1, max_size=hosts, unique=True)) for _ in range(cells)
    ]
    costs = [data.draw(st.floats(0, 100)) for _ in range(cells)]
    homes = [data.draw(st.one_of(st.none(), st.integers(0, hosts + 1))) for _ in range(cells)]
    places = place(costs, able, homes)
    assert len(places) == cells
    assert all(host in hosts for host, hosts in zip(places, able))


def test_place_with_even_load_keeps_cells_at_home() -> None:
    homes = [0, 1, 1, 0, 1, 0]
    assert place([1.0] * 6, [[0, 1]] * 6, homes) == homes


def test_place_of_new_cells_balances_load() -> None:
    assert place([1.0, 5.0, 1.0, 3.0], [[0, 1]] * 4, [None] * 4) == [1, 0, 1, 1]


def test_place_with_a_new_host_gives_it_a_share() -> None:
    costs, able = [1.0] * 50, [[0, 1]] * 50
    places = place(costs, able, [0] * 50)
    assert sorted(places) == [0] * 25 + [1] * 25
    assert place(costs, able, places) == places


def test_place_of_a_cell_above_a_share_keeps_it_at_home() -> None:
    assert place([10.0, 1.0], [[0, 1]] * 2, [1, 0]) == [1, 0]
    assert place([10.0], [[0, 1, 2]], [2]) == [2]
