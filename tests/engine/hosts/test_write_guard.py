"""A method that writes into what it was lent is noticed, however it writes."""

import numpy as np
import pytest
import torch

from shoal.engine.hosts.write_guard import MethodWrites, ReadOnly

NAN = float("nan")


def test_reading_is_allowed() -> None:
    tree = {"w": torch.ones(3), "n": torch.tensor(2), "met": torch.tensor([True]), "none": torch.zeros(0)}
    guard = ReadOnly(tree, "download")
    assert float((tree["w"] * 2).sum()) == 6
    tree["w"].clone().mul_(3)
    tree["more"] = torch.zeros(1)
    guard.require_unchanged("round 1, client 0: Mine")


@pytest.mark.parametrize("poison", [NAN, float("inf"), -float("inf")])
def test_what_is_not_finite_is_unchanged_too(poison: float) -> None:
    guard = ReadOnly({"w": torch.tensor([1.0, poison])}, "inbox")
    guard.require_unchanged("here")


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.mul_(0.9),
        lambda t: t.zero_(),
        lambda t: t[1:].add_(1),
        lambda t: t.__setitem__(0, 5.0),
        lambda t: t.copy_(torch.zeros(3)),
        # The same numbers again.
        lambda t: t.copy_(t.clone()),
        # Behind torch's back.
        lambda t: np.add(t.numpy(), 1, out=t.numpy()),
        lambda t: t.numpy().fill(NAN),
        lambda t: t.data.mul_(2),
    ],
)
def test_writing_is_noticed(write: object) -> None:
    tree = {"other": torch.zeros(2), "w": torch.ones(3)}
    guard = ReadOnly(tree, "download")
    write(tree["w"])  # type: ignore[operator]
    with pytest.raises(MethodWrites) as noticed:
        guard.require_unchanged("round 4, client 2: Mine")
    assert str(noticed.value) == (
        "round 4, client 2: Mine writes into the download 'w', which is read-only: other clients read it, too; "
        "take a copy first, as in w.clone()"
    )


def test_truth_values() -> None:
    met = torch.tensor([True, False])
    guard = ReadOnly({"met": met}, "inbox")
    met.logical_not_()
    with pytest.raises(MethodWrites, match="into the inbox 'met'"):
        guard.require_unchanged("here")
