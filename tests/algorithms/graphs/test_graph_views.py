"""Views against clients that were cut by hand: edges removed from the list, columns set to zero, hops computed anew."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.dense_graphs import join, rows_of, smoothing
from support.errors import refused
from support.sparse_rows import sparse

from shoal.algorithms.client import ClientModel, FlatModel
from shoal.algorithms.graphs.graph_views import GraphViews
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs import masked_features
from shoal.algorithms.models.inputs.masked_features import smoothing_over, smoothing_pays
from shoal.algorithms.models.names import BACKBONES, NEED_EDGES
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import Cache, View

NODES, FEATURES, CLASSES, HOPS = 14, 6, 3, 2
# Views have edges without features.
NAMES = [*(name for name in BACKBONES if name not in NEED_EDGES), "sgc, adapted", "gamlp, one layer", "gbp, one layer"]


def view_of(edges: np.ndarray, x: np.ndarray, r: float, rows: str = "all") -> View:
    """A client whose hops are dense algebra in double precision."""
    a = join(NODES, edges)
    columns, hop = [], x.astype(np.float64)
    for _ in range(HOPS):
        hop = smoothing(a, r) @ hop
        columns.append(hop.astype(np.float32))
    shard = Shard(0, np.arange(NODES), np.zeros(NODES, np.int32), *rows_of(a), x)
    split = Split(*(np.asarray(part, np.int32) for part in ([0, 4, 5], [1], [2])))
    propagation = replace(PropagationOptions(HOPS, r), rows=rows)
    return View("client", shard, split, columns, CLASSES, Cache(2**20), propagation=propagation)


@pytest.fixture
def edges() -> np.ndarray:
    """Ascending pairs, first node first; node 13 has no edge."""
    return np.argwhere(np.triu(np.random.default_rng(1).random((NODES, NODES)) < 0.4, 1)[:, : NODES - 1])


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((NODES, FEATURES)).astype(np.float32)


def model_of(name: str, view: View, by_column: bool = False) -> ClientModel:
    torch.manual_seed(3)
    backbone, _, kind = name.partition(", ")
    options: dict[str, Any] = {"layers": 1} if kind == "one layer" else {}
    if name == "sgc":
        options = {"layers": 2}
    embedding = 8 if kind == "adapted" else None
    module = build(backbone, FEATURES, CLASSES, HOPS, 0.0, {"hidden": 8, **options}, embedding)
    return ClientModel(FlatModel(module, sparse=by_column), view, lambda purpose: 1)


def cut(
    edges: np.ndarray, x: np.ndarray, rng: torch.Generator, p: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """What a stream leaves: columns are drawn first, then edges."""
    kept_F, kept_M = ((torch.rand(n, generator=rng) >= q).numpy() for n, q in ((FEATURES, p[1]), (len(edges), p[0])))
    assert 0 < kept_F.sum() < FEATURES
    assert 0 < kept_M.sum() < len(edges)
    return edges[kept_M], x * kept_F


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("r", [0.5, 0.2])
@pytest.mark.parametrize("name", NAMES)
def test_a_view_is_the_graph_that_was_cut_by_hand(name: str, r: float, edges: np.ndarray, x: np.ndarray) -> None:
    whole = view_of(edges, x, r)
    model = model_of(name, whole)
    rng, views = torch.Generator().manual_seed(9), GraphViews(model, torch.Generator().manual_seed(9))
    for shares in ((0.4, 0.5), (0.7, 0.3)):
        out = model(views.draw(*shares))
        expected = model_of(name, view_of(*cut(edges, x, rng, shares), r))
        plain = expected(expected.gathered("all"))
        torch.testing.assert_close(out.logits_NC, plain.logits_NC, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out.embedding_NH, plain.embedding_NH, rtol=1e-4, atol=1e-5)
    direction = torch.randn(NODES, CLASSES, generator=torch.Generator().manual_seed(4))
    for found in (out, plain):
        (found.logits_NC * direction).sum().backward()
    torch.testing.assert_close(model.flat.w.grad, expected.flat.w.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gcn", "sgc", "gamlp", "sign", "s2gc", "gbp"])
def test_sparse_features_give_what_dense_ones_give(name: str, edges: np.ndarray, x: np.ndarray) -> None:
    few = np.where(np.abs(x) > 0.5, x, 0)
    dense = view_of(edges, few, 0.5)
    words = view_of(edges, few, 0.5)
    words._hops[0] = sparse(torch.from_numpy(few))
    outs = []
    for view, by_column in ((dense, False), (words, True)):
        model = model_of(name, view, by_column)
        views = GraphViews(model, torch.Generator().manual_seed(9))
        outs.append(model(views.draw(0.3, 0.5)))
    torch.testing.assert_close(outs[0].logits_NC, outs[1].logits_NC)


def test_a_graph_without_edges(x: np.ndarray) -> None:
    view = view_of(np.zeros((0, 2), np.int64), x, 0.5)
    for name in ("gat", "sgc"):
        model = model_of(name, view)
        found = model(GraphViews(model, torch.Generator()).draw(0.5, 0.0)).logits_NC
        torch.testing.assert_close(found, model(model.gathered("all")).logits_NC)


def test_hops_of_labelled_rows_have_no_views(edges: np.ndarray, x: np.ndarray) -> None:
    view = view_of(edges, x, 0.5, rows="labelled")
    for name in ("gcn", "mlp"):
        GraphViews(model_of(name, view), torch.Generator()).draw(0.1, 0.1)
    with refused("propagation.rows"):
        GraphViews(model_of("sgc", view), torch.Generator())


@pytest.mark.parametrize("r", [0.0, 0.5, 1.0])
def test_the_smoothing_and_its_transpose(r: float, edges: np.ndarray, x: np.ndarray) -> None:
    view = view_of(edges, x, r)
    matrix = smoothing_over(*view.csr, r)
    torch.testing.assert_close(matrix @ view.whole(0), view.whole(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(matrix.transposed.to_dense(), matrix.to_dense().T)


@pytest.mark.parametrize("r", [0.2, 0.5])
@pytest.mark.parametrize("name", ["sgc", "gamlp", "gamlp, one layer", "gbp", "s2gc", "sign"])
def test_logits_of_smoothed_products_are_those_of_the_hops(
    name: str, r: float, edges: np.ndarray, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked_features, "GAIN", 0)
    view = view_of(edges, x, r)
    model = model_of(name, view)
    expected = model.module.eval()([view.hop(k) for k in model.flat.inputs]).logits_NC.detach()
    for part in ("test", "val", "all"):
        found = model.logits() if part == "all" else model.logits_of(part)
        rows = slice(None) if part == "all" else getattr(view, part)
        torch.testing.assert_close(found, expected[rows], rtol=1e-4, atol=1e-5)
        model.drop_logits()
    assert (("smoothing", r) in view._used) == (name in ("sgc", "gamlp", "gbp", "s2gc"))


def test_products_are_smoothed_where_that_is_less_work(edges: np.ndarray, x: np.ndarray) -> None:
    """Stored hops need 3 * 14 * 6 / 8 multiplications a column, or fewer for some rows; smoothing needs more."""
    hops = range(HOPS + 1)
    assert not smoothing_pays(view_of(edges, x, 0.5), hops, NODES)
    wide = np.tile(x * (np.arange(NODES) == 3)[:, None], 40)
    view = view_of(edges, wide, 0.5)
    view._hops[0] = sparse(torch.from_numpy(wide))
    assert smoothing_pays(view, hops, NODES)
    for changed in ({"rows": 1}, {"hops": [0]}, {"dtype": "float16"}, {"kept": "labelled"}):
        options = replace(view.propagation, dtype=changed.get("dtype", "float32"), rows=changed.get("kept", "all"))
        object.__setattr__(view, "propagation", options)
        assert not smoothing_pays(view, changed.get("hops", hops), changed.get("rows", NODES))
