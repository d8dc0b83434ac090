from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState

NAMES = st.sampled_from(["w", "opt.exp_avg", "proto/head", "c"])
TENSORS = st.builds(lambda n, seed: torch.arange(n) * seed, st.integers(0, 4), st.integers(-3, 3))
TREES = st.dictionaries(NAMES, TENSORS, min_size=1)
IDS = st.integers(0, 200_000)
COUNTS = st.integers(0, 99).map(lambda n: np.full((2, 3, 4), n))


def assert_equal(left: object, right: object) -> None:
    assert type(left) is type(right)
    if isinstance(left, dict) and isinstance(right, dict):
        assert left.keys() == right.keys()
        for name in left:
            assert_equal(left[name], right[name])
    elif isinstance(left, Tensor) and isinstance(right, Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, np.ndarray):
        np.testing.assert_array_equal(left, right)
    else:
        assert left == right


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        FederationState,
        round=st.integers(0, 10**6),
        server=TREES,
        clients=st.dictionaries(IDS, TREES),
        inboxes=st.dictionaries(IDS, TREES),
        downloads=st.dictionaries(IDS, TREES),
        newest=st.dictionaries(IDS, st.integers(0, 99)),
        scores=st.dictionaries(
            st.sampled_from(["trained", "served", "global"]), st.dictionaries(IDS, COUNTS, min_size=1)
        ),
        touched=st.dictionaries(IDS, st.booleans()),
        evaluated=st.sampled_from(["", "0f"]),
    )
)
def test_tensors_and_back(state: FederationState) -> None:
    tensors, plain = state.to_tensors()
    assert all(isinstance(t, Tensor) for t in tensors.values())
    assert_equal(vars(FederationState.from_tensors(tensors, plain)), vars(state))


def test_a_draft_leaves_its_state_alone(start: Callable[..., Server]) -> None:
    server = start({"algorithm.name": "fedgta", "participation.ratio": 0.5, "evaluation.every": 3})
    server.round()
    before = server.state
    tensors, plain = before.to_tensors()
    copies = {name: t.clone() for name, t in tensors.items()}
    for _ in range(3):
        server.round()
    again, plain_again = before.to_tensors()
    assert_equal(again, copies)
    assert plain_again == plain
    assert server.state.round == 4


@pytest.mark.parametrize(
    ("name", "model"), [("fedgta", "gamlp"), ("fedavg", "gamlp"), ("fedavg", "mlp"), ("local", "mlp")]
)
@pytest.mark.parametrize("stop", [1, 3])
def test_a_run_goes_on_from_a_stored_state(start: Callable[..., Server], name: str, model: str, stop: int) -> None:
    keys = {"algorithm.name": name, "model.name": model, "participation.ratio": 0.5, "evaluation.every": 2, "rounds": 5}
    through = start(keys)
    lines = [through.round() for _ in range(5)]
    first = start(keys)
    for _ in range(stop):
        first.round()
    tensors, plain = first.state.to_tensors()
    stored = {key: t.clone() for key, t in tensors.items()}
    second = start(keys, state=FederationState.from_tensors(stored, plain))
    again = [second.round() for _ in range(5 - stop)]
    for line in (*lines, *again):
        del line["seconds"]
    assert again == lines[stop:]
    assert_equal(second.state.to_tensors()[0], through.state.to_tensors()[0])
