"""Gradients of models that pass messages over a client's whole graph."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import name_of
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import fill_kept
from shoal.algorithms.training.analytic.layers import (
    Buffers,
    GATLayer,
    GCNLayer,
    GINLayer,
    Layer,
    SAGELayer,
    let_through,
    product,
    to_gradient,
    weight_gradient,
)
from shoal.storage.graph.sparse_matrix import StoredFeatures, require_stored


class Body(ABC):
    """Layers in training mode; dropout draws from torch's default generator what the model itself would draw."""

    def __init__(self, model: Coupled) -> None:
        """Takes a model whose gradients share memory with its parameters' `grad`."""
        self.model = model
        self.buffers = Buffers(model.head.linears[0].get_parameter("weight").detach())

    @abstractmethod
    def forward(self, around: Neighbourhood) -> Tensor:
        """Embeds all nodes, `[N, H]`; `backward` reads the embedding."""

    @abstractmethod
    def backward(self, gradient_NH: Tensor) -> None:
        """Writes the gradients of all layers' parameters, given that of the embedding, which is overwritten."""

    def factor(self) -> float:
        """Returns dropout's factor of the entries that it keeps."""
        return 1 / (1 - self.model.dropout)

    def drop_out(self, x: Tensor) -> Tensor:
        """Applies dropout in place."""
        if not self.model.dropout:
            return x
        kept = fill_kept(self.buffers("kept", *x.shape), self.model.dropout)
        return x.mul_(kept.mul_(self.factor()))


class Layers(Body):
    """Layers one after another, ReLU and dropout between them."""

    def __init__(self, model: Coupled, layer: type[Layer]) -> None:
        super().__init__(model)
        self._layers = [layer(conv, Buffers(self.buffers("", 0, 0))) for conv in model.convs]

    def forward(self, around: Neighbourhood) -> Tensor:
        first, *others = zip(self._layers, around.operators)
        out = first[0].forward(first[1], require_stored(around.x_NF))
        self._inputs = []
        for layer, operator in others:
            self._inputs.append(self.drop_out(out.relu_()))
            out = layer.forward(operator, out)
        return out

    def backward(self, gradient_NH: Tensor) -> None:
        for layer, x in zip(reversed(self._layers[1:]), reversed(self._inputs)):
            passed = layer.backward(gradient_NH, True)
            assert passed is not None
            gradient_NH = let_through(passed, x)
            if self.model.dropout:
                gradient_NH.mul_(self.factor())
        self._layers[0].backward(gradient_NH, False)


class JumpingLayers(Layers):
    """ReLU after every layer; the embedding is the largest output by entry, of equal ones the first's, as autograd."""

    def forward(self, around: Neighbourhood) -> Tensor:
        x = require_stored(around.x_NF)
        self._steps: list[tuple[Layer, StoredFeatures, Tensor]] = []
        for number, (layer, operator) in enumerate(zip(self._layers, around.operators)):
            out = layer.forward(operator, x).relu_()
            self._steps.append((layer, x, out))
            x = out
            # The maximum needs the output as it is; what follows the last one is the head's to drop.
            if self.model.dropout and number < len(self._layers) - 1:
                x = self.drop_out(self.buffers(f"read{number}", *out.shape).copy_(out))
        embedding_NH, self._from_NH = torch.stack([out[: len(x)] for _, _, out in self._steps]).max(0)
        return embedding_NH

    def backward(self, gradient_NH: Tensor) -> None:
        asked = len(gradient_NH)
        passed: Tensor | None = None
        for number, (layer, x, out) in reversed([*enumerate(self._steps)]):
            of_layer = self.buffers("own", *out.shape)
            torch.mul(gradient_NH, self._from_NH == number, out=of_layer[:asked])
            of_layer[asked:] = 0
            if passed is not None:
                of_layer.add_(passed)
            passed = layer.backward(let_through(of_layer, out), number > 0)
            if self.model.dropout and passed is not None:
                assert isinstance(x, Tensor)
                let_through(passed, x).mul_(self.factor())


class GCNIIBody(Body):
    """x_0 = relu(X W_0' + b_0), x_l = relu((1 - b) y_l + b y_l W_l) with y_l = (1 - a) P drop(x_l-1) + a x_0."""

    def forward(self, around: Neighbourhood) -> Tensor:
        lift = self.model.lift
        assert lift is not None
        self._around = around
        width = len(lift.weight)
        first = product(require_stored(around.x_NF), lift.weight, self.buffers("first", len(around.x_NF), width))
        self._first = first.add_(lift.bias).relu_()
        self._layers = []
        x = first
        convs: Sequence[Any] = list(self.model.convs)
        for number, conv in enumerate(convs):
            operator, read = around.operators[number], x
            if self.model.dropout:
                read = self.drop_out(self.buffers(f"read{number}", *x.shape).copy_(x))
            mixed = operator.times(read, self.buffers(f"mixed{number}", len(operator), width))
            mixed.lerp_(first[: len(operator)], conv.alpha)
            out = self.buffers(f"out{number}", *mixed.shape)
            x = torch.addmm(mixed, mixed, conv.weight1, beta=1 - conv.beta, alpha=conv.beta, out=out).relu_()
            self._layers.append((conv, operator, read, mixed, x))
        return x

    def backward(self, gradient_NH: Tensor) -> None:
        lift = self.model.lift
        assert lift is not None
        of_first = self.buffers("of first", *self._first.shape).zero_()
        for number, (conv, operator, read, mixed, x) in reversed([*enumerate(self._layers)]):
            let_through(gradient_NH, x)
            torch.mm(mixed.t(), gradient_NH, out=conv.weight1.grad).mul_(conv.beta)
            of_mixed = self.buffers("of mixed", *mixed.shape)
            torch.addmm(gradient_NH, gradient_NH, conv.weight1.t(), beta=1 - conv.beta, alpha=conv.beta, out=of_mixed)
            of_first[: len(mixed)].add_(of_mixed, alpha=conv.alpha)
            gradient_NH = operator.times_transposed(of_mixed, self.buffers(f"of read{number}", *read.shape))
            gradient_NH.mul_(1 - conv.alpha)
            if self.model.dropout:
                let_through(gradient_NH, read).mul_(self.factor())
        let_through(of_first.add_(gradient_NH), self._first)
        torch.sum(of_first, 0, out=lift.bias.grad)
        weight_gradient(lift.weight, require_stored(self._around.x_NF), of_first)


