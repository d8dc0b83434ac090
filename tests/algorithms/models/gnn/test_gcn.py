"""Jumping knowledge beside PyG's layers, and what it is for: a deep GCN that learns."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import MakeView
from support.plain_dropout import dropped
from support.sparse_rows import sparse
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, JumpingKnowledge

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import all_nodes, sampled
from shoal.storage.store.view import View

FEATURES, CLASSES, HIDDEN = 5, 4, 8


def make(layers: int, dropout: float = 0.3, **options: object) -> nn.Module:
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
    model = make(layers).train(training)
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


def test_drawing_all_neighbours_gives_the_whole_graphs_numbers_and_gradients(make_view: MakeView) -> None:
    """On a path, from whose first node four layers see five of thirty nodes."""
    x = np.random.default_rng(0).standard_normal((30, FEATURES)).astype(np.float32)
    path = make_view(30, [(i, i + 1) for i in range(29)], [0, 1, 2] * 10, [0, 9], CLASSES, x)
    model = make(4, fanouts=[-1] * 4).eval()
    everything = all_nodes(path, "symmetric", 4)._replace(rows=path.train)
    drawn = sampled(path, "symmetric", [-1] * 4, path.train, np.random.default_rng(0))
    assert [len(operator) for operator in drawn.operators] == [11, 8, 5, 2]
    results = []
    for around in (everything, drawn):
        model.zero_grad()
        results.append(with_gradients(*model(around), model))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
