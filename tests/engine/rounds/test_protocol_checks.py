"""What a method gives must have its form, and be finite where it has weight; what the protocol allows passes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from torch import Tensor

from shoal.algorithms.method_errors import ProtocolError
from shoal.algorithms.protocol import Ask, Mix, Reduce, Upload
from shoal.algorithms.training.local_training import bounded_loss
from shoal.engine.rounds.protocol_checks import (
    require_form,
    require_generator,
    require_loss,
    require_notes,
    require_request,
    require_state,
    require_tree,
)
from shoal.engine.rounds.reduction import require_finite, require_sound, zero_unweighted

NAN, INF = float("nan"), float("inf")
W = {"w": torch.ones(3)}
SHAPES = {"w": torch.Size([5])}
ROWS = torch.tensor([[NAN], [1.0]])


def ask(**more: Any) -> None:
    require_request(Ask("train", {}, **more), 6)


def mix(entry: Any, rows: Tensor, **more: Any) -> None:
    require_request(Mix(entry, rows, **more), 6)


def send(w: Tensor, how: Reduce = Reduce.MEAN, name: str = "w", **more: Any) -> None:
    """An upload of one entry; the model's parameters are called `w` and five numbers."""
    require_form(Upload({name: w}, **more), {name: how}, SHAPES)


def test_what_the_protocol_allows_passes() -> None:
    require_request(Ask("train", {"w": Reduce.MEAN, "z": Reduce.GATHER}, W, {0: W, np.int64(5): {}}, False, (5, 0)), 6)
    for to in ([], range(6), np.arange(6), {1: "a"}):
        ask(to=to)
    mix("w", torch.ones(6))
    mix("w", torch.ones(2, 6).int(), dst=[0, 5])
    require_generator(i for i in ())
    require_tree({}, "the state")
    require_tree({"a": torch.tensor(1), "b": torch.zeros(0)}, "the state")
    require_notes({"a": 1, "b": np.float32(0.5), "c": NAN, "d": -INF, "e": True})
    require_state({"visits": torch.tensor(3), "w": torch.ones(5)}, SHAPES)
    for loss in (1, 0.5, NAN, torch.tensor(2.0), torch.tensor([3])):
        require_loss(loss)


def test_uploads_of_many_forms_pass() -> None:
    up = {"w": Reduce.MEAN, "m": Reduce.MIX, "b": Reduce.STACK, "n": Reduce.GATHER}
    entries = {"w": torch.ones(5), "m": torch.ones(3, 2), "b": torch.tensor([True]), "n": torch.ones(2).long()}
    weights: list[Any] = [0, np.float32(1), np.int64(3), torch.tensor(2), torch.ones(5), torch.ones(1)]
    for weight in [*weights, torch.zeros(5).bool()]:
        require_form(Upload(entries, {"w": weight}, {"b": 1}), up, SHAPES)
    send(torch.ones(4, 2), name="p", weight={"p": torch.ones(4, 1)})
    require_form(Upload({"w": torch.ones(9).half()}), {"w": Reduce.MEAN}, {})
    # What nobody asked for is not looked at, and weights are of sums alone.
    require_form(Upload({"v": "text"}, {"v": -1.0}), {}, SHAPES)  # type: ignore[dict-item]
    send(torch.ones(5), Reduce.STACK, weight={"w": -0.5})
    for dtype in (torch.int8, torch.bool, torch.float16, torch.float64):
        send(torch.ones(2).to(dtype), Reduce.STACK, "z")
        send(torch.ones(2).to(dtype), Reduce.GATHER, "z")


