"""GCN with batch normalisation and a classifier that passes messages, beside PyG's layers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.plain_dropout import dropped
from support.sparse_rows import sparse
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.graphs.graph_views import GraphViews
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.models.build import build, width_of
from shoal.algorithms.models.inputs.neighbourhood import all_nodes
from shoal.algorithms.training.analytic.choice import needed_for_analytic
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

FEATURES, CLASSES, HIDDEN = 5, 4, 8
BOTH = {"norm": "batch", "head": "conv"}


def make(dropout: float = 0.3, hidden_layers: int = 2, **options: Any) -> Any:
    torch.manual_seed(0)
    layers = hidden_layers + (options.get("head") == "conv")
    model = build("gcn", FEATURES, CLASSES, 0, dropout, {"hidden": HIDDEN, "layers": layers, **options})
    with torch.no_grad():
        for p in model.parameters():  # biases start at zero
            p.add_(0.1 * torch.randn_like(p))
    return model


class PyGStack(nn.Module):
    """The same model from PyG's and torch's own layers, holding its weights."""

    def __init__(self, model: Any, layers: int, norm: str, head: str) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GCNConv(FEATURES if layer == 0 else HIDDEN, HIDDEN) for layer in range(layers))
        for own, twin in zip(model.convs, self.convs, strict=True):
            twin.load_state_dict(own.state_dict())
        linear = model.head.linears[0]
        if head == "conv":
            self.last: nn.Module = GCNConv(HIDDEN, CLASSES)
            self.last.load_state_dict({"lin.weight": linear.weight, "bias": linear.bias})
        else:
            self.last = nn.Linear(HIDDEN, CLASSES)
            self.last.load_state_dict(linear.state_dict())
        wanted = {"affine": False, "track_running_stats": False}
        self.norm = nn.BatchNorm1d(HIDDEN, **wanted) if norm == "batch" else nn.Identity()
        self.conv_head = head == "conv"

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        def between(h: Tensor) -> Tensor:
            return dropped(F.relu(self.norm(h)), 0.3, self.training)

        s = self.convs[0](x, edges)
        for conv in list(self.convs)[1:]:
            s = conv(between(s), edges)
        if self.conv_head:
            return self.last(between(s), edges), s
        return self.last(dropped(s, 0.3, self.training)), s


def gradients_of(logits_NC: Tensor, embedding_NH: Tensor, model: nn.Module) -> dict[str, Tensor | None]:
    (F.cross_entropy(logits_NC, torch.arange(len(logits_NC)) % CLASSES) + embedding_NH.square().mean()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("head", ["linear", "conv"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_batch_norm_equals_pyg_layers(
    layers: int, norm: str, head: str, training: bool, as_sparse: bool, view: View
) -> None:
    model = make(hidden_layers=layers, norm=norm, head=head).train(training)
    twin = PyGStack(model, layers, norm, head).train(training)
    around = all_nodes(view, "symmetric", model.depth)
    assert len(around.operators) == layers + (head == "conv")
    if as_sparse:
        around = around._replace(x_NF=sparse(view.x))
    torch.manual_seed(5)
    out = model(around)
    torch.manual_seed(5)
    logits_NC, s_NH = twin(view.x, view.adjacency.to_sparse_coo().indices().flip(0).long())
    torch.testing.assert_close(out.logits_NC, logits_NC, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(out.embedding_NH, s_NH, rtol=1e-6, atol=1e-6)
    expected, found = gradients_of(logits_NC, s_NH, twin), gradients_of(*out, model)
    assert len(found) == len(expected) == 2 + 2 * layers
    for name, gradient in found.items():
        last = name.replace("head.linears.0", "last")
        if head == "conv":
            last = last.replace("last.weight", "last.lin.weight")
        torch.testing.assert_close(gradient, expected[last], rtol=1e-4, atol=1e-6)


def test_jumping_normalises_every_layer(view: View) -> None:
    model = make(0.0, hidden_layers=3, jumping="max", **BOTH)
    twin = PyGStack(model, 3, "batch", "conv")
    edges = view.adjacency.to_sparse_coo().indices().flip(0).long()
    outputs, x = [], view.x
    for conv in twin.convs:
        x = F.relu(twin.norm(conv(x, edges)))
        outputs.append(x)
    jumped = torch.stack(outputs).amax(0)
    out = model(all_nodes(view, "symmetric", model.depth))
    torch.testing.assert_close(out.embedding_NH, jumped, rtol=1e-6, atol=1e-6)
    expected = twin.last(F.relu(twin.norm(jumped)), edges)
    torch.testing.assert_close(out.logits_NC, expected, rtol=1e-6, atol=1e-6)


def test_batch_norm_of_some_rows_uses_all_nodes(view: View, make_client: Callable[..., Client]) -> None:
    client = make_client(view, make(0.0, **BOTH))
    whole = client.model.output(client.model.gathered("all"))
    rows = torch.tensor([3, 0, 9])
    for some, where in (
        (client.model.output(client.model.gathered("train")), view.train),
        (client.model.forward(rows)(), rows),
    ):
        torch.testing.assert_close(some.logits_NC, whole.logits_NC[where])
        torch.testing.assert_close(some.embedding_NH, whole.embedding_NH[where])
    torch.testing.assert_close(client.model.logits(), whole.logits_NC)


def test_dropout_before_the_classifier_is_an_option(view: View) -> None:
    """With one layer there is no other dropout."""
    around = all_nodes(view, "symmetric", 2)
    dropped = make(0.5, hidden_layers=1, **BOTH).train()
    kept = make(0.5, hidden_layers=1, head_dropout=False, **BOTH).train()
    assert not torch.equal(dropped(around).logits_NC, dropped(around).logits_NC)
    assert torch.equal(kept(around).logits_NC, dropped.eval()(around).logits_NC)


def test_one_node_is_not_normalised(make_view: Callable[..., View]) -> None:
    alone = make_view(1, [], [0], [0], CLASSES, np.full((1, FEATURES), 2, dtype=np.float32))
    found, plain = (make(0.0, head="conv", norm=norm)(all_nodes(alone, "symmetric", 3)) for norm in ("batch", "none"))
    assert torch.equal(found.logits_NC, plain.logits_NC)
    assert found.embedding_NH.abs().sum() > 0


def test_parameters_are_those_of_the_plain_model() -> None:
    plain, other = make(0.0), make(0.0, **BOTH)
    assert [(name, p.shape) for name, p in plain.named_parameters()] == [
        (name, p.shape) for name, p in other.named_parameters()
    ]
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), other.parameters()))
    assert width_of(other) == HIDDEN
    assert FlatModel(other).has_body


@pytest.mark.parametrize(
    ("option", "needed"),
    [({"norm": "batch"}, "model.norm: none"), ({"head": "conv"}, None), (BOTH, "model.norm: none")],
)
def test_formulas_with_batch_norm_are_refused(option: dict[str, Any], needed: str) -> None:
    assert needed_for_analytic(FedAvg(), FlatModel(make(**option))) == needed
    assert needed_for_analytic(FedAvg(), FlatModel(make())) is None


@pytest.mark.parametrize("option", [{"norm": "batch"}, {"head": "conv"}])
def test_drawn_neighbours_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ShoalError, match=r"^model\.fanouts: .* reads the whole graph; leave it out$"):
        make(fanouts=[3, 2], **option)


def test_conv_head_views_and_standalone_rows_have_one_more_matrix(
    view: View, make_client: Callable[..., Client]
) -> None:
    client = make_client(view, make(0.0, **BOTH))
    drawn = GraphViews(client.model, torch.Generator().manual_seed(0)).draw(0.0, 0.0)
    torch.testing.assert_close(client.model(drawn).logits_NC, client.model.logits())
    assert client.model(client.model.standalone(view.x)).logits_NC.shape == (12, CLASSES)
