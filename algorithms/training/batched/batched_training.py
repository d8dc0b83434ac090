"""Local training of several clients in one batch: their models stacked, their rows padded to one length.

Axes: B clients, N rows of the longest of them, F features, C classes, P parameters.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from shoal.algorithms.base import Algorithm, MappedLoss, Pull, RowTerm, SumTerm, maps_over_clients
from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.dropout import KEYED, fill_kept, fill_kept_by_key, masks
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import Tree
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.batched.batched_inputs import BatchedInputs, batched_inputs, pad

if TYPE_CHECKING:
    from shoal.algorithms.training.batched.joined_terms import JoinedSums

NO_LABEL = -100
# The dictionaries and names by which modules of a model hold parameters, these, and their places in its order.
_SLOTS: WeakKeyDictionary[FlatModel, list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter, int]]] = (
    WeakKeyDictionary()
)


def needed_to_batch(method: Algorithm, model: FlatModel, options: TrainOptions) -> str | None:
    """Says what is missing to train several clients of a model in one batch; None: nothing."""
    if model.reads_items:
        return "a node task (task: node)"
    if model.prompted or (model.coupled is not None and not model.coupled.stacks):
        return "a decoupled model (one that reads hops, such as sgc), or gcn, gin, sage or gcnii on the whole graph"
    if options.batch_size is not None:
        return "whole batches (train.batch_size: null)"
    if not maps_over_clients(method):
        return f"a method of cross-entropy and means over training rows, which {type(method).__name__} is not"
    if model.coupled is not None and isinstance(method, MappedLoss) and method.reads_further:
        return f"a decoupled model (one that reads hops, such as sgc), as {type(method).__name__} reads further rows"
    return None


def logits_of(model: FlatModel, w_P: Tensor, inputs: Inputs) -> Tensor:
    """Computes logits `[N, C]` by a model in its present mode, with other parameters than its own."""
    return output_of(model, w_P, inputs).logits_NC


def output_of(model: FlatModel, w_P: Tensor, inputs: Inputs) -> Output:
    """Computes logits `[N, C]` and embeddings `[N, H]`, in the same way."""
    return output_with(model, [*model.parts(w_P)], inputs)


def output_with(model: FlatModel, parts: Sequence[Tensor], inputs: Inputs) -> Output:
    """Computes as a model's module does, with other tensors in the places of its parameters, also inside `vmap`.

    `torch.func.functional_call` finds these places anew each time.
    """
    if (slots := _SLOTS.get(model)) is None:
        place = {id(p): number for number, p in enumerate(model.parameters)}
        held = [module._parameters for module in model.module.modules()]
        parts_of = ((named, name, p) for named in held for name, p in named.items() if p is not None)
        slots = [(named, name, p, place[id(p)]) for named, name, p in parts_of if id(p) in place]
        _SLOTS[model] = slots
    for named, name, _, number in slots:
        named[name] = parts[number]  # type: ignore[assignment]
    try:
        out: Output = model.module(inputs)
        return out
    finally:
        for named, name, p, _ in slots:
            named[name] = p


def outputs(model: FlatModel, w_BP: Tensor, inputs: BatchedInputs) -> Output:
    """Computes logits `[B, N, C]` and embeddings `[B, N, H]` of all clients in evaluation mode, without gradients."""
    model.set_training(False)
    with torch.no_grad(), model.precision():
        out: Output = vmap(lambda w_P, tensors: output_of(model, w_P, inputs.of_one(tensors)))(w_BP, inputs.tensors)
    return out


def embeddings(model: FlatModel, several_w: Sequence[Tensor], inputs: BatchedInputs) -> list[Tensor]:
    """Embeds what clients train on in evaluation mode, float32 `[B, N, H]`, by each of several parameters.

    These are those of every client, `[B, P]`, or of all, `[P]`.
    """
    model.set_training(False)
    of_clients = tuple(0 if w.dim() > 1 else None for w in several_w)

    def of_one(w_P: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Any]:
        return [output_of(model, w, inputs.of_one(tensors)).embedding for w in w_P]

    with torch.no_grad(), model.precision():
        return [z.float() for z in vmap(of_one, (of_clients, 0))(tuple(several_w), inputs.tensors)]


def evaluate_models(model: FlatModel, w_BP: Tensor, hops: Sequence[Tensor]) -> Tensor:
    """Evaluates all clients' models without gradients on hops `[B, N, F]`, float32: logits `[B, N, C]`."""
    model.set_training(False)
    with torch.no_grad(), model.precision():
        return vmap(lambda w_P, *parts: logits_of(model, w_P, parts))(w_BP, *hops).float()


