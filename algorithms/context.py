"""The context of a method's server hooks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.algorithms.client import ClientInfo, FlatModel
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import generator_on
from shoal.algorithms.train_options import TrainOptions


@dataclass(frozen=True)
class ModelInfo:
    """A model that clients train.

    Attributes:
        name: Name of the backbone.
        shapes: Shape of every parameter by its name, in the order in which they lie in `w`.
        width: Width H of the embedding, which its classifier reads.
    """

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    width: int

    @property
    def parameters(self) -> int:
        """Number of parameters P."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())


@dataclass(frozen=True)
class Context:
    """The run as the server knows it.

    Attributes:
        clients: Sizes of every client, by number; the same for all where clients are hidden (`privacy.unit: client`).
        scored: Sizes of what every client is scored on: more where training sees training nodes alone.
        classes: Number of classes C.
        features: Width F of the features and of every hop.
        hops: Hops K beyond the features.
        train: Options of local training.
        models: The kinds of every named model: where the config's `model` lists several, client i has number
            `clients[i].model` of them.
        initial: The common initial parameters, float32 `[P]` (of client 0's model, where clients train several).
        build: Makes a model from its name and the number of its kind, with the parameters that clients start from.
        device: Where the server computes.
        round: Number of the round, from 1; 0 in `setup`.
        rounds: Rounds of the run.
        seed: Seed of the run.
        random: Seed of a purpose of the server in this round.
        notes: Numbers that a method adds to the round's metrics, by name.
        records: Tensors for a report, by name; None where the run keeps none of this round.
    """

    clients: Sequence[ClientInfo]
    scored: Sequence[ClientInfo]
    classes: int
    features: int
    hops: int
    train: TrainOptions
    models: Mapping[str, Sequence[ModelInfo]]
    initial: Tensor
    build: Callable[[str, int], FlatModel]
    device: torch.device
    round: int
    rounds: int
    seed: int
    random: Callable[[str], int]
    notes: dict[str, float] = field(default_factory=dict)
    records: dict[str, Tensor] | None = None

    @property
    def width(self) -> int:
        """Width H of the embedding of the model that clients train; of the first one where the config lists several."""
        return self.models[MODEL][0].width

    def model_of(self, client: int, name: str = MODEL) -> ModelInfo:
        """Returns the kind of one of a client's models."""
        kinds = self.models[name]
        return kinds[self.clients[client].model if len(kinds) > 1 else 0]

    def record_mixing(self, receivers: Sequence[int], senders: Sequence[int], rows_KJ: Tensor) -> None:
        """Records the weights by which uploads were mixed; does nothing where the run keeps no records.

        Args:
            receivers: Clients, one a row.
            senders: Clients, one a column.
            rows_KJ: Weights, `[receivers, senders]`.
        """
        if self.records is not None:
            mixing_BB = torch.zeros(len(self.clients), len(self.clients))
            mixing_BB[torch.tensor(receivers)[:, None], torch.tensor(senders)] = rows_KJ.detach().float().cpu()
            self.records["mixing"] = mixing_BB

    def record_prototypes(self, clients: Sequence[int], proto_KCH: Tensor, present_KC: Tensor) -> None:
        """Records prototypes of classes; does nothing where the run keeps no records.

        Args:
            clients: One a row.
            proto_KCH: Prototypes.
            present_KC: Which exist.
        """
        if self.records is not None:
            self.records["prototypes"] = proto_KCH[present_KC].detach().float().cpu()
            row, c = present_KC.cpu().nonzero(as_tuple=True)
            self.records["prototype_client"], self.records["prototype_class"] = torch.tensor(clients)[row], c

    def rng(self, purpose: str) -> torch.Generator:
        """Makes a separate random stream for every purpose of a round."""
        return generator_on(self.device).manual_seed(self.random(purpose))
