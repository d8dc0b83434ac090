"""What a generator yields is checked: what the protocol has passes, and clients that cannot be asked are named."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from shoal.algorithms.method_errors import ProtocolError
from shoal.algorithms.protocol import Ask, Mix, Reduce
from shoal.engine.rounds.protocol_checks import require_generator, require_notes, require_request, require_tree

W = {"w": torch.ones(3)}


@pytest.mark.parametrize(
    "step",
    [
        Ask("train", {}),
        Ask("train", {"w": Reduce.MEAN, "z": Reduce.GATHER}, W, {0: W, np.int64(5): {}}, False, (5, 0)),
        Ask("train", {}, to=[]),
        Ask("train", {}, to=range(6)),
        Ask("train", {}, to=np.arange(6)),  # type: ignore[arg-type]
        Ask("train", {}, to={1: "a"}),  # type: ignore[arg-type]
        Mix("w", torch.ones(6)),
        Mix("w", torch.ones(2, 6).int(), dst=[0, 5]),
    ],
)
def test_what_may_be_asked(step: Ask | Mix) -> None:
    require_request(step, 6)


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (lambda: Ask("train", {}, to=(i for i in range(6))), "Ask(to) is a generator, expected numbers of clients"),
        (lambda: Ask("train", {}, to=torch.arange(6)), "Ask(to) is a Tensor, expected numbers of clients"),
        (lambda: Ask("train", {}, to="12"), "Ask(to) is a str, expected numbers of clients"),
        (lambda: Ask("train", {}, to=[1.0]), "Ask(to) names client 1.0, there are 0 to 5"),
        (lambda: Ask("train", {}, to=[6]), "Ask(to) names client 6, there are 0 to 5"),
        (lambda: Ask("train", {}, private={-1: {}}), "Ask(private) names client -1, there are 0 to 5"),
        (lambda: Ask("train", {}, private=[{}]), "Ask(private) is a list, expected a dict of downloads by client"),
        (lambda: Ask("train", {}, W, {2: {"v": 1}}), "Ask(private) of client 2 'v' is a int, expected a tensor"),
        (lambda: Ask("train", {}, score_with={"w": 1}), "Ask(score_with) 'w' is a int, expected a tensor"),
        (lambda: Mix(3, torch.ones(6)), "Mix(entry=a int), expected the name of an entry"),
        (lambda: Mix("w", torch.tensor(1.0)), "Mix(rows) is no matrix of real numbers"),
        (lambda: Mix("w", torch.ones(6).cfloat()), "Mix(rows) is no matrix of real numbers"),
        (lambda: Mix("w", torch.eye(6).to_sparse()), "Mix(rows) is a sparse tensor, expected a dense one"),
        (lambda: Mix("w", torch.ones(1, 6), dst=[6]), "Mix(dst) names client 6, there are 0 to 5"),
        (lambda: Ask, "yields a type, expected an Ask or a Mix"),
    ],
)
def test_what_cannot_be_asked(step: Callable[[], object], line: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        require_request(step(), 6)
    assert str(caught.value) == line


def test_a_generator_is_one_however_it_is_made() -> None:
    require_generator(i for i in ())
    for other in (None, [], iter([]), range):
        with pytest.raises(ProtocolError, match="expected a generator"):
            require_generator(other)


def test_a_tree_is_tensors_by_name() -> None:
    require_tree({}, "the state")
    require_tree({"a": torch.tensor(1), "b": torch.zeros(0)}, "the state")
    with pytest.raises(ProtocolError, match=r"^the state 'a' is None, expected a tensor$"):
        require_tree({"a": None}, "the state")


def test_notes_are_numbers() -> None:
    require_notes({"a": 1, "b": np.float32(0.5), "c": float("nan"), "d": -float("inf"), "e": True})
    with pytest.raises(
        ProtocolError, match=r"^ctx\.notes\['a'\] is a Tensor, expected a number, as float\(\.\.\.\) gives$"
    ):
        require_notes({"a": torch.tensor(1.0)})
