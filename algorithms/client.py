"""One client during its visit to a host: its data, its models, its state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from shoal.algorithms.client_model import ClientModel
from shoal.algorithms.protocol import MODEL, Tree
from shoal.algorithms.rng import generator_on
from shoal.storage.store.manifest import count_of_items
from shoal.storage.store.view import View


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows of a client, too.

    Attributes:
        client: Number of the client.
        nodes: Rows of its shard.
        train: Training items: rows, graphs, or pairs of rows.
        classes: Number of classes C of the federation.
        model: Which of the run's models it trains.
        graphs: Graphs of its shard, where graphs are what is predicted.
        pairs: Pairs of its rows, where pairs are. Both None: its rows are.
        domain: Number of the graph that it comes from, where there are several.
    """

    client: int
    nodes: int
    train: int
    classes: int
    model: int = 0
    graphs: int | None = None
    pairs: int | None = None
    domain: int = 0

    @property
    def items(self) -> int:
        """How many predictions it has: its rows, its graphs, or its pairs."""
        return count_of_items(self.nodes, self.graphs, self.pairs)

    @property
    def items_are_rows(self) -> bool:
        """Whether what is predicted are its nodes."""
        return self.graphs is None and self.pairs is None


@dataclass
class Client:
    """A client while it is on a host.

    Attributes:
        info: Sizes.
        data: View of its shard.
        models: Its models by the names that the method gives them.
        state: What the client keeps between rounds, a private copy. Parameters and moments of models are kept by the
            engine, under the names of `parameters_key` and `moments_key`; anything else is the method's.
        inbox: Results of `Mix` addressed to it since its last visit, read-only; kept until a newer one takes its
            place.
        random: Seed of a purpose, from (run seed, round, client, purpose).
    """

    info: ClientInfo
    data: View
    models: Mapping[str, ClientModel]
    state: Tree
    inbox: Tree
    random: Callable[[str], int]

    @property
    def model(self) -> ClientModel:
        """The client's model; if it has several, the one of the config's `model`."""
        return self.models[MODEL]

    def rng(self, purpose: str) -> torch.Generator:
        """A separate random stream for every purpose of a visit."""
        return generator_on(self.data.device).manual_seed(self.random(purpose))


def random_of(random: Callable[[str], int], name: str) -> Callable[[str], int]:
    """The seeds of one of a client's models, by purpose."""
    return random if name == MODEL else lambda purpose: random(f"{name}/{purpose}")