LAYERS: dict[str, type[Layer]] = {"gcn": GCNLayer, "sage": SAGELayer, "gin": GINLayer, "gat": GATLayer}


def classifier_of(model: Coupled) -> Any:
    """Returns the parameters of a classifier that passes messages, under the names of PyG's layer."""
    linear: Any = model.head.linears[-1]
    messages = model.head.messages
    if messages is None:
        return SimpleNamespace(lin=linear, bias=linear.bias)
    if not hasattr(messages, "att_src"):
        return SimpleNamespace(lin_l=SimpleNamespace(weight=messages.weight, bias=linear.bias), lin_r=linear)
    vectors = {name: getattr(messages, name) for name in ("att_src", "att_dst", "negative_slope")}
    return SimpleNamespace(lin=linear, bias=linear.bias, heads=1, out_channels=len(linear.bias), **vectors)


class GraphGradients:
    """The gradients of the mean cross-entropy of some nodes: those of the classifier, and, from there, of all layers.

    A linear classifier reads the embeddings of these nodes; one that passes messages reads what they receive, too.
    """

    def __init__(self, model: FlatModel) -> None:
        coupled = model.coupled
        assert coupled is not None
        name = name_of(coupled) or ""
        layers = Layers if getattr(coupled, "jump", None) is None else JumpingLayers
        self._body: Body = GCNIIBody(coupled) if name == "gcnii" else layers(coupled, LAYERS[name])
        self._head: Any = coupled.head.linears[0]
        self._drops = bool(coupled.dropout) and coupled.head.drops_embedding
        self._classifier: Layer | None = None
        if coupled.conv_head:
            self._classifier = LAYERS[name](classifier_of(coupled), Buffers(self._body.buffers("", 0, 0)))

    @torch.no_grad()
    def gradient(self, inputs: Inputs, label_N: Tensor) -> Tensor:
        """See `AnalyticGradient`; the inputs are the client's graph, or a part of it."""
        assert isinstance(inputs, Neighbourhood)
        embedding = self._body.forward(inputs)
        backward = self._by_rows if self._classifier is None else self._by_messages
        loss, of_embedding = backward(embedding, inputs, label_N)
        self._body.backward(of_embedding)
        return loss

    def _by_rows(self, embedding: Tensor, around: Neighbourhood, label_N: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the loss, and the gradient of the embedding of all nodes, `[N, H]`."""
        head, buffers = self._head, self._body.buffers
        read = self._select_rows(embedding, around.rows)
        if self._drops:
            self._body.drop_out(read)
        logits = torch.addmm(head.bias, read, head.weight.t(), out=buffers("logits", len(read), len(head.bias)))
        loss = to_gradient(logits, label_N)
        gradient = logits.div_(len(read))
        weight_gradient(head.weight, read, gradient)
        torch.sum(gradient, 0, out=head.bias.grad)
        passed = torch.mm(gradient, head.weight, out=buffers("passed", *read.shape))
        if self._drops:
            passed.mul_(buffers("kept", *read.shape))
        return loss, self._everywhere(passed, len(embedding), around.rows)

    def _by_messages(self, embedding: Tensor, around: Neighbourhood, label_N: Tensor) -> tuple[Tensor, Tensor]:
        """Does the same for a classifier that passes messages; its input overwrites the embedding."""
        classifier = self._classifier
        assert classifier is not None
        read = embedding.relu_()
        if self._drops:
            self._body.drop_out(read)
        of_all = classifier.forward(around.operators[-1], read)
        logits = self._select_rows(of_all, around.rows)
        loss = to_gradient(logits, label_N)
        gradient = self._everywhere(logits.div_(len(logits)), len(of_all), around.rows)
        passed = classifier.backward(gradient, True)
        assert passed is not None
        let_through(passed, read)
        return loss, passed.mul_(self._body.factor()) if self._drops else passed

    def _select_rows(self, of_all: Tensor, rows: Tensor | None) -> Tensor:
        """Copies some rows to a buffer; returns all of them as they are."""
        if rows is None:
            return of_all
        return torch.index_select(of_all, 0, rows, out=self._body.buffers("asked", len(rows), of_all.shape[1]))

    def _everywhere(self, gradient: Tensor, nodes: int, rows: Tensor | None) -> Tensor:
        """Spreads the gradient of some rows to all rows."""
        if rows is None:
            return gradient
        everywhere = self._body.buffers("everywhere", nodes, gradient.shape[1]).zero_()
        return everywhere.index_add_(0, rows, gradient)
