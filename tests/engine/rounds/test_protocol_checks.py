"""Uploads that cannot be reduced as they are asked for are refused with the entry; those that can are not."""

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.method_errors import ProtocolError
from shoal.algorithms.protocol import Reduce, Upload
from shoal.engine.rounds.protocol_checks import require_form, require_state

SHAPES = {"w": torch.Size([5])}


def test_what_methods_of_ours_send() -> None:
    up = {"w": Reduce.MEAN, "m": Reduce.MIX, "b": Reduce.STACK, "n": Reduce.GATHER}
    entries = {"w": torch.ones(5), "m": torch.ones(3, 2), "b": torch.tensor([True]), "n": torch.ones(2).long()}
    require_form(Upload(entries, {"w": 2.0}, {"b": 1}), up, SHAPES)
    for weight in (0, np.float32(1), np.int64(3), torch.tensor(2), torch.ones(5), torch.ones(1), torch.zeros(5).bool()):
        require_form(Upload(entries, {"w": weight}), up, SHAPES)  # type: ignore[dict-item]
    require_form(Upload({"p": torch.ones(4, 2)}, {"p": torch.ones(4, 1)}), {"p": Reduce.MEAN}, SHAPES)
    require_form(Upload({"w": torch.ones(9).half()}), {"w": Reduce.MEAN}, {})
    # What nobody asked for is not looked at.
    require_form(Upload({"v": "text"}, {"v": -1.0}), {}, SHAPES)  # type: ignore[dict-item]
    require_state({"visits": torch.tensor(3), "w": torch.ones(5)}, SHAPES)


@pytest.mark.parametrize("how", [Reduce.MEAN, Reduce.MIX])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_sums_and_mixtures_are_of_floats(how: Reduce, dtype: torch.dtype) -> None:
    with pytest.raises(ProtocolError, match=rf"^gives 'z' as {str(dtype)[6:]}, .* needs floats"):
        require_form(Upload({"z": torch.ones(2).to(dtype)}), {"z": how}, SHAPES)


@pytest.mark.parametrize("how", [Reduce.STACK, Reduce.GATHER])
def test_other_entries_are_of_real_numbers(how: Reduce) -> None:
    for dtype in (torch.int8, torch.bool, torch.float16, torch.float64):
        require_form(Upload({"z": torch.ones(2).to(dtype)}), {"z": how}, SHAPES)
    with pytest.raises(ProtocolError, match=r"^gives 'z' as complex64, expected real numbers$"):
        require_form(Upload({"z": torch.ones(2).cfloat()}), {"z": how}, SHAPES)


@pytest.mark.parametrize("w", [torch.ones(4), torch.ones(5, 1), torch.tensor(1.0), torch.ones(5).double()])
@pytest.mark.parametrize("how", Reduce)
def test_parameters_are_those_of_the_model(w: Tensor, how: Reduce) -> None:
    with pytest.raises(ProtocolError, match=r"^gives 'w' as float.*, the model's parameters are float32 \[5\]$"):
        require_form(Upload({"w": w}), {"w": how}, SHAPES)
    with pytest.raises(ProtocolError, match=r"^gives 'w' as float.*, the model's parameters are float32 \[5\]$"):
        require_state({"w": w}, SHAPES)


@pytest.mark.parametrize(
    ("weight", "line"),
    [
        (-0.5, "weighs 'w' by a negative number, -0.5"),
        (torch.tensor([1.0, 1, 1, 1, -1]), "weighs 'w' by a negative number"),
        (torch.ones(4), "weighs 'w' by float32 [4], which does not broadcast to [5]"),
        (torch.ones(1, 5), "weighs 'w' by float32 [1, 5], which does not broadcast to [5]"),
        (None, "weighs 'w' by None, expected a number or a tensor"),
        ([1.0], "weighs 'w' by a list, expected a number or a tensor"),
    ],
)
def test_weights_that_cannot_be(weight: object, line: str) -> None:
    upload = Upload({"w": torch.ones(5)}, {"w": weight})  # type: ignore[dict-item]
    with pytest.raises(ProtocolError) as caught:
        require_form(upload, {"w": Reduce.MEAN}, SHAPES)
    assert str(caught.value) == line
    # Weights are of sums alone.
    require_form(upload, {"w": Reduce.STACK}, SHAPES)


@pytest.mark.parametrize("size", [-1, 2.5, None])
def test_bytes_on_the_wire_are_counts(size: object) -> None:
    with pytest.raises(ProtocolError, match="as the bytes of 'w'"):
        require_form(Upload({"w": torch.ones(5)}, {}, {"w": size}), {"w": Reduce.MEAN}, SHAPES)  # type: ignore[dict-item]


@pytest.mark.parametrize("state", [None, [], {"a": 1}, {1: torch.ones(1)}, {"a": torch.eye(2).to_sparse()}])
def test_a_state_is_tensors_by_name(state: object) -> None:
    with pytest.raises(ProtocolError, match=r"^client\.state "):
        require_state(state, SHAPES)