class Batch(NamedTuple):
    """The training data of several clients: inputs of their models, labels `[B, N]` with `NO_LABEL`, counts `[B]`."""

    inputs: BatchedInputs
    label_BN: Tensor
    count_B: Tensor

    @classmethod
    def of(cls, gathered: Sequence[Inputs], labels: Sequence[Tensor]) -> "Batch":
        """Batches what the models of clients gathered for their training rows, and the labels of these."""
        label_BN = pad(labels, NO_LABEL)
        # A number that is sent to a device is a copy that it waits for.
        return cls(batched_inputs(gathered), label_BN, (label_BN != NO_LABEL).sum(1).float())


class BatchedTrainer:
    """Trains many clients in one batch, as `Trainer` trains one after another; the same numbers to rounding.

    It takes models of rows or, without attention, of whole graphs, full-batch steps, and plain cross-entropy. It pays
    where a step of one client is too small to keep a device busy.

    Attributes:
        stepped: The last call has changed parameters, or may have: what failed then cannot begin anew.
    """

    def __init__(self, model: FlatModel, options: TrainOptions) -> None:
        """Keeps the host's model as the pattern of all; its own parameters are not used."""
        self.model = model
        self.options = options
        self.stepped = False
        self._drops: list[tuple[int, int, float]] | None = None

    def fit(
        self,
        clients: Sequence[Client],
        w_BP: Tensor,
        gathered: Sequence[Inputs] | None = None,
        pulls: Sequence[Pull | None] = (),
        terms: Sequence[Sequence[RowTerm | SumTerm]] = (),
    ) -> Tensor:
        """Trains the rows of `w_BP` in place; returns the mean loss `[B]` of clients' last epochs, before the step.

        All clients have training rows. The optimizers' moments are read from and written to `client.state`. `gathered`
        has what their models gathered for their training rows, where that is at hand, `pulls` what `Algorithm.pull`
        gave for each, and `terms` what `MappedLoss.row_terms` did.
        """
        if gathered is None:
            gathered = [client.model.gathered("train") for client in clients]
        batch = Batch.of(gathered, [client.data.train_label for client in clients])
        states = [client.state for client in clients]
        joined: Sequence[RowTerm | JoinedSums] = ()
        if any(terms):
            # Other methods load none of it.
            from shoal.algorithms.training.batched.joined_terms import join_terms

            joined = join_terms(terms, batch.label_BN.shape[1])
        loss_B, moments = self.fit_batch(batch, w_BP, states, lambda i: clients[i].rng("train"), pulls, joined)
        if self.options.opt_state == "keep":
            for client, of_client in zip(clients, moments):
                client.state.update(of_client)
        return loss_B

    def fit_batch(
        self,
        batch: Batch,
        w_BP: Tensor,
        states: Sequence[Tree],
        rng: Callable[[int], torch.Generator],
        pulls: Sequence[Pull | None] | Pull = (),
        terms: Sequence["RowTerm | JoinedSums"] = (),
        copies: bool = False,
    ) -> tuple[Tensor, Sequence[Tree]]:
        """Trains as `fit` does; returns losses `[B]` and the moments of clients, by their names in a state.

        `terms` are those of all clients.

        Moments in clients' `states` are written to, or with `copies` left as they are. `rng` makes the stream of a row,
        where anything is drawn. One `Pull` in place of many is that of all, and has no `total`.
        """
        self.stepped = False
        device, inputs, label_BN = w_BP.device, batch.inputs, batch.label_BN
        self.model.set_training(True)
        if self._drops is None:
            self._drops = self._look(inputs)
        draws = _Draws([rng(i) for i in range(len(w_BP))], device) if self._drops else None
        # Gradients of parts are written once, to their places: that of a whole stack would be put together of copies.
        parts = [part.detach().requires_grad_() for part in self.model.parts(w_BP.detach())]
        gradient_BP = torch.empty_like(w_BP)
        places = list(self.model.parts(gradient_BP))
        # Clients that train one by one load none of it.
        from shoal.algorithms.training.batched.row_steps import RowSteps

        optimizer = RowSteps(self.options, w_BP.detach(), states, copies)
        pulled: list[tuple[int, Pull]] = []
        together: Pull | None
        if isinstance(pulls, Pull):
            together = pulls
        else:
            pulled = [(i, pull) for i, pull in enumerate(pulls) if pull is not None]
            together = _stack(pulls) if len(pulled) == len(w_BP) else None
        loss_B = torch.zeros(len(w_BP), device=device)
        for _ in range(self.options.epochs):
            out = self._outputs(inputs, bool(terms), parts, draws)
            logits_BNC = (out[0] if terms else out).float()
            # All clients share one operator, outside `vmap`.
            loss_BN = F.cross_entropy(
                logits_BNC.flatten(0, 1), label_BN.flatten(), ignore_index=NO_LABEL, reduction="none"
            ).view_as(label_BN)
            loss_B = loss_BN.sum(1) / batch.count_B
            for term in terms:
                if isinstance(term, RowTerm):
                    loss_B = loss_B + term.means(out[1].float(), label_BN)
                else:
                    further_BRH = self._outputs(term.inputs, True, parts, draws)[1].float()
                    loss_B = loss_B + term.of_clients(further_BRH)
            gradients = torch.autograd.grad(loss_B.sum(), parts)
            torch._foreach_copy_(places, gradients)
            self.stepped = True
            if together is not None:
                together.apply(gradient_BP, w_BP)
            else:
                for i, pull in pulled:
                    pull.apply(gradient_BP[i], w_BP[i])
            optimizer.step(gradient_BP)
        if together is not None and together.total is not None:
            for (_, pull), total in zip(pulled, together.total):
                assert pull.total is not None
                pull.total.add_(total)
        return loss_B.detach(), optimizer.moments

    def _outputs(self, inputs: BatchedInputs, embeds: bool, parts: Sequence[Tensor], draws: "_Draws | None") -> Any:
        """Computes what `_output` does for all clients, with dropout."""
        kept_BNH = [draws.draw(inputs.lengths(seen), width, p) for seen, width, p in self._drops or ()] if draws else []
        with self.model.precision():
            return vmap(partial(self._output, inputs, embeds))(parts, kept_BNH, inputs.tensors)

    def _output(
        self,
        inputs: BatchedInputs,
        embeds: bool,
        parts: Sequence[Tensor],
        kept_NH: Sequence[Tensor],
        tensors: Sequence[Tensor],
    ) -> Any:
        """Computes logits `[N, C]` of one client's training rows, or these and embeddings `[N, H]`."""
        received = iter(kept_NH)
        with masks(lambda x, p: next(received)):
            out = output_with(self.model, parts, inputs.of_one(tensors))
        # Batches have dense features.
        return (out.logits_NC, out.embedding) if embeds else out.logits_NC

    def _look(self, inputs: BatchedInputs) -> list[tuple[int, int, float]]:
        """Records rows of an example, width and probability of every dropout of a step, in the order of calls."""
        dropouts: list[tuple[int, int, float]] = []

        def look(x: Tensor, p: float) -> Tensor:
            dropouts.append((len(x), x.shape[1], p))
            return x.new_ones(())

        with torch.no_grad(), masks(look):
            self.model.module(inputs.example())
        return dropouts


