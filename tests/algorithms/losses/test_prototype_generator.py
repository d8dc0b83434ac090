"""The server's generator: what it is, and that it goes on where it stopped."""

import math

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.losses.prototype_generator import PrototypeGenerator, train_generator
from shoal.algorithms.protocol import Tree

GOAL = torch.randn(6, 5, generator=torch.Generator().manual_seed(4))


def nearer(anchor_SH: Tensor) -> Tensor:
    return (anchor_SH - GOAL).square().mean()


def train(server: Tree, steps: int, normalized: bool = False, seed: int = 3) -> tuple[Tensor, float]:
    return train_generator(server, PrototypeGenerator(6, 5, normalized), nearer, steps, 0.01, 5e-4, seed)


def test_anchors_are_the_network_over_the_table() -> None:
    generator = PrototypeGenerator(6, 5, normalized=True)
    first, second = generator.layers
    for slot in range(6):
        hidden = (first.weight @ generator.table[slot] + first.bias).clamp_min(0)
        anchor = second.weight @ hidden + second.bias
        torch.testing.assert_close(generator()[slot], anchor / anchor.norm())


def test_the_table_starts_from_a_standard_normal_distribution() -> None:
    torch.manual_seed(0)
    table = PrototypeGenerator(200, 50, normalized=False).table.detach()
    assert float(table.mean()) == pytest.approx(0, abs=0.05)
    assert float(table.std()) == pytest.approx(1, abs=0.05)


def test_the_loss_falls() -> None:
    server: Tree = {}
    losses = [train(server, 20)[1] for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2


def test_rounds_equal_one_long_training() -> None:
    long: Tree = {}
    expected, _ = train(long, 9)
    short: Tree = {}
    for steps in (2, 3, 4):
        found, _ = train({}, 1, seed=99)
        found, _ = train(short, steps)
        # What a checkpoint would do.
        short = {name: tensor.clone() for name, tensor in short.items()}
    assert torch.equal(found, expected)
    assert short.keys() == long.keys()
    for name, tensor in long.items():
        assert torch.equal(short[name], tensor), name


@pytest.mark.parametrize("normalized", [False, True])
def test_steps_are_those_of_adamw(normalized: bool) -> None:
    """Two calls against torch's own optimizer on a plain network, at rates that are nobody's defaults."""
    torch.manual_seed(11)
    table = torch.randn(6, 5, requires_grad=True)
    network = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    optimizer = torch.optim.AdamW([table, *network.parameters()], lr=0.03, weight_decay=0.4)

    def anchors() -> Tensor:
        z = network(table)
        return z / z.square().sum(1, keepdim=True).sqrt() if normalized else z

    server: Tree = {}
    for steps in (3, 2):
        generator = PrototypeGenerator(6, 5, normalized)
        found, loss = train_generator(server, generator, nearer, steps, 0.03, 0.4, 11)
        for _ in range(steps):
            optimizer.zero_grad()
            value = nearer(anchors())
            value.backward()
            optimizer.step()
        assert loss == pytest.approx(value.item(), rel=1e-5)
        torch.testing.assert_close(found, anchors().detach(), rtol=1e-4, atol=1e-5)
        assert not found.requires_grad
    assert server.keys() == {"generator", "generator.step", "generator.exp_avg", "generator.exp_avg_sq"}
    assert float(server["generator.step"]) == 5


def test_no_step_gives_the_anchors_as_they_are() -> None:
    server: Tree = {}
    trained, _ = train(server, 4)
    again, loss = train(server, 0)
    assert torch.equal(again, trained)
    assert math.isnan(loss)


def test_the_seed_decides_the_start_only() -> None:
    assert torch.equal(train({}, 1)[0], train({}, 1)[0])
    assert not torch.equal(train({}, 1)[0], train({}, 1, seed=4)[0])


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
