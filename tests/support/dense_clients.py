"""Clients whose graph is a dense matrix, in plain torch: they train on the whole graph, and nothing is dropped."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from support.plain_clients import EPOCHS, TorchClient
from support.small_fedgkc import answer
from torch import Tensor

from shoal.algorithms.models.layers.head import Output


class DenseClient(TorchClient):
    """A client with SGD, as the config of `unequal` has it without dropout."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.a_NN, self.x_NF = self.view.adjacency.to_dense().double(), self.view.whole(0)

    def output(self) -> Output:
        """Computes the output for all nodes, with gradients."""
        return answer(self.module.train(), self.a_NN, self.x_NF)

    def visit(self, term: Callable[[Output], Tensor] | None = None) -> float:
        """Takes two epochs of cross-entropy, and of a term of the output; returns the last loss, NaN without rows."""
        if not len(self.y):
            return float("nan")
        loss = torch.zeros(())
        for _ in range(EPOCHS):
            self.optimizer.zero_grad()
            out = self.output()
            loss = F.cross_entropy(out.logits_NC[self.view.train], self.y)
            loss = loss if term is None else loss + term(out)
            loss.backward()
            self.optimizer.step()
        return float(loss.detach())


def average(clients: list[DenseClient], before: Tensor) -> Tensor:
    """Averages parameters of those that have training rows, by nodes, float64 `[P]`; the former ones without any."""
    counted = [client for client in clients if len(client.y)]
    nodes = sum(client.view.nodes for client in counted)
    return sum((client.view.nodes / nodes * client.w for client in counted), 0 * before) if counted else before
