"""Training rows in one array: a cell's batch is that which is padded client by client."""

import numpy as np
import pytest
import torch
from support.other_device.device import load
from support.other_device.device_counts import DeviceCounts
from torch import Tensor

from shoal.algorithms.training.batched.batched_inputs import BatchedRows
from shoal.algorithms.training.batched.batched_training import Batch
from shoal.engine.hosts.devices.training_rows import Places, TrainingRows
from shoal.storage.graph.sparse_matrix import SparseMatrix

COUNTS, F = [3, 0, 1, 4, 2], 6


def drawn(client: int, sparse: bool = False) -> tuple[list[Tensor | SparseMatrix], Tensor]:
    """Two hops and labels of a client."""
    generator = torch.Generator().manual_seed(client)
    hops = [torch.randn(COUNTS[client], F, generator=generator).relu() for _ in range(2)]
    label = torch.randint(0, 4, (COUNTS[client],), generator=generator)
    return [SparseMatrix(hop.to_sparse_csr()) if sparse else hop for hop in hops], label


def filled(device: torch.device, sparse: bool = False) -> TrainingRows:
    rows = TrainingRows(np.array(COUNTS), 2, F, device)
    for client in (3, 0, 1, 4, 2):
        hops, label = drawn(client, sparse)
        rows.add(client, [hop.to(device) for hop in hops], label.to(device), 10.0 * client)
    return rows


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("clients", [[0, 2, 3], [4], [3, 4, 0]])
def test_batches_are_those_of_clients(clients: list[int], sparse: bool) -> None:
    rows = filled(torch.device("cpu"), sparse)
    batch = rows.batch(rows.places(clients))
    expected = Batch.of([drawn(i)[0] for i in clients], [drawn(i)[1] for i in clients])
    assert isinstance(batch.inputs, BatchedRows)
    assert isinstance(expected.inputs, BatchedRows)
    assert all(map(torch.equal, batch.inputs.tensors, expected.inputs.tensors))
    assert batch.inputs.lengths(1) == expected.inputs.lengths(1)
    assert torch.equal(batch.label_BN, expected.label_BN)
    assert torch.equal(batch.count_B, expected.count_B)
    assert rows.weights == {i: 10.0 * i for i in range(5)}


def test_a_batch_is_one_operator_for_each_hop_and_labels() -> None:
    other = load()
    rows = filled(other)
    places = rows.places([0, 3, 4])
    there = Places(places.lengths, places.place_BN.to(other), places.count_B.to(other))
    with DeviceCounts(other) as counts:
        rows.batch(there)
    assert counts.counts() == {"launches": 3, "synchronisations": 0, "copies": 0}


def test_a_client_of_other_rows_is_refused() -> None:
    rows = TrainingRows(np.array(COUNTS), 2, F, torch.device("cpu"))
    with pytest.raises(RuntimeError):
        rows.add(0, *drawn(3), 1.0)
    assert not rows.weights
