"""Fusion against a naive loop, its edges by hand, and the prototypes that train the anchors of a level."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.fedpg import fedpg
from shoal.algorithms.methods.fedpg.fedpg import FedPG, Uploads, draw_queries, personal_targets

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


@pytest.mark.parametrize("pairs", [1, 45, 2**20])
@pytest.mark.parametrize(("alpha", "lam"), [(0.5, 0.9), (0.3, 0.0), (0.0, 0.95)])
def test_equals_a_naive_loop(alpha: float, lam: float, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One prototype, two, or all at a time."""
    monkeypatch.setattr(fedpg, "MOST_PAIRS", pairs)
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


def test_a_level_without_uploads_does_not_end_the_others() -> None:
    present = torch.ones(2, 3, 4, dtype=torch.bool)
    present[:, 1] = False
    queries = draw_queries(torch.randn(2, 3, 4, 5), present, torch.ones(3, 4, dtype=torch.bool), 1.0, torch.Generator())
    assert [(q.level, q.own, len(q.class_Q)) for q in queries] == [(0, 8, 16), (2, 8, 16)]


def test_the_parts_of_table_10_are_off() -> None:
    """`alpha: 1`: everybody is sent the same. `cross_hop: 0`: no other hop's. `margin_cap: 0`: plain cross-entropy."""
    uploads, anchors, known = drawn()
    found, _, _ = personal_targets(uploads, range(B), anchors, known, alpha=1.0, lam=0.5)
    torch.testing.assert_close(found, anchors.expand(B, -1, -1, -1))
    queries = draw_queries(uploads.proto_BLCH, uploads.present_BLC, known, 0.0, torch.Generator())
    assert [q.own for q in queries] == [len(q.class_Q) for q in queries] == uploads.present_BLC.sum((0, 2)).tolist()
    losses = [FedPG(margin_cap=cap)._server_loss(queries, known)(anchors.flatten(0, 1)) for cap in (0.0, 0.5)]
    plain = [
        cross_entropy((-(q.proto_QH[:, None] - anchors[q.level]).norm(dim=2))[:, known[q.level]], q.class_Q)
        for q in queries
    ]
    torch.testing.assert_close(losses[0], torch.stack(plain).sum())
    assert losses[1] > losses[0]