REFUSED: dict[str, Callable[[], Any]] = {
    "Ask(to) is a generator, expected numbers of clients": lambda: ask(to=(i for i in range(6))),
    "Ask(to) is a Tensor, expected numbers of clients": lambda: ask(to=torch.arange(6)),
    "Ask(to) is a str, expected numbers of clients": lambda: ask(to="12"),
    "Ask(to) names client 1.0, there are 0 to 5": lambda: ask(to=[1.0]),
    "Ask(to) names client 6, there are 0 to 5": lambda: ask(to=[6]),
    "Ask(private) names client -1, there are 0 to 5": lambda: ask(private={-1: {}}),
    "Ask(private) is a list, expected a dict of downloads": lambda: ask(private=[{}]),
    "Ask(private) of client 2 'v' is a int, expected a tensor": lambda: ask(private={2: {"v": 1}}),
    "Ask(score_with) 'w' is a int, expected a tensor": lambda: ask(score_with={"w": 1}),
    "Mix(entry=a int), expected the name of an entry": lambda: mix(3, torch.ones(6)),
    "Mix(rows) is no matrix of real numbers": lambda: mix("w", torch.tensor(1.0)),
    "Mix(rows) is no matrix": lambda: mix("w", torch.ones(6).cfloat()),
    "Mix(rows) is a sparse tensor, expected a dense one": lambda: mix("w", torch.eye(6).to_sparse()),
    "Mix(dst) names client 6, there are 0 to 5": lambda: mix("w", torch.ones(1, 6), dst=[6]),
    "yields a type, expected an Ask or a Mix": lambda: require_request(Ask, 6),
    "gives None, expected a generator": lambda: require_generator(None),
    "gives a list_iterator, expected a generator": lambda: require_generator(iter([])),
    "the state 'a' is None, expected a tensor": lambda: require_tree({"a": None}, "the state"),
    "ctx.notes['a'] is a Tensor, expected a number": lambda: require_notes({"a": torch.tensor(1.0)}),
    "gives 'z' as int64, a sum needs floats": lambda: send(torch.ones(2).long(), Reduce.MEAN, "z"),
    "gives 'z' as complex64, a sum needs floats": lambda: send(torch.ones(2).cfloat(), Reduce.MEAN, "z"),
    "gives 'z' as bool, mixing needs floats": lambda: send(torch.ones(2).bool(), Reduce.MIX, "z"),
    "gives 'z' as complex64, mixing needs floats": lambda: send(torch.ones(2).cfloat(), Reduce.MIX, "z"),
    "gives 'z' as complex64, expected real numbers": lambda: send(torch.ones(2).cfloat(), Reduce.STACK, "z"),
    "gives 'z' as complex64, expected real": lambda: send(torch.ones(2).cfloat(), Reduce.GATHER, "z"),
    "weighs 'w' by a negative number, -0.5": lambda: send(torch.ones(5), weight={"w": -0.5}),
    "weighs 'w' by a negative number": lambda: send(torch.ones(5), weight={"w": torch.tensor([1.0, 1, 1, 1, -1])}),
    "weighs 'w' by float32 [4], which does not": lambda: send(torch.ones(5), weight={"w": torch.ones(4)}),
    "weighs 'w' by float32 [1, 5], which does not": lambda: send(torch.ones(5), weight={"w": torch.ones(1, 5)}),
    "weighs 'w' by None, expected a number or a tensor": lambda: send(torch.ones(5), weight={"w": None}),
    "weighs 'w' by a list, expected a number or a tensor": lambda: send(torch.ones(5), weight={"w": [1.0]}),
    "gives -1 as the bytes of 'w'": lambda: send(torch.ones(5), upload_bytes={"w": -1}),
    "gives 2.5 as the bytes of 'w'": lambda: send(torch.ones(5), upload_bytes={"w": 2.5}),
    "client.state is a list": lambda: require_state([], SHAPES),
    "client.state 'a' is a int": lambda: require_state({"a": 1}, SHAPES),
    "client.state has the name 1": lambda: require_state({1: torch.ones(1)}, SHAPES),
    "client.state 'a' is a sparse tensor": lambda: require_state({"a": torch.eye(2).to_sparse()}, SHAPES),
    "gives NoneType, expected the loss as a float": lambda: require_loss(None),
    "gives Tensor, expected the loss": lambda: require_loss(torch.ones(2)),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_has_another_form_is_refused(line: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        REFUSED[line]()
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize("w", [torch.ones(4), torch.ones(5, 1), torch.tensor(1.0), torch.ones(5).double()])
def test_parameters_are_those_of_the_model(w: Tensor) -> None:
    calls = [partial(send, w, how) for how in Reduce]
    for call in (*calls, partial(require_state, {"w": w}, SHAPES)):
        with pytest.raises(ProtocolError, match=r"^gives 'w' as float.*, the model's parameters are float32 \[5\]$"):
            call()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_nothing_that_is_not_finite_is_sent_or_committed(bad: float) -> None:
    for how in Reduce:
        with refused(says="upload() gives NaN or infinity in 'w'; a smaller train.lr may help"):
            require_sound(Upload({"v": torch.ones(2), "w": torch.tensor([1.0, bad])}), {"v": how, "w": how})
    with refused(says="round 2: Mine: the state 'v' holds NaN or infinity; the round is not comm"):
        require_finite({"w": torch.ones(2), "v": torch.tensor([[0.0, bad]])}, "round 2: Mine: the state")
    if bad == bad:
        with refused(says="the training loss is infinite"):
            bounded_loss(bad)


def test_a_loss_a_million_times_the_first_is_refused() -> None:
    assert bounded_loss(2e6, 2.0) == 2e6
    # Next to nothing is no measure, and NaN is none: a client of before had no training row.
    assert bounded_loss(9e5, 1e-9) == bounded_loss(9e5, NAN) == 9e5
    for first in (2.0, 1e-9):
        with refused(says=f"the training loss is 2.1e+06, over a million times the first, {first:.2g}"):
            bounded_loss(2.1e6, first)


def test_finite_numbers_and_what_nobody_asked_for_pass() -> None:
    # Their sum is infinite.
    require_sound(Upload({"w": torch.tensor([3e38, 3e38]), "unasked": torch.tensor(NAN)}), {"w": Reduce.MEAN})
    require_finite({"w": torch.tensor([3e38, 3e38]), "n": torch.tensor(2), "met": torch.tensor([True])}, "here")


@pytest.mark.parametrize(
    ("weight", "how"),
    [
        *((w, Reduce.MEAN) for w in (1.0, NAN, torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [INF]]))),
        # Weights are of sums alone.
        (0.0, Reduce.STACK),
        (torch.tensor([[0.0], [2.0]]), Reduce.MIX),
    ],
)
def test_what_has_weight_must_be_finite(weight: float | Tensor, how: Reduce) -> None:
    with refused(says="upload() gives NaN or infinity in 'w'"):
        require_sound(Upload({"w": ROWS}, {"w": weight}), {"w": how})


@pytest.mark.parametrize("weight", [0.0, torch.tensor(0.0), torch.tensor([[0.0], [2.0]])])
def test_what_has_no_weight_is_not_read(weight: float | Tensor) -> None:
    require_sound(Upload({"w": ROWS}, {"w": weight}), {"w": Reduce.MEAN})
    kept = zero_unweighted(ROWS, weight)
    assert kept[0] == 0
    assert kept[1] == (1 if isinstance(weight, Tensor) and weight.dim() else 0)
    # With weight everywhere the tensor is handed on.
    assert zero_unweighted(ROWS, torch.tensor([[0.5], [-1.0]])) is ROWS
