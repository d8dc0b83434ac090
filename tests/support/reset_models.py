"""What `reset_parameters` has to do, of every model."""

import torch
from torch import nn


def assert_reset_as_fresh(fresh: nn.Module, other: nn.Module, seed: int) -> None:
    """Asserts that a model, reset, has the parameters of one that was made with the seed, in its own memory."""
    storage = [p.data_ptr() for p in other.parameters()]
    with torch.no_grad():
        for p in other.parameters():
            p.fill_(3.0)
    torch.manual_seed(seed)
    other.reset_parameters()  # type: ignore[operator]
    for (name, p), q in zip(other.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(p, q), name
    assert storage == [p.data_ptr() for p in other.parameters()]
