from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from other_device import load
from torch import Tensor

from algorithms.backbones.dropout import drop, masks


def test_outside_training_and_at_zero_nothing_happens() -> None:
    x = torch.randn(4, 3)
    state = torch.get_rng_state()
    with masks(lambda x, p: torch.zeros_like(x)):
        assert drop(x, 0.5, training=False) is x
        assert drop(x, 0.0, training=True) is x
    assert drop(x, 0.5, training=False) is x
    assert drop(x, 0.0, training=True) is x
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.75])
def test_the_processor_draws_as_torch_does(p: float) -> None:
    x = torch.randn(50, 20)
    torch.manual_seed(3)
    expected = F.dropout(x, p, training=True)
    torch.manual_seed(3)
    assert torch.equal(drop(x, p, training=True), expected)


@pytest.mark.parametrize("p", [0.2, 0.75])
def test_another_device_draws_what_clients_of_one_batch_draw(p: float) -> None:
    """Bernoulli masks from the default stream, as the stacked trainer draws them from a client's own."""
    other = load()
    x = torch.randn(50, 20)
    torch.manual_seed(3)
    dropped = drop(x.to(other), p, training=True).cpu()
    kept = torch.zeros(50, 20).bernoulli_(1 - p, generator=torch.Generator().manual_seed(3)).bool()
    torch.testing.assert_close(dropped, torch.where(kept, x / (1 - p), torch.zeros(())))


def test_masks_are_taken_in_the_order_of_calls_and_given_back() -> None:
    x, asked = torch.ones(2), list[tuple[Tensor, float]]()

    def numbers() -> Iterator[Tensor]:
        yield from (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0]))

    given = numbers()

    def mask_of(x: Tensor, p: float) -> Tensor:
        asked.append((x, p))
        return next(given)

    with masks(mask_of):
        first, second = drop(x, 0.1, training=True), drop(2 * x, 0.6, training=True)
        with masks(lambda x, p: torch.full_like(x, 5.0)):
            assert drop(x, 0.1, training=True).tolist() == [5.0, 5.0]
        with pytest.raises(StopIteration):
            drop(x, 0.1, training=True)
    assert first.tolist() == [1.0, 0.0]
    assert second.tolist() == [0.0, 6.0]
    assert [p for _, p in asked] == [0.1, 0.6, 0.1]
    assert torch.equal(asked[1][0], 2 * x)
    torch.manual_seed(0)
    expected = F.dropout(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(drop(x, 0.5, training=True), expected)


def test_masks_are_given_back_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="on purpose"), masks(lambda x, p: torch.zeros_like(x)):
        raise RuntimeError("on purpose")
    assert drop(torch.ones(1000), 0.5, training=True).any()
