"""Coupled backbones against PyG on an edge list, against dense algebra, and on graphs that have nearly nothing."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.coupled_models import CLASSES, FEATURES, HIDDEN, NAMES, every_backbone, make
from support.fixtures import MakeView
from support.plain_dropout import dropped
from support.reset_models import assert_reset_as_fresh
from support.sparse_rows import sparse
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCN2Conv, GCNConv, GINConv, JumpingKnowledge, SAGEConv, TransformerConv

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes, sample_neighbourhood
from shoal.algorithms.models.layers.edge_attention import attend, by_torch
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import View


def around(model: nn.Module, view: View) -> Neighbourhood:
    return all_nodes(view, model.operator, len(model.convs))


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


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in NAMES), ("gin", {"norm": "none"})])
def test_equals_dense_algebra(name: str, options: dict[str, object], view: View) -> None:
    """Without a norm GIN keeps how much a node sums up."""
    model = make(name, layers=3, **options).eval()
    a, x = view.adjacency.to_dense().double(), view.x.double()
    if name == "gcnii":
        x = F.relu(x @ model.lift.weight.double().T + model.lift.bias.double())
    initial = x
    for layer, conv in enumerate(model.convs):
        x = dense_layer(name, conv, a, between(name, x) if layer and name != "gcnii" else x, initial, layer)
    torch.testing.assert_close(model(around(model, view)).embedding_NH.double(), x, rtol=1e-4, atol=1e-5)


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
    torch.manual_seed(5)
    some = model(around(model, view)._replace(rows=torch.tensor([9, 0])))
    torch.testing.assert_close(some.embedding_NH, out.embedding_NH[[9, 0]])


@every_backbone
def test_drawing_all_neighbours_gives_the_whole_graphs_numbers_and_gradients(name: str, view: View) -> None:
    model = make(name).eval()
    results = []
    everything = around(model, view)._replace(rows=view.train)
    drawn = sample_neighbourhood(view, model.operator, [-1, -1], view.train, np.random.default_rng(0))
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
    for inputs in (
        around(model, alone),
        sample_neighbourhood(alone, model.operator, [2, 2], alone.train, np.random.default_rng(0)),
    ):
        out = model(inputs)
        out.logits_NC.sum().backward()
        assert out.logits_NC.isfinite().all()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


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
    layers = {
        "gcn": lambda: [GCNConv(FEATURES, HIDDEN), GCNConv(HIDDEN, HIDDEN)],
        "gcnii": lambda: [GCN2Conv(HIDDEN, 0.1, 0.5, 1), GCN2Conv(HIDDEN, 0.1, 0.5, 2)],
    }
    twins = nn.ModuleList(layers[name]())
    twins.load_state_dict(model.convs.state_dict())
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


def test_making_a_coupled_model_draws_what_its_reset_draws() -> None:
    """PyG's layers draw when they are made, some twice; of that nothing is seen in the stream."""
    for name in NAMES:
        torch.manual_seed(3)
        model = build(name, FEATURES, CLASSES, 0, 0.0, {})
        after = torch.rand(2)
        torch.manual_seed(3)
        model.reset_parameters()
        assert torch.equal(torch.rand(2), after)


@every_backbone
def test_reset_equals_a_fresh_model_of_the_same_seed(name: str) -> None:
    assert_reset_as_fresh(make(name, seed=7), make(name, seed=8), 7)


@every_backbone
def test_everything_a_model_learns_is_a_parameter(name: str) -> None:
    assert not list(make(name).buffers())


def test_pyg_is_imported_only_with_a_backbone_that_needs_it() -> None:
    code = "import sys, shoal.engine.hosts.host\n"
    code += "from shoal.algorithms.models.build import build; build('sgc', 4, 3, 1, 0.0, {})"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch_geometric' not in sys.modules"], check=True)


# Node 2 hears itself alone.
HEARS = [[0, 1, 4], [1, 3], [2], [0, 1, 2, 3, 4, 5]]


@pytest.fixture
def pattern() -> SparseMatrix:
    indptr = np.cumsum([0, *map(len, HEARS)]).astype(np.int32)
    indices = np.concatenate(HEARS).astype(np.int32)
    return SparseMatrix.of(indptr, indices, np.ones(len(indices), np.float32), 6)


def parts(heads: int, width: int, scale: float = 1.0) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (len(HEARS), heads), (6, heads), (6, heads, width)
    return [(scale * torch.randn(shape)).requires_grad_() for shape in shapes]


def by_definition(receiver: torch.Tensor, sender: torch.Tensor, x: torch.Tensor, slope: float) -> torch.Tensor:
    rows = []
    for i, nodes in enumerate(HEARS):
        weight = F.leaky_relu(receiver[i] + sender[nodes], slope).softmax(0)
        rows.append((weight[:, :, None] * x[nodes]).sum(0))
    return torch.stack(rows)


