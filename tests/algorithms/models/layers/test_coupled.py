"""Coupled backbones against PyG on an edge list, against dense algebra, and on graphs that have nearly nothing."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.coupled_models import CLASSES, FEATURES, HIDDEN, NAMES, every_backbone, make
from support.plain_dropout import dropped
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCN2Conv, GCNConv, GINConv, SAGEConv, TransformerConv

from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes, sampled
from shoal.algorithms.training.analytic.choice import needed_for_analytic
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

MakeView = Callable[..., View]


def around(model: nn.Module, view: View) -> Neighbourhood:
    return all_nodes(view, model.operator, len(model.convs))


def pyg_layer(name: str, conv: nn.Module, layer: int) -> nn.Module:
    """PyG's own layer, made without our operators, holding the same weights."""
    if name == "gcn":
        twin: nn.Module = GCNConv(conv.in_channels, HIDDEN)
    elif name == "sage":
        twin = SAGEConv(conv.in_channels, HIDDEN)
    elif name == "gat":
        twin = GATConv(conv.in_channels, conv.out_channels, conv.heads)
    elif name == "gin":
        twin = GINConv(nn.Sequential(*(type(m)(*shape(m)) for m in conv.nn)), train_eps=True)
    elif name == "transformer":
        twin = TransformerConv(conv.in_channels, HIDDEN)
    else:
        twin = GCN2Conv(HIDDEN, 0.1, 0.5, layer + 1)
    twin.load_state_dict(conv.state_dict())
    return twin


def shape(module: nn.Module) -> tuple[int, ...]:
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    return tuple(module.normalized_shape) if isinstance(module, nn.LayerNorm) else ()


@every_backbone
def test_equals_pyg_on_an_edge_list(name: str, view: View) -> None:
    model = make(name, layers=3).eval()
    with torch.no_grad():
        for p in model.parameters():  # biases start at zero
            p.add_(0.1 * torch.randn_like(p))
    edges = view.adjacency.to_sparse_coo().indices().flip(0).long()
    x = view.x
    if name == "gcnii":
        x = initial = F.relu(model.lift(x))
    for layer, conv in enumerate(model.convs):
        twin = pyg_layer(name, conv, layer)
        if name == "gcnii":
            x = F.relu(twin(x, initial, edges))
        else:
            x = twin(between(name, x) if layer else x, edges)
    out = model(around(model, view))
    torch.testing.assert_close(out.embedding_NH, x, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.logits_NC, model.head.linears[0](x), rtol=1e-5, atol=1e-6)
    some = model(around(model, view)._replace(rows=torch.tensor([9, 0])))
    torch.testing.assert_close(some.logits_NC, out.logits_NC[[9, 0]])
    torch.testing.assert_close(some.embedding_NH, out.embedding_NH[[9, 0]])


def between(name: str, x: Tensor) -> Tensor:
    """What stands between two layers."""
    return torch.where(x > 0, x, 0.01 * x) if name == "transformer" else F.relu(x)


def dense_layer(name: str, conv: nn.Module, a: Tensor, x: Tensor, initial: Tensor, layer: int) -> Tensor:
    """One layer by its published equation on dense matrices."""
    p = {key: value.double() for key, value in conv.state_dict().items()}
    loops = a + torch.eye(len(a))
    root = loops.sum(1).rsqrt()
    norm = root[:, None] * loops * root
    if name == "gcn":
        return norm @ x @ p["lin.weight"].T + p["bias"]
    if name == "sage":
        mean = a @ x / a.sum(1, keepdim=True).clamp_min(1)
        return mean @ p["lin_l.weight"].T + p["lin_l.bias"] + x @ p["lin_r.weight"].T
    if name == "gin":
        h = (1 + p["eps"]) * x + a @ x
        h = F.relu(h @ p["nn.0.weight"].T + p["nn.0.bias"]) @ p["nn.2.weight"].T + p["nn.2.bias"]
        return F.layer_norm(h, (HIDDEN,), p["nn.3.weight"], p["nn.3.bias"]) if "nn.3.weight" in p else h
    if name == "gcnii":
        beta = np.log(0.5 / (layer + 1) + 1)
        mixed = 0.9 * norm @ x + 0.1 * initial
        return F.relu((1 - beta) * mixed + beta * mixed @ p["weight1"])
    if name == "transformer":
        query, key, value, own = (
            x @ p[f"lin_{part}.weight"].T + p[f"lin_{part}.bias"] for part in ("query", "key", "value", "skip")
        )
        for i, neighbours in enumerate(a > 0):
            score = (query[i] @ key[neighbours].T / np.sqrt(HIDDEN)).exp()
            own[i] += (score / score.sum()) @ value[neighbours]
        return own
    heads = []
    for k, (source, target) in enumerate(zip(p["att_src"][0], p["att_dst"][0])):
        h = x @ p["lin.weight"][k * len(source) : (k + 1) * len(source)].T
        score = F.leaky_relu((h @ target)[:, None] + (h @ source)[None, :], 0.2)
        heads.append(score.masked_fill(loops == 0, -torch.inf).softmax(1) @ h)
    return torch.cat(heads, 1) + p["bias"]


