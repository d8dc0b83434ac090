"""What holds for every decoupled backbone, and how one is made from a config."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.coupled_models import edge_features
from support.fixtures import MakeView
from support.plain_dropout import dropped
from support.reset_models import assert_reset_as_fresh
from torch import Tensor, nn

from shoal.algorithms.models.build import backbone, build
from shoal.algorithms.models.decoupled.fixed_hops import MLP, FixedHops
from shoal.algorithms.models.decoupled.gamlp import ATTENTIONS
from shoal.algorithms.models.inputs.neighbourhood import all_nodes
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.models.layers.readout import Adapted
from shoal.algorithms.models.names import BACKBONES

VARIANTS = [
    ("sgc", {}),
    ("sgc", {"layers": 2, "hidden": 8}),
    ("mlp", {"hidden": 8}),
    *[("gamlp", {"hidden": 8, "attention": attention}) for attention in ATTENTIONS],
    ("s2gc", {}),
    ("s2gc", {"layers": 2, "hidden": 8}),
    ("gbp", {"hidden": 8}),
    ("gbp", {"layers": 1}),
    ("sign", {"hidden": 8}),
    ("sign", {"layers": 2, "hidden": 8}),
]
every_variant = pytest.mark.parametrize(("name", "options"), VARIANTS)


def make(name: str, options: dict, hops: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build(name, 5, 4, hops, 0.5, options)


def rows(model: nn.Module, nodes: int = 30) -> list[Tensor]:
    """The hops that a model reads."""
    generator = torch.Generator().manual_seed(1)
    hops = [torch.randn(nodes, 5, generator=generator) for _ in range(4)]
    return [hops[k] for k in model.inputs]


def test_every_decoupled_backbone_is_tested() -> None:
    assert {name for name, _ in VARIANTS} == {name for name in BACKBONES if not issubclass(backbone(name), Coupled)}


@every_variant
def test_no_rows_give_no_rows(name: str, options: dict) -> None:
    model = make(name, options)
    assert model([hop[:0] for hop in rows(model)]).logits_NC.shape == (0, 4)


@every_variant
def test_float16_rows_are_computed_in_float32(name: str, options: dict) -> None:
    model = make(name, options).eval()
    half = [hop.half() for hop in rows(model)]
    out = model(half)
    assert out.logits_NC.dtype == out.embedding_NH.dtype == torch.float32
    torch.testing.assert_close(out.logits_NC, model([hop.float() for hop in half]).logits_NC, rtol=0, atol=0)


@every_variant
def test_reset_equals_a_fresh_model_of_the_same_seed(name: str, options: dict) -> None:
    assert_reset_as_fresh(make(name, options, seed=7), make(name, options, seed=8), 7)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("name", "options"),
    [("sgc", {"layers": 3, "hidden": 6}), ("mlp", {"layers": 4, "hidden": 6}), ("gamlp", {"attention": "simple"})],
)
def test_hidden_activations_drop_as_in_plain_torch(name: str, options: dict, training: bool) -> None:
    torch.manual_seed(0)
    model = build(name, 5, 4, 3, 0.3, options).train(training)
    x = rows(model)
    torch.manual_seed(5)
    out = model(x)
    torch.manual_seed(5)
    # The simple score of GAMLP starts as the mean of the hops.
    hidden = embedding = torch.stack(x).mean(0)
    *linears, last = model.head.linears
    for linear in linears:
        embedding = F.leaky_relu(linear(hidden), 0.25 if name == "gamlp" else 0.0)
        hidden = dropped(embedding, 0.3, training)
    torch.testing.assert_close(out.embedding_NH, embedding)
    torch.testing.assert_close(out.logits_NC, last(hidden))


# HAN embeds nodes by edges of some kind alone, which this view lacks.
@pytest.mark.parametrize("embedding", [None, 6])
@pytest.mark.parametrize("name", sorted({*BACKBONES} - {"han"}))
def test_dropout_before_the_classifier_is_an_option(name: str, embedding: int | None, make_view: MakeView) -> None:
    x = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    view = make_view(12, [(i, i + 1) for i in range(11)], [0] * 12, [0], 3, x)
    options = {"hidden": 8, **({"layers": 2} if issubclass(backbone(name), FixedHops) else {})}
    for choice, expected in (({}, False), ({"head_dropout": True}, False), ({"head_dropout": False}, True)):
        torch.manual_seed(0)
        module = build(name, 5, 3, 0, 0.5, {**options, **choice}, embedding, edge_features=edge_features(name)).train()
        inner = module.backbone if embedding else module
        if isinstance(inner, Coupled):
            out = module(all_nodes(view, inner.operator, len(inner.convs)))
        else:
            out = module([view.whole(0)] * len(inner.inputs))
        undropped = module.head.linears[-1](out.embedding_NH)
        assert torch.allclose(out.logits_NC, undropped, atol=1e-6) is expected
        # What lies below the embedding is dropped in any case.
        again = module(all_nodes(view, inner.operator, 2)) if isinstance(inner, Coupled) else None
        assert again is None or not torch.equal(again.embedding_NH, out.embedding_NH)


def test_weights_are_xavier_uniform_and_biases_zero() -> None:
    torch.manual_seed(0)
    head, gain = Head(300, 200, 100, 2, 0.0), nn.init.calculate_gain("relu")
    for linear in head.linears:
        bound = gain * math.sqrt(6 / (linear.in_features + linear.out_features))
        assert 0.99 * bound < linear.weight.abs().max() <= bound
        assert linear.weight.var().item() == pytest.approx(bound**2 / 3, rel=0.05)
        assert not linear.bias.any()


def adapted_mlp(dropout: float) -> Adapted:
    """An MLP of width 7 whose embedding is brought to 6, for four classes."""
    torch.manual_seed(0)
    module = build("mlp", 5, 4, 0, dropout, {"hidden": 7}, embedding=6)
    assert isinstance(module, Adapted)
    return module


@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("training", [True, False])
def test_adapted_equals_plain_layers(dropout: float, training: bool) -> None:
    module = adapted_mlp(dropout).train(training)
    first, adapter, last = (nn.Linear(wide, narrow) for wide, narrow in ((5, 7), (7, 6), (6, 4)))
    plain = nn.ModuleList([first, adapter, last])
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(module.parameters()), plain.parameters())
    x = torch.randn(30, 5)

    def drop(x: Tensor) -> Tensor:
        return dropped(x, dropout, training) if dropout else x

    torch.manual_seed(9)
    out = module([x])
    torch.manual_seed(9)
    embedding = adapter(drop(F.relu(first(x))))
    torch.testing.assert_close(out.embedding_NH, embedding)
    torch.testing.assert_close(out.logits_NC, last(drop(embedding)))


@pytest.mark.parametrize("training", [True, False])
def test_logistic_sgc_becomes_a_linear_map_of_its_hop_and_a_linear_classifier(training: bool) -> None:
    """FedGKC's SGC: nothing is dropped of the hop, ReLU is nowhere."""
    module = build("sgc", 5, 4, 2, 0.3, {}, embedding=6).train(training)
    adapter, last = nn.Linear(5, 6), nn.Linear(6, 4)
    plain = nn.ModuleList([adapter, last])
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(module.parameters()), plain.parameters())
    hop = torch.randn(30, 5)
    torch.manual_seed(9)
    out = module([hop])
    torch.manual_seed(9)
    torch.testing.assert_close(out.embedding_NH, adapter(hop))
    torch.testing.assert_close(out.logits_NC, last(dropped(adapter(hop), 0.3, training)))


def test_adapted_reset_equals_a_fresh_model() -> None:
    torch.manual_seed(7)
    assert_reset_as_fresh(Adapted(MLP(5, 6, 0, 0.0, hidden=7), 6, 4, 0.0), adapted_mlp(0.0), 7)


OWN = """
import shoal
from torch_geometric.nn import GCNConv

class Layer(GCNConv):
    pass

class Mine(shoal.Backbone):
    def __init__(self, features: int):
        super().__init__(width=4)
        self.layer = Layer(features, 4)

    def forward(self, x, edge_index):
        return self.layer(x, edge_index)
"""


def test_files_that_pyg_generates_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    module = build(f"{tmp_path / 'mine.py'}:Mine", 5, 4, 0, 0.0, {})
    # The code of the class is of such a file.
    (layer,) = (each for each in module.modules() if type(each).__name__ == "Layer")
    assert (tmp_path / "temporary") in Path(layer.propagate.__code__.co_filename).parents
    assert not list((tmp_path / "temporary").iterdir())
