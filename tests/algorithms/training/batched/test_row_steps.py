"""Steps of the rows of a stack beside torch's optimizers, one for each client."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.protocol import Tree
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.batched.row_steps import RowSteps

B, P = 5, 37
OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.0, "lr": 0.3},
    {"optimizer": "sgd", "lr": 0.1},
    {"optimizer": "sgd", "weight_decay": 0.0},
    {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
]


def draws(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def of_torch(w: nn.Parameter, options: TrainOptions) -> torch.optim.Optimizer:
    rates = {"lr": options.lr, "weight_decay": options.weight_decay}
    if options.optimizer == "adam":
        return torch.optim.Adam([w], fused=True, **rates)
    return torch.optim.SGD([w], momentum=options.momentum, **rates)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("options", OPTIONS)
def test_every_row_steps_as_torch_does(options: dict[str, Any], keep: bool) -> None:
    """Row i begins anew in visit i: clients have counts of steps of their own. To the bit."""
    train = TrainOptions(**options, opt_state="keep" if keep else "reset")
    w_BP, states = draws(B, P, seed=0), list[Tree]({} for _ in range(B))
    alone = [nn.Parameter(w.clone()) for w in w_BP]
    optimizers = [of_torch(w, train) for w in alone]
    for visit in range(3):
        states[visit], optimizers[visit] = {}, of_torch(alone[visit], train)
        before = [{name: t.clone() for name, t in state.items()} for state in states]
        steps = RowSteps(train, w_BP, states, copies=visit == 1)
        for step in range(2):
            gradient_BP = draws(B, P, seed=10 * visit + step + 1) * 10.0 ** (visit - 1)
            for w, optimizer, gradient in zip(alone, optimizers, gradient_BP.clone()):
                w.grad = gradient.clone()
                optimizer.step()
            steps.step(gradient_BP)
        for w, mine, optimizer, moments in zip(alone, w_BP, optimizers, steps.moments, strict=True):
            assert torch.equal(w.detach(), mine)
            theirs = {f"model.opt.{name}": t for name, t in optimizer.state[w].items() if t is not None}
            assert moments.keys() == theirs.keys()
            assert all(torch.equal(t, theirs[name]) for name, t in moments.items())
            # What is kept must not hold the memory of others.
            assert not keep or all(t.untyped_storage().nbytes() == t.nbytes for t in moments.values())
        if visit == 1:
            assert all(torch.equal(t, old[name]) for state, old in zip(states, before) for name, t in state.items())
        states = [dict(moments) for moments in steps.moments]


def test_moments_of_another_shape_are_refused() -> None:
    wrong = {"model.opt.momentum_buffer": torch.zeros(P + 1)}
    options = TrainOptions(optimizer="sgd", momentum=0.9)
    with pytest.raises(RuntimeError, match=r"momentum_buffer has shape \[38\], expected \[37\]"):
        RowSteps(options, torch.zeros(2, P), [{}, wrong])
