"""The scorer by hand, its training against plain Adam, and FedPG with it."""

from collections.abc import Callable

import pytest
import torch

from shoal.algorithms.methods.fedpg.alignment_term import SCORER, WIDTH, attention_weights, start_scorer, train_scorer
from shoal.algorithms.methods.fedpg.fedpg import FedPG
from shoal.algorithms.protocol import Tree
from shoal.engine.rounds.server import Server

Z = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
PG = {"algorithm.name": "fedpg", "algorithm.alignment": "prototype"}


def scorer() -> torch.Tensor:
    made = start_scorer(2, 5, torch.Generator().manual_seed(1))
    made[:, :, -1] = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(2))
    return made


def test_weights_equal_a_loop() -> None:
    made = scorer()
    found = attention_weights(made, Z)
    for hop in range(2):
        raw = [float(made[hop, :, -1] @ torch.tanh(made[hop, :, :-1] @ z)) for z in Z]
        score = torch.tensor([e if e > 0 else 0.2 * e for e in raw])
        torch.testing.assert_close(found[hop] / found[hop].sum(), score.softmax(0))
    # Of each hop, or the weights of a hop with small scores would vanish.
    assert found.amax(1).tolist() == [1, 1]


def test_all_neighbours_weigh_the_same_at_first() -> None:
    made = start_scorer(2, 5, torch.Generator().manual_seed(1))
    assert torch.equal(attention_weights(made, Z), torch.ones(2, 7))


def test_steps_are_those_of_adam() -> None:
    reference = scorer().requires_grad_()
    optimizer = torch.optim.Adam([reference], lr=0.02)
    state: Tree = {SCORER: scorer().requires_grad_()}
    for _ in range(3):
        optimizer.zero_grad()
        attention_weights(reference, Z)[:, :3].sum().backward()
        optimizer.step()
        attention_weights(state[SCORER], Z)[:, :3].sum().backward()
        train_scorer(state, 0.02)
        # What a visit leaves behind and the next one finds.
        state = {name: tensor.detach().clone() for name, tensor in state.items()}
        state[SCORER].requires_grad_()
        train_scorer(state, 0.02)
    assert torch.equal(state[SCORER], reference)
    train_scorer({}, 0.02)


def test_a_client_learns_whom_to_hear(run: Callable[..., Server]) -> None:
    deaf, attentive = (run({**PG, "algorithm.attention": kind}, rounds=1) for kind in ("none", "node"))
    assert torch.equal(attentive.state.server["proto"], deaf.state.server["proto"])
    deaf, attentive = (run({**PG, "algorithm.attention": kind}, rounds=3) for kind in ("none", "node"))
    assert not torch.equal(attentive.state.server["proto"], deaf.state.server["proto"])
    assert torch.equal(attentive.state.server["present"], deaf.state.server["present"])
    kept = attentive.state.clients[0]
    assert float(kept["attention.step"]) == 2 * 3
    assert kept[SCORER][:, :, -1].abs().min() > 0
    assert SCORER not in attentive.state.clients[5]


def test_it_needs_the_alignment_that_trains_it() -> None:
    for options in ({"alignment": "node"}, {"alignment": "prototype", "hops": 0}):
        with pytest.raises(ValueError, match="attention"):
            FedPG(attention="node", **options)  # type: ignore[arg-type]
