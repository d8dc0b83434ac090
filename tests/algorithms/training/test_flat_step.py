from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import flat_step, make_optimizer

OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.0, "lr": 0.3},
    {"optimizer": "sgd", "lr": 0.1},
    {"optimizer": "sgd", "weight_decay": 0.0},
    {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
    {"optimizer": "sgd", "weight_decay": 0.0, "momentum": 0.5},
]
P = 37


def visits(options: TrainOptions, ours: bool) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Parameters and moments after each of four visits of three steps, the third of which begins without moments."""
    draw = torch.Generator().manual_seed(1)
    w = nn.Parameter(torch.randn(P, generator=draw))
    w.grad = torch.zeros_like(w)
    optimizer = make_optimizer([w], options)
    kept: dict[str, Tensor] = {}
    for visit in range(4):
        optimizer.state.clear()
        if visit == 2:
            kept = {}
        if kept:
            optimizer.state[w] = {name: t.clone() for name, t in kept.items()}
        step = flat_step(optimizer, w) if ours else optimizer.step
        for _ in range(3):
            gradient = torch.randn(P, generator=draw) * 10.0 ** float(visit - 2)
            w.grad.copy_(gradient)
            step()
            # Methods read it after the last step.
            assert torch.equal(w.grad, gradient)
        kept = {name: t for name, t in optimizer.state[w].items() if t is not None}
        yield w.detach().clone(), {name: t.clone() for name, t in kept.items()}
        for group in optimizer.param_groups:
            group["lr"] /= 2


@pytest.mark.parametrize("options", OPTIONS)
def test_flat_step_equals_torch_to_the_bit(options: dict[str, Any]) -> None:
    """Bit for bit, with moments that were kept, without, and with a rate that changes between visits."""
    train = TrainOptions(**options)
    before = torch.zeros(P)
    for (found, moments), (expected, theirs) in zip(visits(train, True), visits(train, False), strict=True):
        assert torch.equal(found, expected)
        assert not torch.equal(found, before)
        assert list(moments) == list(theirs)
        for name, moment in moments.items():
            assert torch.equal(moment, theirs[name])
            assert moment.dtype == theirs[name].dtype
        before = found
