"""Gradients of models that pass messages over a client's whole graph."""

from typing import Any

import torch
from torch import Tensor

from algorithms.backbones.building import name_of
from algorithms.backbones.neighbourhood import Inputs, Neighbourhood
from algorithms.flat_model import FlatModel
from algorithms.training.closed_form.bodies import Body, GCNIIBody, JumpingLayers, Layers
from algorithms.training.closed_form.cross_entropy import to_gradient
from algorithms.training.closed_form.layers import GATLayer, GCNLayer, GINLayer, Layer, SAGELayer
from algorithms.training.closed_form.products import weight_gradient

LAYERS: dict[str, type[Layer]] = {"gcn": GCNLayer, "sage": SAGELayer, "gin": GINLayer, "gat": GATLayer}
# Backbones, by name.
GRAPHS = (*LAYERS, "gcnii")


class GraphGradients:
    """The gradients of the mean cross-entropy of some nodes: those of the head, and, from there, of all layers."""

    def __init__(self, model: FlatModel) -> None:
        """Of a model whose backbone is coupled and reads the whole graph."""
        coupled = model.coupled
        assert coupled is not None
        name = name_of(coupled) or ""
        self._body: Body
        if name == "gcnii":
            self._body = GCNIIBody(coupled)
        else:
            layers = Layers if getattr(coupled, "jump", None) is None else JumpingLayers
            self._body = layers(coupled, LAYERS[name])
        self._head: Any = coupled.head.linears[0]
        self._drops = bool(coupled.dropout) and coupled.head.drops_embedding

    @torch.no_grad()
    def gradient(self, inputs: Inputs, label_N: Tensor) -> Tensor:
        """See `ClosedForm`; the inputs are the client's whole graph, and the rows."""
        assert isinstance(inputs, Neighbourhood)
        assert inputs.rows is not None
        rows, head, rooms = inputs.rows, self._head, self._body.rooms
        embedding = self._body.forward(inputs)
        n, width = len(rows), embedding.shape[1]
        read = torch.index_select(embedding, 0, rows, out=rooms("read", n, width))
        if self._drops:
            self._body.dropped(read)
        logits = torch.addmm(head.bias, read, head.weight.t(), out=rooms("logits", n, len(head.bias)))
        loss = to_gradient(logits, label_N)
        gradient = logits.div_(n)
        weight_gradient(head.weight, read, gradient)
        torch.sum(gradient, 0, out=head.bias.grad)
        passed = torch.mm(gradient, head.weight, out=rooms("passed", n, width))
        if self._drops:
            passed.mul_(rooms("kept", n, width))
        everywhere = rooms("everywhere", *embedding.shape).zero_()
        self._body.backward(everywhere.index_add_(0, rows, passed))
        return loss
