"""Measured steps of mean clients: which part of a client is measured, and what is measured once."""

import numpy as np
import pytest

from shoal.algorithms.client import ClientInfo
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.models.names import ModelSpec
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.messages.models import built_models
from shoal.engine.messages.trainers import AUTOGRAD
from shoal.engine.runs.measuring import MOST_ENTRIES, MOST_NODES, MeanClient, Measured
from shoal.storage.options.propagation import PropagationOptions


def client_of(nodes: int, degree: int = 4, train: float = 0.2) -> MeanClient:
    info = ClientInfo(0, nodes, int(train * nodes), 3)
    return MeanClient(info, 16, (degree * nodes, 0, 0), PropagationOptions(hops=0), None)


def test_a_part_has_the_shares_of_the_whole() -> None:
    whole = client_of(40_000)
    part = whole.part(0.05)
    assert (part.info.nodes, part.info.train, part.edges) == (2000, 400, (8000, 0, 0))
    assert part.likeness() == whole.likeness() != client_of(40_000, degree=6).likeness()


@pytest.mark.parametrize(("client", "batch", "share"), [
    (client_of(MOST_NODES), None, 1.0),
    (client_of(4 * MOST_NODES), None, 0.25),
    (client_of(1000, degree=400), None, MOST_ENTRIES / 400_000),
    (client_of(4 * MOST_NODES), 10_000, 1.0),
])  # fmt: skip
def test_small_clients_are_measured_as_a_whole(client: MeanClient, batch: int | None, share: float) -> None:
    assert client.few(batch) == pytest.approx(share)


def test_clients_that_differ_in_size_share_what_was_measured() -> None:
    algorithm = load(describe("fedavg", {}))
    shape = {"features": 16, "classes": 3, "hops": 0, "dropout": 0.5, "task": "node"}
    models = built_models(algorithm, [ModelSpec(name="gcn")], None, **shape)[MODEL]
    known, train = Measured(), TrainOptions()
    few, many = (
        known.seconds(models, [AUTOGRAD], client_of(nodes), train, 1.0) for nodes in (8 * MOST_NODES, 16 * MOST_NODES)
    )
    assert few.shape == (1, 2)
    assert np.isfinite(many).all()
    assert (many >= few).all()
    # Both are on one line, which begins above zero.
    assert (many <= 2 * few).all()
