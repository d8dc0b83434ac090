"""What a method is: the server's part of a round, the clients' part, and the plain choices it may leave as they are."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.context import Context
from shoal.algorithms.models.layers.output import Output
from shoal.algorithms.protocol import MODEL, Ask, Mix, Replies, Tree, Upload
from shoal.algorithms.train_options import TrainOptions

Requests = Generator[Ask | Mix, Any, None]
# What `receive` makes of a download; whatever suits the method.
Received = Any
Loss = Callable[[Output, Tensor, Tensor, Received], Tensor]
Term = Callable[[], Tensor]
OF_TRAINING = ("train", "loss", "regularizer", "regularizers", "rows_beside", "loss_beside")


class BatchedTerm(NamedTuple):
    """A term of the losses of several clients that are trained in one batch.

    Attributes:
        rows: Of every client the nodes, int64, that its model answers for in every step, too; none: no term.
        term: The terms `[B]` of all clients, given what their models say of these nodes: logits `[B, R, C]` and
            embeddings `[B, R, H]`, R being the number of nodes of the client that has most. Rows beyond hold anything.
    """

    rows: Sequence[Tensor]
    term: Callable[[Output], Tensor]


class Trainer(Protocol):
    """Local training as the config says; see `shoal.algorithms.training.local_training`."""

    options: TrainOptions

    def fit(
        self, client: Client, received: Received, model: str = MODEL, loss: Loss | None = None, term: Term | None = None
    ) -> float:
        """Trains one of a client's models in place; returns the mean loss of the last epoch, NaN without rows.

        Args:
            client: The client.
            given: What `receive` gave.
            model: Name of the model.
            loss: In the place of the method's `loss` and `regularizer`.
            term: Beside `loss`: a term that is added in every step.
        """
        ...

    def optimizer(self, client: Client, model: str = MODEL) -> AbstractContextManager[torch.optim.Optimizer]:
        """The optimizer of one of a client's models, with its moments, for a training loop of a method's own."""
        ...


class Algorithm:
    """A federated method; a subclass is a frozen dataclass of its hyper-parameters.

    Attributes:
        keeps_model: Clients keep the parameters of their models until their next visit.
        whole_graph: Trains one client that holds the whole graph with all edges.
        mixed_models: Clients may train different models: no whole models are averaged.
        reads_embedding: Reads what lies below the classifier, or takes models apart there. With other methods, models
            of nodes end as in their papers where the config does not say how (`model.head`): some in message passing.
        shares_part: What `global_model` gives is a part of a model, as its classifier: clients put it into their own,
            and by itself it is not evaluated.
        tasks: What it can train clients to answer for: every `node`, whether an `edge` joins two nodes, every `graph`.
            One that reads a client's edges, or features by node, is for nodes alone; one that reads outputs of models
            and labels is for all.
        weighs_edges: It reads no edges itself, or reads them with their weights; else it is refused where edges have
            weights.
        plain_training: Clients train by `trainer.fit` on cross-entropy alone, so that several may be trained in one
            batch, or each by the formulas of its gradients. A subclass with a hook of `OF_TRAINING` of its
            own is not plain, unless it says so itself.
        loss_of_several: `loss` may be computed for several clients at once, by `torch.vmap`: rows whose label is
            negative have no part in it, it looks at no number, and `receive` gives trees of tensors. Beside a
            `regularizer` of its own it has `regularizers`. A subclass with a hook of `OF_TRAINING` of its own has to
            say so anew.
    """

    keeps_model: ClassVar[bool] = False
    centralized: ClassVar[bool] = False
    mixed_models: ClassVar[bool] = False
    reads_embedding: ClassVar[bool] = False
    shares_part: ClassVar[bool] = False
    tasks: ClassVar[frozenset[str]] = frozenset({"node", "edge", "graph"})
    weighs_edges: ClassVar[bool] = True
    plain_training: ClassVar[bool] = True
    loss_of_several: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls)
        if any(name in own for name in OF_TRAINING):
            cls.plain_training = own.get("plain_training", False)
            cls.loss_of_several = own.get("loss_of_several", False)

    def trained_together(self) -> bool:
        """Whether several clients may be trained in one batch, with these hyper-parameters."""
        several = self.loss_of_several and told_for_several(type(self), "regularizers", "regularizer")
        return self.plain_training or several

    def models(self) -> Mapping[str, Mapping[str, Any] | None]:
        """The models of every client, by the names that the method gives them.

        None stands for the model that the config's `model` gives to the client; anything else is written as in a
        config, as in `{"name": "sgc", "hidden": 64}`, and is the same model at every client.
        """
        return {MODEL: None}

    # The server's part.

    def setup(self, ctx: Context) -> Tree:
        """The server's state before the first round."""
        return {}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        """The server's part of one round; it changes `server`, a private copy, in place."""
        raise NotImplementedError

    def global_model(self, server: Tree) -> Tree:
        """The model that the server would give to anybody now, as a download; empty if it has none."""
        return {}

    def evaluates_global_model(self) -> bool:
        """Whether `global_model` gives a model that is evaluated by itself."""
        return type(self).global_model is not Algorithm.global_model and not self.shares_part

    # The clients' part; downloads and inboxes are read-only.

    def receive(self, client: Client, down: Tree) -> Received:
        """Applies a download (and the inbox) to the client, before it trains or is evaluated.

        Before an evaluation the download is what `global_model` gave, or empty; an empty one leaves the client as it
        is.

        Returns:
            What the client was given, in the form that the hooks below want; the download itself by default.
        """
        if "w" in down:
            client.model.borrow(down["w"])
        return down

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        """Trains the client, and returns its loss, NaN if nothing was trained."""
        return trainer.fit(client, received)

    def loss(self, out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
        """Training loss of a batch, a scalar.

        Args:
            out: Output of the model.
            y: Labels, int64 `[n]`.
            w: Parameters of the model, `[P]`, differentiable.
            given: What `receive` gave.
        """
        return F.cross_entropy(out.logits_NC, y)

    def regularizer(self, client: Client, received: Received) -> Term | None:
        """A term of the training loss that sees more of the client than a batch; None: there is none.

        Called once a visit, after `receive`; what it returns gives the term, a scalar, in every step. By default
        that of `rows_beside`.
        """
        beside = self.rows_beside(received)
        if beside is None:
            return None
        rows, y = client.model.alike(beside), client.data.train_label
        return lambda: self.loss_beside(client.model(rows), y, received)

    def regularizers(self, clients: Sequence[Client], w_BP: Tensor, received: Sequence[Received]) -> BatchedTerm | None:
        """`regularizer` of several clients of one kind that are trained in one batch, to rounding; None: there is none.

        Not asked for what `rows_beside` tells. What is random comes from each client's own generators.

        Args:
            clients: The clients; the model that they share holds the parameters of none of them.
            w_BP: Their parameters as the visit begins, which stay as they are.
            given: What `receive` gave of each.
        """
        return None

    def rows_beside(self, received: Received) -> Tensor | None:
        """Rows of features `[n, F]` that the model answers for in every step, too, as for nodes with neighbours all
        like them; None: there are none.
        """
        return None

    def loss_beside(self, out: Output, y: Tensor, received: Received) -> Tensor:
        """The term of the training loss of these rows, a scalar.

        Args:
            out: Output of the model for them.
            y: Labels of the training rows, as `loss` is given them.
            given: What `receive` gave.
        """
        raise NotImplementedError

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        """What the client sends after it trained; it does not train here."""
        return Upload({})

    def uploads(
        self, clients: Sequence[Client], w: Sequence[Tensor], received: Sequence[Received], phase: str
    ) -> Mapping[int, Upload]:
        """What several clients of one kind send that were trained at once, by their places: as `upload` has it, to
        rounding. Those that are not in it are asked by `upload`, in their turn.

        Asked on GPUs alone, which take as long to be told as to compute, and not of a class that replaces the `upload`
        of one that has this. Where there is no memory for it each is asked alone, too.

        Args:
            clients: The clients; the model that they share holds the parameters of none of them.
            w: Their parameters `[P]` each, which stay as they are.
            given: What `receive` gave of each.
            phase: The phase.
        """
        return {}

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        """Scores of the items of `train`, `val`, `test` or of all items (`all`), `[items, C]`; the largest one wins.

        Which of several models answers is the method's to say; by default the one that the config names. Where training
        sees training nodes alone, the client here has all nodes, while `given` was made of its training nodes.
        """
        return client.model.logits() if part == "all" else client.model.logits_of(part)


def told_for_several(method: type[Algorithm], several: str, alone: str) -> bool:
    """Whether a method has one hook for several clients that says what the other says of each.

    It does not where a class has changed the one for each since, and not the one for several.
    """
    return next(name for cls in method.__mro__ for name in (several, alone) if name in vars(cls)) == several


__all__ = [
    "Algorithm",
    "Ask",
    "BatchedTerm",
    "Client",
    "Context",
    "Loss",
    "Mix",
    "Output",
    "Received",
    "Replies",
    "Requests",
    "Term",
    "Trainer",
    "Tree",
    "Upload",
    "told_for_several",
]
