"""Clients as plain torch alone has them: a module, and one optimizer for the whole run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import key
from shoal.storage.shards.view import View

EPOCHS, LR, DECAY = 2, 0.05, 0.01


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Makes SGD as the config of `unequal` has it."""
    return torch.optim.SGD(parameters, lr=LR, momentum=0.9, weight_decay=DECAY)


@dataclass
class PlainClient:
    """A client with Adam, as the config of `patchy` has it."""

    number: int
    view: View
    module: nn.Module

    def __post_init__(self) -> None:
        self.optimizer = self.make_optimizer(self.module.parameters())
        self.y = self.view.label[self.view.train]

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=LR, weight_decay=DECAY)

    @property
    def w(self) -> Tensor:
        """The parameters, `[P]`."""
        return nn.utils.parameters_to_vector(self.module.parameters()).detach()

    def load(self, w: Tensor) -> None:
        """Replaces the parameters, `[P]`."""
        nn.utils.vector_to_parameters(w.float().clone(), self.module.parameters())

    def train(self, round_number: int, loss: Callable[[Output, Tensor], Tensor], batch: int = 100) -> None:
        """Steps on `loss(output, labels)`; what is dropped is drawn from the stream that a host draws from."""
        if not len(self.y):
            return
        torch.manual_seed(key(0, round_number, self.number, "train"))
        self.module.train()
        for _ in range(EPOCHS):
            order = torch.randperm(len(self.y)) if batch < len(self.y) else torch.arange(len(self.y))
            for chosen in order.split(batch):
                self.optimizer.zero_grad()
                rows = self.view.train[chosen]
                out = self.module([self.view.hop(k)[rows] for k in self.module.inputs])
                loss(out, self.y[chosen]).backward()
                self.optimizer.step()

    def answers(self) -> Output:
        """Computes the output for all rows, nothing dropped."""
        self.module.eval()
        with torch.no_grad():
            return self.module([self.view.hop(k) for k in self.module.inputs])

    def by_class(self, rows_ND: Tensor) -> dict[int, np.ndarray]:
        """Gives the training rows among all rows, float64, class by class."""
        rows: dict[int, list[np.ndarray]] = {}
        for row, c in zip(self.view.train.tolist(), self.y.tolist()):
            rows.setdefault(c, []).append(rows_ND[row].double().numpy())
        return {c: np.stack(of_class) for c, of_class in sorted(rows.items())}

    def embeddings(self) -> dict[int, np.ndarray]:
        """Gives the embeddings of the training rows of every class, nothing dropped."""
        return self.by_class(self.answers().embedding_NH)


class TorchClient(PlainClient):
    """A client with SGD, as the config of `unequal` has it; parameters are float64."""

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return sgd(parameters)

    @property
    def w(self) -> Tensor:
        return super().w.double()

    def train(self, round_number: int) -> None:  # type: ignore[override]
        """Takes two epochs of cross-entropy on all training rows."""
        super().train(round_number, lambda out, y: F.cross_entropy(out.logits_NC, y))

    def probabilities(self) -> np.ndarray:
        """Computes class probabilities of all rows, float64 `[N, C]`."""
        return self.answers().logits_NC.double().softmax(1).numpy()

    def require_kept(self, state: Tree) -> None:
        """Asserts that the moments in a client's state are those of the optimizer."""
        mine = [self.optimizer.state[p]["momentum_buffer"].flatten() for p in self.module.parameters() if len(self.y)]
        assert [name for name in state if ".opt." in name] == ["model.opt.momentum_buffer"] * bool(mine)
        if mine:
            torch.testing.assert_close(state["model.opt.momentum_buffer"], torch.cat(mine), rtol=1e-4, atol=1e-5)
