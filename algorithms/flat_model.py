"""A model whose parameters lie one behind the other in one vector."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import takewhile

import torch
from torch import Tensor, nn

from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.adapted import Adapted
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.output import Output
from shoal.algorithms.models.layers.pair_embedding import PairEmbedding
from shoal.algorithms.models.layers.readout import Readout
from shoal.algorithms.models.prompts.prompted import Prompted

# In float32.
CACHE_LINE = 16


class FlatModel:
    """A backbone over one flat parameter vector: loaded, sent and averaged as a whole, built once and reset in place.

    Attributes:
        module: The backbone; its parameters are views of `w`.
        w: All parameters, float32 `[P]`, a leaf that may be differentiated; its gradient and the parameters' gradients
            share memory, so that a penalty on `w` and the loss of the model add up.
        bfloat16: Layers multiply in bfloat16; parameters, outputs and losses stay float32.
        sparse: Features are sparse: weights `[H, F]` that they are multiplied by lie in `w` column by column, as a
            product with sparse rows reads them.
    """

    def __init__(self, module: nn.Module, bfloat16: bool = False, sparse: bool = False) -> None:
        """Moves the parameters of a module into one vector, in the order of `module.parameters()`."""
        self.module = module
        self.bfloat16 = bfloat16
        self.sparse = sparse
        parameters = list(module.parameters())
        self._by_column = {id(p) for p in self._first_weights()} if sparse else set()
        values = torch.cat([self._in_order(p.detach(), p).reshape(-1) for p in parameters]).contiguous()
        flat = self._room_for(values).copy_(values) if sparse else values
        gradient = self._room_for(values).zero_() if sparse else torch.zeros_like(values)
        for p, data, grad in zip(parameters, self.parts(flat), self.parts(gradient)):
            p.data, p.grad = data, grad
        self.w = nn.Parameter(flat)
        self.w.grad = gradient

    @property
    def backbone(self) -> nn.Module:
        """The innermost module, which embeds nodes: no wrapper has part in it."""
        inner = self.module
        while isinstance(inner, Adapted | Prompted | Readout | PairEmbedding):
            inner = inner.backbone
        return inner

    def _first_weights(self) -> Sequence[nn.Parameter]:
        inner = self.backbone
        return inner.first_weights() if hasattr(inner, "first_weights") else []  # type: ignore

    def _room_for(self, values: Tensor) -> Tensor:
        """A vector like the values in which the first weight by column, whose rows are read, starts at a cache line."""
        before = 0
        for p in self.module.parameters():
            if id(p) in self._by_column:
                break
            before += p.numel()
        room = values.new_empty(len(values) + CACHE_LINE)
        start = -(room.data_ptr() // values.element_size() + before) % CACHE_LINE
        return room[start : start + len(values)]

    def _in_order(self, value: Tensor, p: nn.Parameter) -> Tensor:
        """A parameter's value as it lies in `w`."""
        return value.t() if id(p) in self._by_column else value

    def parts(self, w: Tensor) -> Iterator[Tensor]:
        """Views of a vector `[P]` in the shapes of the parameters, in their order."""
        offset = 0
        for p in self.module.parameters():
            part = w[offset : offset + p.numel()]
            yield part.view(p.shape[::-1]).t() if id(p) in self._by_column else part.view_as(p)
            offset += p.numel()

    @property
    def inputs(self) -> tuple[int, ...]:
        """Hop numbers that the backbone reads."""
        return tuple(self.module.inputs)  # type: ignore[arg-type]

    @property
    def coupled(self) -> Coupled | None:
        """The backbone, if it passes messages along edges; None if it reads rows of the hops."""
        inner = self.backbone
        return inner if isinstance(inner, Coupled) else None

    @property
    def prompted(self) -> bool:
        """Whether a prompt changes graphs before the backbone reads them."""
        return any(isinstance(module, Prompted) for module in self.module.modules())

    @property
    def reads_items(self) -> bool:
        """Whether it answers for whole graphs, or for pairs of nodes, and not for nodes."""
        return any(isinstance(module, Readout | PairEmbedding) for module in self.module.modules())

    @property
    def classifier(self) -> slice:
        """Where weight and bias of the last linear layer lie in `w`, `[C H + C]`; after them what else it is made of.

        The weight lies row by row, the bias after it. Only where the model has no body, and features are sparse, does
        it lie column by column. More than these has a classifier that passes messages (`Head.messages`).
        """
        weight, bias = self._classifier()
        before = takewhile(lambda p: p is not weight, self.module.parameters())
        start = sum(p.numel() for p in before)
        return slice(start, start + weight.numel() + bias.numel() + sum(p.numel() for p in self._messages()))

    @property
    def classifies_by_weight(self) -> bool:
        """Whether the classifier has no parameters but a weight `[C, H]` and a bias `[C]`."""
        return not self._messages()

    def _messages(self) -> list[nn.Parameter]:
        messages = self.module.head.messages  # type: ignore
        return [] if messages is None else list(messages.parameters())  # type: ignore

    @property
    def has_body(self) -> bool:
        """Whether a layer, or messages along edges, lie between the features and the classifier."""
        return all(p is not self._classifier()[0] for p in self._first_weights())

    def _classifier(self) -> tuple[nn.Parameter, nn.Parameter]:
        last = self.module.head.linears[-1]  # type: ignore
        return last.get_parameter("weight"), last.get_parameter("bias")  # type: ignore

    def on(self, device: torch.device) -> "FlatModel":
        """A copy on a device."""
        return FlatModel(copy.deepcopy(self.module).to(device), self.bfloat16, self.sparse)

    def load(self, w: Tensor) -> None:
        """Overwrites all parameters, `[P]`.

        Raises:
            ValueError: They are of another shape.
        """
        self.require_shape(w)
        with torch.no_grad():
            self.w.copy_(w)

    def require_shape(self, w: Tensor) -> None:
        """Checks that a vector has the shape of the parameters, `[P]`.

        Raises:
            ValueError: It has not.
        """
        if w.shape != self.w.shape:
            raise ValueError(f"parameters of shape {list(w.shape)}, the model has {list(self.w.shape)}")

    def initial(self, seed: int) -> Tensor:
        """Draws fresh parameters, `[P]`; the model keeps them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with self._by_row():
                self.module.reset_parameters()  # type: ignore[operator]
        return self.w.detach().clone()

    @contextmanager
    def _by_row(self) -> Iterator[None]:
        """Inside the block, all parameters lie row by row, so that the same seed draws the same values for any data."""
        turned = [p for p in self.module.parameters() if id(p) in self._by_column]
        views = [p.data for p in turned]
        for p in turned:
            p.data = p.data.contiguous()
        yield
        for p, view in zip(turned, views):
            p.data = view.copy_(p.data)

    def __call__(self, inputs: Inputs) -> Output:
        if not self.bfloat16:
            return self.module(inputs)
        with self.precision():
            return Output(*(x.float() for x in self.module(inputs)))

    def precision(self) -> AbstractContextManager[None]:
        """Inside the block, the module multiplies as `bfloat16` says."""
        return torch.autocast(self.w.device.type, torch.bfloat16, enabled=self.bfloat16)
