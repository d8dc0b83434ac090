import io
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.storage.errors import ShoalError
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


def test_small_classes_train_nothing() -> None:
    label = np.array([0] * 4 + [1] * 5 + [-1] * 6)
    split = drawn(label)
    assert label[split.train].tolist() == [1]
    assert counts(split) == [1, 1 + 2, 3 + 2]


def test_a_client_without_labels() -> None:
    assert counts(drawn(np.full(5, -1))) == counts(drawn(np.full(5, -1), "per_client")) == [0, 0, 0]


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


def test_names_tell_splits_apart() -> None:
    assert SplitOptions().split_name == "stratified-20-40-40-seed0"
    assert SplitOptions("per_client", 3, fractions=(0.6, 0.2, 0.2)).split_name == "per_client-60-20-20-seed3"
    assert SplitOptions(fractions=(0.29, 0.07, 0.57)).split_name == "stratified-29-7-57-seed0"
    assert SplitOptions("public", 3).split_name == "public"
    # A third of 3 is 1, and 0.333333 of 3 is less.
    assert (
        SplitOptions(fractions=(1 / 3, 0.1, 0.1)).split_name != SplitOptions(fractions=(0.333333, 0.1, 0.1)).split_name
    )


@given(code=st.lists(st.integers(0, 3), max_size=30))
def test_codes(code: list[int]) -> None:
    split = from_codes(np.array(code, dtype=np.int8))
    for value, rows in ((1, split.train), (2, split.val), (3, split.test)):
        assert rows.tolist() == [row for row, part in enumerate(code) if part == value]


@pytest.mark.parametrize("code", [[1, 2, 3, 0, 1, 1], [0, 0, 0], [3]])
def test_round_trip(tmp_path: Path, code: list[int]) -> None:
    split = from_codes(np.array(code))
    record = write_split(tmp_path / "a.arrow", split)
    again = open_split(tmp_path / "a.arrow", len(code), record)
    for name in ("train", "val", "test"):
        assert getattr(again, name).dtype == np.int32
        assert getattr(again, name).tolist() == getattr(split, name).tolist()


def test_split_of_a_larger_shard(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write_split(path, from_codes(np.array([1, 2, 3])))
    with pytest.raises(ShoalError, match=rf"^{path}: rows outside the shard; delete the file .*$"):
        open_split(path, 2)


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
    with pytest.raises(ShoalError, match=rf"^{path}: {fault}; .*delete the file and run .*$"):
        open_split(path, 3, record, whole=True)


def test_ends_of_parts_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    rows = pa.ListArray.from_arrays(pa.array([0, 3, 2, 3], pa.int32()), pa.array([0, 1, 2], pa.int32()))
    arrow_file.write(path, "split", {"rows": rows})
    with pytest.raises(ShoalError, match=rf"^{path}: not three parts; delete the file .*$"):
        open_split(path, 3)


def test_content_is_compared_before_anything_is_used(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    record = write_split(path, from_codes(np.array([1, 2, 3])))
    write_split(path, from_codes(np.array([2, 1, 3])))
    assert open_split(path, 3, record).train.tolist() == [1]
    with pytest.raises(ShoalError, match=rf"^{path}: checksum does not match the manifest; .*$"):
        open_split(path, 3, record, whole=True)


def test_file_of_the_user(tmp_path: Path) -> None:
    file = str(tmp_path / "split.npy")
    np.save(file, np.array([0, 3, 1, 2]))
    assert read_split_file(file).tolist() == [0, 3, 1, 2]
    name = SplitOptions("file", split_file=file).split_name
    np.save(file, np.array([0, 3, 1, 2], dtype=np.uint8))
    assert SplitOptions("file", split_file=file).split_name == name
    np.save(file, np.array([0, 3, 1, 1]))
    assert SplitOptions("file", split_file=file).split_name != name


def archive() -> bytes:
    content = io.BytesIO()
    np.savez(content, split=np.array([0, 1]))
    return content.getvalue()


def broken_archive() -> bytes:
    content = io.BytesIO()
    zipfile.ZipFile(content, "w").close()
    return b"PK\x03\x04" + content.getvalue()


def array(values: list) -> bytes:
    content = io.BytesIO()
    np.save(content, np.array(values))
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", r"cannot be read \(.*\); give a \.npy with 0, 1, 2, 3 for every node"),
        (b"0 1 2 3", r"cannot be read \(.*\); give a \.npy .*"),
        (array([0, 1, 2])[:-5], r"cannot be read \(.*\); give a \.npy .*"),
        (archive(), r"cannot be read \(.*\); give a \.npy .*"),
        (broken_archive(), r"cannot be read \(.*\); give a \.npy .*"),
        (array([{}, None]), r"cannot be read \(.*\); give a \.npy .*"),
        (array([0.0, 1.0]), r"must be integers 0 to 3, one a node; found float64 \[2\]"),
        (array([True, False]), r"must be integers 0 to 3, one a node; found bool \[2\]"),
        (array([[0, 1]]), r"must be integers 0 to 3, one a node; found int64 \[1, 2\]"),
        (array([0, 1, 4, -1]), "must be integers 0 to 3, one a node; found 4 at node 2"),
        (array([0, -1]), "must be integers 0 to 3, one a node; found -1 at node 1"),
    ],
)
def test_bad_files_of_the_user(tmp_path: Path, content: bytes, fault: str) -> None:
    file = tmp_path / "split.npy"
    file.write_bytes(content)
    with pytest.raises(ShoalError, match=rf"^{file}: data\.split_file {fault}$"):
        read_split_file(str(file))


def test_no_file_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=r"^data\.split_file: needed where data\.split is `file`; give .*$"):
        read_split_file(None)
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/no\.npy: .*No such file.*; give .*$"):
        read_split_file(str(tmp_path / "no.npy"))
