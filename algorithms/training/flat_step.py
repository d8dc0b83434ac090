"""Steps of an optimizer on one vector of parameters.

Torch's `step` looks for parameters, groups and hooks anew each time, which takes longer than a small client's step.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[], None]


def flat_step(optimizer: torch.optim.Optimizer, w: nn.Parameter) -> Step:
    """Makes a step equal to `optimizer.step` on its one parameter, to the bit, with its present moments and options.

    Args:
        optimizer: As `make_optimizer` makes it; its state of `w` is read, or created, and updated.
        w: `[P]`, with its gradient, whose memory stays the same from step to step.
    """
    group, state = optimizer.param_groups[0], optimizer.state[w]
    assert w.grad is not None
    # Neither tensor requires gradients, so that a step needs no `no_grad`.
    return (_adam if isinstance(optimizer, torch.optim.Adam) else _sgd)(w.detach(), w.grad, group, state)


def _adam(w: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Tensor]) -> Step:
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=w.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(w), torch.zeros_like(w)
    steps = [state["step"]]
    tensors: list[list[Tensor]] = [[w], [gradient], [state["exp_avg"]], [state["exp_avg_sq"]], [], steps]
    options = {name: group[name] for name in ("amsgrad", "lr", "weight_decay", "eps", "maximize")}
    options["beta1"], options["beta2"] = group["betas"]

    def step() -> None:
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(*tensors, **options)

    return step


def _sgd(w: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Tensor]) -> Step:
    lr, weight_decay, momentum = group["lr"], group["weight_decay"], group["momentum"]

    def step() -> None:
        change = gradient.add(w, alpha=weight_decay) if weight_decay else gradient
        if momentum:
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = change.clone()
            else:
                state["momentum_buffer"].mul_(momentum).add_(change)
            change = state["momentum_buffer"]
        w.add_(change, alpha=-lr)

    return step
