"""Pairs of a client's rows as items, against sets of pairs counted one by one."""

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused

from shoal.storage.graph.graph import clean_edges
from shoal.storage.graph.induced import Induced
from shoal.storage.graph.pairs import EDGE, NO_EDGE, Pairs
from shoal.storage.options.split import SplitOptions
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.store.held_out_edges import draw_pairs, require_room, union_of, without_held_out

Pair = tuple[int, int]
EVEN = SplitOptions(fractions=(0.5, 0.25, 0.25))


def part_of(nodes: int, edges: list[Pair]) -> Induced:
    indptr, indices, _ = clean_edges(np.array(edges, dtype=np.int64).reshape(-1, 2).T, nodes, "test")
    return Induced(np.arange(nodes), indptr, indices)


def edges_of(part: Induced) -> set[Pair]:
    return {(row, int(other)) for row, (a, b) in enumerate(pairwise(part.indptr)) for other in part.indices[a:b]}


def items_of(pairs: Pairs) -> list[tuple[int, int, int, int]]:
    rows = [row for row, (a, b) in enumerate(pairwise(pairs.starts.tolist())) for _ in range(a, b)]
    assert pairs.ends.tolist() == [[row, other] for row, other in zip(rows, pairs.partner.tolist())]
    return list(zip(rows, pairs.partner.tolist(), pairs.label.tolist(), pairs.part.tolist()))


graphs = st.integers(1, 9).flatmap(
    lambda nodes: st.tuples(
        st.just(nodes),
        st.sets(st.sampled_from(list(combinations(range(nodes), 2)))).map(sorted) if nodes > 1 else st.just([]),
    )
)
shares = st.sampled_from([(0.5, 0.25, 0.25), (0.2, 0.4, 0.4), (0.3, 0.2, 0.1), (1.0, 0.0, 0.0), (0.0, 0.5, 0.5)])


@settings(max_examples=80, deadline=None)
@given(graph=graphs, fractions=shares, seed=st.integers(0, 3), client=st.integers(0, 3))
def test_every_edge_has_its_part_and_every_part_as_many_pairs_without_one(
    graph: tuple[int, list[Pair]], fractions: tuple[float, float, float], seed: int, client: int
) -> None:
    nodes, edges = graph
    part = part_of(nodes, edges)
    pairs = draw_pairs(part, client, SplitOptions(split_seed=seed, fractions=fractions))
    items = items_of(pairs)
    named = [(a, b) for a, b, _, _ in items]
    assert named == sorted(set(named))
    assert all(a < b for a, b in named)
    train, val = (int(share * len(edges) + 1e-9) for share in fractions[:2])
    test = len(edges) - train - val if sum(fractions) == 1 else int(fractions[2] * len(edges) + 1e-9)
    wanted = {TRAIN: train, VAL: val, TEST: test}
    free = nodes * (nodes - 1) // 2 - len(edges)
    for code, count in wanted.items():
        chosen = [(a, b) for a, b, label, of in items if label == EDGE and of == code]
        others = [(a, b) for a, b, label, of in items if label == NO_EDGE and of == code]
        assert len(chosen) == count
        assert set(chosen) <= set(edges)
        assert not set(others) & set(edges)
        if free >= sum(wanted.values()):
            assert len(others) == count
        assert len(others) <= count
    assert sum(label == NO_EDGE for _, _, label, _ in items) == min(free, sum(wanted.values()))
    visible = set(edges) - {(a, b) for a, b, label, of in items if label == EDGE and of != TRAIN}
    assert edges_of(without_held_out(part, pairs)) == visible | {(b, a) for a, b in visible}


def test_every_pair_without_an_edge_is_as_likely_as_any_other() -> None:
    """Over 500 clients, of 19 such pairs at 7 nodes; 5 standard deviations of a count are allowed."""
    part = part_of(7, [(0, 6), (2, 3)])
    counts: dict[Pair, int] = {}
    for client in range(500):
        for a, b, label, _ in items_of(draw_pairs(part, client, EVEN)):
            if label == NO_EDGE:
                counts[a, b] = counts.get((a, b), 0) + 1
    assert len(counts) == 19
    expected = 1000 / 19
    assert max(abs(count - expected) for count in counts.values()) < 5 * expected**0.5


def test_pairs_hang_on_seed_and_client_alone() -> None:
    part = part_of(30, [(i, (i * 7 + 1) % 30) for i in range(30) if i != (i * 7 + 1) % 30])
    drawn = [
        items_of(draw_pairs(part, client, SplitOptions(split_seed=seed, fractions=EVEN.fractions)))
        for seed, client in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    assert len(set(map(str, drawn))) == 4
    assert items_of(draw_pairs(part, 1, EVEN)) == drawn[1]


def test_pairs_of_clients_are_those_of_the_whole_graph() -> None:
    """Rows 5, 1 and 3 are one client's, 0 and 2 another's, 4 nobody's."""

    def pairs(starts: list[int], partner: list[int], label: list[int], part: list[int]) -> Pairs:
        ends = np.array(starts, np.int32), np.array(partner, np.int32)
        return Pairs(*ends, np.array(label, np.int8), np.array(part, np.int8))

    clients = [
        (np.array([5, 1, 3]), pairs([0, 1, 2, 2], [2, 2], [1, 0], [2, 1])),
        (np.array([2, 0]), pairs([0, 1, 1], [1], [1], [3])),
    ]
    whole = union_of(6, clients)
    assert items_of(whole) == [(0, 2, EDGE, TEST), (1, 3, NO_EDGE, TRAIN), (3, 5, EDGE, VAL)]
    assert whole.held_out.tolist() == [True, False, True]
    assert items_of(union_of(3, [])) == []


def test_a_client_that_memory_would_not_hold() -> None:
    require_room(3, 2_000_000, 192 << 20)
    with refused(says="is 100MiB, but to hold out edges of client 3 takes 184MiB"):
        require_room(3, 2_000_000, 100 << 20)
