"""Models that answer for pairs, and the batches that they read, against embeddings of all nodes at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import MakeClient, Start, Views
from torch import Tensor, nn

from shoal.algorithms.client import ClientModel, FlatModel
from shoal.algorithms.models.build import build, width_of
from shoal.algorithms.models.inputs.neighbourhood import PairBatch
from shoal.algorithms.models.layers.readout import PairEmbedding
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.training.local_training import batches
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import View

FEATURES = 5
NAMES = ("sgc", "gamlp", "mlp", "sign", "s2gc", "gbp", "gcn", "sage", "gat", "gin", "gcnii", "transformer", "disengcn")
every_model = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module", params=["dense", "sparse"])
def view(
    request: pytest.FixtureRequest,
    start: Start,
    views: Views,
    edge_task: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> View:
    """The client of 16 nodes."""
    folder, tmp_path = Path(edge_task["data.path"]), tmp_path_factory.mktemp("pairs")
    np.savez(tmp_path / "nodes.npz", **{file.stem: np.load(file) for file in folder.glob("*.npy")})
    place = {"data.path": str(tmp_path / "nodes.npz"), "data.store": str(tmp_path / "store")}
    view = views(start({**edge_task, **place, "data.layout": request.param, "model.name": "sgc"}))[1]
    assert isinstance(view.x, SparseMatrix) == (request.param == "sparse")
    return view


def model_on(view: View, name: str, dropout: float = 0.0, **options: Any) -> ClientModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = build(name, FEATURES, 2, 2, dropout, {"hidden": 8, **options}, task="edge")
    return ClientModel(FlatModel(module), view, lambda purpose: 1)


def by_nodes(model: ClientModel) -> tuple[Tensor, Tensor]:
    """Logits and embeddings of all pairs, one after the other, from the same model without its pairs."""
    module: Any = model.module
    view = model.data
    assert view.pairs is not None
    node_model = module.backbone.eval()
    if model.coupled is not None:
        batch = model.items.all()  # type: ignore[union-attr]
        assert isinstance(batch, PairBatch)
        z = node_model.embed(batch.hops[0], batch.operators)
        assert len(z) == view.nodes
    else:
        z = node_model([view.whole(k) for k in module.inputs]).embedding_NH
    products = torch.stack([z[a] * z[b] for a, b in view.pairs.tolist()]).detach()
    last = module.head.linears[-1]
    return (products @ last.weight.t() + last.bias).detach(), products


@every_model
def test_a_pair_is_classified_by_the_product_of_its_ends(view: View, name: str) -> None:
    model = model_on(view, name)
    logits, products = by_nodes(model)
    outputs = list(model.outputs())
    torch.testing.assert_close(torch.cat([out.logits_NC for out in outputs]), logits)
    torch.testing.assert_close(torch.cat([out.embedding_NH for out in outputs]), products)
    torch.testing.assert_close(model.logits(), logits)
    for part in ("train", "val", "test"):
        chosen = getattr(view, part)
        assert len(chosen)
        torch.testing.assert_close(model_on(view, name).logits_of(part), logits[chosen])
        torch.testing.assert_close(model.output(model.gathered(part)).embedding_NH, products[chosen])
    torch.testing.assert_close(model.output(model.gathered("all")).logits_NC, logits)


@every_model
@pytest.mark.parametrize("items", [[4], [7, 2, 7], [0, 1, 2, 3, 4, 5]])
def test_a_step_reads_its_pairs_in_the_order_asked_for(view: View, name: str, items: list[int]) -> None:
    model = model_on(view, name)
    logits, products = by_nodes(model)
    out = model.forward(torch.tensor(items))()
    torch.testing.assert_close(out.logits_NC, logits[items])
    torch.testing.assert_close(out.embedding_NH, products[items])
    batch = model.items.some(torch.tensor(items))  # type: ignore[union-attr]
    assert isinstance(batch, PairBatch)
    assert view.pairs is not None
    read = len(set(view.pairs[items].flatten().tolist()))
    assert len(batch.hops[0]) == (view.nodes if model.coupled is not None else read)


@pytest.mark.parametrize("name", ["sgc", "gcn"])
def test_places_in_training(view: View, name: str, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_on(view, name)
    logits, _ = by_nodes(model)
    client = make_client(view, model.module)
    read = batches(client, MODEL)
    for places in (None, torch.tensor([2, 0])):
        expected = logits[view.train] if places is None else logits[view.train[places]]
        torch.testing.assert_close(client.model.output(read(places)).logits_NC, expected)
    monkeypatch.setattr("shoal.algorithms.client.ROWS_AT_A_TIME", 5)
    torch.testing.assert_close(torch.cat([out.logits_NC for out in model.outputs()]), logits)


@pytest.mark.parametrize(("name", "drops"), [("sgc", True), ("sgc", False), ("gcn", True), ("gcn", False)])
def test_dropout_falls_on_pairs_before_the_classifier(view: View, name: str, drops: bool) -> None:
    """Whole columns of the classifier's gradient vanish, where an entry of the only pair was dropped."""
    model = model_on(view, name, 0.75, layers=1, head_dropout=drops)
    model.module.train()
    torch.manual_seed(0)
    out = model.forward(torch.tensor([3]))()
    _, products = by_nodes(model_on(view, name, 0.75, layers=1))
    torch.testing.assert_close(out.embedding_NH[0], products[3])
    out.logits_NC.sum().backward()
    weight: Any = model.module.head.linears[-1].weight  # type: ignore[union-attr]
    dropped = (weight.grad == 0).all(0) & (products[3] != 0)
    assert bool(dropped.any()) == drops


def test_same_parameters_as_a_model_of_nodes_and_the_same_draws() -> None:
    for name in NAMES:
        torch.manual_seed(5)
        of_nodes = build(name, FEATURES, 2, 2, 0.5, {"hidden": 8})
        torch.manual_seed(5)
        of_pairs = build(name, FEATURES, 2, 2, 0.5, {"hidden": 8}, task="edge")
        flat = nn.utils.parameters_to_vector(of_pairs.parameters())
        assert torch.equal(flat, nn.utils.parameters_to_vector(of_nodes.parameters()))
        assert isinstance(of_pairs, PairEmbedding)
        of_pairs.reset_parameters()
        assert width_of(of_pairs) == width_of(of_nodes)
        own = FlatModel(of_pairs)
        assert own.reads_items
        assert (own.coupled is None) == (name in NAMES[:6])


@pytest.mark.parametrize("name", ["sgc", "gcn"])
def test_standalone_pairs_square_the_embedding(view: View, name: str) -> None:
    """Neighbours that are as the node itself: a graph of two such nodes gives the same."""
    model = model_on(view, name)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, FEATURES)).astype(np.float32))
    module: Any = model.module.eval()
    if name == "sgc":
        z = module.backbone([x]).embedding_NH
    else:
        first, second = module.backbone.convs
        z = torch.relu(x @ first.lin.weight.t() + first.bias) @ second.lin.weight.t() + second.bias
    torch.testing.assert_close(model.output(model.standalone(x)).embedding_NH, (z * z).detach())
