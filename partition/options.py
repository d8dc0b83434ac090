"""What a user may ask of a partitioner: the keys under `partition` in a config."""

import math
from dataclasses import dataclass

from storage.errors import ShoalError

BALANCES = ("nodes", "labelled")


@dataclass(frozen=True)
class PartitionOptions:
    """Options of all methods; a method reads the ones it needs.

    Attributes:
        method: 'metis', 'kaminpar', 'semi-external', 'louvain', 'random' or 'file'.
        clients: Number of clients.
        seed: Seed of the method, 0 to 2^31 - 1; the same seed gives the same assignment.
        resolution: Louvain's gamma; larger gives more and smaller communities.
        imbalance: METIS, KaMinPar, semi-external: largest part over the mean part, at least 1.001; a goal that METIS
            may just miss, and a bound to the others.
        balance: Louvain: what is balanced between clients, 'nodes' or 'labelled' nodes.
        file: File: an `.npy` of the client of every node, integers `[N]`; None: the dataset's own assignment.

    Raises:
        ShoalError: A value is out of its bounds.
    """

    method: str
    clients: int
    seed: int = 0
    resolution: float = 1.0
    imbalance: float = 1.03
    balance: str = "nodes"
    file: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise ShoalError(f"partition.seed is {self.seed}: choose from 0 to {2**31 - 1}")
        if not (self.resolution > 0 and math.isfinite(self.resolution)):
            raise ShoalError(f"partition.resolution is {self.resolution}: choose a number above 0")
        if not (self.imbalance >= 1.001 and math.isfinite(self.imbalance)):
            raise ShoalError(f"partition.imbalance is {self.imbalance}: choose a number of at least 1.001")
        if self.balance not in BALANCES:
            known = ", ".join(BALANCES)
            raise ShoalError(f"partition.balance '{self.balance}' is unknown: choose one of {known}")
