"""The base class of a federated method: eleven hooks, six class flags, and the training that the hooks may call."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.context import Context
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import MODEL, Ask, Mix, Tree, Upload
from shoal.algorithms.protocol import Replies as Replies  # for methods, which import from here
from shoal.algorithms.target_loss import target_loss
from shoal.algorithms.train_options import TrainOptions
from shoal.storage.graph.sparse_matrix import SparseMatrix

Requests = Generator[Ask | Mix, Any, None]
# The value of `receive`, of any type that suits the method.
Received = Any
Loss = Callable[[Output, Tensor, Tensor, Received], Tensor]
Marked = TypeVar("Marked", bound=Callable[..., Tensor])
Hook = TypeVar("Hook", bound=Callable[..., Any])
Term = Callable[[], Tensor]
# Numbers of rows, of their embeddings `[M, H]`, labels `[M]` (negative: padding) and what else they read, with a
# gradient, and which rows have part, bool.
OfRows = Callable[..., tuple[Tensor, Tensor]]
ClientModels = Literal["global", "grouped", "personal", "heterogeneous"]
Forms = Mapping[str, Mapping[str, Any]]

TASKS = frozenset({"node", "edge", "graph"})
WEIGHTED, NEWCOMERS, TARGETS = "weighted", "newcomers", "targets"


@dataclass(frozen=True)
class Pull:
    """A pull on a client's parameters w: every gradient of its training also gets linear + mu (w - origin).

    So it would get from linear . w + mu / 2 |w - origin|^2 in the loss, as FedProx, SCAFFOLD and FedDC have it; the
    loss that is reported has no such term.

    Attributes:
        linear: Float32 `[P]`; None: there is none.
        origin: Float32 `[P]`; None: there is none.
        mu: Strength of the pull to the origin; 0 without one.
        total: Float32 `[P]`, to which every step adds the gradient of the loss, without pull and weight decay; None: it
            is not wanted.
    """

    linear: Tensor | None = None
    origin: Tensor | None = None
    mu: float = 0.0
    total: Tensor | None = None

    def is_contiguous(self) -> bool:
        """Whether the numbers of its vectors lie one behind another."""
        return all(t is None or t.is_contiguous() for t in (self.linear, self.origin, self.total))

    def apply(self, gradient: Tensor, w: Tensor) -> None:
        """Changes the gradient of a step at w, both `[P]`, or `[B, P]` as all else here, and keeps what it was."""
        if self.total is not None:
            self.total.add_(gradient)
        if self.linear is not None:
            gradient.add_(self.linear)
        if self.origin is not None and self.mu:
            gradient.add_(w - self.origin, alpha=self.mu)


class Trainer(Protocol):
    """Local training as the config describes it; see `shoal.algorithms.training.local_training`."""

    options: TrainOptions

    @property
    def compiles(self) -> bool:
        """Whether `pure` losses may be trained on in one compiled call."""

    def fit(
        self, client: Client, received: Received, model: str = MODEL, loss: Loss | None = None, term: Term | None = None
    ) -> float:
        """Trains one of a client's models in place; returns the mean loss of the last epoch, NaN without rows.

        Args:
            client: The client.
            received: The value of `receive`, passed to the loss.
            model: Name of the model.
            loss: Loss of a batch; None: the method's `loss`.
            term: Gives a scalar that every step adds to the loss, for terms that read more than the batch.
        """

    def optimizer(self, client: Client, model: str = MODEL) -> AbstractContextManager[torch.optim.Optimizer]:
        """Makes the optimizer of one of a client's models, with its moments, for a method's own training loop."""


def pure(loss: Marked) -> Marked:
    """Marks a loss, or a term, that is the same function of outputs in all steps of a visit.

    It draws nothing beside what models drop, and reads no `w`. It is called once with stand-ins for the outputs, see
    `models.compiled.losses`, and not again if it is a sum of losses that compiled code has.
    """
    loss.is_pure = True  # type: ignore[attr-defined]
    return loss


def same_for_all(pull: Hook) -> Hook:
    """Marks a `pull` that is the same for all clients: it reads `received` and options alone."""
    pull.is_same_for_all = True  # type: ignore[attr-defined]
    return pull


def is_pure(loss: Callable[..., Tensor]) -> bool:
    """Whether a loss, or a term of one, is marked as `pure`."""
    return getattr(loss, "is_pure", False)


class Algorithm:
    """A federated method; a subclass is a frozen dataclass of its hyper-parameters.

    Server hooks: `setup`, `round`, `global_model`. Client hooks: `receive`, `train`, `loss`, `pull`, `upload`,
    `predict`; downloads and inboxes are read-only. Both read `models` and `norms`. A method needs `round`, every other
    hook has a default.

    Attributes:
        centralized: Trains one client that holds the graph with all edges.
        client_models: `global`: a client's model is rebuilt from each download. `grouped`: so it is, and clients may
            train different architectures. `personal`: clients keep their parameters until their next visit.
            `heterogeneous`: they may also train different architectures.
        reads_embedding: Reads embeddings or takes models apart at the classifier. Node models then end in a linear
            layer where the config leaves `model.head` open; with other methods some end in message passing.
        supports: Tasks the method can train for, of `node`, `edge` and `graph`; one that reads a client's edges or
            features itself is for nodes alone. `weighted`: it reads no edges, or reads their weights. `newcomers`: a
            client that comes after the last round is given what one in that round would be. `targets`: labels may be
            numbers, or several an item; a method with a loss of its own says so itself.
        forms: Options of a named form, which `algorithm.form` takes: `paper` is the paper to the letter, `code` what
            its authors' program does. `recommended` are the defaults. Options that are given come first.
        sends_once: Clients upload in round 1 alone where all take part in it, and epsilon of a client counts that.
        only_replaced: Entries of `client.state` that no hook of ours writes into: their visits need no copies of these.
    """

    centralized: ClassVar[bool] = False
    client_models: ClassVar[ClientModels] = "global"
    reads_embedding: ClassVar[bool] = False
    supports: ClassVar[frozenset[str]] = TASKS | {WEIGHTED, NEWCOMERS, TARGETS}
    forms: ClassVar[Forms] = {}
    sends_once: ClassVar[bool] = False
    only_replaced: ClassVar[frozenset[str]] = frozenset()

    def models(self) -> Mapping[str, Mapping[str, Any] | None]:
        """Names the models of every client: None is the one of the config's `model`.

        Anything else is written as in a config, as in `{"name": "sgc", "hidden": 64}`, the same for all clients.
        """
        return {MODEL: None}

    def norms(self) -> Mapping[str, float | None]:
        """Returns the largest l2 norm of each entry, beside means, that clients can hide (`privacy.where: client`).

        By entry, whatever the data: None of a change from what the client received, which the config's clip bounds. Of
        norm 0 is a weight that the method can do without: each client sends ones. Other entries are refused, and so are
        those of `Reduce.GATHER`, which differ in shape.
        """
        return {}

    def setup(self, ctx: Context) -> Tree:
        """Makes the server's state before the first round."""
        return {}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        """Does the server's part of one round; it changes `server`, a private copy, in place."""
        raise NotImplementedError

    def global_model(self, server: Tree) -> Tree:
        """Returns the download that the server would give to any client now; empty if it has none.

        With an entry `w` it is a whole model, evaluated as scope `global`; without, a part that clients combine with
        their own.
        """
        return {}

    def receive(self, client: Client, down: Tree) -> Received:
        """Applies a download (and the inbox) to the client; returns what the hooks below read of it, in any form.

        It runs before the client trains or is evaluated. Before an evaluation the download is the value of
        `global_model`, or empty; an empty one leaves the client unchanged.
        """
        if "w" in down:
            client.model.borrow(down["w"])
        return down

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        """Trains the client; returns its loss, NaN if nothing was trained.

        A method that adds a term to the loss calls `trainer.fit` with `term=`, or has a `pull`.
        """
        return trainer.fit(client, received)

    @pure
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
        """Computes the training loss of a batch, a scalar.

        Args:
            out: Output of the model.
            y: Labels, int64 `[n]`; with another `target` than classes float32 or int8 `[n, C]`, see `target_loss`.
            w: Parameters of the model, `[P]`, differentiable.
            received: The value of `receive`.
        """
        return target_loss(out.logits_NC, y)

    def pull(self, client: Client, received: Received, options: TrainOptions) -> Pull | None:
        """Returns what every gradient of `trainer.fit` gets beside that of the loss; None: nothing.

        It is called once before the first step, and its tensors stay as they are but `Pull.total`.
        """
        return None

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        """Makes the client's message after training; it does not train here."""
        return Upload({})

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        """Scores the items of `train`, `val`, `test` or all items (`all`), `[items, C]`; the largest one wins.

        With `data.inductive` the client here has all nodes, while `received` was made from its training nodes.
        """
        return client.model.logits() if part == "all" else client.model.logits_of(part)


