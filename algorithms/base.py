"""What the server's part of a method is given, and the plain choices a method may leave as they are."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.backbones.output import Output
from algorithms.client import Client, ClientInfo
from algorithms.protocol import Ask, Mix, Replies, Tree, Upload

Steps = Generator[Ask | Mix, Any, None]


@dataclass(frozen=True)
class Context:
    """What the server knows of the run.

    Attributes:
        clients: Sizes of every client, by number.
        classes: Number of classes C.
        parameters: Number of parameters P of every client's model.
        initial: The common initial parameters, float32 `[P]` (of client 0's model, where clients train several).
        round: Number of the round, from 1; 0 in `setup`.
        rounds: Rounds of the run.
        seed: Seed of the run.
        random: Seed of a purpose of the server in this round.
        notes: Numbers that a method wants to see beside the round's metrics, by name.
    """

    clients: Sequence[ClientInfo]
    classes: int
    parameters: Sequence[int]
    initial: Tensor
    round: int
    rounds: int
    seed: int
    random: Callable[[str], int]
    notes: dict[str, float] = field(default_factory=dict)

    def rng(self, purpose: str) -> torch.Generator:
        """A random stream of its own for every purpose of a round."""
        return torch.Generator().manual_seed(self.random(purpose))


class Algorithm:
    """A federated method; a subclass is a frozen dataclass of its hyper-parameters.

    Attributes:
        keeps_model: Clients keep their trained parameters until their next visit.
        whole: Trains one client that holds the whole graph with all edges.
        mixed_models: Clients may train different models: no parameters are averaged over all of them.
    """

    keeps_model: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    mixed_models: ClassVar[bool] = False

    def setup(self, ctx: Context) -> Tree:
        """The server's state before the first round."""
        return {}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        """The server's part of one round; it changes `server`, a private copy, in place."""
        raise NotImplementedError

    def serve(self, server: Tree) -> Tree:
        """The model that the server would send to anybody now, as a download; empty if it has none."""
        return {}

    def begin(self, client: Client, down: Tree) -> None:
        """Applies a download (and the inbox) to the client before it trains or is evaluated.

        Before an evaluation the download is what `serve` gave, or empty; an empty one leaves the client as it is.
        """
        if "w" in down:
            client.load(down["w"])

    def loss(self, out: Output, y: Tensor, w: Tensor, down: Tree) -> Tensor:
        """Training loss of a batch, a scalar.

        Args:
            out: Output of the model.
            y: Labels, int64 `[n]`.
            w: Parameters of the model, `[P]`, differentiable.
            down: The download of this visit.
        """
        return F.cross_entropy(out.logits_NC, y)

    def regularizer(self, client: Client, down: Tree) -> Callable[[], Tensor] | None:
        """A term of the training loss that sees more of the client than a batch; None: there is none.

        Called once a visit, after `begin`; what it returns gives the term, a scalar, in every step.
        """
        return None

    def upload(self, client: Client, down: Tree, phase: str) -> Upload:
        """What the client sends after it trained."""
        return Upload({})

    def predict(self, client: Client, part: str) -> Tensor:
        """Scores of the rows of `train`, `val`, `test` or of all rows (`all`), `[rows, C]`; the largest one wins."""
        return client.logits() if part == "all" else client.logits_of(part)


__all__ = ["Algorithm", "Ask", "Client", "Context", "Mix", "Output", "Replies", "Steps", "Tree", "Upload"]
