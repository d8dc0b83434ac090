import pytest
import torch
from support.coupled_models import edge_features
from torch import nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.names import BACKBONES


def gamlp() -> nn.Module:
    return build("gamlp", 5, 3, 2, 0.5, {"hidden": 4})


def test_initial_depends_on_the_seed_only() -> None:
    model, state = FlatModel(gamlp()), torch.get_rng_state()
    first = model.initial(3)
    model.load(torch.zeros_like(first))
    torch.manual_seed(99)
    assert torch.equal(model.initial(3), first)
    assert torch.equal(FlatModel(gamlp()).initial(3), first)
    assert not torch.equal(model.initial(4), first)
    torch.set_rng_state(state)
    model.initial(5)
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_of_the_model_and_of_the_vector_add_up() -> None:
    model = FlatModel(gamlp())
    x = [torch.randn(6, 5) for _ in range(3)]
    direction = torch.randn(len(model.w))
    model.module.eval()
    twin = gamlp().eval()
    nn.utils.vector_to_parameters(model.w.detach().clone(), twin.parameters())
    twin(x).logits_NC.square().sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in twin.parameters() if p.grad is not None])
    gradient = model.w.grad
    for _ in range(2):
        model.w.grad.zero_()
        (model(x).logits_NC.square().sum() + model.w @ direction).backward()
        assert model.w.grad is gradient
        torch.testing.assert_close(model.w.grad, expected + direction, rtol=1e-5, atol=1e-5)


def test_what_a_copy_learns_is_its_own() -> None:
    model = FlatModel(gamlp(), bfloat16=True)
    copied = model.on(torch.device("cpu"))
    assert copied.bfloat16
    assert not FlatModel(gamlp()).on(torch.device("cpu")).bfloat16
    assert torch.equal(copied.w, model.w)
    assert copied.w.data_ptr() != model.w.data_ptr()
    before = model.w.detach().clone()
    copied.load(torch.zeros_like(before))
    assert torch.equal(model.w, before)
    assert torch.equal(nn.utils.parameters_to_vector(model.module.parameters()), before)
    assert not any(p.any() for p in copied.module.parameters())
    assert copied.on(torch.device("meta")).w.device.type == "meta"


def test_bfloat16_is_torch_s_autocast_and_gives_float32() -> None:
    plain, rounded = FlatModel(gamlp()), FlatModel(gamlp(), bfloat16=True)
    rounded.load(plain.w.detach())
    x = [torch.randn(6, 5) for _ in range(3)]
    for model in (plain, rounded):
        model.module.eval()
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain.module(x)
    out = rounded(x)
    assert out.logits_NC.dtype == out.embedding_NH.dtype == torch.float32
    assert torch.equal(out.logits_NC, expected.logits_NC.float())
    assert torch.equal(out.embedding_NH, expected.embedding_NH.float())
    assert not torch.equal(out.logits_NC, plain(x).logits_NC)
    assert torch.equal(plain(x).logits_NC, plain.module(x).logits_NC)
    weight = torch.randn(3, 3)
    with plain.precision():
        assert (weight @ weight).dtype == torch.float32
    with rounded.precision():
        assert (weight @ weight).dtype == torch.bfloat16
    out.logits_NC.sum().backward()
    assert rounded.w.grad is not None
    assert rounded.w.grad.dtype == torch.float32
    assert rounded.w.grad.any()


def test_bfloat16_is_asked_for_whatever_torch_would_take() -> None:
    """A GPU's own choice is float16."""
    usual = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        with FlatModel(gamlp(), bfloat16=True).precision():
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    finally:
        torch.set_autocast_dtype("cpu", usual)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 10)])
def test_parameters_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """A single number would otherwise be written into all of them."""
    model = FlatModel(nn.Linear(4, 2))
    before = model.w.detach().clone()
    with pytest.raises(ValueError, match=r"^parameters of shape \[.*\], the model has \[10\]$"):
        model.load(torch.ones(shape))
    assert torch.equal(model.w, before)


@pytest.mark.parametrize("name", sorted(BACKBONES))
@pytest.mark.parametrize("embedding", [None, 6])
def test_the_classifier_is_weight_by_row_then_bias(name: str, embedding: int | None) -> None:
    options = {"hidden": 8, "layers": 2}
    module = build(name, 5, 3, 2, 0.0, options, embedding, edge_features=edge_features(name))
    model = FlatModel(module, sparse=True)
    model.load(torch.arange(len(model.w), dtype=torch.float32))
    last = model.module.head.linears[-1]  # type: ignore
    assert last.weight.shape == (3, embedding or 8)
    assert torch.equal(model.w[model.classifier], torch.cat([*last.weight, last.bias]))
    assert model.has_body


@pytest.mark.parametrize("name", ["sgc", "mlp", "gamlp", "s2gc", "gbp"])
def test_a_model_of_one_layer_is_a_classifier_of_features(name: str) -> None:
    """By column on sparse features; a layer below it, an adapter's included, is a body."""
    for sparse in (False, True):
        model = FlatModel(build(name, 5, 3, 2, 0.0, {"layers": 1}), sparse=sparse)
        assert not model.has_body
        last = model.module.head.linears[-1]  # type: ignore
        weight = [*last.weight.T] if sparse else [*last.weight]
        assert torch.equal(model.w[model.classifier], torch.cat([*weight, last.bias]))
        assert FlatModel(build(name, 5, 3, 2, 0.0, {"layers": 1}, 6), sparse=sparse).has_body
