"""The models of the bare loops: of each the logits for autograd, and the gradients written out.

Axes: T training rows, n nodes whose hidden rows are computed, m nodes whose features are read, F features, H hidden
width, C classes. Training rows come first among n, these first among m. Forms: `autograd` and `formulas` compute all
nodes, n = m = N, `field` only those that the logits of the training rows depend on; `kernel` is `field` with Shoal's
products. What is constant in a first layer, sums over neighbours of the features, is not computed ahead.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from bare_products import Matrix, features
from bare_weights import Weights, aligned
from torch import Tensor

from shoal.storage.shards.view import View

FORMS = ("autograd", "formulas", "field", "kernel")
FIRST = ("head.linears.0.weight", "head.linears.0.bias")
SECOND = ("head.linears.1.weight", "head.linears.1.bias")


class Client(ABC):
    """One client of a model; all clients share weights and memory.

    Attributes:
        blocks: Names of the parameters in every block of `Weights`.
        products: Matrices that a step multiplies from both sides, and the columns of their other factor.
        layers: Rows, inputs and outputs of the layers on what is not constant, of which a step has three products.
        sizes: Rows and columns of what a step keeps, by name.
        memory: Where it lies, see `share_memory`.
    """

    blocks: ClassVar[tuple[tuple[str, ...], ...]]

    def __init__(self, weights: Weights, label_T: Tensor) -> None:
        self.weights, self.label_T = weights, label_T
        self.products: list[tuple[Matrix, int]] = []
        self.layers: list[tuple[int, int, int]] = []
        self.sizes: dict[str, tuple[int, int]] = {}
        self.memory: dict[str, Tensor] = {}
        self._places, self._minus = label_T[:, None], torch.full((1, 1), -1.0).expand(len(label_T), 1)

    @abstractmethod
    def logits(self, leaves: Sequence[Tensor]) -> Tensor:
        """Logits of the training rows, `[T, C]`, for autograd; the leaves are the values of all blocks."""

    @abstractmethod
    def write_gradients(self) -> None:
        """Fills the gradients of all blocks, of the mean cross-entropy of the training rows."""

    def of_logits(self, logits: Tensor) -> Tensor:
        """The gradient of logits `[T, C]`, (softmax - one-hot) / T, in place."""
        torch.softmax(logits, 1, out=logits)
        return logits.scatter_add_(1, self._places, self._minus).mul_(1 / len(logits))


class Gcn(Client):
    """P relu(P X W + b) V + c, P being the adjacency with loops, normalised by both degrees."""

    blocks = (("convs.0.lin.weight",), ("convs.0.bias",), *((name,) for name in FIRST))

    def __init__(self, weights: Weights, view: View, form: str) -> None:
        super().__init__(weights, view.train_label)
        hidden, classes = weights.values[0].shape[1], len(weights.values[-1])
        operator = self.operator(view)
        self.nodes, n, last = field(operator, view.train.numpy(), form)
        nodes, kernel = self.nodes, form == "kernel"
        self.x = Matrix(features(view.x)[nodes], kernel)
        self.sums = Matrix(operator[nodes[:n]][:, nodes], kernel)
        self.last_sums = Matrix(operator[nodes[:last]][:, nodes[:n]], kernel)
        self.products = [(self.x, hidden), (self.sums, hidden), (self.last_sums, classes)]
        self.layers = [(n, hidden, classes)]
        self.sizes = {"messages": (len(nodes), hidden), "hidden": (n, hidden), "of hidden": (n, hidden)}
        self.sizes |= {"narrow": (n, classes), "logits": (last, classes)}

    def operator(self, view: View) -> sp.csr_array:
        """P."""
        whole = (adjacency_of(view) + sp.eye_array(view.nodes, dtype=np.float32)).tocsr()
        root = sp.diags_array(1 / np.sqrt(whole.sum(1).astype(np.float64)))
        return (root @ whole @ root).tocsr()

    def logits(self, leaves: Sequence[Tensor]) -> Tensor:
        w, b, v, c = leaves
        h = F.relu(self.sums @ (self.x @ w) + b)
        return (self.last_sums @ (h @ v))[: len(self.label_T)] + c

    def write_gradients(self) -> None:
        w, b, v, c = self.weights.values
        of_w, of_b, of_v, of_c = self.weights.gradients
        messages, hidden, of_hidden, narrow, logits = self.memory.values()
        self.x.times(w, messages)
        self.sums.times(messages, hidden).add_(b).relu_()
        self.last_sums.times(torch.mm(hidden, v, out=narrow), logits).add_(c)
        torch.sum(self.of_training_rows(logits), 0, out=of_c)
        self.last_sums.transposed_times(logits, narrow)
        torch.mm(hidden.t(), narrow, out=of_v)
        let_through(torch.mm(narrow, v.t(), out=of_hidden), hidden)
        torch.sum(of_hidden, 0, out=of_b)
        self.x.transposed_times(self.sums.transposed_times(of_hidden, messages), of_w)

    def of_training_rows(self, logits: Tensor) -> Tensor:
        """The gradient of the training rows' logits, `[T, C]`; that of all other rows becomes 0."""
        count = len(self.label_T)
        logits[count:].zero_()
        return self.of_logits(logits[:count])


