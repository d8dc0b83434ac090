"""Prototypes by certainty, what is in the bank, and how it votes."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.methods.fggp.prototypes import (
    Bank,
    Clusters,
    Vote,
    certain_classes,
    certain_prototypes,
    existing,
    last_of_clients,
    newest,
    summed_up,
    votes,
)

VOTES: list[Vote] = ["class_nearest", "class_avg", "softmax_sum", "sum_cos"]
CLASSES = 4


def drawn(class_B: list[int], seed: int = 0, width: int = 6) -> Bank:
    generator = torch.Generator().manual_seed(seed)
    return Bank(torch.rand(len(class_B), width, generator=generator), torch.tensor(class_B))


def by_hand(z: np.ndarray, bank: Bank, how: Vote, k: int, t: float) -> list[float]:
    """Scores of a node."""
    cos = [float(z @ p / np.linalg.norm(z) / np.linalg.norm(p)) for p in bank.proto_BH.double().numpy()]
    near = sorted(range(len(cos)), key=lambda b: (-cos[b], b))[:k]
    total = sum(math.exp(cos[b] / t) for b in near)
    found = []
    for c in range(CLASSES):
        of_class = [cos[b] for b in near if bank.class_B[b] == c]
        own = of_class if how in ("sum_cos", "class_nearest") else [math.exp(x / t) / total for x in of_class]
        mean = sum(own) / max(len(own), 1)
        score = {"class_nearest": max(own, default=0), "class_avg": mean}.get(how, sum(own))
        found.append(score if own else -math.inf)
    return found


@pytest.mark.parametrize("how", VOTES)
@pytest.mark.parametrize("k", [1, 3, 7, 8, 50])
def test_votes_are_their_formulas(how: Vote, k: int) -> None:
    """Class 2 has no entry."""
    bank = drawn([0, 0, 0, 0, 1, 3, 3])
    z_NH = torch.rand(20, 6, generator=torch.Generator().manual_seed(1))
    found = votes(z_NH, bank, CLASSES, how, k, 0.1)
    assert not found[:, 2].isfinite().any()
    for row, z in zip(found, z_NH.double().numpy()):
        torch.testing.assert_close(row, torch.tensor(by_hand(z, bank, how, k, 0.1)), rtol=1e-4, atol=1e-6)


def test_a_dead_feature_gets_finite_scores() -> None:
    for how in VOTES:
        found = votes(torch.zeros(1, 6), drawn([1, 3]), CLASSES, how, 20, 0.1)
        assert found[0, [1, 3]].isfinite().all()
        assert not found[0, [0, 2]].isfinite().any()


def test_prototypes_by_logits_are_equation_4() -> None:
    """Class 0: a training node, and one of logit -3; class 1: one of logit -0.5; class 2: logits that sum to 0."""
    logits = torch.tensor([[9.0, 9, 9], [-3, -4, -5], [-2, -0.5, -1], [-2.0, -4, 1.5], [-3.0, -2, -1.5]])
    z = torch.tensor([[1.0, 2], [3, -4], [5, 6], [1, 1], [2, 7]])
    class_N, weight_N = certain_classes(logits, torch.tensor([0]), torch.tensor([0]), by_logit=True)
    assert class_N.tolist() == [0, 0, 1, 2, 2]
    assert weight_N.tolist() == [1, -3, -0.5, 1.5, -1.5]
    proto, mass = certain_prototypes(z, class_N, weight_N, 4)
    assert mass.tolist() == [-2, -0.5, 0, 0]
    torch.testing.assert_close(proto[:2], torch.tensor([[(1 - 9) / -2, (2 + 12) / -2], [5.0, 6]]))
    # A sum of zero cannot be divided by, and class 3 has no node.
    assert existing(class_N, mass, 0.0).tolist() == [True, True, False, False]
    assert existing(class_N, torch.tensor([1.0, 0.9, 0, 0]), 1.0).tolist() == [True, False, False, False]


def test_last_of_clients_keeps_those_of_absent_clients() -> None:
    server: dict[str, torch.Tensor] = {}
    first, second = drawn([1, 2, 0, 2], 1), drawn([0], 2)
    assert torch.equal(last_of_clients(server, first, [2, 5, 7], [2, 2, 0]).proto_BH, first.proto_BH)
    found = last_of_clients(server, second, [2, 5], [1, 0])
    assert found.class_B.tolist() == [0, 0, 2]
    assert torch.equal(found.proto_BH, torch.cat([second.proto_BH, first.proto_BH[2:]]))
    assert server["proto.client"].tolist() == [2, 5, 5]
    found = last_of_clients(server, first, [1, 3], [2, 2])
    assert server["proto.client"].tolist() == [1, 1, 2, 3, 3, 5, 5]
    assert found.class_B.tolist() == [1, 2, 0, 0, 2, 0, 2]


def test_newest_entries_of_every_class_stay() -> None:
    first, second = drawn([2, 0], 1), drawn([0, 0, 2], 2)
    found = newest(None, first, 3)
    assert found.class_B.tolist() == [0, 2]
    assert torch.equal(found.proto_BH, first.proto_BH.flip(0))
    found = newest(newest(None, first, 2), second, 2)
    assert found.class_B.tolist() == [0, 0, 2, 2]
    expected = [second.proto_BH[0], second.proto_BH[1], first.proto_BH[0], second.proto_BH[2]]
    assert torch.equal(found.proto_BH, torch.stack(expected))


def blobs(per: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Of class 2 some points about each of three axes, of class 0 one; shuffled."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.eye(3, 6).repeat_interleave(per, 0) + 0.05 * torch.randn(3 * per, 6, generator=generator)
    proto = torch.cat([points, torch.ones(1, 6)])
    order = torch.randperm(len(proto), generator=generator)
    return proto[order], torch.tensor([2] * 3 * per + [0])[order]


@pytest.mark.parametrize("how", ["kmeans", "dbscan", "finch"])
def test_clusters_are_the_means_of_blobs(how: Clusters) -> None:
    proto, classes = blobs(5)
    bank = summed_up(proto, classes, CLASSES, how, 4, 3, 0.1, 7)
    assert bank.class_B.tolist() == [0, 2, 2, 2]
    assert torch.equal(bank.proto_BH[0], torch.ones(6))
    own = proto[classes == 2]
    expected = [own[own.argmax(1) == axis].mean(0) for axis in range(3)]
    for mean in expected:
        assert any(torch.allclose(mean, found, atol=1e-6) for found in bank.proto_BH[1:])


def test_every_prototype_or_one_a_class() -> None:
    proto, classes = blobs(2)
    every = summed_up(proto, classes, CLASSES, "none", 4, 3, 0.1, 7)
    assert every.class_B.tolist() == [0] + [2] * 6
    assert torch.equal(every.proto_BH[1:], proto[classes == 2])
    one = summed_up(proto, classes, CLASSES, "mean", 4, 3, 0.1, 7)
    assert one.class_B.tolist() == [0, 2]
    torch.testing.assert_close(one.proto_BH[1], proto[classes == 2].mean(0))


def test_clusters_of_few_or_equal_prototypes() -> None:
    """No more clusters than points by k-means; by density, who belongs nowhere stands for itself."""
    same = torch.ones(4, 6), torch.full((4,), 1)
    assert summed_up(*same, CLASSES, "kmeans", 4, 3, 0.1, 7).class_B.tolist() == [1]
    assert summed_up(*same, CLASSES, "dbscan", 4, 3, 0.1, 7).class_B.tolist() == [1]
    apart = torch.eye(3, 6), torch.full((3,), 1)
    for how in ("kmeans", "dbscan"):
        bank = summed_up(*apart, CLASSES, how, 4, 6, 0.1, 7)  # type: ignore[arg-type]
        assert bank.class_B.tolist() == [1, 1, 1]
        assert {tuple(row) for row in bank.proto_BH.tolist()} == {tuple(row) for row in torch.eye(3, 6).tolist()}