@every_backbone
def test_equals_dense_algebra(name: str, view: View) -> None:
    model = make(name).eval()
    a, x = view.adjacency.to_dense().double(), view.x.double()
    if name == "gcnii":
        x = F.relu(x @ model.lift.weight.double().T + model.lift.bias.double())
    initial = x
    for layer, conv in enumerate(model.convs):
        x = dense_layer(name, conv, a, between(name, x) if layer and name != "gcnii" else x, initial, layer)
    torch.testing.assert_close(model(around(model, view)).embedding_NH.double(), x, rtol=1e-4, atol=1e-5)


def test_gin_without_a_norm_keeps_how_much_a_node_sums_up(view: View) -> None:
    model = make("gin", layers=3, norm="none").eval()
    a, x = view.adjacency.to_dense().double(), view.x.double()
    for layer, conv in enumerate(model.convs):
        x = dense_layer("gin", conv, a, F.relu(x) if layer else x, x, layer)
    torch.testing.assert_close(model(around(model, view)).embedding_NH.double(), x, rtol=1e-4, atol=1e-5)
    assert needed_for_analytic(FedAvg(), FlatModel(model)) == "model.norm: layer"
    assert needed_for_analytic(FedAvg(), FlatModel(make("gin", norm="layer"))) is None
    with pytest.raises(ShoalError, match=r"model.norm: must be one of layer, none, found 'batch'"):
        make("gin", norm="batch")


def test_the_transformer_is_trained_by_autograd() -> None:
    missing = "a model with formulas of its gradients, which transformer is not"
    assert needed_for_analytic(FedAvg(), FlatModel(make("transformer"))) == missing


OPTIONS = {
    "gcn": {"hidden": 6, "layers": 3},
    "sage": {"hidden": 6, "layers": 1},
    "gat": {"hidden": 6, "layers": 3, "heads": 3},
    "gin": {"hidden": 6, "layers": 4},
    "gcnii": {"hidden": 6, "layers": 3, "alpha": 0.3, "theta": 1.5},
    "transformer": {"hidden": 6, "layers": 3, "heads": 2},
}


def pyg_layers(name: str) -> list[nn.Module]:
    """PyG's layers as the options ask for them, the features having width 5."""
    if name == "gcn":
        return [GCNConv(5, 6), GCNConv(6, 6), GCNConv(6, 6)]
    if name == "sage":
        return [SAGEConv(5, 6, aggr="mean")]
    if name == "gat":
        # Three heads of width two, side by side; the last layer has one of width six.
        return [GATConv(5, 2, heads=3), GATConv(6, 2, heads=3), GATConv(6, 6, heads=1)]
    if name == "gin":
        mlps = [[nn.Linear(f, 6), nn.ReLU(), nn.Linear(6, 6), nn.LayerNorm(6)] for f in (5, 6, 6, 6)]
        return [GINConv(nn.Sequential(*mlp), train_eps=True) for mlp in mlps]
    if name == "transformer":
        return [TransformerConv(5, 3, heads=2), TransformerConv(6, 3, heads=2), TransformerConv(6, 3, heads=2)]
    return [GCN2Conv(6, alpha=0.3, theta=1.5, layer=layer) for layer in (1, 2, 3)]


