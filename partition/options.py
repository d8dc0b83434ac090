"""The options of a partitioner: the keys under `partition` in a config."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from storage.option_types import CLOSED, FilePath, Number, Positive, Whole

# A client has files of its own, and an entry in lists that every process holds.
MOST_CLIENTS = 1_000_000


@dataclass(frozen=True, config=CLOSED)
class PartitionOptions:
    """The section `partition` of a config; a method reads the options it needs.

    Attributes:
        method: How nodes become clients; a key of `partition.METHODS`.
        clients: Number of clients.
        seed: Seed of the method, which METIS and KaMinPar keep in 31 bits; the same seed gives the same assignment.
        resolution: Louvain's gamma; larger gives more and smaller communities.
        imbalance: METIS, KaMinPar, semi-external: largest part over the mean part; 1.03 allows clients 3 % above the
            mean. METIS counts in thousandths and may exceed it slightly, the others keep it as `size_bound` says.
        balance: Louvain: what is balanced between clients, `nodes` or `labelled` nodes.
        file: File: an `.npy` of the client of every node, integers `[N]`; None: the dataset's own assignment.

    Raises:
        ValueError: A value is out of its bounds.
    """

    method: Literal["metis", "kaminpar", "semi-external", "louvain", "random", "file"] = "metis"
    clients: Annotated[Positive, Field(le=MOST_CLIENTS)] = 10
    seed: Annotated[Whole, Field(ge=0, lt=2**31)] = 0
    resolution: Annotated[Number, Field(gt=0)] = 1.0
    imbalance: Annotated[Number, Field(ge=1.001, le=1000)] = 1.03
    balance: Literal["nodes", "labelled"] = "nodes"
    file: FilePath | None = None