class RowTerm(NamedTuple):
    """A weight times the mean of a function over the rows of a client that have part in it, 0 without any.

    Attributes:
        of_rows: The function, of embeddings, labels, `by_row` if there is such, and `shared`.
        shared: What is the same for all clients.
        by_row: Numbers of every row, `[N, K]`, of several clients `[B, N, K]`.
        has_B: Clients that have the term, bool; None: all.
    """

    weight: float
    of_rows: OfRows
    shared: tuple[Tensor | float, ...] = ()
    by_row: Tensor | None = None
    has_B: Tensor | None = None

    def means(self, z_BNH: Tensor, y_BN: Tensor) -> Tensor:
        """Computes the terms of all clients, `[B]`."""
        further = () if self.by_row is None else (self.by_row.flatten(0, 1),)
        value_M, part_M = self.of_rows(z_BNH.flatten(0, 1), y_BN.flatten(), *further, *self.shared)
        part_BN = part_M.view_as(y_BN)
        if self.has_B is not None:
            part_BN = part_BN & self.has_B[:, None]
        value_BN = value_M.view_as(y_BN).where(part_BN, 0)
        return self.weight * (value_BN.sum(1) / part_BN.sum(1).clamp_min(1))


class SumTerm(NamedTuple):
    """A weight times the sum over k of w_k |sum_r S_kr z_r - t_k|^2, of R rows beside the training rows.

    Attributes:
        inputs: What a decoupled model reads of these rows, in every step after the training rows.
        sums_KR: S, float32.
        target_KH, weight_K: t and w, float32.
        scales: Embeddings z count at length one.
    """

    weight: float
    inputs: Inputs
    sums_KR: SparseMatrix
    target_KH: Tensor
    weight_K: Tensor
    scales: bool


