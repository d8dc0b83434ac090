"""One client during its visit to a host: its data, its model, its state."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from algorithms.backbones.neighbourhood import Inputs, alike, sampled, whole
from algorithms.backbones.output import Output
from algorithms.draws import generator_on
from algorithms.flat_model import FlatModel
from algorithms.protocol import Tree
from storage.view import View

ROWS_AT_A_TIME = 65_536


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows of a client, too.

    Attributes:
        client: Number of the client.
        nodes: Rows of its shard.
        train: Training rows.
        classes: Number of classes C of the federation.
        model: Which of the run's models it trains.
    """

    client: int
    nodes: int
    train: int
    classes: int
    model: int = 0


@dataclass
class Client:
    """A client while it is on a host.

    Attributes:
        info: Sizes.
        data: View of its shard.
        model: The host's model, holding this client's parameters.
        state: What the client keeps between rounds, a private copy; `w` and the optimizer's moments are kept by the
            engine, anything else is the method's.
        inbox: Results of `Mix` addressed to it since its last visit; kept until a newer one takes its place.
        random: Seed of a purpose, from (run seed, round, client, purpose).
    """

    info: ClientInfo
    data: View
    model: FlatModel
    state: Tree
    inbox: Tree
    random: Callable[[str], int]
    _logits: Tensor | None = field(default=None, repr=False)

    @property
    def w(self) -> Tensor:
        """The current parameters, `[P]`; shares memory with the model."""
        return self.model.w.detach()

    def load(self, w: Tensor) -> None:
        """Replaces the parameters, `[P]`."""
        self.model.load(w)
        self._logits = None

    def trained(self) -> None:
        """Says that the parameters changed in place."""
        self._logits = None

    def rng(self, purpose: str) -> torch.Generator:
        """A random stream of its own for every purpose of a visit."""
        return generator_on(self.data.device).manual_seed(self.random(purpose))

    def gathered(self, part: str) -> Inputs:
        """What the model reads to answer for the rows of `train`, `val` or `test`.

        For a decoupled model these rows of its hops, float32, contiguous, kept on the host; for a coupled one the
        whole graph.
        """
        rows: Tensor = getattr(self.data, part)
        if (coupled := self.model.coupled) is not None:
            return whole(self.data, coupled.operator, len(coupled.convs))._replace(rows=rows)
        mapped = self.data.device.type == "cpu" and self.data.x.dtype == torch.float32
        if mapped and len(rows) == self.data.nodes:
            # All rows, in their order: they lie in the map already.
            return [self.data.hop(k) for k in self.model.inputs]
        return [self.data.memo((part, k), partial(self.data.rows, k, rows)) for k in self.model.inputs]

    def logits(self) -> Tensor:
        """Logits of all rows in evaluation mode, float32 `[N, C]`; computed once for the current parameters."""
        if self._logits is None:
            self._logits = torch.cat([out.logits_NC for out in self.outputs()])
        return self._logits

    def outputs(self) -> Iterator[Output]:
        """Output for all rows in evaluation mode, without gradients; rows of hops a block at a time."""
        if (coupled := self.model.coupled) is not None:
            yield self.output(whole(self.data, coupled.operator, len(coupled.convs)))
            return
        for start in range(0, self.data.nodes, ROWS_AT_A_TIME):
            yield self.output([self.data.block(k, start, start + ROWS_AT_A_TIME) for k in self.model.inputs])

    def output(self, inputs: Inputs) -> Output:
        """Output of the model in evaluation mode, without gradients, for what `gathered` gave or rows of it."""
        self.model.module.eval()
        with torch.no_grad():
            return self.model(inputs)

    def forward(self, rows: Tensor) -> Callable[[], Output]:
        """The model on some rows, in its present mode and with gradients; what it reads is gathered or drawn once."""
        if (coupled := self.model.coupled) is not None:
            if coupled.fanouts:
                rng = np.random.default_rng(self.random("neighbours of some rows"))
                around = sampled(self.data, coupled.operator, coupled.fanouts, rows, rng)
            else:
                around = whole(self.data, coupled.operator, len(coupled.convs))._replace(rows=rows)
            return lambda: self.model(around)
        hops = [self.data.rows(k, rows) for k in self.model.inputs]
        return lambda: self.model(hops)

    def alike(self, x_NF: Tensor) -> Inputs:
        """What the model reads of nodes whose neighbours, at every hop, have the features of the node itself."""
        if (coupled := self.model.coupled) is not None:
            return alike(x_NF, coupled.operator, len(coupled.convs))
        return [x_NF] * len(self.model.inputs)

    def logits_of(self, part: str) -> Tensor:
        """Logits of the rows of `train`, `val` or `test`, float32 `[rows, C]`."""
        rows: Tensor = getattr(self.data, part)
        if self._logits is not None or self.model.coupled is not None:
            return self.logits()[rows]
        return self.output(self.gathered(part)).logits_NC
