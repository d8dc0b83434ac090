"""Fusion against a naive loop, and its edges by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.fedpg.server_targets import Uploads, personal_targets

B, L, C, H = 7, 2, 3, 4


def drawn() -> tuple[Uploads, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    present = torch.rand(B, L, C, generator=generator) < 0.7
    present[:, 1, 2] = False
    proto = unit(torch.rand(B, L, C, H, generator=generator)) * present[..., None]
    counts = torch.randint(1, 50, (B, C), generator=generator, dtype=torch.int32)
    fresh = torch.tensor([True, True, False, True, False, True, True])
    anchors = unit(torch.randn(L, C, H, generator=generator))
    return Uploads(proto, present, counts, fresh), anchors, present.any(0)


@pytest.mark.parametrize(("alpha", "lam"), [(0.5, 0.9), (0.3, 0.0), (0.0, 0.95)])
def test_equals_a_naive_loop(alpha: float, lam: float) -> None:
    uploads, anchors, known = drawn()
    receivers = [0, 2, 5]
    found, size, mixed = personal_targets(uploads, receivers, anchors, known, alpha, lam, weights=True)
    sizes = []
    shares: list[list[np.ndarray]] = [[] for _ in receivers]
    for r, i in enumerate(receivers):
        for level, c in known.nonzero().tolist():
            if not uploads.present_BLC[i, level, c]:
                assert torch.equal(found[r, level, c], anchors[level, c])
                continue
            own = uploads.proto_BLCH[i, level, c]
            total, weight, number, share_B = np.zeros(H), 0.0, 0, np.zeros(B)
            for j in range(B):
                if not uploads.present_BLC[j, level, c]:
                    continue
                proto = uploads.proto_BLCH[j, level, c]
                alike = bool(uploads.fresh_B[j]) and float(torch.cosine_similarity(own, proto, dim=0)) >= lam
                if i == j or alike:
                    total += int(uploads.counts_BC[j, c]) * proto.double().numpy()
                    weight += int(uploads.counts_BC[j, c])
                    number += 1
                    share_B[j] = int(uploads.counts_BC[j, c])
            expected = alpha * anchors[level, c].double().numpy() + (1 - alpha) * total / weight
            np.testing.assert_allclose(found[r, level, c].numpy(), expected, rtol=1e-5, atol=1e-6)
            sizes.append(number)
            shares[r].append(share_B / weight)
    assert size == pytest.approx(np.mean(sizes))
    assert mixed is not None
    np.testing.assert_allclose(mixed.numpy(), [np.mean(several, axis=0) for several in shares], rtol=1e-5)


def test_the_order_of_clients_changes_nothing() -> None:
    uploads, anchors, known = drawn()
    order = torch.randperm(B, generator=torch.Generator().manual_seed(1))
    moved = Uploads(*(getattr(uploads, name)[order] for name in Uploads.__dataclass_fields__))
    place = order.argsort().tolist()
    expected, _, _ = personal_targets(uploads, [0, 2, 5], anchors, known, 0.5, 0.9)
    found, _, _ = personal_targets(moved, [place[i] for i in (0, 2, 5)], anchors, known, 0.5, 0.9)
    torch.testing.assert_close(found, expected)


def test_personal_targets_lam_above_one_gives_own_prototypes() -> None:
    uploads, anchors, known = drawn()
    found, size, _ = personal_targets(uploads, range(B), anchors, known, 0.0, 1.1)
    assert torch.equal(found[uploads.present_BLC], uploads.proto_BLCH[uploads.present_BLC])
    assert size == 1


def test_alpha_one_is_universal() -> None:
    uploads, anchors, known = drawn()
    found, _, _ = personal_targets(uploads, range(B), anchors, known, 1.0, 0.0)
    torch.testing.assert_close(found[:, known], anchors[known].expand(B, -1, -1))


def test_targets_are_not_longer_than_one() -> None:
    uploads, anchors, known = drawn()
    found, _, _ = personal_targets(uploads, range(B), anchors, known, 0.4, 0.5)
    assert found.norm(dim=-1).max() <= 1 + 1e-6


def test_nothing_is_known() -> None:
    uploads, anchors, known = drawn()
    found, size, _ = personal_targets(uploads, [1], anchors, torch.zeros_like(known), 0.5, 0.5)
    assert (found.shape, size) == ((1, L, C, H), 0)


def test_a_cosine_of_just_lam_is_admitted_and_counts_weigh() -> None:
    proto = torch.eye(3)[:2].view(2, 1, 1, 3)
    uploads = Uploads(
        proto, torch.ones(2, 1, 1, dtype=torch.bool), torch.tensor([[1], [3]]), torch.tensor([True, True])
    )
    anchor, known = torch.tensor([[[0.0, 0.0, 1.0]]]), torch.tensor([[True]])
    found, size, _ = personal_targets(uploads, [0, 1], anchor, known, alpha=0.25, lam=0.0)
    torch.testing.assert_close(found.view(2, 3), torch.tensor([[0.1875, 0.5625, 0.25]] * 2))
    assert size == 2
    found, size, _ = personal_targets(uploads, [0, 1], anchor, known, alpha=0.25, lam=1e-6)
    torch.testing.assert_close(found.view(2, 3), torch.tensor([[0.75, 0.0, 0.25], [0.0, 0.75, 0.25]]))
    assert size == 1
