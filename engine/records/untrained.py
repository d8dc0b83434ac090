"""The clients of a run that have nothing to train on: how many there are, what is said of them, and what is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shoal.engine.config.config import Config
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import TWINS
from shoal.storage.store.manifest import Manifest

# A run says so above the first share of its clients, and is refused above the second.
MOST_UNSAID, MOST_UNREFUSED = 0.5, 0.9
# Summaries have these counts by this key, in runs that say so alone.
UNTRAINED = "untrained"


@dataclass(frozen=True)
class Untrained:
    """The clients without a training item, among those that may take part; `items` are the training items of all."""

    clients: int
    among: int
    items: int

    @property
    def share(self) -> float:
        """Returns the share of the clients that have none."""
        return self.clients / max(1, self.among)

    def as_counts(self) -> dict[str, int]:
        """Returns the counts that a summary keeps; none where nothing is said."""
        return asdict(self) if self.share > MOST_UNSAID else {}


def count_untrained(train: np.ndarray, absent: Sequence[int]) -> Untrained:
    """Counts clients without a training item, by the numbers of training items of all, `[clients]`, but the absent."""
    present = np.delete(train, np.array(absent, dtype=np.int64))
    return Untrained(int((present == 0).sum()), len(present), int(present.sum()))


def untrained_of(manifest: Manifest, split: str, absent: Sequence[int]) -> Untrained:
    """Counts them by the table of a store's split; no shard is opened."""
    return count_untrained(manifest.splits[split].counts[:, 0], absent)


def fewest_untrained(clients: int, items: int) -> Untrained:
    """Returns the counts of so many clients at best, where each of so many training items, at most, has another one."""
    return Untrained(max(0, clients - items), clients, items)


def describe_untrained(counts: Mapping[str, Any], item: str) -> str:
    """Says in words how many clients cannot train; empty without counts, as of most runs."""
    if not counts:
        return ""
    return (
        f"{counts['clients']:,} of {counts['among']:,} clients have no training {item} and never train "
        f"({counts['items']:,} training {item}s in all)"
    )


def require_trainable(config: Config, untrained: Untrained, item: str) -> None:
    """Refuses a run of which nearly no client can train, unless `data.allow_untrained` says that this is meant."""
    data = config.data
    if untrained.share <= MOST_UNREFUSED or data.allow_untrained:
        return
    made = str(data.dataset).lower() in TWINS.values()
    ways = ["data.split=public" if made and data.split != "public" else "another data.split"]
    ways += ["larger data.fractions"] * (data.split in ("stratified", "per_client"))
    ways += ["a smaller data.sparsity.labels"] * (data.sparsity.labels > 0)
    ways += ["fewer clients (partition.clients)"] * (config.partition.method != "file")
    ways += ["a larger data.options.scale"] * made
    raise ShoalError(
        "data.split",
        f"{data.split}: {describe_untrained(untrained.as_counts(), item)}; take {', '.join(ways)}, "
        "or set data.allow_untrained=true if that is meant",
    )
