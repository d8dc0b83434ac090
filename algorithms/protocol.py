"""The protocol between a federated method and the engine.

The server's part of a round is one generator. It yields an `Ask` (run a phase on clients and come back with their
`Replies`) or a `Mix` (multiply what clients uploaded and the engine holds by a matrix), as often as it likes. Server
state and client state are values (`Tree`), which the engine ships, counts, checkpoints and replays.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

Tree = dict[str, Tensor]
# The name of a client's model where a method names none: the one that the config's `model` describes.
MODEL = "model"


def parameters_key(model: str) -> str:
    """Returns the name in a client's state of the parameters of one of its models, `[P]`."""
    return f"{model}.w"


def moments_key(model: str, moment: str = "") -> str:
    """Returns the name in a client's state of a moment of a model's optimizer; without `moment`, the prefix."""
    return f"{model}.opt.{moment}"


# A client's state holds the residuals of compression under this prefix, before phase and entry.
COMPRESSION = "compression/"


# Where it holds what a stage of the user's keeps there.
OF_STAGES = "stage/"
# What stages keep of a client begins with one of these.
BY_STAGES = (COMPRESSION, OF_STAGES)


def stage_key(stage: str) -> str:
    """Returns how the entries of a client's state begin that a stage of the user's keeps."""
    return f"{OF_STAGES}{stage}/"


def only_trains(key: str) -> bool:
    """Whether no evaluation reads an entry of a client's state: a moment of an optimizer, or of compression."""
    return ".opt." in key or key.startswith(BY_STAGES)


class Reduce(Enum):
    """The ways to reduce an entry of the uploads on its way to the server."""

    MEAN = "sum"  # weighted mean over clients; cells send partial sums
    STACK = "keep"  # the server sees the tensor of every client, all of one shape
    GATHER = "list"  # the same, of any size for every client
    MIX = "mix"  # the engine holds the tensor of every client and multiplies where it likes


@dataclass(frozen=True)
class Ask:
    """Run one phase on some clients; the generator receives their `Replies`.

    Attributes:
        phase: Its name, given to `Algorithm.train` and `Algorithm.upload`.
        up: Entries that come back, and how each is reduced.
        shared: Download that is the same for all.
        private: Further download of single clients, by number; wins over `shared`.
        train: The clients train before their upload.
        to: Clients to ask; the cohort by default.
        score: Where they train and an evaluation is due, they are evaluated as `trained` after it: not so in a phase
            that is followed by another one of their training.
        score_with: What evaluation as `trained` reads in addition, by `Algorithm.receive`, as a part of the model that
            never leaves the server; it does not count as sent.
    """

    phase: str
    up: Mapping[str, Reduce]
    shared: Tree = field(default_factory=dict)
    private: Mapping[int, Tree] = field(default_factory=dict)
    train: bool = True
    to: Sequence[int] | None = None
    score: bool = True
    score_with: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Mix:
    """`inbox[dst[i]][entry] = rows[i] @ held[entry]`, or, without `dst`, the product goes to the generator.

    Attributes:
        entry: An entry uploaded as `Reduce.MIX` in this round.
        rows: Mixing matrix, `[len(dst), len(replies)]`, columns in the order of `Replies.ids`; without `dst` one row,
            `[len(replies)]`, or any number.
        dst: Clients that find their row in the next download, after which the entry cannot be mixed again; None: the
            server.
    """

    entry: str
    rows: Tensor
    dst: Sequence[int] | None = None


@dataclass(frozen=True)
class Upload:
    """The message of one client in one phase.

    Attributes:
        entries: Tensors by name; names and reductions were fixed by the `Ask`.
        weight: Weight of the client in the weighted means of its `Reduce.MEAN` entries, 1 by default; a tensor that
            broadcasts against the entry weighs its rows apart (prototypes: `[C, 1]` counts). A row of weight 0 may
            be NaN.
        upload_bytes: Bytes that an entry and its weight take as the protocol would send them, where that is less than
            the padded tensors say: rows of classes that a client lacks are not sent.
    """

    entries: Tree
    weight: Mapping[str, float | Tensor] = field(default_factory=dict)
    upload_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Replies:
    """The uploads of a phase as the server sees them.

    Attributes:
        ids: Clients that answered, ascending.
        entries: `Reduce.MEAN`: the weighted mean, zero where no client has weight. `Reduce.STACK`: tensors stacked
            along a new first axis in the order of `ids`. Entries of `Reduce.MIX` are held by the engine.
        weights: Total weight of every `Reduce.MEAN` entry, float64, of the shape of the clients' weights.
        lists: `Reduce.GATHER`: the tensor of every client, in the order of `ids`.
    """

    ids: list[int]
    entries: Tree
    weights: Tree
    lists: dict[str, list[Tensor]] = field(default_factory=dict)

    def __getitem__(self, entry: str) -> Tensor:
        return self.entries[entry]


def creating_on(device: torch.device) -> AbstractContextManager[object]:
    """Puts tensors that a method makes anew inside the block on the device."""
    return nullcontext() if device.type == "cpu" else device


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Moves the tensors to a device; those that lie there already are the same."""
    return {name: t.to(device) for name, t in tree.items()}


def copy_to(tree: Tree, device: torch.device) -> Tree:
    """Copies the tensors to a device."""
    return {name: t.to(device, copy=True) for name, t in tree.items()}
