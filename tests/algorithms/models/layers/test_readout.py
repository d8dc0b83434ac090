"""Readouts and models of graphs against PyG's aggregations and layers on batches of its own loader."""

from collections.abc import Callable
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from support.fixtures import MakeView
from support.made_models import graphs_of, make_moved
from support.plain_dropout import dropped
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, GINConv, global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.nn.aggr import AttentionalAggregation

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import build, width_of
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.models.layers.readout import Pooling, Readout

FEATURES, CLASSES, HIDDEN = 5, 3, 8
every_readout = pytest.mark.parametrize("readout", get_args(Pooling))


def make(name: str, **options: object) -> nn.Module:
    """A model of graphs that dropout does not spare, none of its parameters where it starts."""
    return make_moved(name, FEATURES, CLASSES, 2, 0.5, {"hidden": HIDDEN, **options}, task="graph")


def pyg_pool(model: Readout) -> Callable[[Tensor, Tensor], Tensor]:
    if model.readout == "attention":
        gate = nn.Linear(width_of(model), 1, bias=False)
        gate.load_state_dict(model.gate.state_dict())
        return AttentionalAggregation(gate)
    return {"mean": global_mean_pool, "sum": global_add_pool, "max": global_max_pool}[model.readout]


@every_readout
def test_pools_as_pyg(readout: str) -> None:
    """Graphs of one, three and two nodes; of the largest entry of a column there are two."""
    model = make("gcn", readout=readout)
    z_NH = torch.randn(6, HIDDEN)
    z_NH[1, :4] = z_NH[2, :4] = 3.0
    wanted_GH = torch.randn(3, HIDDEN)
    found, expected = z_NH.clone().requires_grad_(), z_NH.clone().requires_grad_()
    pooled_GH = model.pool(found, torch.tensor([0, 1, 4, 6]))
    pool = pyg_pool(model)
    by_pyg_GH = pool(expected, torch.tensor([0, 1, 1, 1, 2, 2]))
    torch.testing.assert_close(pooled_GH, by_pyg_GH)
    (pooled_GH * wanted_GH).sum().backward()
    (by_pyg_GH * wanted_GH).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)
    if readout == "attention":
        for p, by_pyg in zip(model.gate.parameters(), pool.gate_nn.parameters()):
            torch.testing.assert_close(p.grad, by_pyg.grad)


def test_zeros_share_the_gradient_of_their_maximum() -> None:
    model = make("gcn", readout="max")
    z_NH = torch.tensor([[0.0, 0.0], [0.0, -1.0], [0.0, 0.0]]).repeat(1, HIDDEN // 2).requires_grad_()
    model.pool(z_NH, torch.tensor([0, 2, 3])).backward(torch.tensor([[6.0], [2.0]]).expand(2, HIDDEN))
    assert z_NH.grad[:, :2].tolist() == [[3.0, 6.0], [3.0, 0.0], [2.0, 2.0]]


def test_scores_of_any_size_are_weighed() -> None:
    model = make("gcn", readout="attention")
    with torch.no_grad():
        model.gate.weight.fill_(100.0)
    z_NH = torch.tensor([[1.0], [3.0], [2.0]]).expand(3, HIDDEN)
    torch.testing.assert_close(model.pool(z_NH, torch.tensor([0, 2, 3])), z_NH[1:])


class InPyG(nn.Module):
    """Two layers of PyG, its pooling and a linear layer, with the parameters of a model of ours."""

    def __init__(self, model: Readout, name: str) -> None:
        super().__init__()
        if name == "gcn":
            self.convs = nn.ModuleList([GCNConv(FEATURES, HIDDEN), GCNConv(HIDDEN, HIDDEN)])
        else:
            self.convs = nn.ModuleList(
                GINConv(
                    nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)),
                    train_eps=True,
                )
                for width in (FEATURES, HIDDEN)
            )
        self.classifier = nn.Linear(HIDDEN, CLASSES)
        self.convs.load_state_dict(model.backbone.convs.state_dict())
        self.classifier.load_state_dict(model.head.linears[-1].state_dict())
        self.pool = pyg_pool(model)

    def forward(self, batch: Batch) -> Tensor:
        x = dropped(F.relu(self.convs[0](batch.x, batch.edge_index)), 0.5, self.training)
        x = self.pool(self.convs[1](x, batch.edge_index), batch.batch)
        return self.classifier(dropped(x, 0.5, self.training))


