"""The options of a partitioner: the keys under `partition` in a config."""

from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from shoal.storage.options.types import CLOSED, FilePath, Number, Positive, UserName, Whole, WithShortForm

# A client has an entry in lists that every process holds.
MOST_CLIENTS = 10_000_000

Methods = Literal[
    "metis", "kaminpar", "semi-external", "louvain", "random", "dirichlet", "features", "homophily", "index", "file"
]
Clients = Annotated[Positive, Field(le=MOST_CLIENTS)]


@dataclass(frozen=True, config=CLOSED)
class PartitionOptions(WithShortForm):
    """The section `partition` of a config; a method reads the options it needs, and alone may stand for the section.

    Attributes:
        method: How nodes, or graphs, become clients; also `my_file.py:Name`.
        clients: Number of clients; for a list of graphs the number of each, which `domains` then holds.
        domains: Clients of every graph, where `data.dataset` is a list: `clients` is their sum.
        seed: Seed of the method, which METIS and KaMinPar keep in 31 bits; the same seed gives the same assignment.
        resolution: Louvain's gamma; larger gives more and smaller communities.
        imbalance: METIS, KaMinPar, semi-external: largest part over the mean part; 1.03 allows clients 3 % above the
            mean. METIS counts in thousandths and may exceed it slightly, the others keep it as `size_bound` says.
        balance: Louvain: what is balanced between clients, `nodes` or `labelled` nodes.
        file: File: an `.npy` of the client of every node, or graph, integers `[items]`; null: the dataset's own
            assignment.
        chunks: Index: chunks that each graph is cut into, the first of which are clients; nodes of the others belong to
            no client. null: as many as clients.
        alpha: Dirichlet: smaller gives clients of fewer labels, and of more unequal sizes.
        skew: Features, homophily: how much clients differ, from 0, not more than by chance, to 1, as much as may be.
        zipf: Random, features, homophily: exponent of Zipf's law for sizes of clients; 0: all are the same.
        overlap: Clients that draw nodes from each of `clients` / `overlap` parts; 1: a part is a client.
        drawn: Overlap above 1: share of its part's nodes that each client draws, rounded down.
        options: `my_file.py:Name`: values of the fields of its dataclass.

    Raises:
        ValueError: A value is out of its bounds.
    """

    short: ClassVar[str] = "method"
    method: Methods | UserName = "metis"
    clients: Clients = 10
    seed: Annotated[Whole, Field(ge=0, lt=2**31)] = 0
    resolution: Annotated[Number, Field(gt=0)] = 1.0
    imbalance: Annotated[Number, Field(ge=1.001, le=1000)] = 1.03
    balance: Literal["nodes", "labelled"] = "nodes"
    file: FilePath | None = None
    domains: tuple[Clients, ...] | None = None
    chunks: Clients | None = None
    alpha: Annotated[Number, Field(ge=1e-3, le=1e6)] = 0.5
    skew: Annotated[Number, Field(ge=0, le=1)] = 1.0
    zipf: Annotated[Number, Field(ge=0, le=10)] = 0.0
    overlap: Clients = 1
    drawn: Annotated[Number, Field(gt=0, le=1)] = 0.5
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def of_parts(self) -> "PartitionOptions":
        """The options of the parts that clients draw from; with `overlap` 1 parts are clients."""
        return self if self.overlap == 1 else replace(self, clients=self.clients // self.overlap, overlap=1)

    @property
    def holders(self) -> float:
        """Clients of a node on average; more where parts have fewer than 1 / `drawn` nodes."""
        return self.overlap * self.drawn if self.overlap > 1 else 1

    @model_validator(mode="before")
    @classmethod
    def _sum_up(cls, given: Any) -> Any:
        """`clients` as a list stands for `domains` and their sum."""
        called = isinstance(given, ArgsKwargs)
        values = dict(given.kwargs or {}) if called else given
        clients = values.get("clients") if isinstance(values, dict) else None
        if not isinstance(clients, list | tuple):
            return given
        if not all(type(number) is int for number in clients) or not clients:
            raise ValueError(f"clients must be a number, or a list of one for every graph, found {list(clients)}")
        values = {**values, "clients": sum(clients), "domains": tuple(clients)}
        return ArgsKwargs(given.args, values) if called else values

    @model_validator(mode="after")
    def _require_agreement(self) -> "PartitionOptions":
        if self.domains is not None and sum(self.domains) != self.clients:
            raise ValueError(
                f"clients is {self.clients}, those of the domains are {sum(self.domains)}; give `clients` as a list, "
                "and no `domains`"
            )
        if self.clients % self.overlap:
            raise ValueError(
                f"overlap {self.overlap} does not divide clients {self.clients}; set clients to a multiple of it"
            )
        return self
