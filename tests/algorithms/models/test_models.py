"""What holds for every decoupled backbone, and how one is made from a config."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.plain_dropout import dropped
from support.reset_models import assert_reset_as_fresh
from torch import Tensor, nn

from shoal.algorithms.models.build import backbone, build
from shoal.algorithms.models.decoupled.gamlp import ATTENTIONS
from shoal.algorithms.models.inputs.neighbourhood import all_nodes
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.names import BACKBONES
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

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
def test_nodes_are_independent(name: str, options: dict) -> None:
    model = make(name, options).eval()
    x = rows(model)
    full = model(x)
    order = torch.randperm(30)
    for permuted, reference in zip(model([hop[order] for hop in x]), full):
        torch.testing.assert_close(permuted, reference[order])
    blocks = [model([hop[start : start + 7] for hop in x]) for start in range(0, 30, 7)]
    for parts, reference in zip(zip(*blocks), full):
        torch.testing.assert_close(torch.cat(parts), reference)


@every_variant
def test_no_rows_give_no_rows(name: str, options: dict) -> None:
    model = make(name, options)
    assert model([hop[:0] for hop in rows(model)]).logits_NC.shape == (0, 4)


@every_variant
def test_gradients_reach_every_parameter(name: str, options: dict) -> None:
    model = make(name, options)
    F.cross_entropy(model(rows(model)).logits_NC, torch.arange(30) % 4).backward()
    for parameter_name, p in model.named_parameters():
        assert p.grad is not None, parameter_name
        assert p.grad.any(), parameter_name


@every_variant
def test_dropout_acts_in_training_only(name: str, options: dict) -> None:
    model = make(name, options)
    x = rows(model)
    model.eval()
    assert torch.equal(model(x).logits_NC, model(x).logits_NC)
    model.train()
    has_hidden = name == "sign" or len(model.head.linears) > 1
    assert torch.equal(model(x).logits_NC, model(x).logits_NC) != has_hidden


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


@every_variant
def test_another_seed_is_another_model(name: str, options: dict) -> None:
    a, b = make(name, options, seed=1), make(name, options, seed=2)
    assert not torch.equal(a.head.linears[0].weight, b.head.linears[0].weight)


@every_variant
def test_without_propagation_only_the_features_are_read(name: str, options: dict) -> None:
    model = make(name, options, hops=0)
    assert model.inputs == (0,)
    assert model(rows(model)).logits_NC.shape == (30, 4)


@every_variant
def test_many_models_run_as_one_batch(name: str, options: dict) -> None:
    models = [make(name, options, seed=seed).eval() for seed in range(3)]
    x = rows(models[0])
    parameters, _ = torch.func.stack_module_state(models)
    batched = torch.func.vmap(lambda p: torch.func.functional_call(models[0], p, (x,)).logits_NC)(parameters)
    for own, model in zip(batched, models):
        torch.testing.assert_close(own, model(x).logits_NC)


@pytest.mark.parametrize(
    ("name", "options", "hops", "dropout", "message"),
    [
        (
            "gcnn",
            {},
            3,
            0.5,
            r"model\.name: there is no 'gcnn'; choose one of gamlp, .*, sign, transformer, or my_file\.py:MyModel; .*",
        ),
        ("sgc", {"depth": 2}, 3, 0.5, r"model\.depth: sgc has no such option; it has head_dropout, hidden, layers"),
        ("sgc", {"hiden": 2}, 3, 0.5, r"model\.hiden: sgc has .*, layers; did you mean 'hidden'\?$"),
        (
            "mlp",
            {"features": 2},
            3,
            0.5,
            r"model\.features: mlp has no such option; it has head_dropout, hidden, layers",
        ),
        ("gcn", {"head_dropout": 0}, 3, 0.5, r"model\.head_dropout: must be of type bool, found 0"),
        ("mlp", {"hidden": "64"}, 3, 0.5, r"model\.hidden: must be of type int, found '64'"),
        ("mlp", {"hidden": 64.0}, 3, 0.5, r"model\.hidden: must be of type int, found 64\.0"),
        ("mlp", {"layers": True}, 3, 0.5, r"model\.layers: must be of type int, found True"),
        ("mlp", {"layers": None}, 3, 0.5, r"model\.layers: must be of type int, found None"),
        ("gamlp", {"attention": 3}, 3, 0.5, r"model\.attention: must be of type str, found 3"),
        ("gamlp", {"attention": "x"}, 3, 0.5, r"model\.attention: there is no 'x'; choose one of simple, .*"),
        ("gamlp", {"layers": 0}, 3, 0.5, r"model\.layers: must be at least 1, found 0"),
        ("sgc", {"hidden": 0, "layers": 2}, 3, 0.5, r"model\.hidden: must be at least 1, found 0"),
        ("gat", {"heads": 3}, 0, 0.5, r"model\.heads: must divide model\.hidden, found 3 and 64"),
        ("gat", {"heads": 0}, 0, 0.5, r"model\.heads: must divide model\.hidden, found 0 and 64"),
        ("gcn", {"fanouts": [5]}, 0, 0.5, r"model\.fanouts: must be 2 numbers, one a layer, .*, found \[5\]"),
        ("gcn", {"fanouts": [5, 0]}, 0, 0.5, r"model\.fanouts: must be 2 numbers, .*, found \[5, 0\]"),
        ("sage", {"fanouts": [5, 1.5]}, 0, 0.5, r"model\.fanouts: must be of type list\[int\] \| None, found .*"),
        ("gcn", {"jumping": "last"}, 0, 0.5, r"model\.jumping: must be one of none, max, found 'last'"),
        ("gcn", {"jumping": True}, 0, 0.5, r"model\.jumping: must be one of none, max, found True"),
        ("gcn", {"jumping": None}, 0, 0.5, r"model\.jumping: must be one of none, max, found None"),
        ("sage", {"jumping": "max"}, 0, 0.5, r"model\.jumping: sage has no such option; it has fanouts, .*"),
        ("gin", {"layers": 0}, 0, 0.5, r"model\.layers: must be at least 1, found 0"),
        ("gcnii", {"alpha": 2.0}, 0, 0.5, r"model\.alpha: must lie in \[0, 1\], found 2\.0"),
        ("gcnii", {"alpha": -0.5}, 0, 0.5, r"model\.alpha: must lie in \[0, 1\], found -0\.5"),
        ("gcnii", {"theta": 0}, 0, 0.5, r"model\.theta: must be positive, found 0"),
        ("s2gc", {"alpha": 1.1}, 3, 0.5, r"model\.alpha: must lie in \[0, 1\], found 1\.1"),
        ("s2gc", {"alpha": -0.1}, 3, 0.5, r"model\.alpha: must lie in \[0, 1\], found -0\.1"),
        ("gbp", {"beta": 0.0}, 3, 0.5, r"model\.beta: must lie in \(0, 1\], found 0\.0"),
        ("gbp", {"beta": 1.5}, 3, 0.5, r"model\.beta: must lie in \(0, 1\], found 1\.5"),
        ("gbp", {"alpha": 0.1}, 3, 0.5, r"model\.alpha: gbp has no such option; it has beta, head_dropout, .*"),
        ("sign", {"layers": 0}, 3, 0.5, r"model\.layers: must be at least 1, found 0"),
        ("sign", {"hidden": 0}, 3, 0.5, r"model\.hidden: must be at least 1, found 0"),
        ("gcnii", {"hops": 2}, 0, 0.5, r"model\.hops: gcnii has no such option; it has alpha, .*"),
        ("sgc", {}, -1, 0.5, r"propagation\.hops: must be at least 0, found -1"),
        ("sgc", {}, 3, 1.0, r"train\.dropout: must be at least 0 and below 1, found 1\.0"),
    ],
)
def test_mistakes_are_one_line_that_names_the_key(
    name: str, options: dict, hops: int, dropout: float, message: str
) -> None:
    with pytest.raises(ShoalError) as caught:
        build(name, 5, 4, hops, dropout, options)
    assert re.fullmatch(message, str(caught.value))


def test_sizes_of_the_defaults() -> None:
    """SGC is a logistic regression; MLP has two layers, GAMLP three and a `jk` score; hidden ones are 64 wide."""
    sizes = {name: sum(p.numel() for p in build(name, 100, 47, 3, 0.5, {}).parameters()) for name in ("sgc", "mlp")}
    assert sizes == {"sgc": 100 * 47 + 47, "mlp": 100 * 64 + 64 + 64 * 47 + 47}
    gamlp = build("gamlp", 100, 47, 3, 0.5, {})
    head = 100 * 64 + 64 + 64 * 64 + 64 + 64 * 47 + 47 + 1
    assert sum(p.numel() for p in gamlp.parameters()) == head + 5 * 100 + 1
    assert build("sgc", 100, 47, 3, 0.5, {"layers": 2}).head.linears[0].weight.shape == (64, 100)
    # S2GC is one layer, GBP an MLP of two; SIGN has a layer and 64 inputs of the classifier for each of four hops.
    sizes = {name: sum(p.numel() for p in build(name, 100, 47, 3, 0.5, {}).parameters()) for name in ("s2gc", "gbp")}
    assert sizes == {"s2gc": 100 * 47 + 47, "gbp": 100 * 64 + 64 + 64 * 47 + 47}
    sign = build("sign", 100, 47, 3, 0.5, {})
    assert sum(p.numel() for p in sign.parameters()) == 4 * (100 * 64 + 64) + 1 + 4 * 64 * 47 + 47


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


@pytest.mark.parametrize("embedding", [None, 6])
@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_dropout_before_the_classifier_is_an_option(
    name: str, embedding: int | None, make_view: Callable[..., View]
) -> None:
    x = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    view = make_view(12, [(i, i + 1) for i in range(11)], [0] * 12, [0], 3, x)
    options = {"hidden": 8, **({"layers": 2} if name in ("sgc", "s2gc") else {})}
    for choice, expected in (({}, False), ({"head_dropout": True}, False), ({"head_dropout": False}, True)):
        torch.manual_seed(0)
        module = build(name, 5, 3, 0, 0.5, {**options, **choice}, embedding).train()
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