@every_backbone
@pytest.mark.parametrize("training", [True, False])
def test_options_and_dropout_are_those_of_plain_pyg(name: str, training: bool, view: View) -> None:
    """Dropout 0.3 on what every layer but the first and the classifier read; GCNII's layers all read a hidden one."""
    torch.manual_seed(0)
    model = build(name, FEATURES, CLASSES, 0, 0.3, OPTIONS[name]).train(training)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    layers = pyg_layers(name)
    for conv, twin in zip(model.convs, layers, strict=True):
        twin.load_state_dict(conv.state_dict())
    lift, last = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)
    last.load_state_dict(model.head.linears[0].state_dict())
    edges = view.adjacency.to_sparse_coo().indices().flip(0).long()

    torch.manual_seed(5)
    out = model(around(model, view))
    torch.manual_seed(5)
    x = view.x
    if name == "gcnii":
        lift.load_state_dict(model.lift.state_dict())
        x = initial = F.relu(lift(x))
        for conv in layers:
            x = F.relu(conv(dropped(x, 0.3, training), initial, edges))
    else:
        x = layers[0](x, edges)
        for conv in layers[1:]:
            x = conv(dropped(between(name, x), 0.3, training), edges)
    torch.testing.assert_close(out.embedding_NH, x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.logits_NC, last(dropped(x, 0.3, training)), rtol=1e-4, atol=1e-5)


def test_defaults(view: View) -> None:
    """Two layers of width 64; GAT has eight heads in the first; GCNII keeps a tenth of its input, theta is 0.5."""
    for name in NAMES:
        made, sender = (build(name, FEATURES, CLASSES, 0, 0.0, keys) for keys in ({}, {"hidden": 64, "layers": 2}))
        assert [p.shape for p in made.parameters()] == [p.shape for p in sender.parameters()]
        assert made.fanouts == ()
    first, last = build("gat", FEATURES, CLASSES, 0, 0.0, {}).convs
    assert first.att_src.shape == (1, 8, 8)
    assert last.att_src.shape == (1, 1, 64)
    torch.manual_seed(0)
    plain = build("gcnii", FEATURES, CLASSES, 0, 0.0, {})
    torch.manual_seed(0)
    sender = build("gcnii", FEATURES, CLASSES, 0, 0.0, {"alpha": 0.1, "theta": 0.5})
    assert torch.equal(plain(around(plain, view)).logits_NC, sender(around(sender, view)).logits_NC)


def test_gin_s_sum_is_as_large_as_that_of_all_neighbours(make_view: MakeView) -> None:
    """Two of four neighbours are drawn, each stands for two."""
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    star = make_view(5, [(0, i) for i in range(1, 5)], [0] * 5, [0], CLASSES, x)
    model = build("gin", 2, CLASSES, 0, 0.0, {"hidden": 2, "layers": 1})
    linear = nn.Linear(2, 2)
    linear.weight.data, linear.bias.data = torch.eye(2), torch.zeros(2)
    model.convs[0].nn = nn.Sequential(linear)
    around = sampled(star, model.operator, [2], star.train, np.random.default_rng(0))
    receiver = around.x_NF[0] + 2 * around.x_NF[1:].sum(0)
    assert len(around.x_NF) == 3
    torch.testing.assert_close(model(around).embedding_NH, receiver[None])


@pytest.mark.parametrize(("alpha", "theta"), [(0.0, 0.5), (1.0, 1e-3)])
def test_the_bounds_of_gcnii_s_shares(alpha: float, theta: float, view: View) -> None:
    """alpha 1 hears nobody; theta near 0 makes a layer the identity of what it mixes."""
    model = make("gcnii", alpha=alpha, theta=theta, layers=1).eval()
    x = view.x.double()
    lifted = F.relu(x @ model.lift.weight.double().T + model.lift.bias.double())
    loops = view.adjacency.to_dense().double() + torch.eye(12)
    root = loops.sum(1).rsqrt()
    mixed = (1 - alpha) * (root[:, None] * loops * root) @ lifted + alpha * lifted
    beta = np.log(theta + 1)
    expected = F.relu((1 - beta) * mixed + beta * mixed @ model.convs[0].weight1.double())
    torch.testing.assert_close(model(around(model, view)).embedding_NH.double(), expected, rtol=1e-4, atol=1e-5)


