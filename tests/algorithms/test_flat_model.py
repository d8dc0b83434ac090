import torch
from torch import nn

from algorithms.backbones import build
from algorithms.flat_model import FlatModel


def gamlp() -> nn.Module:
    return build("gamlp", 5, 3, 2, 0.5, {"hidden": 4})


def test_one_vector_in_the_order_of_the_parameters() -> None:
    module = gamlp()
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    model = FlatModel(module)
    assert torch.equal(model.w, before)
    assert model.w.is_leaf


def test_load_reaches_the_module() -> None:
    model = FlatModel(gamlp())
    w = torch.arange(len(model.w), dtype=torch.float32)
    model.load(w)
    assert torch.equal(nn.utils.parameters_to_vector(model.module.parameters()), w)
    first = next(model.module.parameters())
    first.data.zero_()
    assert (model.w[: first.numel()] == 0).all()
    assert torch.equal(model.w[first.numel() :], w[first.numel() :])


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
