"""That two runs have come to the same, to the last bit."""

import numpy as np
import torch

from shoal.algorithms.protocol import Tree
from shoal.engine.rounds.server import Server


def assert_same_trees(one: dict[int, Tree], other: dict[int, Tree]) -> None:
    """A client that keeps nothing is not in a checkpoint."""
    for i in one.keys() | other.keys():
        mine, its = one.get(i, {}), other.get(i, {})
        assert mine.keys() == its.keys(), i
        for name, tensor in mine.items():
            assert torch.equal(tensor, its[name]), (i, name)


def assert_same_runs(one: Server, other: Server, server: bool = True) -> None:
    """What clients keep, what was mixed for them, and, unless `server` is off, what the server keeps."""
    assert_same_trees(one.state.clients, other.state.clients)
    assert_same_trees(one.state.inboxes, other.state.inboxes)
    if server:
        assert_same_trees({0: one.state.server}, {0: other.state.server})


def assert_same_scores(one: Server, other: Server, *scopes: str) -> None:
    """Counts of all clients, in all scopes of the first run or in some."""
    for scope in scopes or one.state.scores:
        assert one.state.scores[scope].keys() == other.state.scores[scope].keys()
        for i, counts in one.state.scores[scope].items():
            np.testing.assert_array_equal(other.state.scores[scope][i], counts)
