"""The items that several clients hold: how many are counted, and how many are different."""

from collections.abc import Sequence
from typing import Any

from shoal.storage.store.manifest import Manifest

# Summaries of runs whose clients share nodes have the counts by this key.
DISTINCT = "distinct"


def count_distinct(manifest: Manifest, split: str) -> dict[str, Any]:
    """Returns what a summary keeps: items that train, validate and test, by client and different; else nothing."""
    record = manifest.splits[split]
    return {} if record.distinct is None else {"counted": record.counts.sum(0).tolist(), "different": record.distinct}


def describe_distinct(counted: Sequence[int], different: Sequence[int], what: str) -> str:
    """Says how many items of each part are different ones."""
    parts = zip(("train", "validation", "test"), counted, different)
    numbers = ", ".join(f"{of_all:,} {part} {what}s are {some:,}" for part, of_all, some in parts)
    return f"each {what} counts at every client that holds it: {numbers} different ones"
