"""Local training of several clients in one batch: their models stacked, their rows padded to one length.

Axes: B clients, N rows of the longest of them, F features, C classes, P parameters.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, vmap

from shoal.algorithms.base import Algorithm, Pull, fits_cross_entropy
from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.dropout import KEYED, fill_kept, fill_kept_by_key, masks
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import Tree
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.batched.batched_inputs import BatchedInputs, batched_inputs, pad

NO_LABEL = -100


def needed_to_batch(method: Algorithm, model: FlatModel, options: TrainOptions) -> str | None:
    """Says what is missing to train several clients of a model in one batch; None: nothing."""
    if model.reads_items:
        return "a node task (task: node)"
    if model.prompted or (model.coupled is not None and not model.coupled.stacks):
        return "a decoupled model (one that reads hops, such as sgc), or gcn, gin, sage or gcnii on the whole graph"
    if options.batch_size is not None:
        return "whole batches (train.batch_size: null)"
    if not fits_cross_entropy(method):
        return f"a method of plain cross-entropy, which {type(method).__name__} is not"
    return None


def logits_of(model: FlatModel, w_P: Tensor, inputs: Inputs) -> Tensor:
    """Computes logits `[N, C]` by a model in its present mode, with other parameters than its own."""
    return output_of(model, w_P, inputs).logits_NC


def output_of(model: FlatModel, w_P: Tensor, inputs: Inputs) -> Output:
    """Computes logits `[N, C]` and embeddings `[N, H]`, in the same way."""
    return output_of_parts(model, model.parts(w_P), inputs)


def output_of_parts(model: FlatModel, parts: Iterable[Tensor], inputs: Inputs) -> Output:
    """Computes as `output_of` does, of parameters in their shapes."""
    names = (name for name, _ in model.module.named_parameters())
    out: Output = functional_call(model.module, dict(zip(names, parts)), (inputs,))
    return out


def outputs(model: FlatModel, w_BP: Tensor, inputs: BatchedInputs) -> Output:
    """Computes logits `[B, N, C]` and embeddings `[B, N, H]` of all clients in evaluation mode, without gradients."""
    model.module.eval()
    with torch.no_grad(), model.precision():
        out: Output = vmap(lambda w_P, tensors: output_of(model, w_P, inputs.of_one(tensors)))(w_BP, inputs.tensors)
    return out


def evaluate_models(model: FlatModel, w_BP: Tensor, hops: Sequence[Tensor]) -> Tensor:
    """Evaluates all clients' models without gradients on hops `[B, N, F]`, float32: logits `[B, N, C]`."""
    model.module.eval()
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
    ) -> Tensor:
        """Trains the rows of `w_BP` in place; returns the mean loss `[B]` of clients' last epochs, before the step.

        All clients have training rows. The optimizers' moments are read from and written to `client.state`. `gathered`
        has what their models gathered for their training rows, where that is at hand, and `pulls` what
        `Algorithm.pull` gave for each.
        """
        if gathered is None:
            gathered = [client.model.gathered("train") for client in clients]
        batch = Batch.of(gathered, [client.data.train_label for client in clients])
        states = [client.state for client in clients]
        loss_B, moments = self.fit_batch(batch, w_BP, states, lambda i: clients[i].rng("train"), pulls)
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
        copies: bool = False,
    ) -> tuple[Tensor, Sequence[Tree]]:
        """Trains as `fit` does; returns losses `[B]` and the moments of clients, by their names in a state.

        Moments in clients' `states` are written to, or with `copies` left as they are. `rng` makes the stream of a row,
        where anything is drawn. One `Pull` in place of many is that of all, and has no `total`.
        """
        self.stepped = False
        device, inputs, label_BN = w_BP.device, batch.inputs, batch.label_BN
        self.model.module.train()
        if self._drops is None:
            self._drops = self._look(inputs)
        dropped = [(inputs.lengths(seen), width, p) for seen, width, p in self._drops]
        generators = [rng(i) for i in range(len(w_BP))] if dropped else []
        seed_B: Tensor | None = None
        if dropped and device.type in KEYED:
            seed_B = torch.tensor([g.initial_seed() for g in generators], device="cpu").to(device, non_blocking=True)
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
        for epoch in range(self.options.epochs):
            kept_BNH = []
            for number, (rows, width, p) in enumerate(dropped, epoch * len(dropped)):
                zeros_BNH = torch.zeros(len(rows), max(rows), width, device=device)
                if seed_B is None:
                    kept_BNH.append(_masks(zeros_BNH, rows, p, generators))
                else:
                    # Padded rows are drawn for, too: nothing reads them.
                    kept_BNH.append(fill_kept_by_key(zeros_BNH, p, seed_B, number).div_(1 - p))
            with self.model.precision():
                logits_BNC = vmap(partial(self._logits, inputs))(parts, kept_BNH, inputs.tensors).float()
            # All clients share one operator, outside `vmap`.
            loss_BN = F.cross_entropy(
                logits_BNC.flatten(0, 1), label_BN.flatten(), ignore_index=NO_LABEL, reduction="none"
            ).view_as(label_BN)
            loss_B = loss_BN.sum(1) / batch.count_B
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

    def _logits(
        self, inputs: BatchedInputs, parts: Sequence[Tensor], kept_NH: Sequence[Tensor], tensors: Sequence[Tensor]
    ) -> Tensor:
        """Computes logits `[N, C]` of one client's training rows."""
        received = iter(kept_NH)
        with masks(lambda x, p: next(received)):
            return output_of_parts(self.model, parts, inputs.of_one(tensors)).logits_NC

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


def _masks(zeros_BNH: Tensor, rows: Sequence[int], p: float, generators: Sequence[torch.Generator]) -> Tensor:
    """Draws every client's mask as it would alone, written into the zeros; padded rows keep theirs."""
    for zeros_NH, count, generator in zip(zeros_BNH, rows, generators):
        fill_kept(zeros_NH[:count], p, generator)
    return zeros_BNH.div_(1 - p)
