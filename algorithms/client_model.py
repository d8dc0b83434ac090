"""One model of a client: its parameters, on its data."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algorithms.flat_model import FlatModel
from shoal.algorithms.models.inputs.neighbourhood import Inputs, all_nodes, kept_rows, sampled, standalone
from shoal.algorithms.models.items.augmented_nodes import AugmentedNodes
from shoal.algorithms.models.items.client_graphs import ClientGraphs
from shoal.algorithms.models.items.client_pairs import ClientPairs
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.output import Output
from shoal.storage.store.view import View

# What a processor makes of its rows stays in the cache; a GPU is given more at once.
ROWS_AT_A_TIME = 4096
ROWS_ON_GPU = 65_536


class ClientModel:
    """The host's model of one kind, holding this client's parameters.

    What is borrowed or taken is copied into the host's model when that is first used: a client that is trained in one
    batch with others may never use it.

    Attributes:
        pattern: The host's model, whatever parameters it has at the moment: for its structure.
        data: View of the client's shard.
        items: Its graphs, or its pairs of rows, where they are what is predicted, or its rows in a graph that the
            method augmented (`answer_in`); None: its rows are, in the graph of its shard.
        random: Seed of a purpose, from (run seed, round, client, model, purpose).
        received: The method replaced the parameters since the client was visited.
    """

    def __init__(self, flat: FlatModel, data: View, random: Callable[[str], int], w: Tensor | None = None) -> None:
        """Begins with borrowed parameters `[P]`, or with those that the host's model has now."""
        self.pattern, self.data, self.random = flat, data, random
        self.received = False
        # Parameters that the host's model does not have yet, and whether they are the client's own memory.
        self._waiting: Tensor | None = None
        self._is_own = False
        if w is not None:
            self._wait(w, is_own=False)
        self.items: ClientGraphs | ClientPairs | AugmentedNodes | None = None
        if data.graph_ptr is not None:
            self.items = ClientGraphs(data, data.graph_ptr, flat.inputs, flat.coupled, flat.prompted)
        elif data.pairs is not None:
            self.items = ClientPairs(data, data.pairs, flat.inputs, flat.coupled)
        self._logits: Tensor | None = None

    @property
    def flat(self) -> FlatModel:
        """The host's model with this client's parameters; the next client of a cell trains in the same memory."""
        self.flush()
        return self.pattern

    def flush(self) -> None:
        """Copies parameters that the host's model does not have yet into it."""
        if self._waiting is not None:
            self.pattern.load(self._waiting)
            self._waiting = None

    @property
    def w(self) -> Tensor:
        """The current parameters, `[P]`: the memory of the host's model, or of what was taken."""
        if self._waiting is not None and self._is_own:
            return self._waiting
        return self.flat.w.detach()

    @property
    def module(self) -> nn.Module:
        """The backbone, its parameters being views of `w`."""
        return self.flat.module

    @property
    def coupled(self) -> Coupled | None:
        """The backbone, if it passes messages along edges; None if it reads rows of the hops."""
        return self.pattern.coupled

    def __call__(self, inputs: Inputs) -> Output:
        """Output in the present mode, with gradients."""
        return self.flat(inputs)

    def load(self, w: Tensor) -> None:
        """Replaces the parameters, `[P]`."""
        self._waiting = None
        self.pattern.load(w)
        self.received = True
        self._logits = None

    def borrow(self, w: Tensor) -> None:
        """Replaces the parameters by a vector `[P]` that is not written to."""
        self._replace(w, is_own=False)

    def take(self, w: Tensor) -> None:
        """Replaces the parameters by a vector `[P]` that is this client's alone from now on."""
        self._replace(w, is_own=True)

    def _replace(self, w: Tensor, is_own: bool) -> None:
        self._wait(w, is_own)
        self.received = True
        self._logits = None

    def _wait(self, w: Tensor, is_own: bool) -> None:
        self.pattern.require_shape(w)
        # What travels in half the bytes is computed with as all parameters are.
        self._waiting, self._is_own = w.to(self.pattern.w.dtype), is_own

    def snapshot(self) -> Tensor:
        """The current parameters, `[P]`, which the next client leaves as they are; not to be written to."""
        return self.flat.w.detach().clone() if self._waiting is None else self._waiting

    def answer_in(self, augmented: AugmentedNodes) -> None:
        """Trains, and answers for the client's nodes, in an augmented graph, until the end of the visit."""
        self.items = augmented
        self._logits = None

    def changed(self) -> None:
        """Says that the parameters changed in place."""
        self._logits = None

    def gathered(self, part: str) -> Inputs:
        """What the model reads to answer for the items of `train`, `val` or `test`, or for all items (`all`).

        For a decoupled model these rows of its hops, float32, contiguous, kept on the host; for a coupled one the
        whole graph. Where items are graphs, these graphs alone, and where they are pairs, rows of these alone.
        """
        if self.items is not None:
            return self.items.all() if part == "all" else self.items.part(part)
        rows: Tensor | None = None if part == "all" else getattr(self.data, part)
        if (coupled := self.coupled) is not None:
            return all_nodes(self.data, coupled.operator, coupled.depth)._replace(rows=rows)
        mapped = self.data.device.type == "cpu" and self.data.x.dtype == torch.float32
        if rows is None or (mapped and len(rows) == self.data.nodes):
            # All rows, in their order: they lie in the map already.
            return [self.data.whole(k) for k in self.pattern.inputs]
        return [self.data.cache((part, k), partial(kept_rows, self.data, k, rows)) for k in self.pattern.inputs]

    @property
    def answered(self) -> bool:
        """Whether logits of all items are at hand for the current parameters."""
        return self._logits is not None

    def logits(self) -> Tensor:
        """Logits of all items in evaluation mode, float32 `[items, C]`; computed once for the current parameters."""
        if self._logits is None:
            self._logits = torch.cat([out.logits_NC for out in self.outputs()])
        return self._logits

    def logits_of(self, part: str) -> Tensor:
        """Logits of the items of `train`, `val` or `test`, float32 `[items, C]`."""
        items: Tensor = getattr(self.data, part)
        # A part of one graph needs all its nodes, a part of several graphs only theirs.
        one_pass = self.coupled is not None if self.items is None else self.items.one_pass
        if self._logits is not None or one_pass:
            return self.logits()[items]
        return self.output(self.gathered(part)).logits_NC

    def outputs(self) -> Iterator[Output]:
        """Output for all items in evaluation mode, without gradients; rows of hops a block at a time."""
        rows = ROWS_AT_A_TIME if self.data.device.type == "cpu" else ROWS_ON_GPU
        if self.items is not None:
            yield from map(self.output, self.items.successive(rows))
            return
        if (coupled := self.coupled) is not None:
            out = self.output(all_nodes(self.data, coupled.operator, coupled.depth))
            # A pass over the whole graph: what is scored next needs no second one.
            self._logits = out.logits_NC
            yield out
            return
        # One block, too, of a client that has no node: where it trains on none, training may see none.
        for start in range(0, max(self.data.nodes, 1), rows):
            yield self.output([self.data.block(k, start, start + rows) for k in self.pattern.inputs])

    def output(self, inputs: Inputs) -> Output:
        """Output of the model in evaluation mode, without gradients, for what `gathered` gave or rows of it."""
        self.module.eval()
        with torch.no_grad():
            return self.flat(inputs)

    def forward(self, rows: Tensor) -> Callable[[], Output]:
        """The model on some items, in its present mode and with gradients; what it reads is gathered or drawn once."""
        inputs = self.some(rows)
        return lambda: self.flat(inputs)

    def some(self, rows: Tensor) -> Inputs:
        """What the model reads to answer for some items in training; neighbours are drawn where it draws them."""
        if self.items is not None:
            return self.items.some(rows)
        if (coupled := self.coupled) is None:
            return [self.data.rows(k, rows) for k in self.pattern.inputs]
        if coupled.fanouts:
            rng = np.random.default_rng(self.random("neighbours of some rows"))
            return sampled(self.data, coupled.operator, coupled.fanouts, rows, rng)
        return all_nodes(self.data, coupled.operator, coupled.depth)._replace(rows=rows)

    def standalone(self, x_NF: Tensor) -> Inputs:
        """What the model reads of nodes whose neighbours, at every hop, have the features of the node itself."""
        if self.items is not None:
            return self.items.standalone(x_NF)
        if (coupled := self.coupled) is not None:
            return standalone(x_NF, coupled.operator, coupled.depth)
        return [x_NF] * len(self.pattern.inputs)
