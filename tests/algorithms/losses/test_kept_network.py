"""A network that goes on in the server's state where it stopped, against torch's own optimizer."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.losses.prototype_generator import train_kept
from shoal.algorithms.protocol import Tree

X = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))


def loss_of(network: nn.Module) -> Callable[[], Tensor]:
    return lambda: (network(X) - X[:, :3]).square().mean()


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_calls_go_on_as_one_training(decay: float) -> None:
    torch.manual_seed(5)
    twin = nn.Linear(4, 3)
    # Without decay plain Adam.
    made: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW if decay else torch.optim.Adam
    optimizer = made(twin.parameters(), lr=0.02, weight_decay=decay)
    server: Tree = {}
    for steps in (3, 1, 4):
        network = nn.Linear(4, 3)
        value = train_kept(server, network, loss_of(network), steps, 0.02, decay, 5)
        # What a checkpoint would do.
        server = {name: tensor.clone() for name, tensor in server.items()}
        for _ in range(steps):
            optimizer.zero_grad()
            expected = loss_of(twin)()
            expected.backward()
            optimizer.step()
        assert value == pytest.approx(expected.item(), rel=1e-5)
        torch.testing.assert_close(server["generator"], nn.utils.parameters_to_vector(twin.parameters()).detach())
        torch.testing.assert_close(nn.utils.parameters_to_vector(network.parameters()).detach(), server["generator"])
    assert server.keys() == {"generator", "generator.step", "generator.exp_avg", "generator.exp_avg_sq"}
    assert float(server["generator.step"]) == 8


def test_without_a_step_it_is_drawn_and_kept() -> None:
    server: Tree = {}
    assert math.isnan(train_kept(server, nn.Linear(4, 3), lambda: pytest.fail("no step"), 0, 0.1, 0.0, 2))
    torch.manual_seed(2)
    assert torch.equal(server["generator"], nn.utils.parameters_to_vector(nn.Linear(4, 3).parameters()).detach())
