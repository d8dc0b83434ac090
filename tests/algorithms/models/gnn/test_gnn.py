"""FedStar's model against PyG's layers on PyG's batches, and FGGP's generator beside dense algebra."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.dense_graphs import join, rows_of, smoothing
from support.errors import refused
from support.fixtures import MakeView
from support.made_models import graphs_of, make_moved
from support.plain_dropout import dropped
from support.reset_models import assert_reset_as_fresh
from support.sparse_rows import sparse
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, GINConv, global_add_pool, global_mean_pool

from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.models.build import build, width_of
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, operator_over
from shoal.algorithms.models.inputs.structure_codes import CODES, structure_codes
from shoal.algorithms.models.items import client_graphs as module_under_test
from shoal.engine.config.config import parse_config
from shoal.engine.messages.models import require_mixable

FEATURES, CLASSES, HIDDEN = 5, 3, 8


def make(seed: int = 0, dropout: float = 0.5, **options: object) -> Any:
    """A model none of whose parameters is where it starts."""
    return make_moved("star", FEATURES, CLASSES, 0, dropout, {"hidden": HIDDEN, **options}, task="graph", seed=seed)


def dense_codes(graph: Data) -> Tensor:
    """The codes of a graph by their definition."""
    a = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    a[tuple(graph.edge_index)] = 1
    degree = a.sum(0)
    p = a / degree.clamp_min(1)
    walks = [torch.linalg.matrix_power(p, k).diagonal() for k in range(1, 17)]
    hot = F.one_hot(degree.long().clamp(max=16), 17)[:, 1:]
    return torch.cat([torch.stack(walks, 1), hot], 1).float()


def by_pyg(model: Any, graphs: Sequence[Data], pool: Callable[..., Tensor], training: bool) -> tuple[Tensor, Tensor]:
    """Logits and embeddings of graphs by PyG's layers, which hold the same weights."""
    star = model.backbone
    batch = Batch.from_data_list(list(graphs))
    codes = torch.cat([dense_codes(graph) for graph in graphs])
    x = F.linear(batch.x, star.lift.weight, star.lift.bias)
    s = F.linear(codes, star.structure.lift.weight, star.structure.lift.bias)
    for layer, (ours, of_structure) in enumerate(zip(star.convs, star.structure.convs)):
        with torch.random.fork_rng(devices=[]):
            mlp = nn.Sequential(
                nn.Linear(2 * HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
            )
            gin, gcn = GINConv(mlp, train_eps=True), GCNConv(HIDDEN, HIDDEN)
        gin.load_state_dict(ours.state_dict())
        gcn.load_state_dict(of_structure.state_dict())
        x = dropped(x, 0.5, training) if layer else x
        x, s = F.relu(gin(torch.cat([x, s], 1), batch.edge_index)), torch.tanh(gcn(s, batch.edge_index))
    embedding = pool(torch.cat([x, s], 1), batch.batch)
    top = star.head.linears[0]
    return F.linear(dropped(embedding, 0.5, training), top.weight, top.bias), embedding


@pytest.mark.parametrize(("layers", "readout"), [(1, "mean"), (2, "sum"), (3, "mean")])
@pytest.mark.parametrize("training", [False, True])
def test_equals_pyg(graph_view: MakeView, pyg_graphs: list[Data], layers: int, readout: str, training: bool) -> None:
    """Also in any order of graphs, one without edges and one of a single node among them."""
    model = make(layers=layers, readout=readout).train(training)
    graphs = graphs_of(graph_view(pyg_graphs), model)
    pool = {"mean": global_mean_pool, "sum": global_add_pool}[readout]
    for chosen in ([0, 1, 2, 3, 4], [4, 1, 0], [2], [1], [3, 2]):
        torch.manual_seed(3)
        out = model(graphs.some(torch.tensor(chosen)))
        torch.manual_seed(3)
        logits, embedding = by_pyg(model, [pyg_graphs[g] for g in chosen], pool, training)
        torch.testing.assert_close(out.logits_NC, logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out.embedding_NH, embedding, rtol=1e-4, atol=1e-5)


def test_every_part_has_codes(graph_view: MakeView, pyg_graphs: list[Data], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made once, whatever is asked for."""
    made = []

    def counted(*args: Any) -> Tensor:
        made.append(args)
        return structure_codes(*args)

    monkeypatch.setattr(module_under_test, "structure_codes", counted)
    view = graph_view(pyg_graphs)
    graphs = graphs_of(view, make())
    batches = [graphs.all(), *graphs.successive(1), *map(graphs.part, ("train", "val", "test"))]
    asked = [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1], [2], [3, 4]]
    for _ in range(2):
        batches.append(graphs.some(torch.tensor([4, 0])))
        asked.append([4, 0])
    for batch, chosen in zip(batches, asked, strict=True):
        expected = torch.cat([dense_codes(pyg_graphs[g]) for g in chosen])
        torch.testing.assert_close(batch.codes_NQ, expected, rtol=1e-5, atol=1e-6)
    assert len(made) == 1
    assert view.written() is None
    gin = build("gin", FEATURES, CLASSES, 0, 0.0, {}, task="graph")
    assert graphs_of(view, gin).all().codes_NQ is None


def test_standalone_graphs_have_zero_codes(graph_view: MakeView, pyg_graphs: list[Data]) -> None:
    model = make()
    batch = graphs_of(graph_view(pyg_graphs), model).standalone(torch.randn(3, FEATURES))
    assert batch.codes_NQ is not None
    assert batch.codes_NQ.tolist() == [[0.0] * CODES] * 3
    assert model(batch).logits_NC.shape == (3, CLASSES)


def test_reset_equals_a_fresh_model() -> None:
    def fresh(seed: int) -> Any:
        torch.manual_seed(seed)
        return build("star", FEATURES, CLASSES, 0, 0.5, {"hidden": HIDDEN}, task="graph")

    assert_reset_as_fresh(fresh(7), fresh(8), 7)


def test_sparse_features(graph_view: MakeView, pyg_graphs: list[Data]) -> None:
    """The first weight lies by column, and the numbers are the same."""
    dense, by_column = FlatModel(make()), FlatModel(make(), sparse=True)
    turned = [name for name, p in by_column.module.named_parameters() if not p.is_contiguous()]
    assert turned == ["backbone.lift.weight"]
    batch = graphs_of(graph_view(pyg_graphs), dense.module).all()
    same = replace(batch, hops=[sparse(batch.hops[0])])
    dense.module.eval()
    by_column.module.eval()
    torch.testing.assert_close(by_column(same).logits_NC, dense(batch).logits_NC)


NODES, WIDTH = 6, 4
# Node 5 has no edge.
EDGES = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize("by_column", [False, True])
def test_two_convolutions_and_one_activation(by_column: bool) -> None:
    module = build("topology", FEATURES, 3, 2, 0.5, {"hidden": WIDTH}, headless=True).train()
    first, second = (p.detach().clone().double() for p in module.parameters())
    assert width_of(module) == WIDTH
    a = join(NODES, EDGES)
    operator, p = operator_over("symmetric", *rows_of(a)), torch.from_numpy(smoothing(a))
    x = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(1)).relu()
    wanted = (p @ (p @ x.double() @ first.T) @ second.T).relu()
    assert 0 < (wanted == 0).sum() < wanted.numel()
    flat = FlatModel(module, sparse=by_column)
    out = flat(Neighbourhood(sparse(x) if by_column else x, (operator, operator)))
    torch.testing.assert_close(out.embedding_NH.double(), wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(out.logits_NC, out.embedding_NH)
    some = flat(Neighbourhood(x, (operator, operator), torch.tensor([3, 0])))
    torch.testing.assert_close(some.embedding_NH.double(), wanted[[3, 0]], rtol=1e-5, atol=1e-6)
    assert torch.equal(flat.initial(7), flat.initial(7))
    assert not torch.equal(flat.initial(7), flat.initial(8))


@pytest.mark.parametrize(
    ("section", "places", "says"),
    [
        ({"model": {"name": "topology"}}, ["model.name"], "there is no"),
        ({"model": [{"name": "gcn"}, {"name": "topology"}]}, [], "model.1.name: there is no"),
        ({"algorithm": {"name": "fml", "copilot": {"name": "topology"}}}, ["algorithm.copilot"], "topology classifies"),
    ],
)
def test_no_config_may_name_it(section: dict[str, Any], places: list[str], says: str) -> None:
    config = parse_config({"name": "x", "data": {"dataset": "digits"}, "algorithm": "fml", **section}, "test")
    with refused(*places, says=says):
        require_mixable(config, load(describe("fml", config.algorithm.options)))
