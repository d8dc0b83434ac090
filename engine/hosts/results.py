"""What clients leave behind at the end of their turns, brought from a device in one copy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from shoal.algorithms.protocol import Tree, Upload
from shoal.algorithms.training.local_training import finite_loss
from shoal.engine.hosts.batched_counts import without_lost
from shoal.engine.hosts.scored import Scored, counts_of
from shoal.engine.hosts.transfer import fetched


@dataclass(frozen=True)
class ClientResult:
    """What one client leaves behind; tensors lie where it was visited, and nothing writes into them any more.

    Attributes:
        client: Its number.
        loss: Its loss: a number that was looked at, NaN where it says none, or a scalar that nobody has read.
        upload: What it sends; None where it was only evaluated.
        state: What it keeps.
        counts: Of its predictions, where it was evaluated; a tensor as `counts_of` gives it.
        scored: Its predictions, where they are still to be counted.
    """

    client: int
    loss: float | Tensor
    upload: Upload | None
    state: Tree
    counts: np.ndarray | Tensor | None = None
    scored: Scored | None = None

    @cached_property
    def bytes(self) -> int:
        """Of its tensors."""
        return sum(t.nbytes for t in self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """All of them, wherever they lie."""
        yield from self.state.values()
        if isinstance(self.counts, Tensor):
            yield self.counts
        if isinstance(self.loss, Tensor):
            yield self.loss
        if self.upload is not None:
            yield from self.upload.entries.values()
            yield from (w for w in self.upload.weight.values() if isinstance(w, Tensor))

    def loss_value(self) -> float:
        """The loss.

        Raises:
            ShoalError: It is a scalar that is NaN or infinite.
        """
        return finite_loss(float(self.loss)) if isinstance(self.loss, Tensor) else self.loss

    def counts_value(self) -> np.ndarray | None:
        """The counts.

        Raises:
            ShoalError: A row's largest score was not finite.
        """
        return without_lost(self.counts.numpy()) if isinstance(self.counts, Tensor) else self.counts

    def mapped(self, to: Callable[[Tensor], Tensor]) -> "ClientResult":
        """The same with other tensors."""
        upload = self.upload
        if upload is not None:
            weight = {name: to(w) if isinstance(w, Tensor) else w for name, w in upload.weight.items()}
            upload = replace(upload, entries={name: to(t) for name, t in upload.entries.items()}, weight=weight)
        loss = to(self.loss) if isinstance(self.loss, Tensor) else self.loss
        counts = to(self.counts) if isinstance(self.counts, Tensor) else self.counts
        state = {name: to(t) for name, t in self.state.items()}
        return replace(self, loss=loss, upload=upload, state=state, counts=counts)


def on_processor(
    result: Sequence[ClientResult], classes: int, before_waiting: Callable[[], None] | None = None
) -> list[ClientResult]:
    """The same on the processor: all that lies on a device comes in one copy.

    Args:
        left: Of some clients.
        classes: Number of classes C.
        before_waiting: Called when a device has been told all that there is to do.
    """
    result = _counted(result, classes)
    if before_waiting is not None:
        before_waiting()
    away = {id(t): t for one in result for t in one.tensors() if t.device.type != "cpu"}
    if not away:
        return list(result)
    here = dict(zip(away, fetched(list(away.values()))))
    return [one.mapped(lambda t: here.get(id(t), t)) for one in result]


def _counted(result: Sequence[ClientResult], classes: int) -> Sequence[ClientResult]:
    """The same, where predictions were still to be counted with their counts."""
    scored = {one.client: one.scored for one in result if one.scored is not None}
    if not scored:
        return result
    counts = dict(zip(scored, counts_of(list(scored.values()), classes)))
    return [replace(one, counts=counts.get(one.client, one.counts), scored=None) for one in result]
