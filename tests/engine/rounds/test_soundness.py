"""Nothing that is not finite gets into a sum or a state; what has no weight may hold anything."""

import pytest
import torch
from torch import Tensor

from shoal.algorithms.method_errors import ProtocolError
from shoal.algorithms.protocol import Reduce, Upload
from shoal.algorithms.training.local_training import finite_loss
from shoal.engine.rounds.protocol_checks import require_loss
from shoal.engine.rounds.reduction import counted, require_finite, require_sound
from shoal.storage.errors import ShoalError

NAN, INF = float("nan"), float("inf")
POISONS = [NAN, INF, -INF]


@pytest.mark.parametrize("how", Reduce)
@pytest.mark.parametrize("bad", POISONS)
def test_an_entry_that_is_not_finite(bad: float, how: Reduce) -> None:
    with pytest.raises(ShoalError, match=r"^upload\(\) gives NaN or infinity in 'w'; a smaller train\.lr may help$"):
        require_sound(Upload({"v": torch.ones(2), "w": torch.tensor([1.0, bad])}), {"v": how, "w": how})


def test_what_nobody_asked_for_may_be_anything() -> None:
    require_sound(Upload({"w": torch.ones(2), "unasked": torch.tensor(NAN)}), {"w": Reduce.MEAN})


def test_finite_numbers_whose_sum_is_not() -> None:
    require_sound(Upload({"w": torch.tensor([3e38, 3e38])}), {"w": Reduce.MEAN})
    require_finite({"w": torch.tensor([3e38, 3e38])}, "here")


@pytest.mark.parametrize(
    ("weight", "how"),
    [
        (torch.tensor([[1.0], [0.0]]), Reduce.MEAN),
        (torch.tensor([[1.0], [2.0]]), Reduce.MEAN),
        (1.0, Reduce.MEAN),
        (NAN, Reduce.MEAN),
        (torch.tensor([[0.0], [INF]]), Reduce.MEAN),
        # Weights are of sums alone.
        (0.0, Reduce.STACK),
        (torch.tensor([[0.0], [2.0]]), Reduce.MIX),
    ],
)
def test_what_has_weight_must_be_finite(weight: float | Tensor, how: Reduce) -> None:
    rows = torch.tensor([[NAN], [1.0]])
    with pytest.raises(ShoalError, match=r"^upload\(\) gives NaN or infinity in 'w'"):
        require_sound(Upload({"w": rows}, {"w": weight}), {"w": how})


@pytest.mark.parametrize("weight", [0.0, torch.tensor(0.0), torch.tensor([[0.0], [2.0]])])
def test_what_has_no_weight_is_not_read(weight: float | Tensor) -> None:
    rows = torch.tensor([[NAN], [1.0]])
    require_sound(Upload({"w": rows}, {"w": weight}), {"w": Reduce.MEAN})
    kept = counted(rows, weight)
    assert kept[0] == 0
    assert kept[1] == (1 if isinstance(weight, Tensor) and weight.dim() else 0)


def test_with_weight_the_tensor_is_handed_on() -> None:
    rows = torch.tensor([[2.0], [1.0]])
    assert counted(rows, 0.5) is rows
    assert counted(rows, torch.tensor([[0.5], [-1.0]])) is rows


@pytest.mark.parametrize("bad", POISONS)
def test_what_the_server_made(bad: float) -> None:
    require_finite({}, "here")
    require_finite({"w": torch.ones(2), "n": torch.tensor(2), "met": torch.tensor([True])}, "here")
    with pytest.raises(ShoalError, match=r"^round 2: Mine: the state 'v' holds NaN or infinity; the round is not comm"):
        require_finite({"w": torch.ones(2), "v": torch.tensor([[0.0, bad]])}, "round 2: Mine: the state")


@pytest.mark.parametrize("loss", [1, 0.5, torch.tensor(2.0), torch.tensor([3])])
def test_loss_number_passes(loss: object) -> None:
    require_loss(loss)
    require_loss(NAN)


def test_loss_of_another_type_is_refused() -> None:
    for loss in (None, "1", [1.0], torch.ones(2)):
        with pytest.raises(ProtocolError, match="expected the loss as a float, NaN where nothing was trained"):
            require_loss(loss)
    for infinite in (INF, -INF):
        with pytest.raises(ShoalError, match=r"^the training loss is infinite; a smaller train\.lr may help$"):
            finite_loss(infinite)