@pytest.mark.parametrize(("heads", "width"), [(1, 5), (3, 4)])
@pytest.mark.parametrize("slope", [0.2, 0.0])
@pytest.mark.parametrize("attention", [attend, by_torch])
def test_sums_and_gradients(pattern: SparseMatrix, heads: int, width: int, slope: float, attention: object) -> None:
    assert callable(attention)
    expected, found = parts(heads, width), parts(heads, width)
    direction = torch.randn(len(HEARS), heads, width)
    wanted = by_definition(*expected, slope)
    (wanted * direction).sum().backward()
    out = attention(pattern, *found, slope)
    (out * direction).sum().backward()
    torch.testing.assert_close(out, wanted)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.grad, other.grad)


def test_large_scores_do_not_overflow(pattern: SparseMatrix) -> None:
    receiver, sender, x = parts(2, 3, scale=200)
    out = attend(pattern, receiver, sender, x, 0.2)
    assert bool(out.isfinite().all())
    torch.testing.assert_close(out, by_definition(receiver, sender, x, 0.2))


def jumping(layers: int, dropout: float = 0.3, **options: object) -> nn.Module:
    torch.manual_seed(0)
    options = {"hidden": HIDDEN, "jumping": "max", "layers": layers, **options}
    model = build("gcn", FEATURES, CLASSES, 0, dropout, options)
    with torch.no_grad():
        for p in model.parameters():  # biases start at zero
            p.add_(0.1 * torch.randn_like(p))
    return model


def with_gradients(logits_NC: Tensor, embedding_NH: Tensor, model: nn.Module) -> list[Tensor]:
    """Both outputs, and the gradients of a loss that reads them."""
    (F.cross_entropy(logits_NC, torch.arange(len(logits_NC)) % CLASSES) + embedding_NH.square().mean()).backward()
    gradients = [p.grad for p in model.parameters()]
    return [logits_NC, embedding_NH, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("layers", [1, 2, 4, 8])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("as_sparse", [True, False])
def test_is_pyg_s_layers_and_their_maximum(layers: int, training: bool, as_sparse: bool, view: View) -> None:
    model = jumping(layers).train(training)
    twins = nn.ModuleList(GCNConv(FEATURES if layer == 0 else HIDDEN, HIDDEN) for layer in range(layers))
    twins.append(nn.Linear(HIDDEN, CLASSES))
    for own, twin in zip([*model.convs, model.head.linears[0]], twins, strict=True):
        twin.load_state_dict(own.state_dict())
    around = all_nodes(view, "symmetric", layers)
    if as_sparse:
        around = around._replace(x_NF=sparse(view.x))

    torch.manual_seed(5)
    out = model(around)
    torch.manual_seed(5)
    edges = view.adjacency.to_sparse_coo().indices().flip(0).long()
    outputs = [F.relu(twins[0](view.x, edges))]
    for twin in list(twins)[1:-1]:
        outputs.append(F.relu(twin(dropped(outputs[-1], 0.3, training), edges)))
    embedding_NH = JumpingKnowledge("max")(outputs)
    logits_NC = twins[-1](dropped(embedding_NH, 0.3, training))

    # Head first among the model's parameters, last among the twins'.
    expected = with_gradients(logits_NC, embedding_NH, nn.ModuleList([twins[-1], *list(twins)[:-1]]))
    found = with_gradients(*out, model)
    assert len(found) == 2 + 2 * layers + 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_node_by_hand(make_view: MakeView) -> None:
    """Alone, a node hears itself: layers give relu(1, -2) = (1, 0), (1, 0) M + (0, 3) = (-1, 3), to (0, 3)."""
    alone = make_view(1, [], [0], [0], CLASSES, np.array([[1.0, -2.0]], dtype=np.float32))
    model = build("gcn", 2, CLASSES, 0, 0.0, {"hidden": 2, "layers": 2, "jumping": "max"})
    first, second = model.convs  # type: ignore[misc]
    first.lin.weight.data, second.lin.weight.data = torch.eye(2), torch.tensor([[-1.0, 5.0], [0.0, 0.0]])
    second.bias.data = torch.tensor([0.0, 3.0])
    found = model(all_nodes(alone, "symmetric", 2)).embedding_NH
    assert torch.equal(found, torch.tensor([[1.0, 3.0]]))
    second.bias.data = torch.tensor([0.0, -3.0])
    assert torch.equal(model(all_nodes(alone, "symmetric", 2)).embedding_NH, torch.tensor([[1.0, 0.0]]))


def test_jumping_drawing_all_neighbours_gives_the_whole_graphs_numbers_and_gradients(make_view: MakeView) -> None:
    """On a path, from whose first node four layers see five of thirty nodes."""
    x = np.random.default_rng(0).standard_normal((30, FEATURES)).astype(np.float32)
    path = make_view(30, [(i, i + 1) for i in range(29)], [0, 1, 2] * 10, [0, 9], CLASSES, x)
    model = jumping(4, fanouts=[-1] * 4).eval()
    everything = all_nodes(path, "symmetric", 4)._replace(rows=path.train)
    drawn = sample_neighbourhood(path, "symmetric", [-1] * 4, path.train, np.random.default_rng(0))
    assert [len(operator) for operator in drawn.operators] == [11, 8, 5, 2]
    results = []
    for around in (everything, drawn):
        model.zero_grad()
        results.append(with_gradients(*model(around), model))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
