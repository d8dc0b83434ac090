"""Methods whose clients compute with vectors alone, so that a cell of clients does with the rows of a stack.

Axes: B clients, P parameters.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Pull, Received, RowTerm, Tree, Upload
from shoal.algorithms.methods.shared.mean_gradient import steps_of
from shoal.algorithms.train_options import TrainOptions


class RowMethod(Algorithm):
    """A method whose clients have a pull, keep vectors, and send more than their model.

    A subclass, of FedAvg beside this, says what in hooks whose tensors are `[P]` of a client or `[B, P]` of the clients
    of a cell, and leaves `receive`, `pull` and `upload` as they are here.
    """

    weight_of: Callable[[Client], float]

    def kept_rows(self, options: TrainOptions) -> tuple[str, ...]:
        """Names what a client keeps, `[P]` each and zero before its first training."""
        raise NotImplementedError

    def pull_rows(self, kept: Tree, down: Tree, options: TrainOptions, steps: int) -> Pull | None:
        """Returns the pull of clients that keep `kept` and take so many steps."""
        raise NotImplementedError

    def send_rows(
        self, kept: Tree, down: Tree, w: Tensor, total: Tensor | None, options: TrainOptions, steps: int
    ) -> tuple[Tree, Tree]:
        """Returns what clients send of parameters `w` after training, and what they keep.

        Args:
            total: The `Pull.total` after training, which may be written to.
        """
        raise NotImplementedError

    def terms_of_rows(self, kept: Tree, down: Tree, embed: Callable[..., Sequence[Tensor]]) -> Sequence[RowTerm]:
        """Returns what `MappedLoss.row_terms` does, of the clients of a batch that have kept something.

        Args:
            embed: Embeds training rows in evaluation mode, `[B, N, H]`, by each of the parameters that it is given, of
                every client `[B, P]`, or of all `[P]`.
        """
        return ()

    def send_untrained(self, state: Tree, w: Tensor) -> Tree:
        """Returns what a client without a training row sends beside `w`, with weight zero."""
        return {}

    def entry_weight(self, entry: str, n: float) -> float:
        """Returns the weight of an entry of a client whose weight is n; of one without a training row it is zero."""
        return n

    def receive(self, client: Client, down: Tree) -> Received:
        return dict(super().receive(client, down))

    def pull(self, client: Client, received: Received, options: TrainOptions) -> Pull | None:
        state, w = client.state, client.model.flat.w
        kept = {name: state[name] if name in state else torch.zeros_like(w) for name in self.kept_rows(options)}
        steps = steps_of(client, options)
        pull = self.pull_rows(kept, received, options, steps)
        # The sum is this visit's alone.
        received["trained"] = kept, None if pull is None else pull.total, options, steps
        return pull

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        n, w = self.weight_of(client), client.model.w
        if "trained" in received:
            kept, total, options, steps = received["trained"]
            entries, new = self.send_rows(kept, received, w, total, options, steps)
            client.state.update(new)
        else:
            entries = {"w": w, **self.send_untrained(client.state, w)}
        return Upload(entries, {entry: self.entry_weight(entry, n) for entry in entries})
