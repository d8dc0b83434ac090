"""A model whose parameters lie one behind the other in one vector."""

import copy
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from algorithms.backbones.adapted import Adapted
from algorithms.backbones.coupled import Coupled
from algorithms.backbones.neighbourhood import Inputs
from algorithms.backbones.output import Output


class FlatModel:
    """A backbone over one flat parameter vector: loaded, sent and averaged as a whole, built once and reset in place.

    Attributes:
        module: The backbone; its parameters are views of `w`.
        w: All parameters, float32 `[P]`, a leaf that may be differentiated; its gradient and the parameters' gradients
            share memory, so that a penalty on `w` and the loss of the model add up.
        bfloat16: Layers multiply in bfloat16; parameters, outputs and losses stay float32.
    """

    def __init__(self, module: nn.Module, bfloat16: bool = False) -> None:
        """Moves the parameters of a module into one vector, in the order of `module.parameters()`."""
        self.module = module
        self.bfloat16 = bfloat16
        parameters = list(module.parameters())
        flat = torch.cat([p.detach().reshape(-1) for p in parameters]).contiguous()
        gradient = torch.zeros_like(flat)
        offset = 0
        for p in parameters:
            part = slice(offset, offset + p.numel())
            p.data = flat[part].view_as(p)
            p.grad = gradient[part].view_as(p)
            offset += p.numel()
        self.w = nn.Parameter(flat)
        self.w.grad = gradient

    @property
    def inputs(self) -> tuple[int, ...]:
        """Hop numbers that the backbone reads."""
        return tuple(self.module.inputs)  # type: ignore[arg-type]

    @property
    def coupled(self) -> Coupled | None:
        """The backbone, if it passes messages along edges; None if it reads rows of the hops."""
        inner = self.module.backbone if isinstance(self.module, Adapted) else self.module
        return inner if isinstance(inner, Coupled) else None

    def on(self, device: torch.device) -> "FlatModel":
        """A copy on a device."""
        return FlatModel(copy.deepcopy(self.module).to(device), self.bfloat16)

    def load(self, w: Tensor) -> None:
        """Overwrites all parameters, `[P]`.

        Raises:
            ValueError: They are of another shape.
        """
        if w.shape != self.w.shape:
            raise ValueError(f"parameters of shape {list(w.shape)}, the model has {list(self.w.shape)}")
        with torch.no_grad():
            self.w.copy_(w)

    def initial(self, seed: int) -> Tensor:
        """Draws fresh parameters, `[P]`; the model keeps them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module.reset_parameters()  # type: ignore[operator]
        return self.w.detach().clone()

    def __call__(self, inputs: Inputs) -> Output:
        if not self.bfloat16:
            return self.module(inputs)
        with self.precision():
            return Output(*(x.float() for x in self.module(inputs)))

    def precision(self) -> AbstractContextManager[None]:
        """Inside the block, the module multiplies as `bfloat16` says."""
        return torch.autocast(self.w.device.type, torch.bfloat16, enabled=self.bfloat16)