class MappedLoss(Algorithm):
    """A method whose clients train by `trainer.fit` on cross-entropy and terms of rows.

    Attributes:
        reads_further: Its terms are sums of further rows, which a decoupled model alone answers for apart.
    """

    reads_further: ClassVar[bool] = False

    @property
    def is_mapped(self) -> bool:
        """Whether `row_terms` gives all that there is beside cross-entropy, with the options that it has."""
        return True

    def row_terms(self, client: Client, received: Received) -> Sequence[RowTerm | SumTerm]:
        """Returns the terms of a client before it trains, in the same order for all that have them; or none.

        A `RowTerm` differs between clients in nothing but `by_row`; a `SumTerm` has one weight for all.
        """
        raise NotImplementedError


def keeps_models(method: Algorithm | type[Algorithm]) -> bool:
    """Whether clients keep their parameters from visit to visit."""
    return method.client_models in ("personal", "heterogeneous")


def mixes_models(method: Algorithm | type[Algorithm]) -> bool:
    """Whether clients may train different architectures."""
    return method.client_models in ("grouped", "heterogeneous")


def overrides(method: Algorithm | type[Algorithm], hook: str) -> bool:
    """Whether a method replaces a hook of `Algorithm`."""
    cls = method if isinstance(method, type) else type(method)
    return getattr(cls, hook) is not getattr(Algorithm, hook)


def fits_cross_entropy(method: Algorithm | type[Algorithm]) -> bool:
    """Whether clients train by `trainer.fit` on cross-entropy, and perhaps a pull, as batches and formulas do."""
    return not (overrides(method, "train") or overrides(method, "loss"))


def maps_over_clients(method: Algorithm) -> bool:
    """Whether clients of a method train alike in batches: on cross-entropy, and perhaps on `row_terms`.

    A class that replaces `train` or `loss` of another one says anew what its terms are.
    """
    if fits_cross_entropy(method):
        return True
    if not isinstance(method, MappedLoss) or not method.is_mapped:
        return False
    first = {hook: next(cls for cls in type(method).__mro__ if hook in vars(cls)) for hook in ("train", "loss")}
    declares = next(cls for cls in type(method).__mro__ if "row_terms" in vars(cls))
    return all(cls is Algorithm or issubclass(declares, cls) for cls in first.values())


def takes_targets(method: Algorithm | type[Algorithm]) -> bool:
    """Whether labels may be numbers, or several an item: a loss of the method's own is one of classes by default."""
    declared = method.supports is not Algorithm.supports
    return TARGETS in method.supports and (declared or fits_cross_entropy(method))


def takes_clusters(method: Algorithm | type[Algorithm]) -> bool:
    """Whether clients can train without labels: on a loss that is put in the place of that of labels.

    It trains no classifier, so that a method that takes models apart there, or predicts otherwise, cannot.
    """
    if method.reads_embedding or overrides(method, "predict"):
        return False
    return takes_targets(method) and fits_cross_entropy(method)


def trains_plainly(method: Algorithm | type[Algorithm]) -> bool:
    """Whether clients train by `trainer.fit` on cross-entropy alone."""
    return fits_cross_entropy(method) and not overrides(method, "pull")


def pulls_all_the_same(method: Algorithm | type[Algorithm]) -> bool:
    """Whether what a method adds to gradients is the same for all clients, or nothing."""
    return not overrides(method, "pull") or getattr(method.pull, "is_same_for_all", False)
