"""The items that several clients hold: how many are counted, and how many are different."""

from collections.abc import Mapping, Sequence

from shoal.storage.store.client_table import SplitRecord

# Summaries of runs whose clients share nodes have the counts by this key.
DISTINCT = "distinct"


def count_distinct(record: SplitRecord) -> dict[str, list[int]]:
    """Returns what a summary keeps: items that train, validate and test, by client and different; else nothing."""
    return {} if record.distinct is None else {"counted": record.counts.sum(0).tolist(), "different": record.distinct}


def describe_distinct(counts: Mapping[str, Sequence[int]], what: str) -> str:
    """Says how many items of each part are different ones, by the counts of `count_distinct`; empty without them."""
    if not counts:
        return ""
    parts = zip(("train", "validation", "test"), counts["counted"], counts["different"])
    numbers = ", ".join(f"{of_all:,} {part} {what}s are {some:,}" for part, of_all, some in parts)
    return f"each {what} counts at every client that holds it: {numbers} different ones"