class Sage(Gcn):
    """M h V + h U + c with h = relu(M X W + X O + b), M taking means over neighbours."""

    blocks = (
        ("convs.0.lin_l.weight",),
        ("convs.0.lin_r.weight",),
        ("head.messages.weight",),
        ("head.linears.0.weight",),
        ("convs.0.lin_l.bias",),
        ("head.linears.0.bias",),
    )

    def __init__(self, weights: Weights, view: View, form: str) -> None:
        super().__init__(weights, view, form)
        (m, hidden), (n, _), (last, classes) = (self.sizes[name] for name in ("messages", "hidden", "logits"))
        self.own = self.x if n == m else Matrix(features(view.x)[self.nodes[:n]], form == "kernel")
        self.products.append((self.own, hidden))
        self.layers.append((last, hidden, classes))

    def operator(self, view: View) -> sp.csr_array:
        """M."""
        adjacency = adjacency_of(view)
        return (sp.diags_array(1 / np.maximum(adjacency.sum(1), 1)) @ adjacency).tocsr()

    def logits(self, leaves: Sequence[Tensor]) -> Tensor:
        w, o, v, u, b, c = leaves
        h, count = F.relu(self.sums @ (self.x @ w) + self.own @ o + b), len(self.label_T)
        return (self.last_sums @ (h @ v))[:count] + torch.addmm(c, h[:count], u)

    def write_gradients(self) -> None:
        w, o, v, u, b, c = self.weights.values
        of_w, of_o, of_v, of_u, of_b, of_c = self.weights.gradients
        messages, hidden, of_hidden, narrow, logits = self.memory.values()
        self.x.times(w, messages)
        self.sums.times(messages, self.own.plus(b, o, hidden), add=True).relu_()
        torch.addmm(c, hidden[: len(logits)], u, out=logits)
        self.last_sums.times(torch.mm(hidden, v, out=narrow), logits, add=True)
        of_logits = self.of_training_rows(logits)
        count = len(of_logits)
        torch.sum(of_logits, 0, out=of_c)
        torch.mm(hidden[:count].t(), of_logits, out=of_u)
        self.last_sums.transposed_times(logits, narrow)
        torch.mm(hidden.t(), narrow, out=of_v)
        torch.mm(narrow, v.t(), out=of_hidden)[:count].addmm_(of_logits, u.t())
        let_through(of_hidden, hidden)
        torch.sum(of_hidden, 0, out=of_b)
        self.own.transposed_times(of_hidden, of_o)
        self.x.transposed_times(self.sums.transposed_times(of_hidden, messages), of_w)