@every_backbone
def test_drawing_all_neighbours_gives_the_whole_graphs_numbers_and_gradients(name: str, view: View) -> None:
    model = make(name).eval()
    results = []
    everything = around(model, view)._replace(rows=view.train)
    drawn = sampled(view, model.operator, [-1, -1], view.train, np.random.default_rng(0))
    assert len(drawn.x_NF) < view.nodes
    for inputs in (everything, drawn):
        model.zero_grad()
        out = model(inputs)
        F.cross_entropy(out.logits_NC, view.label[view.train]).backward()
        results.append((out.logits_NC, out.embedding_NH, *[p.grad.clone() for p in model.parameters()]))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@every_backbone
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_client_without_edges_trains(name: str, nodes: int, make_view: MakeView) -> None:
    x = np.random.default_rng(1).standard_normal((nodes, FEATURES)).astype(np.float32)
    alone = make_view(nodes, [], [0] * nodes, [0], CLASSES, x)
    model = make(name)
    for inputs in (around(model, alone), sampled(alone, model.operator, [2, 2], alone.train, np.random.default_rng(0))):
        out = model(inputs)
        out.logits_NC.sum().backward()
        assert out.logits_NC.isfinite().all()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_backbone
def test_gradients_reach_every_parameter(name: str, view: View) -> None:
    model = make(name)
    F.cross_entropy(model(around(model, view)).logits_NC, view.label).backward()
    for parameter_name, p in model.named_parameters():
        assert p.grad is not None, parameter_name
        assert p.grad.any(), parameter_name


@every_backbone
def test_dropout_acts_in_training_only(name: str, view: View) -> None:
    model = make(name)
    inputs = around(model, view)
    assert not torch.equal(model(inputs).logits_NC, model(inputs).logits_NC)
    model.eval()
    assert torch.equal(model(inputs).logits_NC, model(inputs).logits_NC)


def weighed(weights: np.ndarray | None, make_view: MakeView) -> View:
    edges = [*((i, (i + 1) % 8) for i in range(8)), (0, 3), (0, 5), (2, 6), (8, 9)]
    x = np.random.default_rng(0).standard_normal((12, FEATURES)).astype(np.float32)
    return make_view(12, edges, [0, 1, 2, 3] * 3, [7, 2, 10], CLASSES, x, weights)


@pytest.mark.parametrize("name", ["gcn", "gcnii"])
def test_weights_of_edges_as_pyg_has_them(name: str, make_view: MakeView) -> None:
    upper = np.triu(np.random.default_rng(1).uniform(0.1, 4, (12, 12)), 1).astype(np.float32)
    view = weighed(upper + upper.T, make_view)
    model = make(name, layers=2).eval()
    source, target = np.repeat(np.arange(12), np.diff(view.csr[0])), view.csr[1]
    edges = (
        torch.from_numpy(np.stack([target, source]).astype(np.int64)),
        torch.from_numpy((upper + upper.T)[source, target]),
    )
    twins = nn.ModuleList(pyg_layer(name, conv, layer) for layer, conv in enumerate(model.convs))
    if name == "gcn":
        expected = twins[1](F.relu(twins[0](view.x, *edges)), *edges)
    else:
        initial = F.relu(model.lift(view.x)).detach()
        expected = F.relu(twins[1](F.relu(twins[0](initial, initial, *edges)), initial, *edges))
    found = model(around(model, view)).embedding_NH
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    # Gradients go back over the same entries.
    for embedding in (found, expected):
        embedding.square().sum().backward()
    for conv, twin in zip(model.convs, twins):
        for own, theirs in zip(conv.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(own.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    unweighted, ones = (
        model(around(model, weighed(weights, make_view))).embedding_NH
        for weights in (None, np.ones((12, 12), np.float32))
    )
    assert not torch.allclose(found, unweighted, atol=1e-2)
    assert torch.equal(ones, unweighted)


def test_matrices_of_other_operators_have_no_weights(make_view: MakeView) -> None:
    view = weighed(np.full((12, 12), 2, np.float32), make_view)
    for operator in ("mean", "attention"):
        with pytest.raises(AssertionError, match=operator):
            all_nodes(view, operator, 1)
    assert (all_nodes(view, "sum", 1).operators[0].to_dense().unique() == torch.tensor([0.0, 2.0])).all()
