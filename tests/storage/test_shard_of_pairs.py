"""Pairs of rows in a shard, a manifest and a view."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused

from shoal.storage.graph.induced import Induced
from shoal.storage.graph.pairs import Pairs
from shoal.storage.store.bounds import Limits
from shoal.storage.store.shard import Shard, bounds_of, open_shard, write_shard
from shoal.storage.store.split import Split
from shoal.storage.store.view import Cache, View

# Rows 0-1-2 are joined, 1-3 was held out, 0-3 and 2-3 have no edge.
SOUND: dict[str, Any] = {
    "starts": [0, 2, 4, 5, 5],
    "partner": [1, 3, 2, 3, 3],
    "label": [1, 0, 1, 1, 0],
    "part": [1, 3, 1, 2, 2],
}
NODE = np.array([10, 4, 7, 2])
INDPTR, INDICES = np.array([0, 1, 3, 4, 4]), np.array([1, 0, 2, 1])
LIMITS = Limits(nodes=20, features=2, classes=2, pairs=True)


def pairs_of(starts: Sequence[int], partner: Sequence[int], label: Sequence[int], part: Sequence[int]) -> Pairs:
    starts, partner = np.array(starts, np.int32), np.array(partner, np.int32)
    return Pairs(starts, partner, np.array(label, np.int8), np.array(part, np.int8))


def written(path: Path) -> Path:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    write_shard(path, 3, Induced(NODE, INDPTR, INDICES), np.full(20, -1), x, pairs=pairs_of(**SOUND))
    return path


def test_round_trip(tmp_path: Path) -> None:
    shard = open_shard(written(tmp_path / "a.arrow"), 3, limits=LIMITS)
    assert shard.pairs is not None
    assert shard.pairs.ends.tolist() == [[0, 1], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert shard.pairs.held_out.tolist() == [False, False, False, True, False]
    assert (shard.nodes, shard.items, shard.entries, shard.kind) == (4, 5, 4, "pairs")
    assert (shard.item_label.tolist(), shard.item_label.dtype) == ([1, 0, 1, 1, 0], np.int32)
    assert [shard.first_row_of(item) for item in range(5)] == [0, 0, 1, 1, 2]
    for read in (lambda: shard.item, lambda: shard.graph_ptr):
        with pytest.raises(ValueError, match=r"^client 3: its items are pairs"):
            read()


def test_no_pairs(tmp_path: Path) -> None:
    part = Induced(np.arange(2), np.zeros(3, dtype=np.int64), np.empty(0, dtype=np.int32))
    none = pairs_of([0, 0, 0], [], [], [])
    write_shard(tmp_path / "a.arrow", 0, part, np.full(2, -1), np.ones((2, 2), dtype=np.float32), pairs=none)
    shard = open_shard(tmp_path / "a.arrow", 0, limits=LIMITS)
    assert (shard.items, shard.item_label.tolist()) == (0, [])


HELD_OUT = "a pair that is held out is joined by an edge, or a training edge is missing"


@pytest.mark.parametrize(
    ("key", "changed", "fault"),
    [
        ("starts", [0, 2, 1, 5, 5], "the row pointer does not fit the pairs"),
        ("starts", [0, 2, 4, 4, 4], "the row pointer does not fit the pairs"),
        ("starts", [1, 2, 4, 5, 5], "the row pointer does not fit the pairs"),
        ("partner", [1, 4, 2, 3, 3], "a row of a pair lies outside 0 to 3"),
        ("partner", [-1, 3, 2, 3, 3], "a row of a pair lies outside 0 to 3"),
        ("label", [1, 2, 1, 1, 0], "a pair is neither an edge nor none"),
        ("part", [1, 0, 1, 2, 2], "a pair is in none of three parts"),
        ("part", [1, 4, 1, 2, 2], "a pair is in none of three parts"),
        ("partner", [3, 1, 2, 3, 3], "pairs are not in ascending order"),
        ("partner", [1, 1, 2, 3, 3], "pairs are not in ascending order"),
        ("partner", [1, 3, 2, 3, 2], "pairs are not in ascending order"),
        ("partner", [1, 3, 2, 3, 1], "pairs are not in ascending order"),
        ("part", [2, 3, 1, 2, 2], HELD_OUT),
        ("label", [0, 0, 1, 1, 0], HELD_OUT),
        ("part", [1, 3, 1, 1, 2], HELD_OUT),
    ],
)
def test_pairs_out_of_bounds(tmp_path: Path, key: str, changed: list[int], fault: str) -> None:
    shard = open_shard(written(tmp_path / "a.arrow"), 3)
    assert bounds_of(replace(shard, pairs=pairs_of(**{**SOUND, key: changed})), LIMITS) == [fault]


def test_bounds_are_compared_when_a_file_is_first_read(tmp_path: Path) -> None:
    x, wrong = np.ones((4, 2), dtype=np.float32), pairs_of(**{**SOUND, "part": [2, 3, 1, 2, 2]})
    path = tmp_path / "a.arrow"
    write_shard(path, 3, Induced(NODE, INDPTR, INDICES), np.full(20, -1), x, pairs=wrong)
    with refused(path, says="a pair that is held out is joined by an edge"):
        open_shard(path, 3, limits=LIMITS)
    shard = open_shard(written(path), 3)
    assert bounds_of(shard, replace(LIMITS, pairs=False)) == ["its items are pairs"]
    assert bounds_of(replace(shard, pairs=None), LIMITS) == ["its items are nodes"]
    assert bounds_of(shard, LIMITS) == []


@pytest.fixture(params=["graphs", "pairs"])
def view(request: pytest.FixtureRequest, tmp_path: Path) -> View:
    """Of graphs 2, 5 and 6, of two, one and three nodes, or of the pairs above; only the last graph trains."""
    if request.param == "graphs":
        graph = np.array([2, 2, 5, 6, 6, 6])
        label = np.array([1, 1, 0, 2, 2, 2], dtype=np.int32)
        indptr, indices = np.array([0, 1, 2, 2, 3, 4, 4], dtype=np.int32), np.array([1, 0, 4, 3], dtype=np.int32)
        x = np.arange(12, dtype=np.float32).reshape(6, 2)
        shard, train = Shard(3, np.arange(10, 16), label, indptr, indices, x, graph), [2]
    else:
        shard, train = open_shard(written(tmp_path / "a.arrow"), 3), [2, 4]
    split = Split(*(np.array(rows, dtype=np.int32) for rows in (train, [], [0, 1])))
    return View("test", shard, split, [], 3, Cache(2**20))


def test_items_of_a_view(view: View) -> None:
    if view.pairs is None:
        assert (view.nodes, view.items, view.graph_ptr.tolist()) == (6, 3, [0, 2, 3, 6])
        assert (view.label.tolist(), view.train_label.tolist()) == ([1, 0, 2], [2])
        assert view.rows_of(torch.tensor([2, 0])).tolist() == [3, 4, 5, 0, 1]
    else:
        assert (view.nodes, view.items, view.graph_ptr, view.pairs.dtype) == (4, 5, None, torch.int64)
        assert view.pairs.tolist() == [[0, 1], [0, 3], [1, 2], [1, 3], [2, 3]]
        assert (view.label.tolist(), view.train_label.tolist()) == ([1, 0, 1, 1, 0], [1, 0])
        assert view.rows_of(torch.tensor([3, 0])).tolist() == [1, 3, 0, 1]
        assert view.csr[1].tolist() == [1, 0, 2, 1]
    assert view.rows_of(view.val).tolist() == []
    view.touch([0], training=True, edges=True)


def test_what_is_written_is_seen(view: View) -> None:
    assert view.written() is None
    items = view.graph_ptr if view.pairs is None else view.pairs
    items.add_(1)
    assert view.written() == ("graph_ptr" if view.pairs is None else "pairs")


def test_rows_behind_torchs_back_are_those_of_a_training_item(view: View) -> None:
    x = view.x
    assert view.written() is None
    x.numpy()[0] = 7
    assert view.written() is None
    x.numpy()[3 if view.pairs is None else 1] = 7
    assert view.written() == "x"
