"""Steps of the optimizers of clients that train in one batch: torch's kernels on the rows of a stack.

Each client has moments and a count of steps of its own, by the names and with the bits of torch's optimizers. These
look up so much in Python for each parameter that it takes longer than a step of a small client.

Axes: B clients, P parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.algorithms.protocol import MODEL, Tree, moments_key
from shoal.algorithms.train_options import TrainOptions

# Torch's defaults.
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
STEP, MEAN, SQUARE, BUFFER = "step", "exp_avg", "exp_avg_sq", "momentum_buffer"


class RowSteps:
    """Steps of Adam, SGD, or SGD with momentum; in each an operator of torch takes all rows."""

    def __init__(self, options: TrainOptions, w_BP: Tensor, states: Sequence[Tree], copies: bool = False) -> None:
        """Prepares steps of `w_BP`; moments in clients' states are written to, or with `copies` left as they are.

        Raises a RuntimeError where these are not of a client's parameters.
        """
        self._options, self._copies, self._w = options, copies, w_BP.unbind()
        self._keys = {name: moments_key(MODEL, name) for name in _moments_of(options)}
        self._rows = {
            name: self._begun(name, w_BP.shape[1:], [state.get(key) for state in states])
            for name, key in self._keys.items()
        }
        if options.optimizer == "adam":
            counted = moments_key(MODEL, STEP)
            self._steps = self._begun(STEP, torch.Size(), [state.get(counted) for state in states])
            # One operator counts the steps of all: on a device it takes a list, on a processor that is a loop.
            self._step_B = torch.stack(self._steps) if w_BP.device.type == "cpu" else None
            if self._step_B is not None:
                self._steps = list(self._step_B.unbind())

    @property
    def moments(self) -> list[Tree]:
        """Lists the moments of every client, by their names in its state, as they are now."""
        columns = {key: self._rows[name] for name, key in self._keys.items()}
        if self._options.optimizer == "adam":
            columns[moments_key(MODEL, STEP)] = [step.clone() for step in self._steps] if self._apart else self._steps
        of_clients = zip(*columns.values()) if columns else [()] * len(self._w)
        return [dict(zip(columns, of_client)) for of_client in of_clients]

    @property
    def _apart(self) -> bool:
        """Returns whether moments have memory of their own: what a client keeps must not hold that of others."""
        return self._w[0].device.type == "cpu" and self._options.opt_state == "keep"

    def _begun(self, name: str, shape: torch.Size, kept: Sequence[Tensor | None]) -> list[Tensor]:
        """Returns a moment of every client, zeros where it kept none."""
        present = [moment for moment in kept if moment is not None]
        if wrong := {moment.shape for moment in present} - {shape}:
            raise RuntimeError(f"{name} has shape {list(*wrong)}, expected {list(shape)}")
        anew, w = len(kept) - len(present), self._w[0]
        if self._apart and name != STEP:
            zeros = [w.new_zeros(shape) for _ in range(anew)]
        else:
            zeros = list(w.new_zeros(anew, *shape).unbind()) if anew else []
        if self._copies and name != STEP:
            present = [moment.clone() for moment in present]
        if not anew or not present:
            return present or zeros
        rows, begun = iter(present), iter(zeros)
        return [next(begun if moment is None else rows) for moment in kept]

    def step(self, gradient_BP: Tensor) -> None:
        """Takes a step of every client by its gradient, which may be overwritten."""
        options, w, gradient = self._options, self._w, gradient_BP.unbind()
        if options.optimizer == "adam":
            if self._step_B is None:
                torch._foreach_add_(self._steps, 1)
            else:
                self._step_B.add_(1)
            torch._fused_adam_(
                w, gradient, self._rows[MEAN], self._rows[SQUARE], [], self._steps, lr=options.lr, beta1=BETA1,
                beta2=BETA2, weight_decay=options.weight_decay, eps=EPSILON, amsgrad=False, maximize=False,
            )  # fmt: skip
            return
        if options.weight_decay:
            torch._foreach_add_(gradient, w, alpha=options.weight_decay)
        if options.momentum:
            buffers = self._rows[BUFFER]
            torch._foreach_mul_(buffers, options.momentum)
            torch._foreach_add_(buffers, gradient)
            gradient = tuple(buffers)
        torch._foreach_add_(w, gradient, alpha=-options.lr)


def moment_shapes(options: TrainOptions, parameters: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each moment of a client with so many parameters, by its name in a state."""
    shapes: dict[str, tuple[int, ...]] = {moments_key(MODEL, name): (parameters,) for name in _moments_of(options)}
    return shapes | ({moments_key(MODEL, STEP): ()} if options.optimizer == "adam" else {})


def _moments_of(options: TrainOptions) -> tuple[str, ...]:
    """Returns the names of an optimizer's moments `[P]`."""
    if options.optimizer == "adam":
        return MEAN, SQUARE
    return (BUFFER,) if options.momentum else ()
