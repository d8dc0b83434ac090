"""Work that is spread over threads: the same results, in the same order, on any number of them."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse as sp

from shoal.storage import threads as module
from shoal.storage.graph.induced import induce, kept_entries
from shoal.storage.threads import ahead, batches, shares, spread, thread_count, threads


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_the_order_of_the_items(count: int) -> None:
    with threads(count), spread() as on_threads:
        assert list(on_threads(lambda item: item * item, range(20))) == [item * item for item in range(20)]
        assert [len(several) for several in batches(range(7))] == [count] * (7 // count) + [7 % count] * (7 % count > 0)
    assert thread_count() == 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_shares_hold_every_row_once_and_about_as_many_entries(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(module, "FEW", 1)
    degree = np.random.default_rng(0).integers(0, 9, 300)
    indptr = np.append(0, np.cumsum(degree))
    with threads(count):
        ranges = shares(indptr, 20, 290)
    assert [row for low, high in ranges for row in range(low, high)] == list(range(20, 290))
    entries = [int(indptr[high] - indptr[low]) for low, high in ranges]
    assert len(ranges) == count
    assert max(entries) - min(entries) <= 2 * degree.max()


@pytest.mark.parametrize("count", [1, 2])
def test_items_are_taken_ahead_by_another_thread_in_their_order(count: int) -> None:
    makers, asked = [], threading.Event()

    def items() -> Iterator[int]:
        for number in range(5):
            makers.append(threading.current_thread())
            if number == 3:
                asked.set()
            yield number

    taken = []
    with threads(count):
        for item in ahead(items()):
            # With two threads, item 3 is made while this one holds item 2.
            if item == 2 and count == 2:
                assert asked.wait(60)
            taken.append(item)
    assert taken == list(range(5))
    assert (len(set(makers)) > 1) == (count == 2)


def test_an_error_of_an_item_is_raised_where_it_is_asked_for() -> None:
    def items() -> Iterator[int]:
        yield from range(4)
        raise ValueError("no more")

    taken = []
    with threads(2), pytest.raises(ValueError, match="no more"):  # noqa: PT012
        for item in ahead(items()):
            taken.append(item)
    assert taken == list(range(4))


@pytest.mark.parametrize("count", [2, 3])
def test_graphs_of_clients_are_those_of_one_thread(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(module, "FEW", 1)
    monkeypatch.setattr("shoal.storage.graph.induced.ENTRIES_A_BLOCK", 100)
    upper = sp.random_array((200, 200), density=0.05, rng=np.random.default_rng(1))
    graph = sp.csr_array(upper + upper.T)
    indptr, indices = graph.indptr.astype(np.int64), graph.indices.astype(np.int32)
    client = np.random.default_rng(2).integers(0, 5, 200).astype(np.int32)

    def parts() -> list[tuple[np.ndarray, ...]]:
        kept = kept_entries(indptr, indices, client)
        return [
            (kept, part.node, part.indptr, part.indices) for part in induce(indptr, indices, client, kept, range(5))
        ]

    alone = parts()
    with threads(count):
        for part, other in zip(parts(), alone, strict=True):
            for array, expected in zip(part, other, strict=True):
                np.testing.assert_array_equal(array, expected)
