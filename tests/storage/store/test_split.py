import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused

from shoal.storage.options.split import SplitOptions, read_split_file
from shoal.storage.store import arrow_file
from shoal.storage.store.split import Split, from_codes, open_split, random_split, write_split

LABELS = st.lists(st.integers(-1, 4), max_size=60).map(np.array)
TENTHS = st.tuples(*[st.integers(0, 10)] * 3).filter(lambda tenths: 0 < sum(tenths) <= 10)


def drawn(label: np.ndarray, protocol: str = "stratified", seed: int = 0, client: int = 0, **shares: tuple) -> Split:
    label = np.asarray(label, dtype=np.int32)
    return random_split(label, np.arange(len(label)), client, SplitOptions(protocol, seed, **shares))


def counts(split: Split) -> list[int]:
    return [len(split.train), len(split.val), len(split.test)]


@settings(max_examples=150, deadline=None)
@given(label=LABELS, tenths=TENTHS, protocol=st.sampled_from(["stratified", "per_client"]), seed=st.integers(0, 9))
def test_floors_of_the_shares(label: np.ndarray, tenths: tuple[int, ...], protocol: str, seed: int) -> None:
    fractions = tuple(tenth / 10 for tenth in tenths)
    split = drawn(label, protocol, seed, fractions=fractions)
    rows = np.concatenate([split.train, split.val, split.test])
    assert len(np.unique(rows)) == len(rows)
    assert all((np.diff(part) > 0).all() and part.dtype == np.int32 for part in (split.train, split.val, split.test))
    assert all(label[row] >= 0 for row in rows)
    groups = [[c] for c in range(5)] if protocol == "stratified" else [list(range(5))]
    for classes in groups:
        size = sum(int(y) in classes for y in label)
        train, val, test = (tenth * size // 10 for tenth in tenths)
        if sum(tenths) == 10:
            test = size - train - val
        found = [sum(int(label[row]) in classes for row in part) for part in (split.train, split.val, split.test)]
        assert found == [train, val, test]


@pytest.mark.parametrize("protocol", ["stratified", "per_client"])
def test_shares_that_floats_miss(protocol: str) -> None:
    # 0.29 * 100 is 28.999999999999996, and 0.7 + 0.2 + 0.1 is 0.9999999999999999.
    assert counts(drawn(np.zeros(5), protocol, fractions=(0.6, 0.2, 0.2))) == [3, 1, 1]
    assert counts(drawn(np.zeros(100), protocol, fractions=(0.29, 0.07, 0.57))) == [29, 7, 57]
    assert counts(drawn(np.zeros(10), protocol, fractions=(0.7, 0.2, 0.1))) == [7, 2, 1]


@settings(max_examples=40, deadline=None)
@given(label=LABELS, protocol=st.sampled_from(["stratified", "per_client"]), order=st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(label: np.ndarray, protocol: str, order) -> None:
    node = 3 * np.arange(len(label)) + 5
    shuffle = list(range(len(label)))
    order.shuffle(shuffle)
    options = SplitOptions(protocol, 1, fractions=(0.4, 0.3, 0.3))
    straight, shuffled = (random_split(label[rows], node[rows], 2, options) for rows in (slice(None), shuffle))
    for name in ("train", "val", "test"):
        ids = node[shuffle][getattr(shuffled, name)]
        assert sorted(ids) == node[getattr(straight, name)].tolist()


@pytest.mark.parametrize("protocol", ["stratified", "per_client"])
def test_seed_and_client_decide(protocol: str) -> None:
    label = np.arange(200) % 3
    first, again = drawn(label, protocol, 1, 2), drawn(label, protocol, 1, 2)
    assert first.train.tolist() == again.train.tolist()
    for other in (drawn(label, protocol, 2, 2), drawn(label, protocol, 1, 3)):
        assert first.train.tolist() != other.train.tolist()


@pytest.mark.parametrize("code", [[1, 2, 3, 0, 1, 1], [0, 0, 0], [3]])
def test_round_trip(tmp_path: Path, code: list[int]) -> None:
    split = from_codes(np.array(code))
    record = write_split(tmp_path / "a.arrow", split)
    again = open_split(tmp_path / "a.arrow", len(code), record)
    for name in ("train", "val", "test"):
        assert getattr(again, name).dtype == np.int32
        assert getattr(again, name).tolist() == getattr(split, name).tolist()


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        (([1, 0], [2], []), "rows are not in ascending order"),
        (([0, 0], [2], []), "rows are not in ascending order"),
        (([0, 1], [2], [1]), "a row belongs to two parts"),
        (([0, 3], [1], []), "rows outside the shard"),
        (([-1, 0], [1], []), "rows outside the shard"),
    ],
)
def test_rows_that_no_split_has(tmp_path: Path, parts: tuple[list[int], ...], fault: str) -> None:
    path = tmp_path / "a.arrow"
    record = write_split(path, Split(*(np.array(part, dtype=np.int32) for part in parts)))
    with refused(path, says=fault):
        open_split(path, 3, record, whole=True)
    rows = pa.ListArray.from_arrays(pa.array([0, 3, 2, 3], pa.int32()), pa.array([0, 1, 2], pa.int32()))
    arrow_file.write(path, "split", {"rows": rows})
    with refused(path, says="not three parts"):
        open_split(path, 3)
    write_split(path, from_codes(np.array([1, 2, 3])))
    with refused(path, says="the manifest"):
        open_split(path, 3, record, whole=True)
    with refused(path, says="rows outside the shard"):
        open_split(path, 2)


def test_file_of_the_user(tmp_path: Path) -> None:
    file = str(tmp_path / "split.npy")
    np.save(file, np.array([0, 3, 1, 2]))
    assert read_split_file(file).tolist() == [0, 3, 1, 2]
    name = SplitOptions("file", split_file=file).split_name
    np.save(file, np.array([0, 3, 1, 2], dtype=np.uint8))
    assert SplitOptions("file", split_file=file).split_name == name
    np.save(file, np.array([0, 3, 1, 1]))
    assert SplitOptions("file", split_file=file).split_name != name


def saved(save: Callable[..., None] = np.save, *values: Any, **named: Any) -> bytes:
    content = io.BytesIO()
    save(content, *map(np.array, values), **named)
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b"0 1 2 3", "cannot be read"),
        (saved(np.save, [0, 1, 2])[:-5], "cannot be read"),
        (saved(np.savez, split=[0, 1]), "cannot be read"),
        (b"PK\x03\x04PK\x05\x06" + bytes(18), "cannot be read"),
        (saved(np.save, [{}, None]), "cannot be read"),
        (saved(np.save, [0.0, 1.0]), "found float64 [2]"),
        (saved(np.save, [True, False]), "found bool [2]"),
        (saved(np.save, [[0, 1]]), "found int64 [1, 2]"),
        (saved(np.save, [0, 1, 4, -1]), "found 4 at node 2"),
        (saved(np.save, [0, -1]), "found -1 at node 1"),
        (None, "No such file"),
    ],
)
def test_bad_files_of_the_user(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "split.npy"
    if content is not None:
        file.write_bytes(content)
    with refused(says=says):
        read_split_file(str(file))
    with refused("data.split_file", says="needed where"):
        read_split_file(None)