def _stack(pulls: Sequence[Pull | None]) -> Pull | None:
    """Returns the pulls of all clients as one of `[B, P]`; None: they have not all the same parts, or mu."""
    parts: dict[str, Tensor | None] = {}
    for name in ("linear", "origin", "total"):
        several = [getattr(pull, name) for pull in pulls]
        if len({part is None for part in several}) > 1:
            return None
        parts[name] = None if several[0] is None else torch.stack(several)
    different_mu = {pull.mu for pull in pulls if pull is not None}
    if len(different_mu) > 1:
        return None
    # What it adds up here goes to each client's own total in the end.
    total = parts.pop("total")
    return Pull(**parts, mu=different_mu.pop(), total=None if total is None else torch.zeros_like(total))


class _Draws:
    """The draws of dropout of one training, from the streams of its clients."""

    def __init__(self, generators: Sequence[torch.Generator], device: torch.device) -> None:
        self._generators, self._device, self._number = generators, device, count()
        self._seed_B: Tensor | None = None
        if device.type in KEYED:
            seeds = torch.tensor([generator.initial_seed() for generator in generators], device="cpu")
            self._seed_B = seeds.to(device, non_blocking=True)

    def draw(self, rows: Sequence[int], width: int, p: float) -> Tensor:
        """Draws every client's mask as it would alone, `[B, N, H]`; nothing reads those of padded rows."""
        zeros_BNH = torch.zeros(len(rows), max(rows), width, device=self._device)
        if self._seed_B is not None:
            return fill_kept_by_key(zeros_BNH, p, self._seed_B, next(self._number)).div_(1 - p)
        for zeros_NH, length, generator in zip(zeros_BNH, rows, self._generators):
            fill_kept(zeros_NH[:length], p, generator)
        return zeros_BNH.div_(1 - p)
