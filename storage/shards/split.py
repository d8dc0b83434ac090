"""Split of a shard's items, rows or graphs, into training, validation and test."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from shoal.storage.errors import ShoalError
from shoal.storage.options.split import SplitOptions
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL
from shoal.storage.shards import arrow_file
from shoal.storage.shards.arrow_file import REMAKE, FileRecord, MappedFile, Packs, require_content, require_none
from shoal.storage.shards.bounds import Limits, check_labels, check_parts

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Split:
    """Ascending numbers, int32, of the training, validation and test items of one shard: of its rows, or graphs.

    `train_label` is the label that training sees of every training item, int32; None: that of the shard.
    """

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    train_label: np.ndarray | None = None


def random_split(label: np.ndarray, item: np.ndarray, client: int, options: SplitOptions) -> Split:
    """Draws the split of one client; the result does not depend on the order of its items.

    Shares are rounded down and the rest becomes test nodes, as in the papers' code (FedPG, FedGTA): a class with few
    nodes may have no training node; the manifest counts the clients and test nodes that this concerns. Unlabelled
    nodes belong to no part.

    Args:
        label: Label of every item, `[items]`; -1 is unlabelled.
        item: Global number of every item, `[items]`.
        client: Number of the client; with `options.split_seed` it keys the random stream.
    """
    rng = np.random.default_rng([options.split_seed, client])
    by_id = np.argsort(item, kind="stable")
    labelled = by_id[label[by_id] >= 0]
    if options.split == "stratified":
        of_class = label[labelled].astype(np.int64)
        groups = [labelled[of_class == c] for c in np.flatnonzero(np.bincount(of_class))]
    else:
        groups = [labelled]
    code = np.full(len(label), UNASSIGNED, dtype=np.int8)
    complete = sum(options.fractions) > 1 - 1e-9
    for group in groups:
        shuffled = rng.permutation(group)
        # The small constant keeps 0.29 * 100 from becoming 28.
        train, val, test = (int(share * len(group) + 1e-9) for share in options.fractions)
        end = len(group) if complete else train + val + test
        code[shuffled[:train]] = TRAIN
        code[shuffled[train : train + val]] = VAL
        code[shuffled[train + val : end]] = TEST
    return from_codes(code)


def from_codes(code: np.ndarray) -> Split:
    """Turns 0 none, 1 train, 2 validation, 3 test, `[items]`, into numbers of items."""
    return Split(*(np.flatnonzero(code == part).astype(np.int32) for part in (TRAIN, VAL, TEST)))


def to_codes(split: Split, items: int) -> np.ndarray:
    """Inverts `from_codes`: part of every item, int8 `[items]`."""
    code = np.full(items, UNASSIGNED, dtype=np.int8)
    for part, rows in ((TRAIN, split.train), (VAL, split.val), (TEST, split.test)):
        code[rows] = part
    return code


def write_split(path: Path, split: Split) -> FileRecord:
    """Writes a split to a file of its own."""
    return arrow_file.write(path, "split", split_columns(split))


def split_columns(split: Split) -> dict[str, pa.Array]:
    """Makes a split's columns of three rows: `part`, its row numbers, and labels that training sees, if they differ."""
    parts: Sequence[np.ndarray] = (split.train, split.val, split.test)
    offsets = np.cumsum([0, *map(len, parts)]).astype(np.int32)
    rows = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(parts).astype(np.int32)))
    columns = {"part": pa.array(np.arange(3, dtype=np.int8)), "rows": rows}
    if split.train_label is not None:
        ends = np.array([0, *[len(split.train_label)] * 3], dtype=np.int32)
        columns["label"] = pa.ListArray.from_arrays(pa.array(ends), pa.array(split.train_label.astype(np.int32)))
    return columns


def open_split(
    path: Path,
    items: int,
    record: FileRecord | None = None,
    limits: Limits | None = None,
    opened: Packs = None,
) -> Split:
    """Maps a split; with limits, every byte is checked, and that parts are ascending and share no row.

    Raises ShoalError: the file is missing, damaged, or of another shard.
    """
    if limits is not None and record is not None:
        require_content(path, record)
    file = MappedFile(path, "split", record, opened)
    offsets, rows = file.lists("rows")
    if len(offsets) != 4 or offsets[0] != 0 or offsets[-1] != len(rows) or (np.diff(offsets) < 0).any():
        raise ShoalError(path, f"not three parts; {REMAKE}")
    if len(rows) and (rows.min() < 0 or rows.max() >= items):
        raise ShoalError(path, f"rows outside the shard; {REMAKE}")
    parts = [rows[offsets[i] : offsets[i + 1]] for i in range(3)]
    label = file.lists("label")[1] if "label" in file.names else None
    if label is not None and len(label) != len(parts[0]):
        raise ShoalError(path, f"{len(label)} labels for {len(parts[0])} training items; {REMAKE}")
    if limits is not None:
        faults: list[str] = []
        check_parts(parts, faults.append)
        if label is not None:
            check_labels(label, limits.classes, faults.append)
        require_none(path, faults)
    train, val, test = parts
    return Split(train, val, test, label)