class Linear(Client):
    """X W + b on rows of features."""

    blocks = tuple((name,) for name in FIRST)

    def __init__(self, weights: Weights, x: sp.csr_array, label_T: Tensor, form: str) -> None:
        super().__init__(weights, label_T)
        rows, width = len(label_T), weights.values[0].shape[1]
        self.x = Matrix(x, form == "kernel")
        self.products = [(self.x, width)]
        self.sizes = {"first": (rows, width)}

    def logits(self, leaves: Sequence[Tensor]) -> Tensor:
        w, b = leaves
        return self.x @ w + b if self.x.dense is None else torch.addmm(b, self.x.dense, w)

    def write_gradients(self) -> None:
        w, b = self.weights.values
        of_logits = self.of_logits(self.x.plus(b, w, self.memory["first"]))
        torch.sum(of_logits, 0, out=self.weights.gradients[1])
        self.x.transposed_times(of_logits, self.weights.gradients[0])


class Mlp(Linear):
    """relu(X W + b) V + c: SGC on rows of the last hop, an MLP on those of the features."""

    blocks = tuple((name,) for name in (*FIRST, *SECOND))

    def __init__(self, weights: Weights, x: sp.csr_array, label_T: Tensor, form: str) -> None:
        super().__init__(weights, x, label_T, form)
        rows, hidden, classes = len(label_T), *weights.values[2].shape
        self.layers = [(rows, hidden, classes)]
        self.sizes |= {"of hidden": (rows, hidden), "logits": (rows, classes)}

    def logits(self, leaves: Sequence[Tensor]) -> Tensor:
        *first, v, c = leaves
        return torch.addmm(c, F.relu(super().logits(first)), v)

    def write_gradients(self) -> None:
        w, b, v, c = self.weights.values
        of_w, of_b, of_v, of_c = self.weights.gradients
        hidden, of_hidden, logits = self.memory.values()
        self.x.plus(b, w, hidden).relu_()
        self.of_logits(torch.addmm(c, hidden, v, out=logits))
        torch.mm(hidden.t(), logits, out=of_v)
        torch.sum(logits, 0, out=of_c)
        let_through(torch.mm(logits, v.t(), out=of_hidden), hidden)
        torch.sum(of_hidden, 0, out=of_b)
        self.x.transposed_times(of_hidden, of_w)


