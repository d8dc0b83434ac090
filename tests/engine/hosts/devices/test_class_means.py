"""Means by class of a stack of clients, beside those of each client alone."""

import torch

from shoal.algorithms.losses.prototypes import bits, class_means, row_bytes
from shoal.engine.hosts.devices.class_means import ClassMeans, means_by_class
from shoal.engine.messages.cell import Outcome

CLASSES, WIDTH = 10, 3


def test_means_are_those_of_every_client() -> None:
    """Clients of 4, 1 and 7 rows, the last two behind one another in a batch, and one without any."""
    draws = torch.Generator().manual_seed(0)
    labels = [torch.randint(CLASSES, (rows,), generator=draws) for rows in (4, 1, 7)]
    embedded = [torch.randn(len(label), WIDTH, generator=draws) for label in labels]
    parts = []
    for batch in ([0, 1], [2]):
        longest = max(len(labels[i]) for i in batch)
        # What padded rows hold is in no mean.
        z_BNH, label_BN = torch.full((len(batch), longest, WIDTH), 9.0), torch.full((len(batch), longest), -100)
        for row, i in enumerate(batch):
            z_BNH[row, : len(labels[i])], label_BN[row, : len(labels[i])] = embedded[i], labels[i]
        parts.append(means_by_class(z_BNH, label_BN, CLASSES))
    means = ClassMeans.of(parts, 4, "present")
    means.take([t.cpu() for t in means.to_fetch()])
    outcome = Outcome()
    means.put(outcome, [2, 0])
    sizes = means.sizes()
    for i, (z_NH, label_N) in enumerate(zip(embedded, labels)):
        mean_CH, count_C = class_means(z_NH, label_N, CLASSES)
        torch.testing.assert_close(means.mean_BCH[i], mean_CH)
        assert means.count_BC[i].tolist() == count_C.tolist()
        # A bit for each of ten classes.
        assert sizes[i] == row_bytes(count_C > 0, WIDTH) + 2
        if i != 1:
            row = [2, 0].index(i)
            assert torch.equal(outcome.tensors["proto"][row], means.mean_BCH[i])
            assert torch.equal(outcome.tensors["present"][row], bits(count_C > 0))
    assert not means.mean_BCH[3].any()
    assert sizes[3] == 2
    assert torch.equal(means.weight_of([0, 2]), (means.count_BC[0] + means.count_BC[2]).double()[:, None])
    added = ClassMeans(means.mean_BCH, means.count_BC, "").weighted()["proto"].view(4, CLASSES, WIDTH)
    torch.testing.assert_close(added[0], means.mean_BCH[0].double() * means.count_BC[0].double()[:, None])
