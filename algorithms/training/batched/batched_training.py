"""Local training of several clients in one batch: their models stacked, their rows padded to one length.

Axes: B clients, N rows of the longest of them, F features, C classes, P parameters.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, vmap

from shoal.algorithms.base import Algorithm, Pull, fits_cross_entropy
from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.dropout import fill_kept, masks
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import MODEL, moments_key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.batched.batched_inputs import BatchedInputs, batched_inputs, pad
from shoal.algorithms.training.batched.stacked_steps import StackedSteps
from shoal.algorithms.training.local_training import keep_moments, kept_moments

NO_LABEL = -100
MOMENTS = moments_key(MODEL)


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
    names = (name for name, _ in model.module.named_parameters())
    out: Output = functional_call(model.module, dict(zip(names, model.parts(w_P))), (inputs,))
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
        self.stepped = False
        if gathered is None:
            gathered = [client.model.gathered("train") for client in clients]
        device = w_BP.device
        inputs = batched_inputs(gathered)
        label_BN = pad([client.data.train_label for client in clients], NO_LABEL)
        # A number that is sent to a device is a copy that it waits for.
        count_B = (label_BN != NO_LABEL).sum(1).float()
        generators = [client.rng("train") for client in clients]
        self.model.module.train()
        if self._drops is None:
            self._drops = self._look(inputs)
        dropped = [(inputs.lengths(seen), width, p) for seen, width, p in self._drops]
        stack_BP = w_BP.detach().requires_grad_()
        stack_BP.grad = torch.zeros_like(stack_BP)
        kept = [kept_moments(client.state, MOMENTS) for client in clients]
        optimizer = StackedSteps(self.options, w_BP.detach(), stack_BP.grad, kept)
        pulled = [(i, pull) for i, pull in enumerate(pulls) if pull is not None]
        together = _stack(pulls) if len(pulled) == len(clients) else None
        loss_B = torch.zeros(len(clients), device=device)
        for _ in range(self.options.epochs):
            stack_BP.grad.zero_()
            kept_BNH = [
                _masks(torch.zeros(len(rows), max(rows), width, device=device), rows, p, generators)
                for rows, width, p in dropped
            ]
            with self.model.precision():
                logits_BNC = vmap(partial(self._logits, inputs))(stack_BP, kept_BNH, inputs.tensors).float()
            # All clients share one operator, outside `vmap`.
            loss_BN = F.cross_entropy(
                logits_BNC.flatten(0, 1), label_BN.flatten(), ignore_index=NO_LABEL, reduction="none"
            ).view_as(label_BN)
            loss_B = loss_BN.sum(1) / count_B
            loss_B.sum().backward()
            self.stepped = True
            if together is not None:
                together.apply(stack_BP.grad, w_BP)
            else:
                for i, pull in pulled:
                    pull.apply(stack_BP.grad[i], w_BP[i])
            optimizer.step()
        if together is not None and together.total is not None:
            for (_, pull), total in zip(pulled, together.total):
                assert pull.total is not None
                pull.total.add_(total)
        if self.options.opt_state == "keep":
            for client, moments in zip(clients, optimizer.moments):
                keep_moments(client.state, MOMENTS, moments)
        return loss_B.detach()

    def _logits(
        self, inputs: BatchedInputs, w_P: Tensor, kept_NH: Sequence[Tensor], tensors: Sequence[Tensor]
    ) -> Tensor:
        """Computes logits `[N, C]` of one client's training rows."""
        received = iter(kept_NH)
        with masks(lambda x, p: next(received)):
            return logits_of(self.model, w_P, inputs.of_one(tensors))

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