class Gamlp(Client):
    """prelu(sum_k a_k X_k W + b) V + c over the K hops, a = softmax(sigmoid(scores)).

    One product of a hop has the columns of W, K of which the sum of all hops' own is a part of every score, and the
    hop's own score. Rows are as wide as `Weights` makes them.
    """

    blocks = (("head.linears.0.weight", "score.weight"), *((n,) for n in (*FIRST[1:], *SECOND)))
    blocks += (("score.bias",), ("head.prelu.weight",))

    def __init__(self, weights: Weights, view: View, form: str) -> None:
        super().__init__(weights, view.train_label)
        rows, width, (hidden, classes) = len(self.label_T), weights.values[0].shape[1], weights.values[2].shape
        self.hops = [Matrix(features(view.rows(k, view.train)), form == "kernel") for k in range(3)]
        self.products = [(hop, width) for hop in self.hops]
        self.layers = [(rows, hidden, classes)]
        self.sizes = {"hops": (len(self.hops) * rows, width), "logits": (rows, classes)}
        self.sizes |= dict.fromkeys(("hidden", "passed", "of hidden"), (rows, hidden))

    def weighed(self, product_KTW: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Sigmoids of the scores, and the weights of all hops, `[T, K]`."""
        hidden, count = len(self.weights.values[1]), len(self.hops)
        shared = product_KTW[:, :, hidden : hidden + count].diagonal(0, 0, 2).sum(1) + offset
        gate = (product_KTW[:, :, hidden + count].t() + shared[:, None]).sigmoid()
        return gate, gate.softmax(1)

    def logits(self, leaves: Sequence[Tensor]) -> Tensor:
        w, b, v, c, offset, slope = leaves
        product_KTW = torch.stack([hop @ w for hop in self.hops])
        _, weight = self.weighed(product_KTW, offset)
        hidden = (product_KTW[:, :, : len(b)] * weight.t().unsqueeze(2)).sum(0) + b
        return torch.addmm(c, F.prelu(hidden, slope), v)

    def write_gradients(self) -> None:
        w, b, v, c, offset, slope = self.weights.values
        of_w, of_b, of_v, of_c, of_offset, of_slope = self.weights.gradients
        hops, logits, hidden, passed, of_hidden = self.memory.values()
        product_KTW = hops.view(len(self.hops), len(logits), -1)
        own, last = product_KTW[:, :, : len(b)], len(b) + len(self.hops)
        for hop, product in zip(self.hops, product_KTW):
            hop.times(w, product)
        gate, weight = self.weighed(product_KTW, offset)
        torch.mul(own[0], weight[:, :1], out=hidden).add_(b)
        for k in range(1, len(own)):
            hidden.addcmul_(own[k], weight[:, k : k + 1])
        read = torch.clamp(hidden, max=0, out=passed).mul_(slope).add_(hidden.clamp_min(0))
        self.of_logits(torch.addmm(c, read, v, out=logits))
        torch.mm(read.t(), logits, out=of_v)
        torch.sum(logits, 0, out=of_c)
        torch.mm(logits, v.t(), out=of_hidden)
        of_slope.copy_(torch.dot(of_hidden.flatten(), torch.clamp(hidden, max=0, out=passed).flatten()))
        of_hidden = torch.where(hidden > 0, of_hidden, of_hidden * slope)
        torch.sum(of_hidden, 0, out=of_b)
        of_weight = torch.linalg.vecdot(own, of_hidden).t()
        of_score = weight * (of_weight - (weight * of_weight).sum(1, keepdim=True)) * gate * (1 - gate)
        shared = of_score.sum(1)
        torch.sum(shared, 0, keepdim=True, out=of_offset)
        product_KTW[:, :, len(b) :].zero_()
        torch.mul(of_hidden, weight.t().unsqueeze(2), out=own)
        product_KTW[:, :, len(b) : last].diagonal(0, 0, 2).copy_(shared[:, None])
        product_KTW[:, :, last].copy_(of_score.t())
        for k, (hop, product) in enumerate(zip(self.hops, product_KTW)):
            hop.transposed_times(product, of_w, add=k > 0)


MODELS: dict[str, type[Client]] = {"gcn": Gcn, "sage": Sage, "mlp": Mlp, "sgc": Mlp, "gamlp": Gamlp}


def client_of(model: str, weights: Weights, view: View, form: str) -> Client:
    """A client of a store."""
    if model in ("mlp", "sgc"):
        return Mlp(weights, features(view.rows(2 * (model == "sgc"), view.train)), view.train_label, form)
    return MODELS[model](weights, view, form)  # type: ignore[call-arg, arg-type]


def share_memory(clients: Sequence[Client]) -> None:
    """Gives all clients the same memory for what a step keeps, which the largest of them fill."""
    for name, (_, width) in clients[0].sizes.items():
        room = aligned(max(client.sizes[name][0] for client in clients), width)
        for client in clients:
            client.memory[name] = room[: client.sizes[name][0]]


def let_through(gradient: Tensor, output: Tensor) -> Tensor:
    """The gradient before ReLU, in place."""
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def field(operator: sp.csr_array, train: np.ndarray, form: str) -> tuple[np.ndarray, int, int]:
    """Nodes whose features are read, how many of the first have hidden rows, and how many of those have logits."""
    if form in ("autograd", "formulas"):
        nodes = np.concatenate([train, np.setdiff1d(np.arange(len(operator.indptr) - 1), train)])
        return nodes, len(nodes), len(nodes)
    hidden = _with_senders(operator, train)
    return _with_senders(operator, hidden), len(hidden), len(train)


def _with_senders(operator: sp.csr_array, receivers: np.ndarray) -> np.ndarray:
    """Nodes, and behind them the others that they read."""
    return np.concatenate([receivers, np.setdiff1d(operator[receivers].indices, receivers)])


def adjacency_of(view: View) -> sp.csr_array:
    """The client's adjacency without loops."""
    starts, columns = view.csr
    return sp.csr_array((np.ones(len(columns), np.float32), columns, starts), shape=(view.nodes, view.nodes))
