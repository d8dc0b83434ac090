"""The server's network: what it is, and that it goes on in the server's state where it stopped, as torch's own does."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.losses.prototype_generator import PrototypeGenerator, train_generator, train_kept
from shoal.algorithms.protocol import Tree

GOAL = torch.randn(6, 5, generator=torch.Generator().manual_seed(4))
MOMENTS = {"generator", "generator.step", "generator.exp_avg", "generator.exp_avg_sq"}


def nearer(anchor_SH: Tensor) -> Tensor:
    return (anchor_SH - GOAL).square().mean()


def test_the_table_starts_from_a_standard_normal_distribution() -> None:
    torch.manual_seed(0)
    table = PrototypeGenerator(200, 50, normalized=False).table.detach()
    assert float(table.mean()) == pytest.approx(0, abs=0.05)
    assert float(table.std()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("decay", [0.0, 0.4])
@pytest.mark.parametrize("normalized", [False, True])
def test_calls_go_on_as_one_training_of_torch(normalized: bool, decay: float) -> None:
    """Against torch's own optimizer, plain Adam without decay, on a plain network, at rates of nobody's defaults."""
    torch.manual_seed(11)
    table = torch.randn(6, 5, requires_grad=True)
    network = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    made: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW if decay else torch.optim.Adam
    optimizer = made([table, *network.parameters()], lr=0.03, weight_decay=decay)

    def anchors() -> Tensor:
        z = network(table)
        return z / z.square().sum(1, keepdim=True).sqrt() if normalized else z

    server: Tree = {}
    for steps in (3, 1, 2):
        found, loss = train_generator(server, PrototypeGenerator(6, 5, normalized), nearer, steps, 0.03, decay, 11)
        # What a checkpoint would do.
        server = {name: tensor.clone() for name, tensor in server.items()}
        for _ in range(steps):
            optimizer.zero_grad()
            value = nearer(anchors())
            value.backward()
            optimizer.step()
        assert loss == pytest.approx(value.item(), rel=1e-5)
        torch.testing.assert_close(found, anchors().detach(), rtol=1e-4, atol=1e-5)
        assert not found.requires_grad
    assert server.keys() == MOMENTS
    assert float(server["generator.step"]) == 6
    again, loss = train_generator(server, PrototypeGenerator(6, 5, normalized), nearer, 0, 0.03, decay, 11)
    assert torch.equal(again, found)
    assert math.isnan(loss)


def test_without_a_step_it_is_drawn_and_kept() -> None:
    server: Tree = {}
    assert math.isnan(train_kept(server, nn.Linear(4, 3), lambda: pytest.fail("no step"), 0, 0.1, 0.0, 2))
    torch.manual_seed(2)
    assert torch.equal(server["generator"], nn.utils.parameters_to_vector(nn.Linear(4, 3).parameters()).detach())


def test_the_table_of_an_absent_class_stays() -> None:
    def three(anchor_SH: Tensor) -> Tensor:
        return (anchor_SH[:3] - GOAL[:3]).square().mean()

    server: Tree = {}
    for _ in range(2):
        train_generator(server, generator := PrototypeGenerator(6, 5, False), three, 200, 0.01, 5e-4, 3)
    start = PrototypeGenerator(6, 5, False)
    torch.random.manual_seed(3)
    start.reset_parameters()
    moved = (generator.table - start.table).norm(dim=1) / start.table.norm(dim=1)
    assert moved[3:].max() < 0.01
    assert moved[:3].min() > 0.1