@pytest.mark.parametrize("training", [False, True])
@every_readout
@pytest.mark.parametrize("name", ["gcn", "gin"])
def test_step_as_pyg(graph_view: MakeView, pyg_graphs: list[Data], name: str, readout: str, training: bool) -> None:
    """Output and all gradients on batches of its loader, dropout included."""
    model = make(name, readout=readout).train(training)
    twin = InPyG(model, name).train(training)
    view = graph_view(pyg_graphs)
    own = FlatModel(model)
    graphs = graphs_of(view, own)
    for start, batch in enumerate(DataLoader(pyg_graphs, batch_size=3)):
        chosen = torch.arange(len(pyg_graphs))[3 * start : 3 * start + 3]
        own.w.grad.zero_()
        twin.zero_grad()
        torch.manual_seed(start)
        out = own(graphs.some(chosen))
        torch.manual_seed(start)
        expected = twin(batch)
        torch.testing.assert_close(out.logits_NC, expected, rtol=1e-4, atol=1e-5)
        assert list(out.embedding_NH.shape) == [len(chosen), HIDDEN]
        F.cross_entropy(out.logits_NC, batch.y).backward()
        F.cross_entropy(expected, batch.y).backward()
        parameters = [*twin.convs.parameters()]
        for p, by_pyg in zip(model.backbone.convs.parameters(), parameters):
            torch.testing.assert_close(p.grad, by_pyg.grad, rtol=1e-4, atol=1e-5)
        for p, by_pyg in zip(model.head.parameters(), twin.classifier.parameters()):
            torch.testing.assert_close(p.grad, by_pyg.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "layers"), [("sgc", 1), ("sgc", 2), ("mlp", 3)])
def test_models_that_read_hops(graph_view: MakeView, pyg_graphs: list[Data], name: str, layers: int) -> None:
    """By the layers of the model alone, in training: dropout of hidden rows, then of the embedding of a graph."""
    model = make(name, layers=layers, readout="sum").train()
    view = graph_view(pyg_graphs, hops=2)
    graphs = graphs_of(view, FlatModel(model))
    chosen = torch.tensor([3, 0])
    torch.manual_seed(1)
    out: Output = model(graphs.some(chosen))
    torch.manual_seed(1)
    hop = view.hop(model.inputs[0])
    x = torch.cat([hop[view.graph_ptr[g] : view.graph_ptr[g + 1]] for g in chosen])
    *hidden, last = model.head.linears
    for number, linear in enumerate(hidden):
        x = F.relu(linear(x))
        x = dropped(x, 0.5) if number < len(hidden) - 1 else x
    sizes = view.graph_ptr.diff()[chosen].tolist()
    pooled = torch.stack([rows.sum(0) for rows in x.split(sizes)])
    torch.testing.assert_close(out.embedding_NH, pooled)
    torch.testing.assert_close(out.logits_NC, last(dropped(pooled, 0.5)))


@pytest.mark.parametrize("name", ["gcn", "sgc"])
def test_head_dropout_can_be_left_out(graph_view: MakeView, pyg_graphs: list[Data], name: str) -> None:
    model = make(name, layers=1, head_dropout=False).train()
    view = graph_view(pyg_graphs, hops=2)
    own = FlatModel(model)
    batch = graphs_of(view, own).all()
    out = own(batch)
    torch.testing.assert_close(out.logits_NC, model.head.linears[-1](out.embedding_NH))


@pytest.mark.parametrize("name", ["gcn", "gamlp"])
def test_adapted_after_the_readout(graph_view: MakeView, pyg_graphs: list[Data], name: str) -> None:
    torch.manual_seed(0)
    model = build(name, FEATURES, CLASSES, 2, 0.0, {"hidden": HIDDEN}, embedding=6, task="graph").eval()
    view = graph_view(pyg_graphs, hops=2)
    own = FlatModel(model)
    assert own.reads_items
    batch = graphs_of(view, own).all()
    out, inner = own(batch), model.backbone(batch)
    torch.testing.assert_close(out.embedding_NH, inner.logits_NC)
    torch.testing.assert_close(inner.logits_NC, model.backbone.head.linears[-1](inner.embedding_NH))
    assert list(out.logits_NC.shape) == [len(pyg_graphs), CLASSES]
    assert width_of(model) == 6


@every_readout
@pytest.mark.parametrize("name", ["gin", "gamlp"])
def test_readout_reset_equals_fresh(name: str, readout: str) -> None:
    options = {"hidden": HIDDEN, "readout": readout}
    torch.manual_seed(3)
    first = FlatModel(build(name, FEATURES, CLASSES, 2, 0.5, options, task="graph"))
    second = FlatModel(make(name, readout=readout))
    assert torch.equal(second.initial(3), first.w)
    assert len(first.w[first.classifier]) == CLASSES * (HIDDEN + 1)
    layer = torch.cat([p.flatten() for p in second.module.head.linears[-1].parameters()])
    assert torch.equal(second.w[second.classifier], layer)
