"""Sums, counts, masks and messages of class prototypes, by hand."""

from collections.abc import Callable

import pytest
import torch
from support.sparse_rows import sparse
from torch import Tensor

from shoal.algorithms.losses.prototypes import (
    bit_bytes,
    bits,
    class_means,
    class_sums,
    direction,
    from_bits,
    noisy,
    pack,
    row_bytes,
    unit,
    unpack,
)

Z = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0], [7.0, 7.0]])
Y = torch.tensor([2, 2, 0, -1])


def test_sums_and_means_by_hand() -> None:
    sums, counts = class_sums(Z, Y, 4)
    assert sums.tolist() == [[5, 5], [0, 0], [4, 2], [0, 0]]
    assert counts.tolist() == [1, 0, 2, 0]
    means, again = class_means(Z, Y, 4)
    assert means.tolist() == [[5, 5], [0, 0], [2, 1], [0, 0]]
    assert torch.equal(again, counts)


def test_sparse_rows_have_the_bits_of_dense_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(200, 30, generator=generator) * (torch.rand(200, 30, generator=generator) < 0.1)
    y = torch.randint(-1, 4, (200,), generator=generator)
    for found, expected in zip(class_means(sparse(z), y, 6), class_means(z, y, 6), strict=True):
        assert torch.equal(found, expected)
    nothing = class_sums(sparse(z).block(0, 0), y[:0], 3)
    assert torch.equal(nothing[0], torch.zeros(3, 30))


def test_sums_are_differentiable() -> None:
    z = Z.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: class_means(z, Y, 4)[0], (z,))


def test_unit_rows() -> None:
    """However long they were, and on whatever level they are."""
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-3e-6, 4e-6]])
    expected = torch.tensor([[0.6, 0.8], [0.0, 0.0], [-0.6, 0.8]])
    torch.testing.assert_close(unit(rows), expected)
    torch.testing.assert_close(unit(torch.stack([rows, 2 * rows])), torch.stack([expected, expected]))


@pytest.mark.parametrize("normalized", [unit, direction])
def test_a_zero_row_has_no_gradient(normalized: Callable[[Tensor], Tensor]) -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    normalized(rows)[:, 0].sum().backward()
    assert rows.grad is not None
    # (|z|^2 - z_0^2) / |z|^3 and -z_0 z_1 / |z|^3.
    torch.testing.assert_close(rows.grad, torch.tensor([[16 / 125, -12 / 125], [0, 0]]))


@pytest.mark.parametrize(("prototypes", "size"), [(1, 1), (8, 1), (9, 2), (64, 8), (65, 9)])
def test_a_bit_for_every_prototype(prototypes: int, size: int) -> None:
    assert bit_bytes(torch.ones(prototypes, dtype=torch.bool)) == size


def test_a_message_holds_the_rows_that_exist() -> None:
    proto = torch.randn(3, 4, 5)
    present = torch.tensor([[True, False, True, True], [False] * 4, [True, False, False, False]])
    proto[~present] = 0
    down = pack(proto, present)
    assert down["proto.rows"].nbytes == row_bytes(present, 5) == 4 * 4 * 5
    assert down["proto.present"].nbytes == bit_bytes(present) == 2
    received = unpack(down, 3, 4)
    assert received is not None
    assert torch.equal(received[0], proto)
    assert torch.equal(received[1], present)
    assert unpack({}, 3, 4) is None


def test_noise_has_the_deviation_of_the_own_entries() -> None:
    """Number by number: dimensions and noise from the given stream, the deviation that of the entries."""
    proto = torch.tensor([[1.0, 3.0, 1.0, 3.0], [0.0, 0.0, 8.0, 0.0]])
    stream = torch.Generator().manual_seed(4)
    chosen = torch.randperm(4, generator=stream)[:3].tolist()
    noise = torch.randn(2, 3, generator=stream)
    expected = proto.clone()
    for row, deviation in enumerate((1.0, 12**0.5)):
        for place, column in enumerate(chosen):
            expected[row, column] += deviation * noise[row, place]
    torch.testing.assert_close(noisy(proto, 0.7, torch.Generator().manual_seed(4)), expected)


def test_a_mask_is_sent_in_bits() -> None:
    mask = torch.tensor([[True, False, False, True, True], [False, True, True, False, True]])
    sent = bits(mask)
    # 10011011 and 01 with six zeros.
    assert (sent.tolist(), sent.dtype) == ([155, 64], torch.uint8)
    assert torch.equal(from_bits(sent, 2, 5), mask)
