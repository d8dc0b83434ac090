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


class StackedSteps:
    """Steps of Adam, SGD, or SGD with momentum; in each an operator of torch takes all rows.

    Attributes:
        moments: Of every client, by their names in its state, as they are now.
    """

    def __init__(self, options: TrainOptions, w_BP: Tensor, states: Sequence[Tree], copies: bool = False) -> None:
        """Prepares steps of `w_BP`; moments in clients' states are written to, or with `copies` left as they are.

        Raises a RuntimeError where these are not of a client's parameters.
        """
        self._options, self._copies, self._w = options, copies, w_BP.unbind()
        names = (MEAN, SQUARE, STEP) if options.optimizer == "adam" else (BUFFER,) * bool(options.momentum)
        keys = [moments_key(MODEL, name) for name in names]
        self._rows = {
            name: self._begun(w_BP, name, [state.get(key) for state in states]) for name, key in zip(names, keys)
        }
        of_clients = zip(*self._rows.values()) if names else [()] * len(self._w)
        self.moments: list[Tree] = [dict(zip(keys, of_client)) for of_client in of_clients]

    def _begun(self, w_BP: Tensor, name: str, kept: Sequence[Tensor | None]) -> list[Tensor]:
        """Returns a moment of every client, zeros where it kept none."""
        shape = w_BP.shape[1:] if name != STEP else torch.Size()
        found = [moment for moment in kept if moment is not None]
        if wrong := {moment.shape for moment in found} - {shape}:
            raise RuntimeError(f"{name} has shape {list(*wrong)}, expected {list(shape)}")
        anew = len(kept) - len(found)
        if w_BP.device.type == "cpu" and self._options.opt_state == "keep":
            # What one client keeps must not hold the memory of others.
            zeros = [w_BP.new_zeros(shape) for _ in range(anew)]
            found = [moment.clone() for moment in found] if self._copies else found
        else:
            zeros = list(w_BP.new_zeros(anew, *shape).unbind()) if anew else []
            found = list(torch.stack(found).unbind()) if self._copies and found else found
        if not anew or not found:
            return found or zeros
        rows, begun = iter(found), iter(zeros)
        return [next(begun if moment is None else rows) for moment in kept]

    def step(self, gradient_BP: Tensor) -> None:
        """Takes a step of every client by its gradient, which may be overwritten."""
        options, w, gradient = self._options, self._w, gradient_BP.unbind()
        if options.optimizer == "adam":
            torch._foreach_add_(self._rows[STEP], 1)
            torch._fused_adam_(
                w, gradient, self._rows[MEAN], self._rows[SQUARE], [], self._rows[STEP], lr=options.lr, beta1=BETA1,
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
