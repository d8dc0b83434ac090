"""Local training of several clients in one batch: their models stacked, their rows padded to one length.

Axes: B clients, N rows of the longest of them, F features, C classes, P parameters.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from shoal.algorithms.base import Algorithm, BatchedTerm, Output, Received, told_for_several
from shoal.algorithms.client import Client
from shoal.algorithms.flat_model import FlatModel
from shoal.algorithms.method_errors import code_of, fault
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.dropout import fill_kept, masks
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.batched.batched_inputs import BatchedInputs, batched_inputs, padded
from shoal.algorithms.training.batched.batched_model import BatchedReceived, logits_of, output_of
from shoal.algorithms.training.local_training import keep_moments, kept_moments, make_optimizer

NO_LABEL = -100


def needed_to_batch(method: Algorithm, model: FlatModel, options: TrainOptions) -> str | None:
    """What is missing to train several clients of a model in one batch; None: nothing."""
    if model.reads_items:
        return "a node task (task: node)"
    if model.prompted or (model.coupled is not None and not model.coupled.stacks):
        return "a decoupled model (one that reads hops, such as sgc), or gcn, gin, sage or gcnii on the whole graph"
    if options.batch_size is not None:
        return "whole batches (train.batch_size: null)"
    name = type(method).__name__
    if not method.plain_training and not method.loss_of_several:
        return f"a method of plain cross-entropy or with loss_of_several, which {name} is not"
    if not method.plain_training and not told_for_several(type(method), "regularizers", "regularizer"):
        return f"regularizers, for several clients, beside the regularizer of {name}"
    if not method.trained_together():
        return f"other options of {name}"
    return None


class BatchedTrainer:
    """What `Trainer` does for one client after another, for all at once; the same numbers to rounding.

    For models of rows or, without attention, of whole graphs, whole batches, and methods of plain cross-entropy or with
    a loss of several clients (`Algorithm.trained_together`). It pays where a step of one client is too small to keep a
    device busy.

    Attributes:
        stepped: The last call has changed parameters, or may have: what failed then cannot begin anew.
    """

    def __init__(self, model: FlatModel, options: TrainOptions, method: Algorithm) -> None:
        """Keeps a model as the pattern of all.

        Args:
            model: The host's model; its own parameters are not used.
            options: Epochs and optimizer.
            method: Whose loss is used.
        """
        self.model = model
        self.options = options
        self.method = method
        self.stepped = False
        self._drops: list[tuple[int, int, float]] | None = None

    def fit(
        self,
        clients: Sequence[Client],
        w_BP: Tensor,
        gathered: Sequence[Inputs] | None = None,
        received: Sequence[Received] | None = None,
    ) -> Tensor:
        """Trains the rows of `w_BP` in place; returns the mean loss `[B]` of clients' last epochs, before the step.

        The optimizers' moments are read from and written to `client.state`.

        Args:
            clients: Clients that have training rows.
            w_BP: Their parameters, float32.
            gathered: What their models gathered for their training rows, where that is at hand.
            given: What `receive` gave of each, of one form (`form_of`); needed where the loss is not plain.
        """
        self.stepped = False
        if gathered is None:
            gathered = [client.model.gathered("train") for client in clients]
        device = w_BP.device
        inputs = batched_inputs(gathered)
        label_BN = padded([client.data.train_label for client in clients], NO_LABEL)
        # A number that is sent to a device is a copy that it waits for.
        count_B = (label_BN != NO_LABEL).sum(1).float()
        generators = [client.rng("train") for client in clients]
        # A loss that is cross-entropy alone is computed for all clients without `vmap`, in fewer operators.
        stacked, more = None, None
        if not self.method.plain_training:
            received = received or [None] * len(clients)
            stacked, more = BatchedReceived(received), self._terms(clients, w_BP.detach(), received)
        reached = None if more is None else _inputs_of(clients, more.rows)
        self.model.module.train()
        if self._drops is None:
            self._drops = self._look(inputs)
        dropped = [(inputs.lengths(seen), width, p) for seen, width, p in self._drops]
        if stacked is not None and (alike := self.method.rows_beside(received[0] if received else None)) is not None:
            dropped += [([len(alike)] * len(clients), width, p) for _, width, p in self._drops]
        if more is not None and reached is not None:
            # A client without a term draws nothing for it.
            asked = [len(rows) > 0 for rows in more.rows]
            for seen, width, p in self._drops:
                dropped.append(([n if one else 0 for n, one in zip(reached.lengths(seen), asked)], width, p))
        stack_BP = w_BP.detach().requires_grad_()
        stack_BP.grad = torch.zeros_like(stack_BP)
        leaves = [_leaf(w, gradient) for w, gradient in zip(w_BP.detach(), stack_BP.grad)]
        optimizer = make_optimizer(leaves, self.options)
        for leaf, client in zip(leaves, clients):
            if kept := kept_moments(client.state, MODEL):
                optimizer.state[leaf] = kept
        loss_B = torch.zeros(len(clients), device=device)
        for _ in range(self.options.epochs):
            stack_BP.grad.zero_()
            kept_BNH = [
                _masks(torch.zeros(len(rows), max(rows), width, device=device), rows, p, generators)
                for rows, width, p in dropped
            ]
            if stacked is None:
                with self.model.precision():
                    logits_BNC = vmap(partial(self._logits, inputs))(stack_BP, kept_BNH, inputs.tensors).float()
                loss_BN = F.cross_entropy(
                    logits_BNC.flatten(0, 1), label_BN.flatten(), ignore_index=NO_LABEL, reduction="none"
                ).view_as(label_BN)
                loss_B = loss_BN.sum(1) / count_B
            else:
                of_each = vmap(partial(self._loss, inputs, reached, stacked), in_dims=(0, 0, 0, 0, 0, stacked.in_dims))
                read = [] if reached is None else reached.tensors
                loss_B, *said = of_each(stack_BP, kept_BNH, inputs.tensors, read, label_BN, stacked.tensors)
                if more is not None:
                    loss_B = loss_B + self._term(more, Output(*said), len(clients))
            loss_B.sum().backward()
            self.stepped = True
            optimizer.step()
        if self.options.opt_state == "keep":
            for leaf, client in zip(leaves, clients):
                keep_moments(client.state, MODEL, optimizer.state[leaf])
        return loss_B.detach()

    def _terms(self, clients: Sequence[Client], w_BP: Tensor, received: Sequence[Received]) -> BatchedTerm | None:
        """What the method adds to the loss of each.

        Raises:
            ShoalError: It failed, or is not of all of them.
        """
        with code_of(self.method, "regularizers"), nullcontext() if w_BP.device.type == "cpu" else w_BP.device:
            more = self.method.regularizers(clients, w_BP, received)
        if more is not None and len(more.rows) != len(clients):
            what = f"gives rows of {len(more.rows)} clients, wanted those of {len(clients)}"
            raise fault(self.method, "regularizers", what)
        return more

    def _term(self, more: BatchedTerm, out: Output, clients: int) -> Tensor:
        """That of a step, `[B]`.

        Raises:
            ShoalError: It has another shape.
        """
        term_B = more.term(out)
        if term_B.shape != (clients,):
            what = f"gives a term of shape {list(term_B.shape)}, wanted [{clients}]: a number for each client"
            raise fault(self.method, "regularizers", what)
        return term_B

    def _logits(
        self, inputs: BatchedInputs, w_P: Tensor, kept_NH: Sequence[Tensor], tensors: Sequence[Tensor]
    ) -> Tensor:
        """Logits `[N, C]` of one client's training rows."""
        received = iter(kept_NH)
        with masks(lambda x, p: next(received)):
            return logits_of(self.model, w_P, inputs.of_one(tensors))

    def _loss(
        self,
        inputs: BatchedInputs,
        reached: BatchedInputs | None,
        stacked: BatchedReceived,
        w_P: Tensor,
        kept_NH: Sequence[Tensor],
        tensors: Sequence[Tensor],
        tensors_reached: Sequence[Tensor],
        label_N: Tensor,
        received: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """The method's loss of one client, a scalar, and what its model says of nodes in reach, if there are any."""
        own, masks_given = stacked.of_one(received), iter(kept_NH)

        def output(read: Inputs) -> Output:
            with masks(lambda x, p: next(masks_given)), self.model.precision():
                out = output_of(self.model, w_P, read)
            return Output(out.logits_NC.float(), out.embedding_NH.float())

        loss = self.method.loss(output(inputs.of_one(tensors)), label_N, w_P, own)
        alike = self.method.rows_beside(own)
        if alike is not None:
            loss = loss + self.method.loss_beside(output(inputs.alike(alike)), label_N, own)
        if reached is None:
            return (loss,)
        out = output(reached.of_one(tensors_reached))
        return loss, out.logits_NC, out.embedding_NH

    def _look(self, inputs: BatchedInputs) -> list[tuple[int, int, float]]:
        """Rows of an example, width and probability of every dropout of a step, in the order of calls."""
        found: list[tuple[int, int, float]] = []

        def look(x: Tensor, p: float) -> Tensor:
            found.append((len(x), x.shape[1], p))
            return x.new_ones(())

        with torch.no_grad(), masks(look):
            self.model.module(inputs.example())
        return found


def _inputs_of(clients: Sequence[Client], rows: Sequence[Tensor]) -> BatchedInputs:
    """What the clients' models read to answer for some nodes of each."""
    return batched_inputs([client.model.some(own) for client, own in zip(clients, rows)])


def _leaf(w: Tensor, gradient: Tensor) -> torch.nn.Parameter:
    leaf = torch.nn.Parameter(w)
    leaf.grad = gradient
    return leaf


def _masks(zeros_BNH: Tensor, rows: Sequence[int], p: float, generators: Sequence[torch.Generator]) -> Tensor:
    """Every client's mask as it would draw it alone, written into the zeros; padded rows keep theirs."""
    for zeros_NH, count, generator in zip(zeros_BNH, rows, generators):
        fill_kept(zeros_NH[:count], p, generator)
    return zeros_BNH.div_(1 - p)
