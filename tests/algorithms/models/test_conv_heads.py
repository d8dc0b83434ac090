"""Coupled backbones beside PyG's layers: all heads and norms, classifiers that pass messages among them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import MakeClient
from support.made_models import make_moved
from support.plain_dropout import dropped, reached
from support.plain_training import plain_steps
from support.reset_models import assert_reset_as_fresh
from support.sparse_rows import sparse
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCN2Conv, GCNConv, GINConv, SAGEConv, TransformerConv

from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.graphs.graph_views import GraphViews
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.body import body_of, classifier_of, join_body
from shoal.algorithms.models.build import build, width_of
from shoal.algorithms.models.inputs.neighbourhood import all_nodes
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.shards.view import View

FEATURES, CLASSES, HIDDEN, HEADS = 5, 4, 8, 2
# What beside weight and bias a classifier of messages has, by its name in ours and in PyG's layer.
MORE: dict[str, dict[str, str]] = {
    "gcn": {},
    "gcnii": {},
    "sage": {"weight": "lin_l.weight"},
    "gat": {"att_src": "att_src", "att_dst": "att_dst"},
    "gin": {"eps": "eps", "nn.0.weight": "nn.0.weight", "nn.0.bias": "nn.0.bias"},
}
WEIGHT_AND_BIAS = {
    "gcn": ("lin.weight", "bias"),
    "gcnii": ("lin.weight", "bias"),
    "sage": ("lin_r.weight", "lin_l.bias"),
    "gat": ("lin.weight", "bias"),
    "gin": ("nn.2.weight", "nn.2.bias"),
}
every_model = pytest.mark.parametrize("name", MORE)
BATCH, LINEAR, RELU = {"norm": "batch"}, {"norm": "batch", "head": "linear"}, {"head": "relu"}
JUMPING = {"jumping": "max"}


def make(name: str, dropout: float = 0.3, hidden_layers: int = 2, **options: Any) -> Any:
    plain: dict[str, Any] = {"heads": HEADS} if name in ("gat", "transformer") else {}
    plain |= {"layers": hidden_layers} if name == "transformer" else {"head": "conv"}
    plain.setdefault("layers", hidden_layers + (options.get("head", "conv") == "conv"))
    return make_moved(name, FEATURES, CLASSES, 0, dropout, {"hidden": HIDDEN, **plain, **options})


def mlp(width: int, out: int, *more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, out), *more)


def layer(name: str, number: int, width: int, heads: int, norm: str, alpha: float, theta: float) -> nn.Module:
    """Makes a hidden layer of PyG's."""
    if name == "gcn":
        return GCNConv(width, HIDDEN)
    if name == "sage":
        return SAGEConv(width, HIDDEN)
    if name == "gat":
        return GATConv(width, HIDDEN // heads, heads)
    if name == "transformer":
        return TransformerConv(width, HIDDEN // HEADS, HEADS)
    if name == "gin":
        return GINConv(mlp(width, HIDDEN, *[nn.LayerNorm(HIDDEN)] * (norm != "none")), train_eps=True)
    return GCN2Conv(HIDDEN, alpha, theta, number + 1)


def classifier(name: str) -> nn.Module:
    """The last layer of PyG's."""
    if name == "sage":
        return SAGEConv(HIDDEN, CLASSES)
    if name == "gat":
        return GATConv(HIDDEN, CLASSES)
    if name == "gin":
        return GINConv(mlp(HIDDEN, CLASSES), train_eps=True)
    return GCNConv(HIDDEN, CLASSES)


class PyGStack(nn.Module):
    """The same model from PyG's own layers, holding its weights."""

    def __init__(
        self, name: str, model: Any, norm: str = "", head: str = "conv", jumping: str = "", alpha: float = 0.1,
        theta: float = 0.5,
    ) -> None:  # fmt: skip
        super().__init__()
        head = "linear" if name == "transformer" else head
        self.names = ("weight", "bias") if head != "conv" else WEIGHT_AND_BIAS[name]
        self.more, self.head, self.jumping = MORE.get(name, {}), head, jumping
        self.slope = 0.01 if name == "transformer" else 0.0
        # Heads lie side by side, but in a last layer that a linear classifier reads.
        heads = [HEADS] * (len(model.convs) - 1) + [HEADS if head == "conv" else 1]
        batch = nn.BatchNorm1d(HIDDEN, affine=False, track_running_stats=False)
        self.norm = batch if norm == "batch" else nn.Identity()
        self.lift = nn.Linear(FEATURES, HIDDEN) if name == "gcnii" else None
        self.convs = nn.ModuleList(
            layer(name, k, HIDDEN if k else FEATURES, heads[k], norm, alpha, theta) for k in range(len(model.convs))
        )
        self.last = classifier(name) if head == "conv" else nn.Linear(HIDDEN, CLASSES)
        state = {twin: p.detach() for (_, p), twin in zip(model.named_parameters(), self.twins(model), strict=True)}
        self.load_state_dict(state)

    def twins(self, model: Any) -> list[str]:
        """The names that the model's parameters have here, in their order."""
        weight, bias = self.names
        known = {"head.linears.0.weight": f"last.{weight}", "head.linears.0.bias": f"last.{bias}"}
        known |= {f"head.messages.{own}": f"last.{twin}" for own, twin in self.more.items()}
        return [known.get(name, name) for name, _ in model.named_parameters()]

    def forward(
        self, x: Tensor, edges: Tensor, levels: Sequence[list[int] | None] = (None,) * 4
    ) -> tuple[Tensor, Tensor]:
        """Dropout is drawn for some nodes before the first layer, after it, and so on; None: for all."""

        def drop(h: Tensor, number: int) -> Tensor:
            return dropped(h, 0.3, self.training, levels[number])

        def between(h: Tensor, number: int) -> Tensor:
            return drop(F.leaky_relu(self.norm(h), self.slope), number)

        if self.lift is not None:
            z = initial = F.relu(self.lift(x))
            for number, conv in enumerate(self.convs):
                z = F.relu(conv(drop(z, number), initial, edges))
        elif self.jumping:
            outputs = [F.relu(self.norm(self.convs[0](x, edges)))]
            for number, conv in enumerate(list(self.convs)[1:], 1):
                outputs.append(F.relu(self.norm(conv(drop(outputs[-1], number), edges))))
            z = torch.stack(outputs).amax(0)
        else:
            z = self.convs[0](x, edges)
            for number, conv in enumerate(list(self.convs)[1:], 1):
                z = conv(between(z, number), edges)
        last = len(self.convs)
        return self.classified(drop(z, last) if self.head == "linear" else between(z, last), edges), z

    def classified(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.last(x, edges) if self.head == "conv" else self.last(x)


def edges_of(view: View) -> Tensor:
    return view.adjacency.to_sparse_coo().indices().flip(0).long()


def gradients_of(logits_NC: Tensor, embedding_NH: Tensor, model: nn.Module) -> dict[str, Tensor | None]:
    (F.cross_entropy(logits_NC, torch.arange(len(logits_NC)) % CLASSES) + embedding_NH.square().mean()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


MADE: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in (*MORE, "transformer")),
    *((name, {"head": "linear"}) for name in MORE),
    *(
        ("gcn", options)
        for options in (BATCH, LINEAR, RELU, JUMPING, {**JUMPING, "head": "linear"}, {**JUMPING, **BATCH})
    ),
    ("sage", RELU),
    ("gin", {"head": "linear", "norm": "none"}),
    ("gcnii", {"head": "linear", "alpha": 0.3, "theta": 1.5}),
]


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(("name", "options"), MADE)
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_equals_pyg_layers(
    name: str, options: dict[str, Any], layers: int, training: bool, as_sparse: bool, view: View
) -> None:
    model = make(name, hidden_layers=layers, **options).train(training)
    twin = PyGStack(name, model, **options).train(training)
    around = all_nodes(view, model.operator, model.depth)
    assert len(around.operators) == layers + (twin.head == "conv")
    if as_sparse:
        around = around._replace(x_NF=sparse(view.x))
    torch.manual_seed(5)
    out = model(around)
    torch.manual_seed(5)
    logits_NC, z_NH = twin(view.x, edges_of(view))
    torch.testing.assert_close(out.logits_NC, logits_NC, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.embedding_NH, z_NH, rtol=1e-5, atol=1e-5)
    expected, found = gradients_of(logits_NC, z_NH, twin), gradients_of(*out, model)
    for gradient, other in zip(found.values(), twin.twins(model), strict=True):
        torch.testing.assert_close(gradient, expected.pop(other), rtol=1e-4, atol=1e-5)
    assert not expected


@every_model
@pytest.mark.parametrize("head_dropout", [True, False])
def test_conv_head_trains_as_pyg(name: str, head_dropout: bool, view: View, make_client: Callable[..., Client]) -> None:
    """On its three training rows; without dropout the order of what is drawn is no part of it."""
    dropout = 0.3 if head_dropout else 0.0
    model = make(name, dropout, head_dropout=head_dropout)
    twin = PyGStack(name, model).train(head_dropout)
    client = make_client(view, model)
    options = TrainOptions(epochs=5, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.01)
    loss = LocalTrainer({MODEL: client.model.flat}, options, FedAvg()).fit(client, {})
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    seed = client.model.random("train")
    levels = reached(view.adjacency.to_dense(), view.train, model.depth)
    losses = plain_steps(lambda rows: twin(view.x, edges_of(view), levels)[0][rows], optimizer, view, seed, 5)
    assert loss == pytest.approx(losses[-1], rel=1e-4)
    trained = dict(twin.eval().named_parameters())
    for p, other in zip(client.model.module.parameters(), twin.twins(model), strict=True):
        torch.testing.assert_close(p, trained[other], rtol=1e-4, atol=1e-5)
    logits_NC = twin(view.x, edges_of(view))[0].detach()
    torch.testing.assert_close(client.model.logits(), logits_NC, rtol=1e-4, atol=1e-5)
    rows = torch.tensor([9, 0])
    torch.testing.assert_close(client.model.forward(rows)().logits_NC, logits_NC[rows], rtol=1e-4, atol=1e-5)


@every_model
def test_head_dropout_false_drops_nothing_before_the_classifier(name: str, view: View) -> None:
    for head_dropout in (True, False):
        model = make(name, 0.5, hidden_layers=1, head_dropout=head_dropout).train()
        around = all_nodes(view, model.operator, 2)
        torch.manual_seed(1)
        out = model(around)
        undropped = model.classify(around.operators[-1], F.relu(out.embedding_NH))
        assert torch.allclose(out.logits_NC, undropped, atol=1e-6) is not head_dropout


@every_model
def test_conv_head_classifier_of_covers_its_parameters(name: str) -> None:
    """It is what methods share or keep; what is left is as large as a linear model's."""
    flat, linear = (FlatModel(make(name, hidden_layers=2, head=head)) for head in ("conv", "linear"))
    own = [p for key, p in flat.module.named_parameters() if key.startswith("head.")]
    assert len(own) == 2 + len(MORE[name])
    assert torch.equal(classifier_of(flat), torch.cat([p.detach().flatten() for p in own]))
    assert len(body_of(flat)) == len(body_of(linear))
    assert flat.classifies_by_weight == (not MORE[name])
    assert linear.classifies_by_weight
    body, top = body_of(flat), classifier_of(flat)
    flat.load(join_body(flat, body + 1, top * 2))
    assert torch.equal(body_of(flat), body + 1)
    assert torch.equal(classifier_of(flat), top * 2)
    assert flat.has_body
    assert width_of(flat.module) == HIDDEN


@every_model
def test_reset_equals_a_fresh_model_of_the_same_seed(name: str) -> None:
    def fresh(seed: int) -> Any:
        torch.manual_seed(seed)
        return build(name, FEATURES, CLASSES, 0, 0.0, {"head": "conv"})

    first = fresh(7)
    assert_reset_as_fresh(first, fresh(8), 7)
    # The vectors of attention and the layers of messages are drawn, as PyG's.
    drawn = [p for key, p in first.named_parameters() if key.startswith("head.messages") and "eps" not in key]
    assert all(p.std() > 0 for p in drawn)


@every_model
def test_conv_head_views_and_single_rows_have_one_more_matrix(name: str, view: View, make_client: MakeClient) -> None:
    client = make_client(view, make(name, 0.0))
    drawn = GraphViews(client.model, torch.Generator().manual_seed(0)).draw(0.0, 0.0)
    torch.testing.assert_close(client.model(drawn).logits_NC, client.model.logits(), rtol=1e-4, atol=1e-5)
    assert client.model(client.model.standalone(view.x)).logits_NC.shape == (12, CLASSES)


@every_model
def test_adapted_conv_head_becomes_the_adapter(name: str, view: View) -> None:
    """What passes messages is then the adapter."""
    torch.manual_seed(0)
    module = build(name, FEATURES, CLASSES, 0, 0.0, {"hidden": HIDDEN, "head": "conv"}, embedding=6).eval()
    flat = FlatModel(module)
    assert flat.classifies_by_weight
    assert flat.coupled is not None
    around = all_nodes(view, flat.coupled.operator, flat.coupled.depth)
    z = F.relu(flat.coupled.embed(around.x_NF, around.operators[:-1]))
    torch.testing.assert_close(module(around).embedding_NH, flat.coupled.classify(around.operators[-1], z))


def test_batch_norm_of_some_rows_uses_all_nodes(view: View, make_client: Callable[..., Client]) -> None:
    client = make_client(view, make("gcn", 0.0, **BATCH))
    whole = client.model.output(client.model.gathered("all"))
    rows = torch.tensor([3, 0, 9])
    for some, where in (
        (client.model.output(client.model.gathered("train")), view.train),
        (client.model.forward(rows)(), rows),
    ):
        torch.testing.assert_close(some.logits_NC, whole.logits_NC[where])
        torch.testing.assert_close(some.embedding_NH, whole.embedding_NH[where])
    torch.testing.assert_close(client.model.logits(), whole.logits_NC)


def test_one_node_is_not_normalised(make_view: Callable[..., View]) -> None:
    alone = make_view(1, [], [0], [0], CLASSES, np.full((1, FEATURES), 2, dtype=np.float32))
    found, plain = (make("gcn", 0.0, norm=norm)(all_nodes(alone, "symmetric", 3)) for norm in ("batch", "none"))
    assert torch.equal(found.logits_NC, plain.logits_NC)
    assert found.embedding_NH.abs().sum() > 0
