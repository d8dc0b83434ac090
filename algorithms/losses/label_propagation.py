"""Label propagation over a client's own graph (FedGTA, eq. 3)."""

from collections.abc import Iterator

from torch import Tensor

from shoal.storage.shards.view import View


def propagate_labels(data: View, seed_NC: Tensor, steps: int, seed_weight: float) -> Iterator[Tensor]:
    """Yields Y^1 … Y^steps of Y^s = a Y^0 + (1 - a) A~ Y^{s-1} (FedGTA, eq. 3), A~ = D^{-1/2} (A + I) D^{-1/2}.

    The seed is Y^0, float32 `[N, C]`, in the paper the predicted class probabilities of all rows, and a its weight.
    """
    y = seed_NC
    for _ in range(steps):
        y = data.smooth(y).lerp_(seed_NC, seed_weight)
        yield y


def row_stochastic(y_NC: Tensor) -> Tensor:
    """Scales rows to sum to one, `[…, N, C]`; a row of A~ does not, so hubs would otherwise weigh more than one."""
    return y_NC / y_NC.sum(-1, keepdim=True).clamp_min(1e-12)
